"""Blocks of clients at once: the algorithm's own ``client_update`` under ``torch.func.vmap``.

Clients of a block are padded to the longest of them with masked steps, which change nothing. Pays for small models,
where the time goes into calls and not into arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from moiety import tree
from moiety.engines.base import Engine, Functions, RoundInfo, count_writes, join_blocks
from moiety.engines.jobs import Jobs, states_of, take_jobs
from moiety.engines.problem import Problem
from moiety.engines.rows import Job, own_rows, pad_rows, repeat_rows
from moiety.engines.sequential import RELEASE_CLIENTS, Sequential
from moiety.engines.work import Batches, job_numbers, make_work
from moiety.errors import MoietyError, must
from moiety.task.block import block_gradient
from moiety.transport import value_bytes
from moiety.types import Batch, Params, Tree

INSTEAD = "Use engine sequential."
BLOCK_BYTES = 1 << 30
"""About how much memory a block of clients may take."""
GATHER_BYTES = 1 << 27
"""Up to this much the rows of a block's batches are gathered before its first step."""
BLOCK_CLIENTS = 256
"""How many clients a block has at most."""
PADDING = 0.25
"""How much more rows a block may compute than its clients would one by one."""
PADDING_BYTES = 1 << 18
"""Padding is free up to this much of activations in a step: the time goes into calls then, and a block saves them."""


def split_into_blocks(
    jobs: Sequence[Job], *, most: int, room: Callable[[int], int], free: float = 0
) -> Iterator[list[int]]:
    """The jobs in blocks of neighbours in length, so that padding stays below ``PADDING`` of the work.

    A block has at most ``most`` clients, and at most ``room(width)`` where its batches are ``width`` rows wide. Padding
    of up to ``free`` rows in a step is not counted.
    """
    if isinstance(jobs, Jobs):  # nothing is padded for another
        step = max(1, min(most, room(max((int(plan.sizes.max()) for plan in jobs.rows.values()), default=0))))
        yield from (list(range(at, min(at + step, len(jobs)))) for at in range(0, len(jobs), step))
        return
    shapes = [[(len(r.sizes), r.width) for r in job.rows.values()] for job in jobs]
    block: list[int] = []
    widest: list[tuple[int, int]] = []
    rows = 0  # the rows that the block's clients would compute one by one
    for i in sorted(range(len(jobs)), key=lambda i: shapes[i]):
        cost = sum(steps * width for steps, width in shapes[i])
        shape = [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(widest or shapes[i], shapes[i], strict=True)]
        together = (len(block) + 1) * sum(steps * width for steps, width in shape)
        limit = max(PADDING * (rows + cost), free * sum(steps for steps, _ in shape))
        too_wide = together - rows - cost > limit
        if block and (too_wide or len(block) >= min(most, room(max(width for _, width in shape)))):
            yield block
            block, shape, rows = [], shapes[i], 0
        block.append(i)
        widest, rows = shape, rows + cost
    if block:
        yield block


def stack_states(states: Sequence[Tree]) -> Tree:
    """The states as one, with a leading axis over clients; where states are empty, each is all of them."""
    return tree.stack(states) if tree.values(states[0]) else states[0]


class Vectorised(Engine):
    """Serves ``block`` clients at a time."""

    name = "vectorised"

    def __init__(self, problem: Problem, functions: Functions, block: int = BLOCK_CLIENTS) -> None:
        super().__init__(problem, functions)
        self.block = block

    def map(self, function: str, jobs: Sequence[Job], received: Params, info: RoundInfo) -> Sequence[Tree]:
        """Run the function for blocks of clients of similar length."""
        if self.functions[function].pooled:
            return Sequential(self.problem, self.functions).map(function, jobs, received, info)
        task = self.problem.task
        padding = "BatchNorm, whose batch statistics would see the padding"
        must(not task.mixes_examples, "engine", "able to pad batches for this model", padding, INSTEAD)
        must(not task.unvectorised, "engine", "able to vectorise this loss and metric", task.unvectorised, INSTEAD)
        model_bytes, row_bytes = self._sizes
        # A client takes four models: its own, the gradient, the momentum, and one for intermediate results.
        split = split_into_blocks(
            jobs,
            most=self.block,
            room=lambda width: BLOCK_BYTES // (4 * model_bytes + width * row_bytes),
            free=PADDING_BYTES / max(row_bytes, 1),
        )
        blocks = ((places, self._serve(function, take_jobs(jobs, places), received, info)) for places in split)
        return join_blocks(blocks, len(jobs))

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """The bytes of a model, and of the activations of one row."""
        return value_bytes(self.problem.task.init), self.problem.backprop_bytes([0])

    def _gather(self, index: Tensor) -> Batch | None:
        """The rows of all batches, where they are not too many: under vmap a gather is several times slower."""
        columns = self.problem.columns
        row = sum(column[0].numel() * column.element_size() for column in columns.values())
        if index.numel() * row > GATHER_BYTES:
            return None
        flat = index.reshape(-1)
        return {name: c.index_select(0, flat).view(*index.shape, *c.shape[1:]) for name, c in columns.items()}

    def _plan(self, jobs: Sequence[Job], phase: str) -> dict[str, Any]:
        """The arguments of ``Batches`` for a phase, with a leading axis over the jobs."""
        rows = jobs.rows[phase] if isinstance(jobs, Jobs) else [job.rows[phase] for job in jobs]
        device = self.problem.device
        index, mask = pad_rows(rows)
        index, mask = index.to(device), None if mask is None else mask.to(device)
        again = self.problem.partial and repeat_rows(rows)
        plan: dict[str, Any] = {"index": index, "mask": mask, "own": own_rows(rows).to(device) if again else None}
        plan["all_batches"] = None if again else self._gather(index)
        return {name: value for name, value in plan.items() if value is not None}

    def _serve(self, function: str, jobs: Sequence[Job], received: Params, info: RoundInfo) -> Tree:
        problem, call, first = self.problem, self.functions[function].call, jobs[0]
        turn = first.turn

        inputs = (
            {phase: self._plan(jobs, phase) for phase in first.rows},
            job_numbers(jobs, problem.device),
            stack_states(states_of(jobs)),
        )
        # Tensors go in and come out one beside the other: to find them in trees takes vmap longer than us.
        make, remake = tree.maker(inputs), None

        def serve_one(*leaves: Tensor) -> tuple[Tensor, ...]:
            nonlocal remake
            plans, numbers, state = make(iter(leaves))

            def batches(phase: str) -> Batches:
                return Batches(problem.columns, **plans[phase])

            work = make_work(problem, batches, block_gradient, numbers, turn, info, clients=len(jobs))
            result = call(work, received, state)
            remake = tree.maker(result)
            return tuple(tree.values(result))

        before = count_writes(received)
        try:
            with torch.no_grad():
                results = torch.func.vmap(serve_one, randomness="error")(*tree.values(inputs))
            if len(jobs) >= RELEASE_CLIENTS:
                problem.data.release()
            self.refuse_writes(before, received, jobs, info)
            assert remake is not None
            return remake(iter(results))
        except RuntimeError as error:
            if "randomness" in str(error):
                fault = "random numbers drawn while training (dropout)"
            elif "data-dependent control flow" in str(error):
                fault = "code in it that depends on values (as that of attention masks in transformers)"
            else:
                fault = f"an operation that cannot be vectorised: {' '.join(str(error).split())[:200]}"
            raise MoietyError(f"`engine` must be able to vectorise this model, got {fault}. {INSTEAD}") from error
