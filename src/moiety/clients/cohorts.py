"""Who is asked in a round."""

from __future__ import annotations

import numpy as np

from moiety.random import generator, passing_generator


def uniform_cohort(clients: int, cohort: int, *, seed: int, round: int) -> np.ndarray:
    """``cohort`` distinct clients drawn uniformly, in ascending order; work is O(cohort), not O(clients)."""
    if cohort == clients:
        return np.arange(clients)
    return np.sort(passing_generator(seed, "cohort", round).choice(clients, size=cohort, replace=False, shuffle=False))


def bernoulli_cohort(clients: int, expected: int, *, seed: int, round: int) -> np.ndarray:
    """Draw each client independently, with probability ``expected / clients``. Ascending; there may be none.

    The number of them is binomial, and given the number any set of that size is as likely: work is O(cohort).
    """
    draw = generator(seed, "bernoulli cohort", round)
    count = int(draw.binomial(clients, expected / clients))
    return np.sort(draw.choice(clients, size=count, replace=False, shuffle=False))
