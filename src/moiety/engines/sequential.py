"""The reference engine: one client after another, ordinary autograd, batches at their real size."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moiety.engines.base import Engine, RoundInfo, count_writes
from moiety.engines.rows import Job
from moiety.engines.work import Batches, job_numbers, make_work
from moiety.errors import MoietyError, message
from moiety.local.verbs import autograd_gradient
from moiety.random import torch_seed
from moiety.types import Params, Tree

RELEASE_CLIENTS = 64
"""After so many clients, pages of mapped data are let go: around a row that is read, the system may map a megabyte."""


class Sequential(Engine):
    """Serves clients one after another."""

    name = "sequential"
    since_release = 0
    """How many clients were served since pages of mapped data were let go."""

    def map(self, function: str, jobs: Sequence[Job], received: Params, info: RoundInfo) -> list[Tree]:
        """Run the function for each job in turn."""
        results = []
        for job in jobs:
            results.append(self._serve(function, job, received, info))
            self.since_release += 1
            if self.since_release >= RELEASE_CLIENTS:
                self.problem.data.release()
                self.since_release = 0
        return results

    def _serve(self, function: str, job: Job, received: Params, info: RoundInfo) -> Tree:
        problem = self.problem

        def batches(phase: str) -> Batches:
            rows = job.rows[phase]
            own = slice(*rows.span()) if rows.repeats else None
            return Batches(problem.columns, torch.from_numpy(rows.order).to(problem.device), rows.sizes.tolist(), own)

        numbers = {name: column[0] for name, column in job_numbers([job], problem.device).items()}
        work = make_work(problem, batches, autograd_gradient, numbers, job.turn, info)
        inputs = (received, job.state)
        before = count_writes(inputs)
        try:
            with torch.no_grad(), torch_seed(problem.seed, "forward", function, info.round, job.client):
                result = self.functions[function].call(work, received, job.state)
            self.refuse_writes(before, inputs, [job], info)
            return result
        except (RuntimeError, ValueError, IndexError) as error:
            if isinstance(error, MoietyError):
                raise
            where = f"client {problem.data.ids[job.client]}, round {info.round + 1}"
            lone = problem.task.mixes_examples and any((rows.sizes == 1).any() for rows in job.rows.values())
            hint = "A batch has one row there: change batch_size or the number of rows." if lone else ""
            text = message("model", "trainable on every client", f"an error at {where}: {error}", hint)
            raise MoietyError(text) from error
