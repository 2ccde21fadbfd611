"""Trees of tensors in memory that forked processes share: a fixed layout, many slots."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from moiety import tree
from moiety.types import Tree

ALIGN = 64


class Arena:
    """Room for ``slots`` trees shaped like ``example``; what one process writes, all that were forked later see."""

    def __init__(self, example: Tree, slots: int) -> None:
        self.example, self.slots = example, slots
        self.paths = list(tree.leaves(example))
        sizes = [x.numel() * x.element_size() for x in tree.leaves(example).values()]
        padded = [-(-size // ALIGN) * ALIGN for size in sizes]
        self.memory = mmap.mmap(-1, max(1, sum(padded) * slots))
        self.slices: list[list[Tensor]] = []
        for slot in range(slots):
            at, views = slot * sum(padded), []
            for x, size, room in zip(tree.leaves(example).values(), sizes, padded, strict=True):
                views.append(self._view(x, at, size))
                at += room
            self.slices.append(views)
        make = tree.maker(example)
        self.trees = [make(iter(views)) for views in self.slices]

    def _view(self, like: Tensor, at: int, size: int) -> Tensor:
        if not size:
            return torch.empty_like(like)
        return torch.frombuffer(self.memory, dtype=like.dtype, count=like.numel(), offset=at).view(like.shape)

    def write(self, slot: int, value: Tree) -> None:
        """Copy a tree into a slot."""
        for view, x in zip(self.slices[slot], tree.values(value), strict=True):
            view.copy_(x)

    def read(self, slot: int) -> Tree:
        """The tree in a slot, as views: it changes with the next write, so what must last is copied by the caller."""
        return self.trees[slot]
