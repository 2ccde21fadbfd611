"""How certain a mean over a few seeds is, and what that says about a claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moiety.errors import must, number, proper_fraction

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "not decided at this scale"


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, its standard deviation (n - 1 below) and an interval for it; with one seed the mean alone."""

    mean: float
    std: float | None
    low: float | None
    high: float | None
    seeds: int


def interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Student's t interval for the mean of ``values``, one a seed: mean ± t std / sqrt(n).

    It takes the seeds for independent and their values for normally distributed.

    >>> result = interval([1.0, 2.0, 3.0])
    >>> result.mean, result.std, round(result.low, 3), round(result.high, 3)
    (2.0, 1.0, -0.484, 4.484)
    >>> interval([0.5])
    Interval(mean=0.5, std=None, low=None, high=None, seeds=1)
    """
    proper_fraction("level", level)
    must(len(values) > 0, "values", "at least one, a seed each", "none")
    odd = [v for v in values if not math.isfinite(v)]
    must(not odd, "values", "finite numbers", odd[:1])
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, None, None, None, 1)
    from scipy.stats import t  # half a second to import

    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1))
    half = float(t.ppf((1 + level) / 2, count - 1)) * std / math.sqrt(count)
    return Interval(mean, std, mean - half, mean + half, count)


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
