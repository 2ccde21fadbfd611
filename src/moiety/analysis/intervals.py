"""What the interval of a mean over a few seeds says about a claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moiety.errors import must, number
from moiety.reports.intervals import Interval as Interval
from moiety.reports.intervals import interval as interval

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "not decided at this scale"


def as_columns(result: Interval, name: str) -> dict[str, Any]:
    """The fields of an interval as columns of a row, the mean under ``name``."""
    return {name if key == "mean" else key: value for key, value in asdict(result).items()}


@dataclass(frozen=True)
class Claim:
    """A claim and its verdict: ``holds``, ``does not hold`` or ``not decided at this scale``."""

    name: str
    verdict: str
    interval: Interval

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict}"


def claim(
    name: str, differences: Sequence[float], *, above: float = 0.0, within: float | None = None, level: float = 0.95
) -> Claim:
    """Judge a claim by the interval for the mean of ``differences``, one a seed.

    The claim that the difference is above a number holds where the whole interval is above it, and does not hold where
    the whole interval is below it. The claim that the difference is ``within`` a margin either way holds where the
    whole interval is inside, and does not hold where the whole interval is outside. It is not decided where the
    interval holds both, or where there is one seed.

    >>> str(claim("FedAlt beats FedSim", [0.3, 0.4, 0.35]))
    'FedAlt beats FedSim: holds'
    >>> claim("close to full personalisation", [0.3, -0.4, 0.35], within=0.5).verdict
    'not decided at this scale'
    """
    if within is not None:
        number("within", within, "> 0", lambda w: w > 0)
        must(above == 0, "above", "left out where within is given", above)
    result = interval(differences, level=level)
    return Claim(name, judge_ends(result.low, result.high, above, within), result)


def judge_ends(low: float | None, high: float | None, above: float, within: float | None) -> str:
    """The verdict that the ends of an interval give, as ``claim`` says."""
    if low is None or high is None:
        return UNDECIDED
    if within is None:
        holds, fails = low > above, high < above
    else:
        holds, fails = -within <= low and high <= within, low > within or high < -within
    return HOLDS if holds else FAILS if fails else UNDECIDED


def table_row(
    row: str, values: Sequence[float], *, paper: float | None = None, scale: float = 1.0, verdict: str | None = None
) -> dict[str, Any]:
    """A row of a table from one value a seed; ``scale=100`` makes per cent of shares.

    >>> result = table_row("FedAlt", [0.5, 0.75], paper=62.0, scale=100)
    >>> result["ours"], result["paper"], result["seeds"], result["verdict"]
    (62.5, 62.0, 2, None)
    """
    columns = as_columns(interval([scale * value for value in values]), "ours")
    return {"row": row, "paper": paper, **columns, "verdict": verdict}
