"""How certain a mean over a few seeds is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from moiety.errors import must, proper_fraction


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
