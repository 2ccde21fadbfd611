"""Who is asked in a round."""

from __future__ import annotations

import numpy as np

from moiety.rng import generator


def uniform_cohort(clients: int, cohort: int, *, seed: int, round: int) -> np.ndarray:
    """``cohort`` distinct clients drawn uniformly, in ascending order; work is O(cohort), not O(clients)."""
    if cohort == clients:
        return np.arange(clients)
    return np.sort(generator(seed, "cohort", round).choice(clients, size=cohort, replace=False, shuffle=False))
