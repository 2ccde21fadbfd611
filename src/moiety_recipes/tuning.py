"""Searches for rates that do not stop at the end of their grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

MORE_VALUES = 3
"""How many values a search tries at most beyond its grid."""


def widen(scores: Mapping[float, float], ladder: Sequence[float]) -> list[float]:
    """The next value of a ladder beyond the end at which the best of several values is; empty where it is not.

    Larger scores are better. A first value that is no better than its neighbour is no end worth going on from.

    >>> widen({0.1: 0.5, 0.3: 0.7}, (0.01, 0.03, 0.1, 0.3, 1.0))
    [1.0]
    >>> widen({0.1: 0.5, 0.3: 0.7, 1.0: 0.6}, (0.01, 0.03, 0.1, 0.3, 1.0))
    []
    """
    values = sorted(scores)
    best = max(values, key=scores.__getitem__)
    if len(values) > 1 and best == values[-1]:
        return [value for value in ladder if value > best][:1]
    if len(values) > 1 and best == values[0] and scores[best] > scores[values[1]]:
        return [value for value in ladder if value < best][-1:]
    return []


def is_end(rate: float, scores: Mapping[str, float | None]) -> bool:
    """Whether the best of several values is the last of them, or the first and better than the second."""
    rows = sorted((float(value), score) for value, score in scores.items())
    if len(rows) < 2:
        return False
    first, last = (math.isclose(rate, rows[place][0], rel_tol=0.01) for place in (0, -1))  # pages have three digits
    return last or (first and rows[0][1] != rows[1][1])
