"""What a sparse federated run costs, without running it: the bytes and FLOPs of Table 1 of Huang et al. 2022 (FedSpa).

Bytes are those of active values alone, as the paper counts. Arithmetic is 2 operations for each multiply-add; a
backward pass is twice the forward one, also in the first layer; a layer costs its density times what it costs dense.
The search for a mask adds one dense batch to each client's turn. What a run really did stands in its ledger.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from moiety.algorithms import fedspa
from moiety.data import FederatedData
from moiety.engines.base import RoundInfo
from moiety.engines.sequential import Sequential
from moiety.errors import number, whole
from moiety.loop.costs import count_by_module
from moiety.loop.evaluate import client_functions
from moiety.run.build import make_problem
from moiety.run.settings import Options, complete_options
from moiety.split.masks import layer_counts, maskable, volume
from moiety.types import Algorithm


def layer_flops(model: nn.Module, example: Tensor) -> dict[str, float]:
    """Operations of one forward pass for one row, by the module that makes them, as ``FlopCounterMode`` counts them.

    ``example`` is an input of one row. A module's number is its own, without those of the modules inside it; the
    model itself, where it computes with parameters of its own, has the name "".

    >>> layer_flops(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), torch.zeros(1, 3))
    {'0': 30.0, '2': 20.0}
    """
    whole("example", len(example), 1, 1)
    with torch.no_grad(), count_by_module() as (found, _):
        model(example)
    own = {path: found.get(module, 0.0) for path, module in model.named_modules()}
    return {path: flops for path, flops in own.items() if flops}


def active_parameters(model: nn.Module, density: float = 1.0, densities: str = "erk") -> dict[str, int]:
    """How many values of each parameter are active."""
    params = dict(model.named_parameters())
    return {name: p.numel() for name, p in params.items()} | layer_counts(params, density, densities)


def bytes_of_run(
    model: nn.Module, *, rounds: int, clients: int, density: float = 1.0, up_density: float | None = None
) -> dict[str, int]:
    """Bytes of values that cross in a run: what every client of a round is sent, and what it sends.

    Args:
        model: the shared model.
        rounds: how many.
        clients: those asked in a round.
        density: the share of parameters that is active.
        up_density: on the way up, where it is another.

    Returns:
        ``down``, ``up`` and ``total``.
    """
    for name, value in (("rounds", rounds), ("clients", clients)):
        whole(name, value, 1)
    size = next(model.parameters()).element_size()
    number("density", density, "> 0 and <= 1", lambda d: 0 < d <= 1)
    up = density if up_density is None else up_density
    number("up_density", up, "> 0 and <= 1", lambda d: 0 < d <= 1)
    parameters = sum(p.numel() for p in model.parameters())
    down_bytes, up_bytes = (size * volume(parameters, share) * rounds * clients for share in (density, up))
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
        example: an input of one row.
        rounds: how many.
        clients: those asked in a round.
        epochs: passes over a client's examples in a round.
        examples: of one client, or their mean.
        density: the share of parameters that is active.
        densities: of the layers, ``erk`` or ``uniform``.
        search_batch: rows of the dense batch with which a mask is searched in each turn; 0 where none is.

    Returns:
        ``training``, ``search`` and ``total``.
    """
    params = dict(model.named_parameters())
    active = layer_counts(params, density, densities)
    share = {name.rpartition(".")[0]: active[name] / params[name].numel() for name in maskable(params)}
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

    Turns of a few clients are timed one by one, with the search and without, and the medians compared. It depends on
    the machine and on what else it does.

    Args:
        model: the shared model.
        data: the examples of all clients.
        clients: how many of them take a turn, the first ones.
        repeats: turns of each.
        seed: of their batches.
        options: of ``moiety.fedspa``, but for ``search``.
    """
    whole("clients", clients, 1, len(data))
    whole("repeats", repeats, 1)
    with_search, without = (
        _turn(model, data, fedspa(search=search, **options), seed, range(clients)) for search in ("dst", "rsm")
    )
    # By turns, so that what else the machine does befalls both.
    times = [(_seconds(with_search), _seconds(without)) for _ in range(repeats)]
    one, other = statistics.median(t for t, _ in times), statistics.median(t for _, t in times)
    return max(0.0, one - other) / other


def _turn(
    model: nn.Module, data: FederatedData, algorithm: Algorithm, seed: int, clients: range
) -> Callable[[], object]:
    """The local work of some clients, ready to be timed."""
    options = complete_options(Options(rounds=1, seed=seed), model, data, algorithm)
    problem = make_problem(model, data, algorithm, None, options)
    received = algorithm.broadcast(problem.first_server(algorithm))
    states = [problem.first_state(algorithm) for _ in clients]
    jobs = problem.make_jobs(algorithm.phases, clients, states, "train", 0, part="train")
    engine = Sequential(problem, client_functions(algorithm))
    return lambda: engine.map("train", jobs, received, RoundInfo())


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
