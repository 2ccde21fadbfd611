"""Sharing out whole rows in given proportions: largest remainders, for all clients at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moiety.data.federated import Ints


def largest_remainder(counts: Ints, group: Ints, totals: Ints, generator: np.random.Generator) -> Ints:
    """Whole numbers in proportion to ``counts`` within each group, with the group's total as their sum.

    A cell's exact share is ``total * count / (sum of counts in its group)``. Every cell gets the whole part of it, and
    what is left goes to the largest remainders. Equal remainders are drawn by lot: if the label decided, every client
    with one example per class would be tested on the same few classes.

    >>> one = np.zeros(3, dtype=np.int64)
    >>> largest_remainder(np.array([6, 3, 1]), one, np.array([5]), np.random.default_rng(0)).tolist()
    [3, 1, 1]
    """
    sums = np.bincount(group, weights=counts, minlength=len(totals)).astype(np.int64)
    # Whole numbers throughout: in floating point, remainders that are equal would differ in their last bit.
    whole, remainder = np.divmod(totals[group] * counts, np.maximum(sums[group], 1))
    rest = totals - np.bincount(group, weights=whole, minlength=len(totals)).astype(np.int64)
    order = np.lexsort((generator.random(len(counts)), -remainder, group))
    rank = np.empty_like(order)
    rank[order] = position_in_run(group[order])
    return np.asarray(whole + (rank < rest[group]))


def assign_parts(
    owner: Ints,
    labels: Ints | None,
    clients: int,
    *,
    test: float | NDArray[np.bool_],
    validation: float,
    generator: np.random.Generator,
) -> NDArray[np.int8]:
    """The part of each row (0 train, 1 validation, 2 test), client by client and with labels in proportion.

    Test rows are ``test`` of a client's rows, rounded, but at least one where it has two rows. Validation rows are
    ``validation`` of its rows, rounded, out of the rest. Each client keeps at least one training row.
    """
    sizes = np.bincount(owner, minlength=clients)
    part = np.zeros(len(owner), dtype=np.int8)
    if isinstance(test, np.ndarray):
        part[test] = 2
        tests = np.bincount(owner[test], minlength=clients)
    else:
        tests = count_tests(sizes, test)
        if test > 0:
            part[draw_stratified(np.arange(len(owner)), owner, labels, tests, generator)] = 2
    if validation > 0:
        rest = np.flatnonzero(part == 0)
        part[draw_stratified(rest, owner, labels, count_validations(sizes, tests, validation), generator)] = 1
    return part


def count_tests(sizes: Ints, test: float) -> Ints:
    """How many rows of each client are for testing: at least one where it has two rows, and never all."""
    if test == 0:
        return np.zeros_like(sizes)
    return np.asarray(np.minimum(np.maximum(round_half_up(sizes * test), 1), np.maximum(sizes - 1, 0)))


def count_validations(sizes: Ints, tests: Ints, validation: float) -> Ints:
    """How many rows of each client are for validation: at most what leaves one row for training."""
    return np.asarray(np.minimum(round_half_up(sizes * validation), np.maximum(sizes - tests - 1, 0)))


def draw_stratified(rows: Ints, owner: Ints, labels: Ints | None, counts: Ints, generator: np.random.Generator) -> Ints:
    """``counts[client]`` of each client's rows among ``rows``, in proportion to its labels among them."""
    client = owner[rows]
    label = np.zeros(len(rows), dtype=np.int64) if labels is None else labels[rows]
    order = np.lexsort((generator.random(len(rows)), label, client))
    client, label = client[order], label[order]
    # A cell is the run of rows with one client and one label; its rows lie in random order.
    first = _mark_changes(client) | _mark_changes(label)
    cell = np.cumsum(first) - 1
    quota = largest_remainder(np.bincount(cell), client[first], counts, generator)
    return np.asarray(rows[order[position_in_run(cell) < quota[cell]]])


def position_in_run(values: Ints) -> Ints:
    """For each entry of an array of runs, its place within its run."""
    place = np.arange(len(values))
    return np.asarray(place - np.maximum.accumulate(np.where(_mark_changes(values), place, 0)))


def _mark_changes(values: Ints) -> NDArray[np.bool_]:
    """Whether each entry differs from the one before it; values are not negative."""
    return np.asarray(np.diff(values, prepend=-1) != 0)


def round_half_up(values: NDArray[np.floating[Any]]) -> Ints:
    """The nearest whole numbers, halves upwards."""
    # Halves go up, on every machine and for every size; np.round would send 0.5 and 2.5 down but 1.5 up.
    return np.asarray(np.floor(values + 0.5), dtype=np.int64)
