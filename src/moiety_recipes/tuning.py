"""Searches for rates: which of those that were tried is best, and whether that is the end of the grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import moiety as mo
from moiety.experiments import Row

MORE_VALUES = 3
"""How many values a search tries at most beyond its grid."""


def choose_rate(grid: Sequence[float], rows: Mapping[float, Row]) -> float:
    """The rate with the best score; the first one has a tie, and wins where nothing was tried."""
    return grid[0] if len(grid) == 1 else max(grid, key=compare_rates(rows).__getitem__)


def compare_rates(rows: Mapping[float, Row]) -> dict[float, float]:
    """The scores of rates that were tried, more is better."""
    metric = next(iter(rows.values()))["metric"]
    higher = mo.analysis.higher_is_better(metric, *(row["clients"] for row in rows.values()))
    sign = 1 if higher else -1
    scores = {lr: average_metric(row) for lr, row in rows.items()}
    # Rounded, so that the last digits, which differ between engines, decide no tie.
    return {lr: round(sign * value, 6) if math.isfinite(value) else -math.inf for lr, value in scores.items()}


def average_metric(row: Row) -> float:
    """The mean metric over clients, weighted by their scored rows, as papers have it."""
    return float(mo.evaluation.summarise(row["clients"], higher_is_better=True)["metric"])


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
