"""Metrics of sets: outputs of every client's personal model and of the shared model, and what is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from moiety.engines.base import ClientFunction, Engine, RoundInfo
from moiety.engines.problem import Problem
from moiety.types import Algorithm, Params, Phase, Tree, Work

ROWS_AT_ONCE = 256


class SetScores(NamedTuple):
    """Values of each metric, by its name: of each client [clients], and of all their rows together."""

    each: dict[str, np.ndarray]
    pooled: dict[str, float]


def predict_functions(problem: Problem, algorithm: Algorithm) -> dict[str, ClientFunction]:
    """The outputs of a client's personal model, and of the shared model, for one batch of its rows.

    They are filled up with zeros, so that all results have one shape.
    """
    rows, parts = rows_at_once(problem), problem.shared_parts(algorithm)

    def run(work: Work, model: Params) -> Tensor:
        (batch,) = work.batches("predict")
        output = work.task.predict(model, batch)
        return functional.pad(output, (*[0, 0] * (output.dim() - 1), 0, rows - len(output)))

    def predict(work: Work, received: Params, state: Tree) -> Tensor:
        return run(work, work.compose(*algorithm.personal_model(received, state)))

    def predict_shared(work: Work, received: Params, state: Tree) -> Tensor:
        return run(work, work.compose(*parts(received)))

    # The shared model's rows do not go through vmap: all engines then give the very same outputs.
    return {
        "predict": ClientFunction(predict, ("predict",)),
        "predict_shared": ClientFunction(predict_shared, ("predict",), pooled=True),
    }


def rows_at_once(problem: Problem) -> int:
    """How many rows a client predicts at a time: all, where no client has many."""
    bounds = problem.data.bounds
    return int(min(ROWS_AT_ONCE, np.diff(bounds, axis=1).max(initial=1)))


def predict_clients(
    problem: Problem,
    engine: Engine,
    received: Params,
    clients: np.ndarray,
    states: Sequence[Tree],
    part: str,
    function: str = "predict",
) -> Tensor:
    """The outputs for each client's rows, clients one below the other: of its own model, or of the shared one."""
    most = rows_at_once(problem)
    phases = {"predict": Phase(epochs=1, steps=None, batch_size=most, shuffle=False)}
    jobs = problem.make_jobs(phases, clients, states, part=part)
    # One job for each batch: all results of a function have one shape, whatever a client's rows.
    pieces = [job._replace(rows={"predict": rows}) for job in jobs for rows in job.rows["predict"].split()]
    results = engine.map(function, pieces, received, RoundInfo())
    sizes = [len(job.rows["predict"].order) for job in pieces]
    return torch.cat([output[:size] for output, size in zip(results, sizes, strict=True)])


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
