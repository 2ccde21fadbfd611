"""What noisy sums cost in epsilon, by the library dp-accounting (the extra ``privacy``).

A sum of clipped uploads with noise is a Gaussian mechanism. Where each client takes part independently with the same
chance, it is a Poisson-sampled one, composed by privacy loss distributions, whose grid rounds to the safe side. Else it
is counted as if all clients took part in every sum, by the exact formula for the Gaussian mechanism.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from moiety.errors import refuse

PRECISION = 1e-4
"""How near the smallest noise that will do ``find_noise`` comes, as a share of it."""


@functools.lru_cache(maxsize=1024)
def spend_epsilon(multiplier: float, sums: int, rate: float, delta: float) -> float:
    """The epsilon, at ``delta``, of so many sums in which each client takes part with the chance ``rate``.

    ``multiplier`` is the deviation of the noise as a multiple of how far one client can move a sum.

    >>> spend_epsilon(1.0, 0, 1.0, 1e-5), spend_epsilon(0.0, 1, 1.0, 1e-5)
    (0.0, inf)
    """
    if sums == 0:
        return 0.0
    if multiplier == 0:
        return math.inf
    dp = _load_library()
    if rate >= 1:
        return float(dp.get_epsilon_gaussian(multiplier / math.sqrt(sums), delta))
    accountant = _make_accountant(rate, multiplier)
    accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(multiplier)), sums)
    return float(accountant.get_epsilon(delta))


Rates = tuple[tuple[float, int], ...]
"""How many sums were drawn at each chance to take part, where that changed on the way."""


def add_sums(rates: Rates, rate: float, sums: int = 1) -> Rates:
    """The rates with so many sums more.

    >>> add_sums(add_sums((), 0.5), 0.5), add_sums(((0.5, 2),), 0.25, 3)
    (((0.5, 2),), ((0.5, 2), (0.25, 3)))
    """
    counts = dict(rates)
    return tuple({**counts, rate: counts.get(rate, 0) + sums}.items())


@functools.lru_cache(maxsize=1024)
def spend_at_rates(multiplier: float, rates: Rates, delta: float) -> float:
    """The epsilon of sums of which each was drawn at its own rate: clients that joined later made it smaller."""
    parts = [(rate, sums) for rate, sums in rates if sums]
    if len(parts) <= 1 or multiplier == 0:
        rate, sums = parts[0] if parts else (1.0, 0)
        return spend_epsilon(multiplier, sums, rate, delta)
    dp = _load_library()
    accountant = _make_accountant(min(rate for rate, _ in parts), multiplier)
    for rate, sums in parts:
        event = dp.GaussianDpEvent(multiplier)
        accountant.compose(event if rate >= 1 else dp.PoissonSampledDpEvent(rate, event), sums)
    return float(accountant.get_epsilon(delta))


def _make_accountant(rate: float, multiplier: float) -> Any:
    """What composes sums; the loss of one is about rate / multiplier: a grid much finer than that."""
    dp = _load_library()
    grid = min(max(rate / multiplier / 50, 1e-6), 1e-2)
    return dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, grid)


def find_noise(epsilon: float, sums: int, rate: float, delta: float) -> float:
    """The smallest multiplier with which so many sums cost at most ``epsilon`` at ``delta``, or little more than it."""
    enough = float(_load_library().get_sigma_gaussian(epsilon, delta)) * math.sqrt(sums)  # as if all took part
    while spend_epsilon(enough, sums, rate, delta) > epsilon:  # by rounding
        enough *= 1 + PRECISION
    if rate >= 1:
        return enough
    too_little = enough / 2
    while spend_epsilon(too_little, sums, rate, delta) <= epsilon:
        too_little, enough = too_little / 2, too_little
    while enough > too_little * (1 + PRECISION):
        middle = math.sqrt(too_little * enough)
        if spend_epsilon(middle, sums, rate, delta) <= epsilon:
            enough = middle
        else:
            too_little = middle
    return enough


def count_sums(epsilon: float, multiplier: float, most: int, rate: float, delta: float, before: Rates = ()) -> int:
    """How many sums more than those ``before``, at ``most``, cost no more than ``epsilon`` with them."""
    fits, too_many = 0, most + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if spend_at_rates(multiplier, add_sums(before, rate, middle), delta) <= epsilon:
            fits = middle
        else:
            too_many = middle
    return fits


def _load_library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        refuse("privacy", "used where dp-accounting is installed", "none", "As in: pip install 'moiety[privacy]'.")
    return dp_accounting
