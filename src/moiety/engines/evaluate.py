"""Scores of every client's personal model and of the shared model alone, through the engine of the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from moiety.clients import MemoryStore
from moiety.engines.choose import Engine
from moiety.engines.problem import Problem
from moiety.evaluation import Row, client_rows
from moiety.local import mean_loss
from moiety.types import Algorithm, Params, Phase, Tree, Work

EVALUATION_BATCH = 256


def evaluate(
    problem: Problem, algorithm: Algorithm, engine: Engine, server: Tree, store: MemoryStore, *, part: str, round: int
) -> list[Row]:
    """A row per client. Clients that keep no state get their personal model by the algorithm's own rule first."""
    data = problem.data
    sizes = data.sizes(part)
    tested = np.flatnonzero(sizes)
    received = algorithm.broadcast(server)
    alone = algorithm.personal_model(received, algorithm.init_client(problem.personal()))
    shared = pooled(problem, problem.compose(*alone), tested, part)
    if not problem.split.personal:
        personal = shared  # the very same model
    else:
        states = current_states(problem, algorithm, engine, received, store, tested, round)
        personal = per_client(problem, algorithm, engine, received, tested, states, part)
    return client_rows(
        [data.ids[i] for i in range(len(data))],
        data.sizes("train"),
        sizes,
        spread(personal, tested, len(data)),
        spread(shared, tested, len(data)),
        higher_is_better=problem.task.metric.higher_is_better,
    )


def current_states(
    problem: Problem,
    algorithm: Algorithm,
    engine: Engine,
    received: Params,
    store: MemoryStore,
    clients: Sequence[int] | np.ndarray,
    round: int,
) -> list[Tree]:
    """The clients' states as they would predict with now."""
    states = store.get(clients)
    if algorithm.stateful:
        return states
    jobs = problem.jobs(algorithm.phases, clients, states, "adapt", round, part="train")
    return engine.map(problem, algorithm.adapt, jobs, received, scale=1.0, round=round)


def per_client(
    problem: Problem,
    algorithm: Algorithm,
    engine: Engine,
    received: Params,
    clients: np.ndarray,
    states: Sequence[Tree],
    part: str,
) -> np.ndarray:
    """Mean loss and metric [clients, 2], each client with its own model."""

    def score(work: Work, received: Params, state: Tree) -> Tensor:
        model = work.compose(*algorithm.personal_model(received, state))
        sums = torch.zeros(2, dtype=work.examples.dtype)
        for batch in work.batches("score"):
            count = batch["mask"].sum() if "mask" in batch else len(next(iter(batch.values())))
            means = torch.stack([mean_loss(column, batch) for column in work.task.scores(model, batch)])
            sums = sums + means * count
        return sums / work.examples

    phases = {"score": Phase(epochs=1, steps=None, batch_size=EVALUATION_BATCH, shuffle=False)}
    jobs = problem.jobs(phases, clients, states, part=part)
    found = engine.map(problem, score, jobs, received, scale=1.0, round=0)
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
        for index in torch.split(rows, EVALUATION_BATCH * 4):
            batch = {name: column.index_select(0, index) for name, column in problem.columns.items()}
            parts.append(torch.stack(problem.task.scores(model, batch), dim=1))
    scores = torch.cat(parts).double().numpy()
    sums: np.ndarray = np.add.reduceat(scores, np.cumsum(sizes) - sizes, axis=0)
    means: np.ndarray = sums / sizes[:, None]
    return means


def spread(means: np.ndarray, tested: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses and metrics of all clients, NaN for those that were not tested."""
    full = np.full((clients, 2), np.nan)
    full[tested] = means
    return full[:, 0], full[:, 1]
