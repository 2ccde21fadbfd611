"""Blocks of clients at once: the algorithm's own ``client_update`` under ``torch.func.vmap``.

Clients of a block are padded to the longest of them with masked steps, which change nothing. Pays for small models,
where the time goes into calls and not into arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from moiety import tree
from moiety.engines.problem import FEATURE_BYTES, Function, Functions, Problem, sliced_features
from moiety.engines.rows import Job, own_rows, padded
from moiety.errors import MoietyError
from moiety.random import torch_seed
from moiety.task import backprop_bytes
from moiety.task.block import block_gradient
from moiety.transport import value_bytes
from moiety.types import Batch, LossFunction, Params, Tree

INSTEAD = "Use engine sequential."
BLOCK_BYTES = 1 << 30
"""About how much memory a block of clients may take."""
GATHER_BYTES = 1 << 27
"""Up to this much the rows of a block's batches are gathered before its first step."""
PADDING = 0.25
"""How much more rows a block may compute than its clients would one by one."""
PADDING_BYTES = 1 << 18
"""Padding is free up to this much of activations in a step: the time goes into calls then, and a block saves them."""


class Batches:
    """The batches of one phase of one client, under vmap; ``own`` are its rows where some come round again.

    Where ``gathered`` is given it holds the rows of all batches already.
    """

    def __init__(
        self, columns: Batch, index: Tensor, mask: Tensor | None, own: Tensor | None, gathered: Batch | None = None
    ) -> None:
        self.columns, self.index, self.mask, self.own, self.gathered = columns, index, mask, own, gathered

    def __iter__(self) -> Iterator[Batch]:
        for k in range(self.index.shape[0]):
            if self.gathered is not None:
                batch = {name: rows[k] for name, rows in self.gathered.items()}
            else:
                batch = {name: column[self.index[k]] for name, column in self.columns.items()}
            yield batch if self.mask is None else batch | {"mask": self.mask[k]}


def blocks(jobs: Sequence[Job], *, most: int, room: Callable[[int], int], free: float = 0) -> Iterator[list[int]]:
    """The jobs in blocks of neighbours in length, so that padding stays below ``PADDING`` of the work.

    A block has at most ``most`` clients, and at most ``room(width)`` where its batches are ``width`` rows wide. Padding
    of up to ``free`` rows in a step is not counted.
    """
    shapes = [[(len(r.sizes), r.width) for r in job.rows.values()] for job in jobs]
    block: list[int] = []
    widest: list[tuple[int, int]] = []
    apart = 0  # the rows that the block's clients would compute one by one
    for i in sorted(range(len(jobs)), key=lambda i: shapes[i]):
        cost = sum(steps * width for steps, width in shapes[i])
        joined = [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(widest or shapes[i], shapes[i], strict=True)]
        together = (len(block) + 1) * sum(steps * width for steps, width in joined)
        allowed = max(PADDING * (apart + cost), free * sum(steps for steps, _ in joined))
        too_wide = together - apart - cost > allowed
        if block and (too_wide or len(block) >= min(most, room(max(width for _, width in joined)))):
            yield block
            block, joined, apart = [], shapes[i], 0
        block.append(i)
        widest, apart = joined, apart + cost
    if block:
        yield block


