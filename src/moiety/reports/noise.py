"""Who is helped and hurt beyond noise, as far as the rows of a run can tell.

A run keeps each client's metric, not its score on every test row. So of two models it is known how often each is right,
but not on which rows they disagree. Intervals here take the pairing with the most disagreements that both numbers
allow, which is the widest: who is hurt beyond noise by it is so by the exact test on paired rows
(``moiety.evaluation.paired``) as well, but not the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from moiety.evaluation.paired import LEVEL, exact_ends
from moiety.reports.intervals import interval
from moiety.reports.words import is_percentage

LEAST_SEEDS = 3
"""With fewer seeds an interval over them says nothing about one client."""
HELPED, UNCLEAR, HURT, UNKNOWN = "helped", "within noise", "hurt", "not known"
ENDS = ("gain_low", "gain_high")
"""Columns of a client's row that hold the ends of its interval, where a run has scored every row."""

Ends = tuple[np.ndarray, np.ndarray]


def bound_change(new: np.ndarray, old: np.ndarray, rows: np.ndarray, *, level: float = LEVEL) -> Ends:
    """The widest interval for the change of each client's share of right answers, from ``old`` to ``new``.

    With the most disagreements possible, the new model wins W of D rows. The interval is Clopper and Pearson's for the
    chance p of a win, as a change of the share: (2p - 1) D / rows.

    >>> low, high = bound_change(np.array([0.0, 6 / 7]), np.array([6 / 7, 1.0]), np.array([7, 7]))
    >>> (high < 0).tolist()
    [True, False]
    """
    right, before = (np.rint(np.clip(share, 0, 1) * rows) for share in (new, old))
    few = right + before <= rows
    wins, losses = np.where(few, right, rows - before), np.where(few, before, rows - right)
    return exact_ends(wins, losses, rows, level)


def bound_gains(new: np.ndarray, old: np.ndarray, rows: np.ndarray, metric: str, *, higher: bool) -> Ends | None:
    """The ends of each client's interval for its gain; None where nothing is known.

    Args:
        new: a metric for each seed and client, [seeds, clients].
        old: the same of what it is compared with, seeds in the same order.
        rows: test rows of each client.
        metric: its name.
        higher: whether more of it is better.

    Shares of right answers have the intervals of ``bound_change``: the noise of few test rows. All seeds have the same
    rows, so more seeds make them no narrower: their ends are averaged. Any other metric has Student's t interval over
    seeds, if there are enough: the noise of training.
    """
    if is_percentage(metric) and _counts_rows(new, rows) and _counts_rows(old, rows):
        low, high = (ends.mean(0) for ends in bound_change(new, old, rows))
        return (low, high) if higher else (-high, -low)
    if len(new) < LEAST_SEEDS:
        return None
    gains = (new - old) if higher else (old - new)
    each = [_find_ends(column) for column in gains.T]
    return np.array([low for low, _ in each]), np.array([high for _, high in each])


def _counts_rows(shares: np.ndarray, rows: np.ndarray) -> bool:
    """Whether the shares of all clients are those of whole rows; of tokens, or of weighted rows, they are not."""
    right = shares * rows
    counts = right[np.isfinite(right)]
    return bool(np.allclose(counts, np.rint(counts), atol=1e-3))


def _find_ends(values: Sequence[float]) -> tuple[float, float]:
    if not all(math.isfinite(value) for value in values):
        return math.nan, math.nan
    span = interval([float(value) for value in values])
    low, high = (span.mean if end is None else end for end in (span.low, span.high))
    return float(low), float(high)


def read_ends(rows: Sequence[dict[str, Any]]) -> Ends | None:
    """The intervals that rows of clients hold, where a run has scored every row."""
    if not rows or any(end not in row for row in rows for end in ENDS):
        return None
    low, high = (np.array([float(row[end]) for row in rows]) for end in ENDS)
    return low, high


def judge_gains(gains: np.ndarray, ends: Ends | None) -> list[str]:
    """What is to be said of each client: helped or hurt beyond noise, within noise, or not known.

    >>> judge_gains(np.array([0.5, -0.1, np.nan]), (np.array([0.1, -0.3, 0.0]), np.array([0.9, 0.1, 0.0])))
    ['helped', 'within noise', 'not known']
    """
    if ends is None:
        return [UNKNOWN] * len(gains)
    low, high = ends
    finite = np.isfinite(gains) & np.isfinite(low + high)
    verdicts = np.where(low > 0, HELPED, np.where(high < 0, HURT, UNCLEAR))
    return [str(word) for word in np.where(finite, verdicts, UNKNOWN)]
