"""Factors on the client learning rate across rounds (Pillutla et al. 2022, appendix B.3).

Within a round the rate is constant; ``t`` counts rounds from 0 and ``rounds`` is how many the run is asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from moiety.errors import kind, number, whole
from moiety.spec import recorded
from moiety.types import Schedule


@recorded
def constant() -> Schedule:
    """The same rate in every round.

    >>> [constant().factor(t, 99) for t in range(4)]
    [1.0, 1.0, 1.0, 1.0]
    """
    return Schedule(lambda t, rounds: 1.0)


@recorded
def linear(*, warmup: float = 0.1) -> Schedule:
    """Up from 0 during the first ``warmup`` share of the rounds, then down to 0.

    Factor: t / (w T) while t < w T, then (T - t) / ((1 - w) T). With a warm-up the very first round has factor 0.

    >>> [round(linear(warmup=0.2).factor(t, 10), 3) for t in range(10)]
    [0.0, 0.5, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    """
    number("warmup", warmup, ">= 0 and < 1", lambda w: 0 <= w < 1)

    def factor(t: int, rounds: int) -> float:
        rise = warmup * rounds
        return t / rise if t < rise else (rounds - t) / (rounds - rise)

    return Schedule(factor)


@recorded
def exponential(*, halve_every: int) -> Schedule:
    """Halved once every ``halve_every`` rounds.

    >>> [exponential(halve_every=2).factor(t, 99) for t in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    whole("halve_every", halve_every, 1)
    return Schedule(lambda t, rounds: 0.5 ** (t // halve_every))


@recorded
def geometric(*, factor: float) -> Schedule:
    """Times ``factor`` after each round: factor^t.

    >>> [geometric(factor=0.5).factor(t, 99) for t in range(4)]
    [1.0, 0.5, 0.25, 0.125]
    """
    number("factor", factor, "> 0 and <= 1", lambda f: 0 < f <= 1)
    return Schedule(lambda t, rounds: float(factor**t))


def schedule_or_constant(schedule: Schedule | None) -> Schedule:
    """The schedule given, or the constant one."""
    hint = "For instance moiety.schedule.linear()."
    kind("schedule", schedule, (Schedule, type(None)), "a schedule", hint)
    return schedule or constant()


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "linear": linear,
    "exponential": exponential,
    "geometric": geometric,
}
