"""Scores of every client's personal model and of the shared model alone, through the engine of the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from moiety import tree
from moiety.clients import Store
from moiety.engines.choose import Engine
from moiety.engines.problem import Function, Problem, Served
from moiety.evaluation import Row, client_rows
from moiety.types import Algorithm, Params, Phase, Tree, Work

EVALUATION_BATCH = 256


def served(algorithm: Algorithm) -> dict[str, Served]:
    """What engines run for clients: local work, the algorithm's rule for newcomers, and scoring."""
    phases = tuple(algorithm.phases)
    return {
        "train": Served(algorithm.client_update, phases),
        "adapt": Served(algorithm.adapt, phases),
        "score": Served(scoring(algorithm), ("score",)),
    }


def scoring(algorithm: Algorithm) -> Function:
    """Mean loss and metric of a client's personal model over its batches."""

    def score(work: Work, received: Params, state: Tree) -> Tensor:
        model = work.compose(*algorithm.personal_model(received, state))
        sums = torch.zeros_like(work.examples).repeat(2)
        for batch in work.batches("score"):
            # In float64, as the pooled scores are: a tie must not look like a gain of the last digit.
            scores = torch.stack([column.double() for column in work.task.scores(model, batch)])
            sums = sums + (torch.where(batch["mask"], scores, 0) if "mask" in batch else scores).sum(1)
        return sums / work.examples

    return score


def evaluate(
    problem: Problem,
    algorithm: Algorithm,
    engine: Engine,
    server: Tree,
    store: Store,
    *,
    part: str,
    round: int,
    clients: np.ndarray,
) -> list[Row]:
    """A row per client. Clients that keep no state get their personal model by the algorithm's own rule first."""
    data = problem.data
    sizes = data.sizes(part)
    tested = clients[sizes[clients] > 0]
    received = algorithm.broadcast(server)
    first = problem.first(algorithm)
    alone = algorithm.personal_model(received, first)
    shared = pooled(problem, problem.compose(*alone), tested, part)
    if not tree.leaves(first):
        personal = shared  # the very same model
    else:
        states = current_states(problem, algorithm, engine, received, store, tested, round)
        personal = per_client(problem, engine, received, tested, states, part)
    return client_rows(
        [data.ids[int(i)] for i in clients],
        data.sizes("train")[clients],
        sizes[clients],
        spread(personal, tested, clients),
        spread(shared, tested, clients),
        higher_is_better=problem.task.metric.higher_is_better,
    )


def current_states(
    problem: Problem,
    algorithm: Algorithm,
    engine: Engine,
    received: Params,
    store: Store,
    clients: Sequence[int] | np.ndarray,
    round: int,
) -> list[Tree]:
    """The clients' states as they would predict with now."""
    states = store.get(clients)
    if algorithm.stateful:
        return states
    jobs = problem.jobs(algorithm.phases, clients, states, "adapt", round, part="train")
    # Copied: scoring comes next, in the memory that holds them.
    adapted = engine.map("adapt", jobs, received, scale=1.0, round=round)
    return [tree.map_leaves(torch.clone, state) for state in adapted]


def per_client(
    problem: Problem,
    engine: Engine,
    received: Params,
    clients: np.ndarray,
    states: Sequence[Tree],
    part: str,
) -> np.ndarray:
    """Mean loss and metric [clients, 2], each client with its own model."""
    phases = {"score": Phase(epochs=1, steps=None, batch_size=EVALUATION_BATCH, shuffle=False)}
    jobs = problem.jobs(phases, clients, states, part=part)
    found = engine.map("score", jobs, received, scale=1.0, round=0)
    return torch.stack(found).double().numpy() if found else np.zeros((0, 2))


def pooled(problem: Problem, model: Params, clients: np.ndarray, part: str) -> np.ndarray:
    """Mean loss and metric [clients, 2], all clients with one model: rows of many clients share a batch."""
    if not len(clients):
        return np.zeros((0, 2))
    spans = [problem.data.rows(int(c), part) for c in clients]
    rows = torch.from_numpy(np.concatenate([np.arange(a, b) for a, b in spans]))
    sizes = np.array([b - a for a, b in spans])
    parts = []
    with torch.no_grad():
        # A model that normalises by the batch must see one client's rows at a time.
        apart = sizes.tolist() if problem.task.mixes_examples else EVALUATION_BATCH * 4
        for index in torch.split(rows, apart):
            batch = {name: column.index_select(0, index) for name, column in problem.columns.items()}
            parts.append(torch.stack(problem.task.scores(model, batch), dim=1))
    scores = torch.cat(parts).double().numpy()
    sums: np.ndarray = np.add.reduceat(scores, np.cumsum(sizes) - sizes, axis=0)
    means: np.ndarray = sums / sizes[:, None]
    return means


def spread(means: np.ndarray, tested: np.ndarray, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Losses and metrics of ``clients`` (ascending), NaN for those that were not tested."""
    full = np.full((len(clients), 2), np.nan)
    full[np.searchsorted(clients, tested)] = means
    return full[:, 0], full[:, 1]
