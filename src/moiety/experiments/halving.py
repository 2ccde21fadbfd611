"""How ``recommend`` spends its budget: short runs of all candidates, longer ones of the better, full ones of the best.

The unit is the gradient evaluation: the gradient of one row's loss. Lengths are in rounds of FedAvg, which makes one
for each training row of the cohort.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from moiety.analysis.candidates import Candidate
from moiety.errors import is_whole, must, refuse, whole

SHARES = (1 / 9, 1 / 3, 1.0)
"""The length of the runs of each rung, as a share of the full length."""
RATES = (0.01, 0.04, 0.16, 0.64)
"""The learning rates that every candidate is tried with."""
SEEDS, FEWER_SEEDS = 5, 3
"""How many seeds the final comparison trains with, and in a small budget. Student's t is 2.8 and 4.3."""
LEAST_RIVALS, LEAST_SEEDS = (3, 1, 1), 2
"""What is done in any case, however late it is: so many rivals in each rung, and so many seeds in the end."""
START = 1 / 2
"""The length of the start that candidates continue from, likewise."""
TUNING = 1 / 3
"""The length of the runs that tell the learning rate of the start, as a share of its length."""
LEAST = 27
"""The fewest rounds of FedAvg that a full run may have besides its start: three in the first rung."""
FEWEST = 4
"""With fewer candidates nothing is compared."""
UNITS = {"s": 1, "sec": 1, "min": 60, "h": 3600}
MOST = 10**15


@dataclass(frozen=True)
class Rung:
    """One rung: the length of its runs in rounds of FedAvg, how many rates, how many rivals of one model for all."""

    rounds: int
    rates: int
    rivals: int


@dataclass(frozen=True)
class Plan:
    """The rungs of a search, how many candidates it has room for, and the gradient evaluations that it will take.

    ``start`` is the length of the start, and ``tuning`` that of the runs that tell its learning rate.
    """

    start: int
    tuning: int
    rungs: tuple[Rung, ...]
    candidates: int
    evaluations: int
    seeds: int

    @property
    def steps(self) -> tuple[int, ...]:
        """The rivals of each rung, and the seeds of the final comparison: what a clock may cut."""
        return (*(rung.rivals for rung in self.rungs), self.seeds)

    @property
    def full(self) -> int:
        """The length of a full run besides its start, in rounds of FedAvg."""
        return self.rungs[-1].rounds


def read_budget(budget: str | int) -> float | int:
    """Seconds as a float, or a number of gradient evaluations as an int.

    >>> read_budget("10 min"), read_budget("1.5 h"), read_budget(2_000_000)
    (600.0, 5400.0, 2000000)
    """
    if is_whole(budget):
        whole("budget", budget, 1, MOST)
        return int(budget)
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(s|sec|min|h)\s*", budget) if isinstance(budget, str) else None
    if match is None or not float(match[1]):
        hint = 'As in "10 min", "90 s", "1 h", or 2000000.'
        refuse("budget", "a time, or a whole number of gradient evaluations", repr(budget), hint)
    return float(match[1]) * UNITS[match[2]]


def read_steps(steps: Sequence[int] | None) -> tuple[int, ...] | None:
    """How much of a plan is done, as an earlier search recorded it.

    >>> read_steps([14, 5, 2, 3])
    (14, 5, 2, 3)
    """
    if steps is None:
        return None
    least = (*LEAST_RIVALS, LEAST_SEEDS)
    fits = isinstance(steps, (list, tuple)) and len(steps) == len(least) and all(map(is_whole, steps))
    fits = fits and all(count >= fewest for count, fewest in zip(steps, least, strict=True))
    must(fits, "steps", f"four whole numbers, at least {', '.join(map(str, least))}", steps, "See answer.steps.")
    return tuple(int(each) for each in steps)


def make_rungs(full: int, rivals: int, rates: int) -> tuple[Rung, ...]:
    """The rungs where a full run has so many rounds. A third of the rivals goes on, at least four, then three.

    The numbers of rates are all, two, and one, for every candidate alike.
    """
    counts = [rivals, max(4, math.ceil(rivals / 3)), max(3, math.ceil(rivals / 9))]
    rate_counts = [rates, min(2, rates), 1]
    return tuple(
        Rung(max(1, round(share * full)), tries, min(count, rivals))
        for share, tries, count in zip(SHARES, rate_counts, counts, strict=True)
    )


def count_evaluations(full: int, candidates: Sequence[Candidate], rates: int, rows: float, seeds: int = SEEDS) -> int:
    """The most gradient evaluations that a search can take; a cohort has ``rows`` training rows.

    Which candidates go on is not known before, so the dearest are assumed to.
    """
    kinds = 1 + any(each.local for each in candidates)
    start, tuning = start_lengths(full)
    total: float = kinds * (rates * tuning + start)
    for rung in make_rungs(full, len(candidates) - 1, rates):
        costs = sorted((each.cost(rung.rounds) for each in candidates[1:]), reverse=True)
        total += rung.rates * (rung.rounds + sum(costs[: rung.rivals]))
    dearest = max(each.cost(full) for each in candidates[1:])
    return math.ceil(rows * (total + seeds * (kinds * start + full + dearest)))


def longest_run(rounds: int) -> int:
    """The longest full run besides its start, where both together have at most so many rounds."""
    return max(1, round(rounds / (1 + START)))


def start_lengths(full: int) -> tuple[int, int]:
    """The length of the start, and of the runs that tell its learning rate."""
    return max(1, round(START * full)), max(1, round(TUNING * START * full))


def make_plan(
    candidates: Sequence[Candidate], *, budget: int, most: int, rates: int, rows: float, note: str = ""
) -> Plan:
    """The longest full run of at most ``most`` rounds that the budget has room for, with as many candidates as can be.

    Where runs would be too short, there are fewer seeds, and then the last candidates are left out. ``note`` says
    what the budget was in minutes.
    """
    least = min(LEAST, most)
    for count, seeds in product(range(len(candidates), FEWEST - 1, -1), (SEEDS, FEWER_SEEDS)):
        some, low, high = candidates[:count], 0, most
        while low < high:  # the longest that fits
            middle = (low + high + 1) // 2
            fits = count_evaluations(middle, some, rates, rows, seeds) <= budget
            low, high = (middle, high) if fits else (low, middle - 1)
        if low >= least:
            total = count_evaluations(low, some, rates, rows, seeds)
            return Plan(*start_lengths(low), make_rungs(low, count - 1, rates), count, total, seeds)
    some = candidates[:FEWEST]
    cost = count_evaluations(least, some, rates, rows, FEWER_SEEDS)
    hint = "Give it more time, or fewer clients a round (cohort)."
    must(False, "budget", f"at least {cost:,} gradient evaluations here", f"{budget:,}{note}", hint)
    raise AssertionError
