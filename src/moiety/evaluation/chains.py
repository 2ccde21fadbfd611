"""What draws of a Markov chain are worth: effective sample size, and whether its two halves agree (split R-hat).

Vehtari, Gelman, Simpson, Carpenter, Buerkner. "Rank-normalization, folding, and localization: an improved R-hat",
Bayesian Analysis 2021; sections 2 and 3, without ranks. ArviZ has the same numbers: ``ess(method="mean")`` and
``rhat(method="split")``.
"""

from __future__ import annotations

import math

import numpy as np

from moiety.errors import must
from moiety.evaluation.calibration import as_numbers

LEAST_DRAWS = 10
"""Fewer draws say nothing about their own dependence."""
AGREE = 1.1
"""Split R-hat above which the halves of a chain disagree.

The level of Gelman and Rubin (Statistical Science 1992). Vehtari et al. ask for 1.01, of chains that are worth 400
draws. R-hat is about sqrt(1 + m / ESS) for m pieces of a chain that are worth ESS draws together (Vats and Knudson,
Statistical Science 2021): two halves that are worth 20 to 100 often exceed 1.01 and 1.05 by chance, 1.1 hardly ever.
"""
SLOW = 0.1
"""Of many numbers, the tenth that mixes worst counts: the very worst of hundreds is mostly an error of estimation."""


def effective_sample_size(chain: np.ndarray) -> np.ndarray:
    """How many independent draws the mean over a chain is worth, for each number.

    The chain is split in two halves, whose autocorrelations are joined. They are summed in pairs of neighbours, as long
    as pairs are positive, and no pair may be larger than the one before (Geyer 1992). A chain that does not move is
    worth one draw.

    Args:
        chain: draws in their order, [draws, ...].

    Returns:
        A number for each place of a draw, [...].

    >>> still = np.zeros((100, 1))
    >>> float(effective_sample_size(still)[0])
    1.0
    """
    halves = _split(chain)
    count = halves.shape[1]
    covariances = _autocovariances(_deviate(halves)).mean(0)  # [lag, ...]
    within = covariances[0] * count / (count - 1)
    total = covariances[0] + halves.mean(1).var(0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = 1 - (within - covariances) / total
    correlations[0] = 1.0
    pairs = 1 + (count - 3) // 2  # the last lags are hardly estimated
    even, odd = correlations[0 : 2 * pairs : 2], correlations[1 : 2 * pairs : 2]
    positive = np.logical_and.accumulate(even + odd > 0, axis=0)
    sums = np.minimum.accumulate(even + odd, axis=0)
    # Of the last pair, the first that is not positive or the last there is, the even lag alone counts.
    last = np.minimum(positive.sum(0), pairs - 1)
    inside = np.arange(pairs).reshape(-1, *[1] * last.ndim) < last
    rest, other = (np.take_along_axis(lags, last[None], 0)[0] for lags in (even, odd))
    rest = np.where((rest > 0) | (rest + other > 0), rest, 0.0)
    time = -1 + 2 * np.where(inside, sums, 0.0).sum(0) + rest
    size = 2 * count
    draws = size / np.maximum(time, 1 / math.log10(size))
    return np.asarray(np.where(total > 0, draws, 1.0))


def split_rhat(chain: np.ndarray) -> np.ndarray:
    """How far the two halves of a chain disagree, for each number; 1 where they do not, above ``AGREE`` is too much.

    It is the deviation over both halves together divided by that within them. Where a chain does not move it is 1.

    Args:
        chain: draws in their order, [draws, ...].

    >>> drift = np.arange(100.0)[:, None]
    >>> round(float(split_rhat(drift)[0]), 2)
    2.62
    """
    halves = _split(chain)
    count = halves.shape[1]
    within = (np.square(_deviate(halves)).sum(1) / (count - 1)).mean(0)
    between = halves.mean(1).var(0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.sqrt((between + (count - 1) / count * within) / within)
    return np.asarray(np.where(within > 0, ratio, np.where(between > 0, np.inf, 1.0)))


def judge_chain(chain: np.ndarray) -> tuple[float, float]:
    """Effective sample size and split R-hat of the tenth of a chain's numbers that mixes worst.

    Both are NaN for few draws, and for draws of no numbers. Draws that are not finite are worth 0.

    Args:
        chain: draws in their order, [draws, ...].
    """
    if len(chain) < LEAST_DRAWS or chain.size == 0:
        return math.nan, math.nan
    flat = chain.reshape(len(chain), -1)
    if not np.isfinite(flat).all():
        return 0.0, math.inf
    sizes, rhats = effective_sample_size(flat), split_rhat(flat)
    return float(np.quantile(sizes, SLOW)), float(np.quantile(rhats, 1 - SLOW, method="lower"))


def _split(chain: np.ndarray) -> np.ndarray:
    """The two halves of a chain, [2, draws, ...]; the draw in the middle of an odd number is left out.

    Each number is scaled by a power of two, which rounds nothing, to be below 1: squares neither overflow nor vanish.
    """
    numbers = as_numbers("chain", chain)
    must(len(numbers) >= LEAST_DRAWS, "chain", f"of at least {LEAST_DRAWS} draws", len(numbers))
    numbers = np.ldexp(numbers, -np.frexp(np.abs(numbers).max(0))[1])
    half = len(numbers) // 2
    return np.stack([numbers[:half], numbers[-half:]])


def _deviate(halves: np.ndarray) -> np.ndarray:
    """Draws minus the mean of their half; 0 where a half does not move, whose mean may be rounded."""
    moves = halves.max(1, keepdims=True) > halves.min(1, keepdims=True)
    return np.where(moves, halves - halves.mean(1, keepdims=True), 0.0)


def _autocovariances(deviations: np.ndarray) -> np.ndarray:
    """The autocovariance of each half at each lag, [2, lags, ...]; sums are divided by the number of draws."""
    count = deviations.shape[1]
    waves = np.fft.rfft(deviations, n=2 * count, axis=1)
    return np.asarray(np.fft.irfft(np.abs(waves) ** 2, n=2 * count, axis=1)[:, :count] / count)
