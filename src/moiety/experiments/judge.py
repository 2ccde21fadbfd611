"""Rows of scores and of claims, with intervals over seeds and verdicts.

``decide`` is the rule of scale ``night``; ``claim_row`` is the looser one of a first look.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from moiety.analysis.intervals import FAILS, HOLDS, UNDECIDED, Interval, claim, interval, judge_ends
from moiety.errors import must, number

Row = dict[str, Any]
LEVEL = 0.99
"""Of the interval that decides. With skewed differences an interval of 95% says "holds" of one claim in ten that is at
the edge of being false; this one stays below 6.4% (``tests/experiments/test_decide.py``)."""
POWER = 0.8
MOST_SEEDS = 1_000
"""More seeds than these are not asked for."""


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


def decide(
    name: str, differences: Mapping[str, Sequence[float]], *, above: float = 0.0, within: float | None = None
) -> Row:
    """Decide a claim from one difference a seed in each of one or more settings.

    What is judged is the mean over settings of the settings' means. Its interval is Student's t at ``LEVEL``, with the
    degrees of freedom of Welch and Satterthwaite: settings may differ in spread and in seeds. Seeds of different
    settings are independent; settings are those at hand, not a sample of others. The claim that the mean is above a
    number holds where the whole interval is above it, and does not hold where the whole interval is below it. The claim
    that it is ``within`` a margin of 0 either way holds where the whole interval is inside, and does not hold where the
    whole interval is outside. Otherwise it is not decided, and ``needed`` says how many seeds a setting would take: so
    many that a claim with this mean and this spread is decided with a probability of ``POWER``; None where these are
    more than ``MOST_SEEDS``. A single seed decides nothing. Nor do seeds that all agree, in every setting: they do not
    tell the spread, so there is no interval.

    >>> decide("FedAlt beats FedSim", {"people": [0.3, 0.4, 0.35, 0.3, 0.35]})["verdict"]
    'holds'
    >>> row = decide("the same, pooled", {"people": [0.3, 0.4, 0.35, 0.1], "roles": [-0.1, 0.4, 0.1, 0.0]})
    >>> row["verdict"], row["needed"]
    ('not decided at this scale', 8)
    """
    must(len(differences) > 0, "differences", "those of at least one setting", "none")
    for each in differences.values():
        odd = [value for value in each if not math.isfinite(value)]
        must(len(each) > 0 and not odd, "differences", "finite numbers, one a seed", odd[:1] or "none")
    if within is not None:
        number("within", within, "> 0", lambda w: w > 0)
        must(above == 0, "above", "left out where within is given", above)
    from scipy.special import stdtrit  # half a second to import

    count, seeds = len(differences), [len(each) for each in differences.values()]
    mean = fmean(fmean(each) for each in differences.values())
    row: Row = {"claim": name, "mean": mean, "low": None, "high": None, "seeds": min(seeds), "settings": count}
    row |= {"above": above} if within is None else {"within": within}
    if min(seeds) == 1 or all(_agree(each) for each in differences.values()):
        return {**row, "verdict": UNDECIDED, "needed": None}
    parts = [_variance(each) / len(each) for each in differences.values()]
    error = math.sqrt(math.fsum(parts)) / count
    weights = math.fsum(part**2 / (n - 1) for part, n in zip(parts, seeds, strict=True))
    freedom = math.fsum(parts) ** 2 / weights
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    row |= {"low": mean - half, "high": mean + half}
    verdict = judge_ends(row["low"], row["high"], above, within)
    enough = None
    if verdict == UNDECIDED:
        seeds_now = fmean(seeds)
        enough = _count_seeds(mean, error * math.sqrt(seeds_now), freedom / (seeds_now - 1), above, within)
    return {**row, "verdict": verdict, "needed": enough}


def _agree(values: Sequence[float]) -> bool:
    """Whether values are the same, but for rounding."""
    return max(values) - min(values) <= 1e-12 * max(map(abs, values))


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _count_seeds(mean: float, spread: float, freedom: float, above: float, within: float | None) -> int | None:
    """How many seeds a setting takes for ``POWER``; ``freedom`` is what each seed but the first adds to its degrees."""
    from scipy.special import nctdtr, stdtrit

    def power(effect: float, seeds: int) -> float:
        cut = float(stdtrit(freedom * (seeds - 1), (1 + LEVEL) / 2))
        shift = effect * math.sqrt(seeds) / spread
        return 1.0 if shift > cut + 8 else 1 - float(nctdtr(freedom * (seeds - 1), shift, cut))

    def is_enough(seeds: int) -> bool:
        if within is None:
            return power(abs(mean - above), seeds) >= POWER
        if abs(mean) < within:
            return power(within - mean, seeds) + power(within + mean, seeds) - 1 >= POWER
        return power(abs(mean) - within, seeds) >= POWER

    few, many = 1, MOST_SEEDS
    if not is_enough(many):
        return None
    while many - few > 1:  # power grows with the seeds
        middle = (few + many) // 2
        few, many = (few, middle) if is_enough(middle) else (middle, many)
    return many


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
    interval = "" if ends is None else f" [{ends[0]:{sign}.{digits}f}, {ends[1]:{sign}.{digits}f}]"
    return f"{row['ours']:{sign}.{digits}f}{interval}"
