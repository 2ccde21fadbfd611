"""Rows of scores and of claims, with intervals over seeds and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moiety.analysis.intervals import FAILS, HOLDS, UNDECIDED, Interval, claim, interval

Row = dict[str, Any]


def interval_ends(of: Interval) -> list[float] | None:
    """The ends of an interval; None where there is one seed."""
    return None if of.low is None or of.high is None else [of.low, of.high]


def score_row(row: str, values: Sequence[float], *, paper: float | None = None, scale: float = 1.0) -> Row:
    """A score with its interval, from one value a seed; ``scale=100`` makes per cent of shares.

    >>> score_row("FedAlt", [0.5], paper=62.0, scale=100)
    {'row': 'FedAlt', 'paper': 62.0, 'ours': 50.0, 'interval': None, 'each': [50.0]}
    """
    each = [scale * value for value in values]
    ours = interval(each)
    return {"row": row, "paper": paper, "ours": ours.mean, "interval": interval_ends(ours), "each": each}


def claim_row(
    row: str,
    differences: Sequence[float],
    *,
    above: float = 0.0,
    within: float | None = None,
    paper: float | None = None,
) -> Row:
    """A claim with its verdict, from one difference a seed: that it is above a number, or within a margin of 0.

    >>> claim_row("FedAlt beats FedSim", [0.3, 0.4, 0.35])["verdict"]
    'holds'
    """
    verdict = claim(row, differences, above=above, within=within).verdict
    return {**score_row(row, differences, paper=paper), "verdict": verdict}


def compare(new: Sequence[float], old: Sequence[float], scale: float = 1.0) -> list[float]:
    """The differences of two methods, seed by seed."""
    return [scale * (a - b) for a, b in zip(new, old, strict=True)]


def count_verdicts(rows: Iterable[Mapping[str, Any]]) -> str:
    """How many claims hold, in one sentence.

    >>> count_verdicts([{"verdict": "holds"}, {"verdict": "does not hold"}, {"verdict": None}])
    '1 of 2 claims holds, 1 does not, 0 are not decided at this scale.'
    """
    verdicts = [row["verdict"] for row in rows if row.get("verdict")]
    hold, fail, rest = (verdicts.count(verdict) for verdict in (HOLDS, FAILS, UNDECIDED))
    return (
        f"{hold} of {len(verdicts)} claims {'holds' if hold == 1 else 'hold'}, {fail} {'does' if fail == 1 else 'do'}"
        f" not, {rest} {'is' if rest == 1 else 'are'} not decided at this scale."
    )


def show_interval(row: Mapping[str, Any], *, digits: int = 2, sign: str = "") -> str:
    """A score with its interval in brackets, as text; ``sign="+"`` shows the sign of differences.

    >>> show_interval({"ours": 1.234, "interval": [0.5, 2.0]}, digits=1, sign="+")
    '+1.2 [+0.5, +2.0]'
    """
    ends = row["interval"]
    shown = "" if ends is None else f" [{ends[0]:{sign}.{digits}f}, {ends[1]:{sign}.{digits}f}]"
    return f"{row['ours']:{sign}.{digits}f}{shown}"
