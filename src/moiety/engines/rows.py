"""Which rows a client's steps are made of: index plans, so that a batch is one gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from moiety.local.sgd import WHOLE
from moiety.random import generator, passing_generator
from moiety.types import Phase, Tree

KNOWN_ROWS = 8192
"""Walks of up to this many rows are kept for the next client of the same size."""


class Rows(NamedTuple):
    """The rows of one phase in the order they are used, and the size of each batch."""

    order: np.ndarray
    sizes: np.ndarray

    def span(self) -> tuple[int, int]:
        """The first row and the row after the last; an owner's rows lie next to each other."""
        return int(self.order.min()), int(self.order.max()) + 1

    def split(self) -> list[Rows]:
        """Each batch by itself."""
        ends = np.cumsum(self.sizes)[:-1]
        return [Rows(order, np.array([len(order)])) for order in np.split(self.order, ends)]

    @property
    def width(self) -> int:
        """The size of the largest batch."""
        return max(self.sizes.tolist(), default=0)

    @property
    def repeats(self) -> bool:
        """Whether some row comes round more than once."""
        if not len(self.order):
            return False
        start, stop = self.span()
        return len(self.order) > stop - start


class AlikeRows(Sequence[Rows]):
    """The rows of clients that own as many rows each, and go through them in batches of the same sizes.

    Args:
        orders: the rows of each client in the order they are used, [clients, rows].
        sizes: the sizes of the batches, the same for all.
        own_count: how many rows each client owns.
    """

    def __init__(self, orders: np.ndarray, sizes: np.ndarray, own_count: int) -> None:
        self.orders, self.sizes, self.own_count = orders, sizes, own_count

    def __len__(self) -> int:
        return len(self.orders)

    @overload
    def __getitem__(self, at: int) -> Rows: ...
    @overload
    def __getitem__(self, at: slice | Sequence[int]) -> AlikeRows: ...
    def __getitem__(self, at: int | slice | Sequence[int]) -> Rows | AlikeRows:
        if isinstance(at, int):
            return Rows(self.orders[at], self.sizes)
        return AlikeRows(self.orders[at], self.sizes, self.own_count)

    @property
    def repeat(self) -> bool:
        """Whether some row comes round more than once: no row does within an epoch."""
        return bool(self.orders.shape[1] > self.own_count)


class Job(NamedTuple):
    """One client's turn: its rows by phase, how many training examples it has, and its state."""

    client: int
    rows: Mapping[str, Rows]
    examples: int
    state: Tree
    key: int = 0
    """The client's own, for ``moiety.random``."""
    turn: int = 0
    """The same for all that are served together."""
    round_trip: int = 0
    """Rounds from a broadcast to the aggregation of the upload, where a clock delays them."""


def phase_rows(phase: Phase, start: int, stop: int, *words: str | int, seed: int) -> Rows:
    """The rows of one phase of one client that owns rows ``start`` to ``stop``.

    The client walks through epochs, each in a fresh order (or in data order), cut into batches of ``batch_size``; the
    last batch of an epoch may be smaller. ``words`` say whose draw it is (phase, purpose, round, client): every round
    draws anew, unless the phase is a walk, which goes on where the round before ended.

    >>> rows = phase_rows(Phase(epochs=None, steps=3, batch_size=2, shuffle=False), 10, 13, seed=0)
    >>> rows.order.tolist(), rows.sizes.tolist()
    ([10, 11, 12, 10, 11], [2, 1, 2])
    >>> one = Phase(epochs=None, steps=1, batch_size=2, shuffle=False, walk=True)
    >>> [phase_rows(one, 10, 13, "online", "train", t, 7, seed=0).order.tolist() for t in range(4)]
    [[10, 11], [12], [10, 11], [12]]
    """
    if phase.walk:
        *purpose, t, client = words
        return _continue_walk(phase, start, stop - start, (*purpose, client), seed, int(t))
    n = stop - start
    sizes, order, epochs = _known_walk(phase, n) if _length(phase, n) <= KNOWN_ROWS else _walk(phase, n)
    if phase.shuffle:
        order = _shuffle(n, epochs, seed, words)[: len(order)]
    return Rows(start + order, sizes)


