"""Blocks of clients at once: the algorithm's own ``client_update`` under ``torch.func.vmap``.

Clients of a block are padded to the longest of them with masked steps, which change nothing. Pays for small models,
where the time goes into calls and not into arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from moiety import tree
from moiety.engines.plan import Job, padded
from moiety.engines.problem import Function, Problem
from moiety.errors import MoietyError
from moiety.local import func_gradient
from moiety.task import dtype_of
from moiety.types import Batch, Params, Tree

INSTEAD = "Use engine sequential."


class Vectorised:
    """Serves ``block`` clients at a time."""

    name = "vectorised"

    def __init__(self, block: int = 64) -> None:
        self.block = block

    def map(
        self, problem: Problem, function: Function, jobs: Sequence[Job], received: Params, *, scale: float, round: int
    ) -> list[Tree]:
        """``function`` for each job; results in the order of the jobs."""
        if problem.task.mixes_examples:
            got = "BatchNorm, whose batch statistics would see the padding"
            raise MoietyError(f"`engine` must be able to pad batches for this model, got {got}. {INSTEAD}")
        # Neighbours in length share a block, so that little is padding.
        by_length = sorted(range(len(jobs)), key=lambda i: sum(len(r.order) for r in jobs[i].rows.values()))
        results: list[Tree] = [None] * len(jobs)
        for at in range(0, len(jobs), self.block):
            chosen = by_length[at : at + self.block]
            block = self._block(problem, function, [jobs[i] for i in chosen], received, scale)
            for i, result in zip(chosen, tree.unstack(block, len(chosen)), strict=True):
                results[i] = result
        return results

    def _block(self, problem: Problem, function: Function, jobs: Sequence[Job], received: Params, scale: float) -> Tree:
        dtype = dtype_of(problem.task)
        plans = {phase: padded([job.rows[phase] for job in jobs]) for phase in jobs[0].rows}
        index = {phase: plan[0] for phase, plan in plans.items()}
        mask = {phase: plan[1] for phase, plan in plans.items() if plan[1] is not None}
        steps = {p: torch.tensor([float(len(j.rows[p].sizes)) for j in jobs], dtype=dtype) for p in plans}
        examples = torch.tensor([float(job.examples) for job in jobs], dtype=dtype)

        def one(
            index: dict[str, Tensor], mask: dict[str, Tensor], steps: dict[str, Tensor], examples: Tensor, state: Tree
        ) -> Tree:
            def batches(phase: str) -> Iterator[Batch]:
                for k in range(index[phase].shape[0]):
                    batch = {name: column[index[phase][k]] for name, column in problem.columns.items()}
                    yield batch | {"mask": mask[phase][k]} if phase in mask else batch

            return function(problem.work(batches, func_gradient, examples, steps, scale), received, state)

        states = tree.stack([job.state for job in jobs])
        try:
            with torch.no_grad():
                return torch.func.vmap(one, randomness="error")(index, mask, steps, examples, states)
        except RuntimeError as error:
            if "randomness" in str(error):
                got = "random numbers drawn while training (dropout)"
            else:
                got = f"an operation that cannot be vectorised: {' '.join(str(error).split())[:200]}"
            raise MoietyError(f"`engine` must be able to vectorise this model, got {got}. {INSTEAD}") from error
