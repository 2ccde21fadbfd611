"""Trees of tensors in memory that forked processes share: a fixed layout, many slots."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from moiety import tree
from moiety.engines.base import Results
from moiety.types import Tree

ALIGN = 64


class Arena:
    """Room for ``slots`` trees shaped like ``example``; what one process writes, all that were forked later see.

    The slots of a leaf lie one after the other, so that many trees can be read and written as one.
    """

    def __init__(self, example: Tree, slots: int) -> None:
        self.slots = slots
        leaves = tree.values(example)
        padded = [-(-x.numel() * x.element_size() // ALIGN) * ALIGN for x in leaves]
        self.memory = mmap.mmap(-1, max(1, sum(padded) * slots))
        self.columns: list[Tensor] = []
        at = 0
        for x, room in zip(leaves, padded, strict=True):
            self.columns.append(self._view(x, at, room))
            at += room * slots
        self.rows = list(zip(*(column.unbind(0) for column in self.columns), strict=True)) or [()] * slots
        self.make = tree.maker(example)

    def _view(self, like: Tensor, at: int, room: int) -> Tensor:
        """The slots of one leaf; each begins at a multiple of ``ALIGN`` bytes."""
        if not room:
            return like.new_empty((self.slots, *like.shape))
        length = room // like.element_size()
        flat = torch.frombuffer(self.memory, dtype=like.dtype, count=length * self.slots, offset=at)
        return flat.view(self.slots, length)[:, : like.numel()].view(self.slots, *like.shape)

    def write(self, slot: int, value: Tree) -> None:
        """Copy a tree into a slot."""
        for view, x in zip(self.rows[slot], tree.values(value), strict=True):
            view.copy_(x)

    def write_all(self, slots: Sequence[int], values: Sequence[Tree]) -> None:
        """Copy trees into their slots."""
        if not self.columns:
            return
        if not isinstance(values, Results):
            for slot, value in zip(slots, values, strict=True):
                self.write(slot, value)
            return
        step = slots[1] - slots[0] if len(slots) > 1 else 1
        if step > 0 and list(slots) == list(range(slots[0], slots[-1] + 1, step)):  # several times as quick
            for column, x in zip(self.columns, tree.values(values.stacked), strict=True):
                column[slots[0] : slots[-1] + 1 : step].copy_(x)
            return
        places = torch.tensor(slots)
        for column, x in zip(self.columns, tree.values(values.stacked), strict=True):
            column.index_copy_(0, places, x)

    def read(self, slot: int) -> Tree:
        """The tree in a slot, as views: it changes with the next write, so what must last is copied by the caller."""
        return self.make(iter(self.rows[slot]))

    def read_all(self, count: int) -> Results:
        """The trees in the first ``count`` slots, as views."""
        return Results(self.make(column[:count] for column in self.columns), count)