def _shuffle(n: int, epochs: int, seed: int, words: tuple[str | int, ...]) -> np.ndarray:
    """The numbers below ``n`` in a fresh order for each epoch."""
    draw = passing_generator(seed, "batches", *words)
    return draw.permutation(n) if epochs == 1 else np.concatenate([draw.permutation(n) for _ in range(epochs)])


def plan_rows(
    phase: Phase, clients: Sequence[int], starts: np.ndarray, stops: np.ndarray, *words: str | int, seed: int
) -> Sequence[Rows]:
    """The rows of one phase for many clients, each of which owns the rows from its start to its stop.

    Clients that own as many rows go through the same plan, shifted, or each in an order of its own.

    >>> whole = Phase(epochs=1, steps=None, batch_size=2, shuffle=False)
    >>> plan = plan_rows(whole, [4, 7], np.array([0, 10]), np.array([3, 13]), "local", seed=0)
    >>> [rows.order.tolist() for rows in plan]
    [[0, 1, 2], [10, 11, 12]]
    """
    sizes = (stops - starts).tolist()
    n = sizes[0] if sizes else 0
    if phase.walk or not n or _length(phase, n) > KNOWN_ROWS or sizes.count(n) < len(sizes):
        spans = zip(clients, starts.tolist(), stops.tolist(), strict=True)
        return [phase_rows(phase, start, stop, *words, client, seed=seed) for client, start, stop in spans]
    batches, order, epochs = _known_walk(phase, n)
    if phase.shuffle:
        order = np.stack([_shuffle(n, epochs, seed, (*words, client))[: len(order)] for client in clients])
    return AlikeRows(starts[:, None] + order, batches, n)


def _length(phase: Phase, n: int) -> int:
    """At most how many rows a turn goes through, for a client that has ``n``."""
    return (phase.steps or 0) * phase.batch_size + (phase.epochs or 0) * n


def count_rows(phase: Phase, n: int) -> int:
    """About how many rows a turn of a client with ``n`` rows goes through, an epoch's smaller last batch aside.

    >>> count_rows(Phase(epochs=2, steps=None, batch_size=4, shuffle=True), 10)
    20
    >>> count_rows(Phase(epochs=None, steps=3, batch_size=4, shuffle=True), 10)
    12
    """
    return (phase.steps or 0) * min(phase.batch_size, n) + (phase.epochs or 0) * n