class Vectorised:
    """Serves ``block`` clients at a time."""

    name = "vectorised"

    def __init__(self, problem: Problem, functions: Functions, block: int = 256) -> None:
        self.problem, self.functions, self.block = problem, functions, block
        self._sizes: tuple[int, int] | None = None

    def close(self) -> None:
        """Nothing to end."""

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
        """The function of that name for each job; results in the order of the jobs."""
        problem, call = self.problem, self.functions[function].call
        if problem.task.mixes_examples:
            got = "BatchNorm, whose batch statistics would see the padding"
            raise MoietyError(f"`engine` must be able to pad batches for this model, got {got}. {INSTEAD}")
        if problem.task.unvectorised:
            got = problem.task.unvectorised
            raise MoietyError(f"`engine` must be able to vectorise this loss and metric, got {got}. {INSTEAD}")
        results: list[Tree] = [None] * len(jobs)
        fitting = blocks(
            jobs,
            most=self.block,
            room=lambda width: BLOCK_BYTES // self._client_bytes(width),
            free=PADDING_BYTES / max(self._measured()[1], 1),
        )
        for chosen in fitting:
            block = self._block(call, [jobs[i] for i in chosen], received, scale, elapsed)
            for i, result in zip(chosen, tree.unstack(block, len(chosen)), strict=True):
                results[i] = result
        return results

    def _gathered(self, index: Tensor) -> Batch | None:
        """The rows of all batches, where they are not too many: under vmap a gather is several times slower."""
        row = sum(column[0].numel() * column.element_size() for column in self.problem.columns.values())
        if index.numel() * row > GATHER_BYTES:
            return None
        flat = index.reshape(-1)
        return {n: c.index_select(0, flat).view(*index.shape, *c.shape[1:]) for n, c in self.problem.columns.items()}

    def _client_bytes(self, width: int) -> int:
        """About what one client of a block takes: its copies of the model, and the activations of one batch."""
        model, row = self._measured()
        # The model, its gradient and the momentum, and one more for what is being computed.
        return 4 * model + width * row

    def _measured(self) -> tuple[int, int]:
        """The bytes of a model, and of the activations of one row."""
        if self._sizes is None:
            few = {
                name: column[:1].clone() for name, column in self.problem.columns.items()
            }  # a model may edit its input
            names = (*self.problem.split.trained_shared, *self.problem.split.trained_personal)
            with torch_seed(self.problem.seed, "memory"):
                kept = backprop_bytes(self.problem.task, few, names)
            self._sizes = value_bytes(self.problem.task.init), kept
        return self._sizes

    def _block(self, function: Function, jobs: Sequence[Job], received: Params, scale: float, elapsed: float) -> Tree:
        problem = self.problem
        plans = {phase: padded([job.rows[phase] for job in jobs]) for phase in jobs[0].rows}
        index = {phase: plan[0] for phase, plan in plans.items()}
        mask = {phase: plan[1] for phase, plan in plans.items() if plan[1] is not None}
        examples = torch.tensor([float(job.examples) for job in jobs], dtype=torch.float64)
        keys, turn = torch.tensor([job.key for job in jobs]), jobs[0].turn
        trips = torch.tensor([job.round_trip for job in jobs])

        again = [p for p in plans if problem.partial and all(job.rows[p].repeats for job in jobs)]
        own = {phase: own_rows([job.rows[phase] for job in jobs]) for phase in again}
        rows = {phase: self._gathered(index[phase]) for phase in plans if phase not in again}
        gathered = {phase: columns for phase, columns in rows.items() if columns is not None}

        def one(
            index: dict[str, Tensor],
            mask: dict[str, Tensor],
            own: dict[str, Tensor],
            gathered: dict[str, Batch],
            examples: Tensor,
            key: Tensor,
            trip: Tensor,
            state: Tree,
        ) -> Tree:
            def batches(phase: str) -> Batches:
                return Batches(problem.columns, index[phase], mask.get(phase), own.get(phase), gathered.get(phase))

            def reuse(
                model: Params, trained: frozenset[str], batches: Iterable[Batch]
            ) -> tuple[LossFunction, Iterable[Batch]]:
                if not isinstance(batches, Batches) or batches.own is None:
                    return problem.task.loss, batches
                partial = problem.reusable(trained)
                rows = {name: column[batches.own] for name, column in problem.columns.items()}
                features = partial and sliced_features(partial, model, rows, limit=FEATURE_BYTES // len(jobs))
                if not partial or not features:
                    return problem.task.loss, batches
                kept = {name: column for name, column in rows.items() if name not in partial.spare}
                local = batches.index - batches.own[0]
                return partial.loss, Batches({**kept, **features}, local, batches.mask, None)

            work = problem.work(
                batches,
                block_gradient,
                examples,
                scale,
                reuse,
                key=key,
                turn=turn,
                elapsed=elapsed,
                round_trip=trip,
            )
            return function(work, received, state)

        states = tree.stack([job.state for job in jobs])
        try:
            with torch.no_grad():
                return torch.func.vmap(one, randomness="error")(
                    index, mask, own, gathered, examples, keys, trips, states
                )
        except RuntimeError as error:
            if "randomness" in str(error):
                got = "random numbers drawn while training (dropout)"
            else:
                got = f"an operation that cannot be vectorised: {' '.join(str(error).split())[:200]}"
            raise MoietyError(f"`engine` must be able to vectorise this model, got {got}. {INSTEAD}") from error
