"""What the engine ``ray`` and its actors tell each other: jobs as columns or arrays, many trees as one.

Ray moves arrays without further copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from moiety import tree
from moiety.engines.base import Results
from moiety.engines.jobs import Jobs
from moiety.engines.rows import AlikeRows, Job, Rows
from moiety.types import Tree


class Joined(NamedTuple):
    """Many trees as one message."""

    size: int
    shape: Tree | None
    """A tree of zeros of the shape of each; None where they are not alike."""
    content: list[Any]

    def layout(self) -> tuple[Any, ...] | None:
        """What messages that can be joined have in common."""
        return None if self.shape is None else (repr(self.shape), *[(str(x.dtype), *x.shape[1:]) for x in self.content])


PackedJobs = Jobs | tuple[np.ndarray, dict[str, tuple[np.ndarray, ...]]]
"""Jobs without states: as they are where they are held as columns, else as a few arrays."""


def pack(value: Tree) -> Tree:
    """The tree with arrays for tensors: Ray moves those without further copies, and of a view only what it shows."""

    def array(x: Tensor) -> Any:
        return x.detach().clone() if x.dtype is torch.bfloat16 else x.detach().numpy()  # NumPy has no bfloat16

    return tree.map_leaves(lambda x: array(x) if isinstance(x, Tensor) else x, value)


def unpack(value: Tree) -> Tree:
    """The tree with tensors again, in memory of their own: what Ray hands out is not to be written to."""
    return tree.map_leaves(lambda x: torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x, value)


def join_trees(trees: Sequence[Tree]) -> Joined:
    """Many trees as one message: an array for each leaf with a row for each tree, where all trees are alike."""
    if isinstance(trees, Results):
        columns = [pack(x.contiguous()) for x in tree.values(trees.stacked)]
        return Joined(len(trees), tree.map_leaves(lambda leaf: 0, trees.stacked), columns)
    layouts = {_describe(each) for each in trees}
    if len(layouts) != 1 or None in layouts:
        return Joined(len(trees), None, [pack(each) for each in trees])
    rows = [tree.values(each) for each in trees]
    columns = [pack(torch.stack([row[leaf] for row in rows])) for leaf in range(len(rows[0]))]
    return Joined(len(trees), tree.map_leaves(lambda leaf: 0, trees[0]), columns)


def part_trees(joined: Joined) -> list[Tree]:
    """The inverse of ``join_trees``; trees that are alike are views into one tensor for each leaf."""
    if joined.shape is None:
        return [unpack(each) for each in joined.content]
    make = tree.maker(joined.shape)
    columns = [unpack(column).unbind(0) for column in joined.content]
    return [make(iter([column[row] for column in columns])) for row in range(joined.size)]


def stack_trees(joined: Joined) -> Tree:
    """Trees that are alike as one, whose tensors have a leading axis over them."""
    return tree.maker(joined.shape)(iter([unpack(column) for column in joined.content]))


def _describe(value: Tree) -> tuple[Any, ...] | None:
    """What trees that can be joined have in common; None for a tree with a leaf that is no tensor."""
    leaves = tree.values(value)
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        return None
    return repr(tree.map_leaves(lambda leaf: 0, value)), tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def pack_jobs(jobs: Sequence[Job], shift: np.ndarray) -> PackedJobs:
    """Jobs without their states, with the numbers that rows have at the actor."""
    if isinstance(jobs, Jobs):
        less = shift[jobs.clients][:, None]
        rows = {name: AlikeRows(plan.orders - less, plan.sizes, plan.own_count) for name, plan in jobs.rows.items()}
        return Jobs(jobs.clients, jobs.examples, [None] * len(jobs), rows, jobs.key, jobs.turn)
    numbers = np.array([[job.client, job.examples, job.key, job.turn, job.round_trip] for job in jobs])
    phases: dict[str, tuple[np.ndarray, ...]] = {}
    for name in jobs[0].rows:
        orders = [job.rows[name].order - shift[job.client] for job in jobs]
        sizes = [job.rows[name].sizes for job in jobs]
        counts = np.array([[len(order), len(size)] for order, size in zip(orders, sizes, strict=True)])
        phases[name] = np.concatenate(orders), np.concatenate(sizes), counts
    return numbers, phases


def unpack_jobs(packed: PackedJobs) -> Sequence[Job]:
    """The inverse of ``pack_jobs``."""
    if isinstance(packed, Jobs):  # copied: what Ray hands out is not to be written to
        own = {
            name: AlikeRows(plan.orders.copy(), plan.sizes.copy(), plan.own_count) for name, plan in packed.rows.items()
        }
        return Jobs(packed.clients, packed.examples, packed.states, own, packed.key, packed.turn)
    numbers, phases = packed
    rows: list[dict[str, Rows]] = [{} for _ in numbers]
    for name, (orders, sizes, counts) in phases.items():
        ends = counts.cumsum(0)[:-1]
        pieces = zip(np.split(orders.copy(), ends[:, 0]), np.split(sizes.copy(), ends[:, 1]), strict=True)
        for each, piece in zip(rows, pieces, strict=True):
            each[name] = Rows(*piece)
    return [
        Job(client, own, examples, None, key, turn, round_trip)
        for own, (client, examples, key, turn, round_trip) in zip(rows, numbers.tolist(), strict=True)
    ]


def digest_each(states: Sequence[Tree]) -> list[bytes]:
    """The digest of each state; that of clients which share one is made once."""
    digests: dict[int, bytes] = {}
    return [digests.get(id(state)) or digests.setdefault(id(state), digest(pack(state))) for state in states]


def digest(packed: Tree) -> bytes:
    """Tells a packed state from any other."""
    content = hashlib.blake2b(digest_size=16)
    for path, leaf in tree.leaves(packed).items():
        array = leaf.float().numpy() if isinstance(leaf, Tensor) else np.asarray(leaf)
        content.update(f"{path} {array.dtype} {array.shape};".encode() + array.tobytes())
    return content.digest()