def count_piece(phase: Phase, rows: np.ndarray) -> np.ndarray:
    """The rows that are computed at once, for clients that have these numbers of rows: a batch, or a piece of it."""
    whole = phase.batch_size == WHOLE
    size = -(-rows // phase.accumulate) if whole else min(phase.batch_size // phase.accumulate, WHOLE)
    width: np.ndarray = np.minimum(size, rows)
    return width


def _walk(phase: Phase, n: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The sizes of the batches, the rows in data order, and how many epochs are begun; the same for all of a size."""
    width = min(phase.batch_size, n)
    per_epoch = -(-n // width)
    steps = phase.steps if phase.steps is not None else (phase.epochs or 0) * per_epoch
    epochs = -(-steps // per_epoch)
    one = np.full(per_epoch, width, dtype=np.int64)
    one[-1] = n - (per_epoch - 1) * width
    sizes = np.tile(one, epochs)[:steps]
    order = np.tile(np.arange(n), epochs)[: sizes.sum()]
    for array in (sizes, order):
        array.setflags(write=False)  # many clients hold it
    return sizes, order, epochs


def has_lone_batch(phase: Phase, rows: np.ndarray) -> np.ndarray:
    """Whether some round has a batch of one row, for clients that have these numbers of rows (at least one).

    >>> has_lone_batch(Phase(epochs=1, steps=None, batch_size=4, shuffle=True), np.array([1, 2, 4, 5, 6, 9])).tolist()
    [True, False, False, True, False, True]
    >>> has_lone_batch(Phase(epochs=None, steps=2, batch_size=4, shuffle=True), np.array([5, 9])).tolist()
    [True, False]
    >>> has_lone_batch(Phase(1, None, batch_size=8, shuffle=True, accumulate=2), np.array([5, 6, 8])).tolist()
    [True, False, False]
    """
    width = count_piece(phase, rows)
    per_epoch = -(-rows // width)
    whole_epoch = True if phase.steps is None or phase.walk else phase.steps * phase.accumulate >= per_epoch
    lone: np.ndarray = (width == 1) | ((rows % width == 1) & whole_epoch)
    return lone


_known_walk = lru_cache(maxsize=1024)(_walk)


def _continue_walk(phase: Phase, start: int, n: int, words: tuple[str | int, ...], seed: int, t: int) -> Rows:
    """The steps of round ``t`` of a walk. Step k of them all is batch k mod m of epoch k div m, of m batches each."""
    width, steps = min(phase.batch_size, n), phase.steps or 0
    per_epoch = -(-n // width)
    places = (divmod(k, per_epoch) for k in range(t * steps, (t + 1) * steps))
    pieces = [_epoch(n, phase.shuffle, seed, words, e)[b * width : (b + 1) * width] for e, b in places]
    return Rows(start + np.concatenate(pieces), np.array([len(piece) for piece in pieces]))


@lru_cache(maxsize=4096)
def _epoch(n: int, shuffle: bool, seed: int, words: tuple[str | int, ...], epoch: int) -> np.ndarray:
    """The order of one epoch of a walk, asked for once by every round that falls into it."""
    order = generator(seed, "batches", "epoch", epoch, *words).permutation(n) if shuffle else np.arange(n)
    order.setflags(write=False)
    return order


def pad_rows(rows: Sequence[Rows]) -> tuple[Tensor, Tensor | None]:
    """The rows of several clients as one tensor [clients, steps, batch], and its mask (None if nothing is padding).

    Padding repeats the client's first row, so that no foreign or undefined value enters the arithmetic.
    """
    if isinstance(rows, AlikeRows):
        return _pad_alike(rows)
    steps, width = max(len(r.sizes) for r in rows), max(r.width for r in rows)
    if all(len(r.order) == steps * width for r in rows):  # every batch of every client is full
        return torch.from_numpy(np.stack([r.order for r in rows]).reshape(len(rows), steps, width)), None
    index = np.empty((len(rows), steps, width), dtype=np.int64)
    mask = np.zeros((len(rows), steps, width), dtype=bool)
    for i, r in enumerate(rows):
        index[i] = r.order[0]
        real = np.arange(width) < r.sizes[:, None]
        mask[i, : len(r.sizes)] = real
        index[i, : len(r.sizes)][real] = r.order
    return torch.from_numpy(index), None if mask.all() else torch.from_numpy(mask)


def _pad_alike(rows: AlikeRows) -> tuple[Tensor, Tensor | None]:
    """The same for clients whose batches have the same sizes."""
    sizes, count = rows.sizes, len(rows)
    steps, width = len(sizes), int(sizes.max())
    if rows.orders.shape[1] == steps * width:
        return torch.from_numpy(rows.orders.reshape(count, steps, width)), None
    real = np.arange(width) < sizes[:, None]
    index = np.repeat(rows.orders[:, 0], steps * width).reshape(count, steps, width)
    index[:, real] = rows.orders
    return torch.from_numpy(index), torch.from_numpy(real).expand(count, steps, width).contiguous()


def repeat_rows(rows: Sequence[Rows]) -> bool:
    """Whether some row of each client comes round more than once."""
    return rows.repeat if isinstance(rows, AlikeRows) else all(each.repeats for each in rows)


def own_rows(rows: Sequence[Rows]) -> Tensor:
    """The rows that each of several clients owns, [clients, rows]; a shorter list repeats its last row."""
    if isinstance(rows, AlikeRows) and rows.repeat:  # the first epoch is whole
        return torch.from_numpy(rows.orders.min(1)[:, None] + np.arange(rows.own_count))
    spans = [r.span() for r in rows]
    width = max(stop - start for start, stop in spans)
    return torch.stack([(start + torch.arange(width)).clamp(max=stop - 1) for start, stop in spans])
