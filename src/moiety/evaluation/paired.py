"""Two models on the same rows of one client: the change of its metric, and how far chance alone could have moved it.

This is the one definition of *hurt beyond noise* (``moiety.analysis.harm`` counts with it): a client is hurt where its
metric is worse, and hurt beyond noise where the whole interval of the change lies below zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moiety.errors import must, proper_fraction

LEVEL = 0.95
"""The level of a client's interval, two-sided: at most one unlucky client in forty is called hurt beyond noise."""


class RowScores(NamedTuple):
    """The scores of one client's rows with one model: loss, metric, and how much the metric of each row counts."""

    loss: np.ndarray
    metric: np.ndarray
    weight: np.ndarray


class Change(NamedTuple):
    """The change of a client's metric, signed such that more is better, its interval, and the rows it is from."""

    mean: float
    low: float
    high: float
    rows: int

    @property
    def hurt(self) -> bool:
        """Whether the metric is worse at all."""
        return self.mean < 0

    @property
    def hurt_beyond_noise(self) -> bool:
        """Whether it is worse by more than the rows that happened to be drawn explain."""
        return self.high < 0

    @property
    def helped_beyond_noise(self) -> bool:
        """Whether it is better by more than that."""
        return self.low > 0


def measure_change(
    new: np.ndarray,
    old: np.ndarray,
    weight: np.ndarray | None = None,
    *,
    higher_is_better: bool = True,
    level: float = LEVEL,
) -> Change:
    r"""Compare the scores of two models on the same rows.

    Right or wrong (scores 0 and 1, rows of equal weight): only the rows on which the models disagree tell them apart.
    Of those D, the new model wins W; if both are equally good, W is binomial(D, 1/2). The interval is Clopper and
    Pearson's for the chance p of a win, as a change of the metric: (2p - 1) D / n. It lies below zero exactly where
    the exact McNemar test rejects. With seven rows and one error more it holds zero; six wins to none are needed.

    Any other score: Student's t for the (weighted) mean of the differences, with n - 1 degrees of freedom; weights
    enter through the residuals w_j (d_j - d) / mean(w). One row has an interval without ends.

    Differences that are rounding count as none.

    Args:
        new: the metric of each row with the new model.
        old: the same with the old model, rows in the same order.
        weight: how much each row counts; one each by default.
        higher_is_better: the direction of the metric.
        level: of the interval, two-sided.

    >>> measure_change(np.zeros(6), np.ones(6)).hurt_beyond_noise
    True
    >>> change = measure_change(np.array([1, 1, 1, 1, 1, 1, 0.0]), np.ones(7))
    >>> change.hurt, change.hurt_beyond_noise
    (True, False)
    """
    proper_fraction("level", level)
    new, old = (np.asarray(scores, dtype=np.float64) for scores in (new, old))
    must(new.shape == old.shape and new.ndim == 1, "scores", "one a row, of the same rows", (new.shape, old.shape))
    weight = np.ones_like(new) if weight is None else np.asarray(weight, dtype=np.float64)
    counts = weight > 0
    new, old, weight = new[counts], old[counts], weight[counts]
    if not len(new):
        return Change(np.nan, np.nan, np.nan, 0)
    with np.errstate(invalid="ignore"):  # an infinite loss of one model is a change without an interval
        difference = np.where(np.isclose(new, old, rtol=1e-6, atol=1e-9), 0.0, new - old)
        difference = difference if higher_is_better else -difference
        binary = bool(np.isin(new, (0, 1)).all() and np.isin(old, (0, 1)).all() and (weight == weight[0]).all())
        return _exact_change(difference, level) if binary else _student_change(difference, weight, level)


def _exact_change(difference: np.ndarray, level: float) -> Change:
    """Of differences -1, 0 and 1."""
    wins, losses, rows = int((difference > 0).sum()), int((difference < 0).sum()), len(difference)
    low, high = exact_ends(np.array(wins), np.array(losses), np.array(rows), level)
    return Change((wins - losses) / rows, float(low), float(high), rows)


def exact_ends(
    wins: np.ndarray, losses: np.ndarray, rows: np.ndarray, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the interval of ``measure_change`` for right or wrong, for one client or for many at once."""
    from scipy.special import betaincinv  # here: lists of recipes do without it

    tail = (1 - level) / 2
    # Where one side has none, that end of the chance is 0 or 1; the inverse is not defined there.
    low = np.where(wins > 0, betaincinv(np.maximum(wins, 1), losses + 1, tail), 0.0)
    high = np.where(losses > 0, betaincinv(wins + 1, np.maximum(losses, 1), 1 - tail), 1.0)
    share = (wins + losses) / np.maximum(rows, 1)
    return (2 * low - 1) * share, (2 * high - 1) * share


def _student_change(difference: np.ndarray, weight: np.ndarray, level: float) -> Change:
    """Of differences of any size."""
    rows, share = len(difference), weight / weight.mean()
    mean = float((share * difference).mean())
    if rows == 1:
        return Change(mean, -np.inf, np.inf, 1)
    from scipy.special import stdtrit

    residuals = share * (difference - mean)
    error = float(np.sqrt((residuals**2).sum() / (rows - 1) / rows))
    half = float(stdtrit(rows - 1, (1 + level) / 2)) * error
    return Change(mean, mean - half, mean + half, rows)


def compute_p_value(gains: np.ndarray) -> float:
    """The one-sided p-value of "these rows gain nothing on average"; 1 without rows.

    Gains of -1, 0 and 1 go through the exact test of McNemar, others through Student's t.

    >>> compute_p_value(np.array([1.0, 1.0, 0.0, 1.0]))
    0.125
    """
    wins, losses = int((gains > 0).sum()), int((gains < 0).sum())
    if not wins + losses:
        return 1.0
    if np.isin(gains, (-1, 0, 1)).all():
        from scipy.stats import binom

        return float(binom.sf(wins - 1, wins + losses, 0.5))
    if len(gains) < 2:
        return 1.0
    from scipy.special import stdtr

    mean, error = float(gains.mean()), float(gains.std(ddof=1)) / float(np.sqrt(len(gains)))
    return float(mean <= 0) if error == 0 else float(stdtr(len(gains) - 1, -mean / error))
