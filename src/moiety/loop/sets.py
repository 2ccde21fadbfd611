"""Metrics of sets: outputs of every client's personal model and of the shared model, and what is computed from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from moiety.engines.base import ClientFunction, Engine, RoundInfo
from moiety.engines.problem import Problem
from moiety.types import Algorithm, Batch, Params, Phase, Tree, Work

ROWS_AT_ONCE = 256


class SetScores(NamedTuple):
    """Values of each metric, by its name: of each client [clients], and of all their rows together."""

    each: dict[str, np.ndarray]
    pooled: dict[str, float]


def predict_function(problem: Problem, algorithm: Algorithm) -> ClientFunction:
    """The outputs of a client's personal model for one batch, filled up with zeros: all results have one shape."""
    rows = rows_at_once(problem)

    def predict(work: Work, received: Params, state: Tree) -> Tensor:
        model = work.compose(*algorithm.personal_model(received, state))
        (batch,) = work.batches("predict")
        output = work.task.predict(model, batch)
        return functional.pad(output, (*[0, 0] * (output.dim() - 1), 0, rows - len(output)))

    return ClientFunction(predict, ("predict",))


def rows_at_once(problem: Problem) -> int:
    """How many rows a client predicts at a time: all, where no client has many."""
    bounds = problem.data.bounds
    return int(min(ROWS_AT_ONCE, np.diff(bounds, axis=1).max(initial=1)))


def predict_clients(
    problem: Problem, engine: Engine, received: Params, clients: np.ndarray, states: Sequence[Tree], part: str
) -> Tensor:
    """The outputs of each client's own model for its rows, clients one below the other."""
    most = rows_at_once(problem)
    phases = {"predict": Phase(epochs=1, steps=None, batch_size=most, shuffle=False)}
    jobs = problem.make_jobs(phases, clients, states, part=part)
    # One job for each batch: all results of a function have one shape, whatever a client's rows.
    pieces = [job._replace(rows={"predict": rows}) for job in jobs for rows in job.rows["predict"].split()]
    results = engine.map("predict", pieces, received, RoundInfo())
    sizes = [len(job.rows["predict"].order) for job in pieces]
    return torch.cat([output[:size] for output, size in zip(results, sizes, strict=True)])


def predict_pooled(problem: Problem, model: Params, clients: np.ndarray, part: str) -> Tensor:
    """The same with one model for all clients."""
    with torch.no_grad():
        return torch.cat([problem.task.predict(model, batch) for batch in _batches(problem, clients, part)])


def _batches(problem: Problem, clients: np.ndarray, part: str) -> Iterator[Batch]:
    for client in clients:
        start, stop = problem.data.rows(int(client), part)
        for at in range(start, stop, ROWS_AT_ONCE):
            yield {name: column[at : min(stop, at + ROWS_AT_ONCE)] for name, column in problem.columns.items()}


def score_sets(problem: Problem, outputs: Tensor, clients: np.ndarray, part: str) -> SetScores:
    """The metrics of sets from the ``outputs`` of all rows of ``clients``; NaN where one is not defined."""
    spans = [problem.data.rows(int(c), part) for c in clients]
    sizes = [stop - start for start, stop in spans]
    rows = torch.from_numpy(np.concatenate([np.arange(*span) for span in spans])).to(problem.device)
    batch = {name: column.index_select(0, rows) for name, column in problem.columns.items()}
    each_batch = [
        dict(zip(batch, columns, strict=True))
        for columns in zip(*(torch.split(column, sizes) for column in batch.values()), strict=True)
    ]
    each_output = torch.split(outputs, sizes)
    each = {
        metric.name: np.array([metric.compute(o, b) for o, b in zip(each_output, each_batch, strict=True)])
        for metric in problem.task.sets
    }
    return SetScores(each, {metric.name: metric.compute(outputs, batch) for metric in problem.task.sets})
