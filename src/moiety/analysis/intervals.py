"""How sure one can be of a mean over a few seeds, and what that says of a claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moiety.errors import must, number

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

    >>> found = interval([1.0, 2.0, 3.0])
    >>> found.mean, found.std, round(found.low, 3), round(found.high, 3)
    (2.0, 1.0, -0.484, 4.484)
    >>> interval([0.5])
    Interval(mean=0.5, std=None, low=None, high=None, seeds=1)
    """
    number("level", level, "> 0 and < 1", lambda x: 0 < x < 1)
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


@dataclass(frozen=True)
class Claim:
    """A claim and what the seeds say of it: ``holds``, ``does not hold`` or ``not decided at this scale``."""

    name: str
    verdict: str
    interval: Interval

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict}"


def claim(
    name: str, differences: Sequence[float], *, above: float = 0.0, within: float | None = None, level: float = 0.95
) -> Claim:
    """Judge a claim by the interval for the mean of ``differences``, one a seed.

    That the difference is above a number: it holds where the whole interval is, and does not where the whole interval
    is below. That it is close to nothing, ``within`` a margin either way: likewise, inside and outside. Where the
    interval holds both, or there is one seed, it is not decided.

    >>> str(claim("FedAlt beats FedSim", [0.3, 0.4, 0.35]))
    'FedAlt beats FedSim: holds'
    >>> claim("close to full personalisation", [0.3, -0.4, 0.35], within=0.5).verdict
    'not decided at this scale'
    """
    if within is not None:
        number("within", within, "> 0", lambda w: w > 0)
        must(above == 0, "above", "left out where within is given", above)
    found = interval(differences, level=level)
    return Claim(name, _verdict(found.low, found.high, above, within), found)


def _verdict(low: float | None, high: float | None, above: float, within: float | None) -> str:
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

    >>> found = table_row("FedAlt", [0.5, 0.75], paper=62.0, scale=100)
    >>> found["ours"], found["paper"], found["seeds"], found["verdict"]
    (62.5, 62.0, 2, None)
    """
    found = interval([scale * value for value in values])
    rest = {key: value for key, value in asdict(found).items() if key != "mean"}
    return {"row": row, "paper": paper, "ours": found.mean, **rest, "verdict": verdict}
