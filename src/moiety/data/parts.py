"""Which rows of a client are for testing and validation: random ones, its latest, or whole groups of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moiety.data.apportion import assign_parts, count_tests, count_validations, position_in_run
from moiety.data.federated import Array, Ints

Parts = NDArray[np.int8]


ROWS_AT_ONCE = 1 << 20
"""How many rows are drawn from at a time, where clients are smaller: drawing takes some 70 bytes a row."""


def part_at_random(
    owner: Ints,
    labels: Ints | None,
    clients: int,
    *,
    test: float | NDArray[np.bool_],
    validation: float,
    generator: np.random.Generator,
) -> Parts:
    """What ``assign_parts`` gives, for some clients at a time where there are many rows."""
    if len(owner) <= ROWS_AT_ONCE:
        return assign_parts(owner, labels, clients, test=test, validation=validation, generator=generator)
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    part = np.zeros(len(owner), dtype=np.int8)
    first = start = 0
    while first < clients:
        last = max(first + 1, int(np.searchsorted(ends, start + ROWS_AT_ONCE, side="right")))
        rows = order[start : ends[last - 1]]
        part[rows] = assign_parts(
            owner[rows] - first,
            None if labels is None else labels[rows],
            last - first,
            test=test[rows] if isinstance(test, np.ndarray) else test,
            validation=validation,
            generator=generator,
        )
        first, start = last, int(ends[last - 1])
    return part


def part_by_time(owner: Ints, time: Array, clients: int, *, test: float, validation: float) -> Parts:
    """The part of each row (0 train, 1 validation, 2 test): a client's last rows test, those before them validate.

    Sizes are as for rows that are drawn, and a client keeps at least one training row.

    >>> part_by_time(np.zeros(5, dtype=int), np.array([5, 1, 4, 2, 3]), 1, test=0.4, validation=0.2).tolist()
    [2, 0, 2, 0, 1]
    """
    sizes = np.bincount(owner, minlength=clients)
    tests = count_tests(sizes, test)
    validations = count_validations(sizes, tests, validation)
    order = np.lexsort((time, owner))
    from_end = sizes[owner[order]] - 1 - position_in_run(owner[order])
    first, second = tests[owner[order]], validations[owner[order]]
    part = np.zeros(len(owner), dtype=np.int8)
    part[order] = np.where(from_end < first, 2, np.where(from_end < first + second, 1, 0))
    return part


def part_by_group(
    owner: Ints, group: Ints, clients: int, *, test: float, validation: float, generator: np.random.Generator
) -> Parts:
    """The part of each row such that rows of one client and one group have the same part.

    A client's groups come in random order: the first ones test until their rows are nearest to the share, the next ones
    validate. A client with two groups or more tests on at least one; the last group always trains.
    """
    sizes = np.bincount(owner, minlength=clients)
    width = int(group.max(initial=0)) + 1
    cells, cell_of, rows = np.unique(owner * width + group, return_inverse=True, return_counts=True)
    client = cells // width
    order = np.lexsort((generator.random(len(cells)), client))
    client, rows = client[order], rows[order]
    place = position_in_run(client)
    before = np.cumsum(rows) - rows
    before -= before[np.flatnonzero(place == 0)][client_runs(client)]
    tests = count_tests(sizes, test)
    validations = count_validations(sizes, tests, validation)
    middle = before + rows / 2
    is_test = (middle < tests[client]) | ((place == 0) & (test > 0))
    is_validation = ~is_test & (middle < (tests + validations)[client])
    last = np.append(client[1:] != client[:-1], True)
    parts = np.where(last, 0, np.where(is_test, 2, np.where(is_validation, 1, 0))).astype(np.int8)
    of_cell = np.empty(len(cells), dtype=np.int8)
    of_cell[order] = parts
    return np.asarray(of_cell[cell_of])


def client_runs(client: Ints) -> Ints:
    """For each entry of an ascending array, the number of the run of equal values that it is in."""
    return np.asarray(np.cumsum(np.append(False, client[1:] != client[:-1])))
