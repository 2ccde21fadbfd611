"""The reference engine: one client after another, ordinary autograd, batches at their real size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from moiety.engines.plan import Job
from moiety.engines.problem import Function, Problem
from moiety.errors import MoietyError
from moiety.local import autograd_gradient
from moiety.rng import torch_seed
from moiety.task import dtype_of
from moiety.types import Batch, Params, Tree


class Sequential:
    """Serves clients one after another."""

    name = "sequential"

    def map(
        self, problem: Problem, function: Function, jobs: Sequence[Job], received: Params, *, scale: float, round: int
    ) -> list[Tree]:
        """``function`` for each job, in order."""
        return [self._one(problem, function, job, received, scale, round) for job in jobs]

    def _one(self, problem: Problem, function: Function, job: Job, received: Params, scale: float, round: int) -> Tree:
        dtype = dtype_of(problem.task)

        def batches(phase: str) -> Iterator[Batch]:
            rows = job.rows[phase]
            order, at = torch.from_numpy(rows.order), 0
            for size in rows.sizes.tolist():
                index = order[at : at + size]
                yield {name: column.index_select(0, index) for name, column in problem.columns.items()}
                at += size

        steps = {phase: torch.tensor(float(len(rows.sizes)), dtype=dtype) for phase, rows in job.rows.items()}
        examples = torch.tensor(float(job.examples), dtype=dtype)
        work = problem.work(batches, autograd_gradient, examples, steps, scale)
        try:
            with torch.no_grad(), torch_seed(problem.seed, "forward", round, job.client):
                return function(work, received, job.state)
        except (RuntimeError, ValueError, IndexError) as error:
            if isinstance(error, MoietyError):
                raise
            name, reason = problem.data.ids[job.client], " ".join(str(error).split())
            raise MoietyError(
                f"`model` must be trainable on every client, got an error at client {name}, round {round}: {reason}"
            ) from error
