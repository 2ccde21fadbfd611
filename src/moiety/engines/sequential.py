"""The reference engine: one client after another, ordinary autograd, batches at their real size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from moiety.engines.problem import FEATURE_BYTES, Functions, Problem, sliced_features
from moiety.engines.rows import Job, Rows
from moiety.errors import MoietyError, message
from moiety.local.verbs import autograd_gradient
from moiety.random import torch_seed
from moiety.types import Batch, LossFunction, Params, Tree


class Batches:
    """The batches of one phase; each is a gather from ``columns``, whose first row is number ``base``."""

    def __init__(self, columns: Batch, rows: Rows, base: int = 0) -> None:
        self.columns, self.rows, self.base = columns, rows, base

    def __iter__(self) -> Iterator[Batch]:
        order, at = torch.from_numpy(self.rows.order - self.base), 0
        for size in self.rows.sizes.tolist():
            index = order[at : at + size]
            yield {name: column.index_select(0, index) for name, column in self.columns.items()}
            at += size


class Sequential:
    """Serves clients one after another."""

    name = "sequential"

    def __init__(self, problem: Problem, functions: Functions) -> None:
        self.problem, self.functions = problem, functions

    def map(
        self,
        function: str,
        jobs: Sequence[Job],
        received: Params,
        *,
        scale: float,
        round: int,
        elapsed: float = 0.0,
    ) -> list[Tree]:
        """The function of that name for each job, in order."""
        return [self._one(function, job, received, scale, round, elapsed) for job in jobs]

    def close(self) -> None:
        """Nothing to end."""

    def _one(self, function: str, job: Job, received: Params, scale: float, round: int, elapsed: float) -> Tree:
        problem = self.problem

        def reuse(
            model: Params, trained: frozenset[str], batches: Iterable[Batch]
        ) -> tuple[LossFunction, Iterable[Batch]]:
            if not (isinstance(batches, Batches) and batches.rows.repeats):
                return problem.task.loss, batches
            start, stop = batches.rows.span()
            own = {name: column[start:stop] for name, column in problem.columns.items()}
            partial = problem.reusable(trained)
            features = partial and sliced_features(partial, model, own, limit=FEATURE_BYTES)
            if not partial or not features:
                return problem.task.loss, batches
            kept = {name: column for name, column in own.items() if name not in partial.spare}
            return partial.loss, Batches({**kept, **features}, batches.rows, base=start)

        work = problem.work(
            lambda phase: Batches(problem.columns, job.rows[phase]),
            autograd_gradient,
            torch.tensor(float(job.examples), dtype=torch.float64),
            scale,
            reuse if problem.partial else None,
            key=torch.tensor(job.key),
            turn=job.turn,
            elapsed=elapsed,
            round_trip=torch.tensor(job.round_trip),
        )
        try:
            with torch.no_grad(), torch_seed(problem.seed, "forward", function, round, job.client):
                return self.functions[function].call(work, received, job.state)
        except (RuntimeError, ValueError, IndexError) as error:
            if isinstance(error, MoietyError):
                raise
            where = f"client {problem.data.ids[job.client]}, round {round + 1}"
            lone = problem.task.mixes_examples and any((rows.sizes == 1).any() for rows in job.rows.values())
            hint = "A batch has one row there: change batch_size or the number of rows." if lone else ""
            text = message("model", "trainable on every client", f"an error at {where}: {error}", hint)
            raise MoietyError(text) from error
