"""What training costs, without running it: the memory of a device, and the bytes and FLOPs of a sparse run.

Memory is that of Table 10 and section B.4 of Pillutla et al. (2022): 3 size(u) + 2 size(v) + size(backprop). That is
the broadcast shared part, its current value and its gradient; the personal part and its gradient; and what autograd
stores for one row between the forward and the backward pass. Full personalisation has u and v both as large as the
model.

Bytes and FLOPs are those of Table 1 of Huang et al. 2022 (FedSpa). Bytes are those of active values only, as the paper
counts. Arithmetic is 2 operations for each multiply-add; a backward pass is twice the forward one, also in the first
layer; a layer costs its density times what it costs dense. The search for a mask adds one dense batch to each client's
turn. A run's ledger has what it really cost.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from timeit import timeit
from typing import Any

import torch
from torch import Tensor, nn

from moiety import task as tasks
from moiety.algorithms import fedspa
from moiety.data import FederatedData
from moiety.engines.base import RoundInfo
from moiety.engines.sequential import Sequential
from moiety.errors import must, number, whole
from moiety.loop.costs import count_by_module
from moiety.loop.evaluate import client_functions
from moiety.run.build import make_problem
from moiety.run.settings import Options, complete_options
from moiety.split import Split
from moiety.split.masks import find_maskable, layer_counts, round_share
from moiety.transport import device_memory, value_bytes
from moiety.types import Algorithm, Batch, Params, Task

NOTHING, EVERYTHING = "no personalisation", "full personalisation"


def memory_rows(
    model: nn.Module,
    splits: Mapping[str, Split],
    batch: Batch,
    *,
    loss: tasks.Loss = "cross_entropy",
    inputs: Sequence[str] = ("x",),
) -> list[dict[str, Any]]:
    """A row for no personalisation, for each of ``splits``, and for full personalisation.

    Args:
        model: the model; a split that trains a changed copy of it (adapters) brings its own.
        splits: by the name of the row.
        batch: one row of data.
        loss: as in ``fit``.
        inputs: as in ``fit``.

    Returns:
        Rows with ``row``, numbers of ``shared`` and ``personal`` parameters, ``backprop`` and ``bytes`` in bytes,
        ``megabytes`` (10^6 bytes), and ``saving``: the share of full personalisation's bytes that is not needed.

    >>> import torch
    >>> import moiety as mo
    >>> model = mo.models.mlp(4, 2, hidden=(3,), seed=0)
    >>> batch = {"x": torch.zeros(1, 4), "y": torch.zeros(1, dtype=torch.long)}
    >>> for row in memory_rows(model, {"output layer": mo.split.output_layer(model)}, batch):
    ...     print(row["row"], row["shared"], row["personal"])
    no personalisation 23 0
    output layer 15 8
    full personalisation 23 23
    """
    rows = len(next(iter(batch.values())))
    must(rows == 1, "batch", "one row", f"{rows} rows", "The estimate is for batch size 1.")

    def task_of(module: nn.Module, split: Split | None) -> Task:
        return tasks.from_module(module, loss=loss, inputs=inputs, penalty=split.penalty if split else None)

    def row(name: str, task: Task, shared: Params, personal: Params, parameters: Sequence[str]) -> dict[str, Any]:
        backprop = tasks.backprop_bytes(task, batch, parameters)
        counts = {k: sum(p.numel() for p in v.values()) for k, v in (("shared", shared), ("personal", personal))}
        return {"row": name, **counts, "backprop": backprop, "bytes": device_memory(shared, personal, backprop)}

    whole = task_of(model, None)
    names = [name for name in whole.init if name not in whole.buffers]
    table = [row(NOTHING, whole, whole.init, {}, names)]
    for name, split in splits.items():
        task = task_of(split.model or model, split)
        must(task.init.keys() == split.sizes.keys(), f"splits[{name!r}]", "made for this model", "another's")
        parameters = (*split.trained_shared, *split.trained_personal)
        table.append(row(name, task, *split.parts(task.init), parameters))
    table.append(row(EVERYTHING, whole, whole.init, whole.init, names))
    full = table[-1]["bytes"]
    return [{**r, "megabytes": r["bytes"] / 1e6, "saving": 1 - r["bytes"] / full} for r in table]


def sparse_memory(
    model: nn.Module,
    batch: Batch,
    *,
    density: float,
    densities: str = "erk",
    loss: tasks.Loss = "cross_entropy",
    inputs: Sequence[str] = ("x",),
) -> dict[str, int]:
    """Bytes on a device that trains a sparse model by FedSpa, in three forms.

    Args:
        model: the shared model.
        batch: one row of data.
        density: the share of parameters that is active.
        densities: how layers share the density, ``erk`` or ``uniform``.
        loss: as in ``fit``.
        inputs: as in ``fit``.

    Returns:
        ``dense``, what FedAvg needs; ``sparse``, what Huang et al. (2022) mean: active values, and masks of one bit a
        number; ``held``, what this implementation has: dense tensors, the mask once more as wide as the weights, and
        the masks before and after the search, a byte a number each.

    >>> import torch
    >>> import moiety as mo
    >>> batch = {"x": torch.zeros(1, 4), "y": torch.zeros(1, dtype=torch.long)}
    >>> sparse_memory(mo.models.mlp(4, 2, hidden=(3,), seed=0), batch, density=0.5)
    {'dense': 324, 'sparse': 195, 'held': 432}
    """
    whole = tasks.from_module(model, loss=loss, inputs=inputs)
    backprop = tasks.backprop_bytes(whole, batch, [name for name in whole.init if name not in whole.buffers])
    active = layer_counts(whole.init, density, densities)
    shares = {name: count / whole.init[name].numel() for name, count in active.items()}
    weights = {name: whole.init[name] for name in active}
    dense = device_memory(whole.init, {}, backprop)
    ours = dense + value_bytes(weights) + 2 * sum(p.numel() for p in weights.values())
    return {"dense": dense, "sparse": device_memory(whole.init, {}, backprop, shares), "held": ours}


def layer_flops(model: nn.Module, example: Tensor) -> dict[str, float]:
    """Operations of one forward pass for one row, by the module that makes them, as ``FlopCounterMode`` counts them.

    ``example`` is an input of one row. A module's number does not include those of the modules inside it; the model
    itself has the name "".

    >>> layer_flops(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), torch.zeros(1, 3))
    {'0': 30.0, '2': 20.0}
    """
    whole("example", len(example), 1, 1)
    with torch.no_grad(), count_by_module() as (flops, _):
        model(example)
    return {path: flops[module] for path, module in model.named_modules() if flops.get(module)}


def bytes_of_run(
    model: nn.Module, *, rounds: int, clients: int, density: float = 1.0, up_density: float | None = None
) -> dict[str, int]:
    """Bytes of values that are sent in a run: to every client of a round, and back.

    Args:
        model: the shared model.
        rounds: the number of rounds.
        clients: the number of clients in a round.
        density: the share of parameters that is active.
        up_density: the share on the way up, where it differs.

    Returns:
        ``down``, ``up`` and ``total``.

    >>> import moiety as mo
    >>> model = mo.models.linear(4, 2)  # ten parameters of four bytes
    >>> bytes_of_run(model, rounds=10, clients=5)
    {'down': 2000, 'up': 2000, 'total': 4000}
    """
    for name, value in (("rounds", rounds), ("clients", clients)):
        whole(name, value, 1)
    size = next(model.parameters()).element_size()
    number("density", density, "> 0 and <= 1", lambda d: 0 < d <= 1)
    up = density if up_density is None else up_density
    number("up_density", up, "> 0 and <= 1", lambda d: 0 < d <= 1)
    parameters = sum(p.numel() for p in model.parameters())
    down_bytes, up_bytes = (size * round_share(parameters, share) * rounds * clients for share in (density, up))
    return {"down": down_bytes, "up": up_bytes, "total": down_bytes + up_bytes}


def flops_of_run(
    model: nn.Module,
    example: Tensor,
    *,
    rounds: int,
    clients: int,
    epochs: int,
    examples: float,
    density: float = 1.0,
    densities: str = "erk",
    search_batch: int = 0,
) -> dict[str, float]:
    """Operations of all local work of a run.

    Args:
        model: the shared model.
        example: an input of one row, with its first axis: ``[1, ...]``.
        rounds: the number of rounds.
        clients: the number of clients in a round.
        epochs: passes over a client's examples in a round.
        examples: the examples of one client, or their mean.
        density: the share of parameters that is active.
        densities: how layers share the density, ``erk`` or ``uniform``.
        search_batch: rows of the dense batch of the search for a mask in each turn; 0 where there is no search.

    Returns:
        ``training``, ``search`` and ``total``.

    >>> import torch
    >>> import moiety as mo
    >>> model = mo.models.linear(4, 2)
    >>> flops_of_run(model, torch.zeros(1, 4), rounds=10, clients=5, epochs=1, examples=20)["total"]
    48000.0
    """
    params = dict(model.named_parameters())
    active = layer_counts(params, density, densities)
    share = {name.rpartition(".")[0]: active[name] / params[name].numel() for name in find_maskable(params)}
    dense = layer_flops(model, example)
    forward = sum(share.get(layer, 1.0) * flops for layer, flops in dense.items())
    turns = rounds * clients
    training = 3 * forward * turns * epochs * examples
    search = 3.0 * sum(dense.values()) * turns * search_batch
    return {"training": training, "search": search, "total": training + search}


def search_share(
    model: nn.Module, data: FederatedData, *, clients: int = 3, repeats: int = 3, seed: int = 0, **options: Any
) -> float:
    """The time of a search for masks as a share of the time of local training (Huang et al. 2022: 5 to 20%).

    Turns of a few clients are timed one by one, with the search and without, and the medians compared. The result
    depends on the machine and on its other load.

    Args:
        model: the shared model.
        data: the examples of all clients.
        clients: the number of clients that take a turn, the first ones.
        repeats: the number of turns of each.
        seed: seed of their batches.
        options: options of ``moiety.fedspa``, except ``search``.
    """
    whole("clients", clients, 1, len(data))
    whole("repeats", repeats, 1)
    with_search, without = (
        _prepare_turn(model, data, fedspa(search=search, **options), seed, range(clients)) for search in ("dst", "rsm")
    )
    # In turns, so that other load of the machine slows both.
    times = [(timeit(with_search, number=1), timeit(without, number=1)) for _ in range(repeats)]
    one, other = (float(statistics.median(column)) for column in zip(*times, strict=True))
    return max(0.0, one - other) / other


def _prepare_turn(
    model: nn.Module, data: FederatedData, algorithm: Algorithm, seed: int, clients: range
) -> Callable[[], object]:
    """The local work of some clients, ready to be timed."""
    options = complete_options(Options(rounds=1, seed=seed), model, data, algorithm)
    problem = make_problem(model, data, algorithm, None, options)
    received = algorithm.broadcast(problem.first_server(algorithm))
    states = [problem.first_state(algorithm) for _ in clients]
    jobs = problem.make_jobs(algorithm.phases, clients, states, "train", 0, part="train")
    engine = Sequential(problem, client_functions(problem, algorithm))
    return lambda: engine.map("train", jobs, received, RoundInfo())
