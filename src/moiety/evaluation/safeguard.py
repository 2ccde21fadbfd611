r"""Do no harm: a client chooses between its personal model, the shared one and mixtures of both, from few rows.

A candidate k gives the client's own model a weight w_k > 0 and the shared model 1 - w_k. The client knows, for each,

- the gains d_j of rows that its model was not trained on: the metric with the candidate minus that with the shared
  model, on the same row, signed such that more is better. They are of validation rows, and of training rows that were
  held out fold by fold. Where rows are right or wrong, d_j is the mean of that gain and of the gain in the probability
  of the right answer, which says more of a single row;
- a hint h: how much lower the loss of its personal model is on its training rows. It flatters, but it tells clients
  that differ much from others apart from those that do not.

**Rows that the shared model saw.** The shared model was trained on the rows of the folds, and the personal models of
the folds had fewer rows. So folds understate the gain, by c >= 0. For each candidate, c is the same for all clients. It
is estimated from the clients that have both kinds of rows: their mean difference is N(c, error^2), the prior of c is
flat above zero, so c is a normal that is cut off at zero. Gains of such rows are raised by its mean.

The population says how gains are distributed: client i's true gain is normal, N(b_0 + b_1 h_i, tau^2), and the mean of
its n rows is N(gain, s_i^2 / n) around that (Fay and Herriot 1979). b, tau and the variance of a row are estimated from
all clients, once for each candidate: 41 numbers that the server sends, c among them. What a client concludes is

    gain_i | rows, c ~ N(m + a_i (c - E c), v),

where a_i is the share of the evidence that folds make up. The risk is the probability that the gain is below zero,
averaged over c.

**Rule**: among the candidates with m > 0 and a risk of at most alpha, take the one with the largest m - e, where
e^2 = v + a_i^2 Var c; if there is none, take the shared model. With few rows a client goes with the population, with
many it decides by itself.

**Bounds.** If the population is as described, and its numbers are known, at most a share alpha of the clients that
leave the shared model is truly worse off. They are estimated, so it may be more: in simulations of 60 clients (tests)
1.6 to 2.7% at alpha = 0.01 and 6 to 9% at 0.1; with two validation rows a client and c = 0, the worst case, 4% and 12%.
Without the population's numbers each candidate is tested by itself at level alpha / candidates (the
exact test of McNemar for right and wrong, else Student's t): then a client for which no candidate is better leaves the
shared model with probability at most alpha, whatever the population.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from moiety.errors import must, proper_fraction
from moiety.evaluation.paired import compute_p_value

WEIGHTS = (0.25, 0.5, 0.75, 1.0)
"""How much of the personal model each candidate has."""
ALPHA = 0.01
"""How likely a client may be to lose by its choice, in truth, as the population's numbers tell."""
LEVEL = 0.1
"""The level of a client's own test, where there are no such numbers."""
FEWEST_CLIENTS = 8
"""From how many clients with held-out rows a population is estimated."""
PRIOR_ROWS = 10
"""For how many rows the population's variance of a row counts, beside a client's own."""
SPREADS = 25
"""How many values of tau are tried, and of c."""


class Evidence(NamedTuple):
    """What one client knows of the candidates.

    ``gains`` are those of its held-out rows [candidates, rows], multiplied by the row's weight over the mean weight;
    ``hint`` is the gain of the personal model in the mean loss of training rows. ``likely`` are the gains of the same
    rows in the probability of the right answer, where there is one. The last ``seen`` rows are those that the shared
    model was trained on.
    """

    gains: np.ndarray
    hint: float
    likely: np.ndarray | None = None
    seen: int = 0

    @property
    def joint(self) -> np.ndarray:
        """What the population is estimated from."""
        return self.gains if self.likely is None else (self.gains + self.likely) / 2

    @property
    def finite(self) -> bool:
        """Whether all gains are finite. They are not where a model diverged."""
        return math.isfinite(self.hint) and bool(np.isfinite(self.joint).all())


class Candidate(NamedTuple):
    """The gains of one candidate in the population.

    ``coefficients`` are b_0 and b_1, with their ``covariance``; ``spread`` is tau^2; ``row_variance`` that of a row.
    ``bias`` has the mean and the deviation of c before it is cut off at zero.
    """

    coefficients: tuple[float, float]
    covariance: tuple[float, float, float]
    spread: float
    row_variance: float
    bias: tuple[float, float] = (0.0, 0.0)


class Population(NamedTuple):
    """What the server sends: of hints the mean, the deviation and the ends, and the gains of each candidate.

    ``seen`` is the share of a client's held-out rows that the shared model was trained on, the mean over clients.
    """

    hint: tuple[float, float, float, float]
    candidates: tuple[Candidate, ...]
    seen: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """As a file holds it."""
        return {"hint": list(self.hint), "candidates": [list(each) for each in self.candidates], "seen": self.seen}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Population:
        """What ``as_dict`` wrote."""
        rows = [
            Candidate(tuple(b), tuple(v), float(t), float(s), *map(tuple, bias))
            for b, v, t, s, *bias in table["candidates"]
        ]
        mean, deviation, low, high = map(float, table["hint"])
        return cls((mean, deviation, low, high), tuple(rows), float(table.get("seen", 0.0)))


class Choice(NamedTuple):
    """A client's choice: the weight of its personal model (0 is the shared model), and what it is based on.

    ``gain`` and ``risk`` are of the candidate taken; where none was, those of the personal model. ``p_better`` and
    ``p_worse`` are the p-values of the client's own held-out rows, personal against shared model.
    """

    weight: float
    gain: float
    risk: float
    rows: int
    p_better: float
    p_worse: float


class Summary(NamedTuple):
    """What the server sees of a client's evidence, once.

    It has the mean gain of each candidate on rows that the shared model did not see (``means``, of ``rows`` rows) and
    on those that it saw (``seen_means``, of ``seen`` rows), the variance of a row around these means, and the hint.
    """

    means: tuple[float, ...]
    seen_means: tuple[float, ...]
    variances: tuple[float, ...]
    rows: int
    seen: int
    hint: float


def summarise(evidence: Evidence) -> Summary | None:
    """The numbers of a client that the population is estimated from; None where it has nothing to say."""
    if not evidence.gains.shape[1] or not evidence.finite:
        return None
    return _summarise(evidence)


def _summarise(evidence: Evidence) -> Summary:
    """The same, of any evidence; the mean of no rows is 0."""
    joint = evidence.joint
    fresh = joint.shape[1] - evidence.seen
    parts = [part for part in (joint[:, :fresh], joint[:, fresh:]) if part.shape[1]]
    squares = sum((((part - part.mean(1, keepdims=True)) ** 2).sum(1) for part in parts), np.zeros(len(joint)))
    variances = squares / max(1, joint.shape[1] - len(parts))
    means = joint[:, :fresh].mean(1) if fresh else np.zeros(len(joint))
    seen_means = joint[:, fresh:].mean(1) if evidence.seen else np.zeros(len(joint))
    of_fresh, of_seen, around = (tuple(map(float, each)) for each in (means, seen_means, variances))
    return Summary(of_fresh, of_seen, around, fresh, evidence.seen, evidence.hint)


def describe_population(clients: Sequence[Evidence]) -> Population | None:
    """Estimate how gains are distributed over clients; None where too few have held-out rows."""
    return estimate_population([each for each in map(summarise, clients) if each is not None])


def estimate_population(summaries: Sequence[Summary]) -> Population | None:
    """The same, of what clients sent.

    tau has a flat prior up to twice the deviation of the observed gains; b and tau^2 are means over its posterior.
    """
    if len(summaries) < FEWEST_CLIENTS:
        return None
    hints = np.array([client.hint for client in summaries])
    mean, deviation = float(hints.mean()), max(float(hints.std()), 1e-9)
    design = np.stack([np.ones(len(summaries)), (hints - mean) / deviation], axis=1)
    fresh, seen = np.array([client.rows for client in summaries]), np.array([client.seen for client in summaries])
    rows, free = fresh + seen, _count_free(fresh, seen)
    candidates = []
    for k in range(len(summaries[0].means)):
        means = np.array([client.means[k] for client in summaries])
        seen_means = np.array([client.seen_means[k] for client in summaries])
        bias = _estimate_bias(means - seen_means, fresh, seen)
        gains = (fresh * means + seen * (seen_means + spread_bias(bias).mean())) / rows
        own = np.array([client.variances[k] for client in summaries])
        row_variance = max(float((free * own).sum() / max(1, free.sum())), 1e-6)
        error = _join_variances(own, free, row_variance) / rows
        candidates.append(_estimate(gains, error, design, row_variance)._replace(bias=bias))
    hint = (mean, deviation, float(hints.min()), float(hints.max()))
    return Population(hint, tuple(candidates), float((seen / rows).mean()))


def _estimate_bias(apart: np.ndarray, fresh: np.ndarray, seen: np.ndarray) -> tuple[float, float]:
    """The mean difference between gains of rows that the shared model did not see and saw, and its error.

    A client counts by the rows that it has of both kinds. With too few such clients, nothing is said: (0, 0).
    """
    both = (fresh > 0) & (seen > 0)
    if both.sum() < FEWEST_CLIENTS:
        return 0.0, 0.0
    weight = 1 / (1 / fresh[both] + 1 / seen[both])
    weight /= weight.sum()
    mean = float(weight @ apart[both])
    variance = float((weight**2) @ (apart[both] - mean) ** 2) * len(weight) / (len(weight) - 1)
    return mean, math.sqrt(variance)


def spread_bias(bias: tuple[float, float]) -> np.ndarray:
    """Equally likely values of c: a normal that is cut off at zero."""
    from scipy.special import log_ndtr, ndtri_exp

    mean, deviation = bias
    if deviation <= 0:
        return np.full(SPREADS, max(mean, 0.0))
    upper = np.log((np.arange(SPREADS)[::-1] + 0.5) / SPREADS) + log_ndtr(mean / deviation)
    return np.asarray(np.maximum(mean - deviation * ndtri_exp(upper), 0.0))


def _count_free(fresh: Any, seen: Any) -> Any:
    """The degrees of freedom of a client's variance: its rows less the means that were taken out."""
    return np.maximum(fresh - 1, 0) + np.maximum(seen - 1, 0)


def _join_variances(own: Any, free: Any, common: float) -> Any:
    """The variance of a client's row: its own estimate and the population's, by degrees of freedom."""
    return (PRIOR_ROWS * common + free * own) / (PRIOR_ROWS + free)


def _estimate(gains: np.ndarray, error: np.ndarray, design: np.ndarray, row_variance: float) -> Candidate:
    """The mean over the posterior of tau; the slope has a prior that counts as one client."""
    most = 2 * max(float(gains.std()), math.sqrt(float(error.mean()))) + 1e-9
    spreads = most * (np.arange(SPREADS) + 0.5) / SPREADS
    logs, coefficients, covariances = [], [], []
    for tau in spreads:
        weight = 1 / (error + tau**2)
        matrix = (design * weight[:, None]).T @ design + np.diag([0, weight.mean()])
        b = np.linalg.solve(matrix, (design * weight[:, None]).T @ gains)
        rest = gains - design @ b
        logs.append((np.log(weight).sum() - (weight * rest**2).sum() - np.linalg.slogdet(matrix)[1]) / 2)
        coefficients.append(b)
        covariances.append(np.linalg.inv(matrix))
    likely = np.exp(np.array(logs) - max(logs))
    likely /= likely.sum()
    b = likely @ np.array(coefficients)
    deviations = np.array(coefficients) - b
    v = np.einsum("k,kij->ij", likely, np.array(covariances)) + np.einsum("k,ki,kj->ij", likely, deviations, deviations)
    spread = float(likely @ spreads**2)
    covariance = (float(v[0, 0]), float(v[0, 1]), float(v[1, 1]))
    return Candidate((float(b[0]), float(b[1])), covariance, spread, row_variance)


class Posterior(NamedTuple):
    """A client's gain with each candidate: its mean, its error, and the probability that it is below zero."""

    gain: np.ndarray
    error: np.ndarray
    risk: np.ndarray


def conclude(evidence: Evidence, population: Population) -> Posterior:
    """What a client concludes from its rows and the population's numbers."""
    from scipy.special import ndtr

    mean, deviation, low, high = population.hint
    hint = (min(max(evidence.hint, low), high) - mean) / deviation  # no client is told apart by extrapolation
    own = _summarise(evidence)
    rows, free = own.rows + own.seen, float(_count_free(own.rows, own.seen))
    results = []
    for k, candidate in enumerate(population.candidates):
        (b_0, b_1), (v_00, v_01, v_11) = candidate.coefficients, candidate.covariance
        uncertain = v_00 + 2 * v_01 * hint + v_11 * hint**2
        values = spread_bias(candidate.bias)
        precision = rows / float(_join_variances(own.variances[k], free, candidate.row_variance))
        prior = 1 / candidate.spread
        total = prior + precision
        observed = (own.rows * own.means[k] + own.seen * (own.seen_means[k] + values.mean())) / max(1, rows)
        gain = (prior * (b_0 + b_1 * hint) + precision * observed) / total
        variance = 1 / total + (prior / total) ** 2 * uncertain
        share = (prior * population.seen + precision * own.seen / max(1, rows)) / total
        moves = share * (values - values.mean())
        risk = ndtr(-(gain + moves) / math.sqrt(variance)).mean()
        results.append((gain, math.sqrt(variance + moves.var()), risk))
    return Posterior(*map(np.array, zip(*results, strict=True)))


def choose_alpha(population: Population | None) -> float:
    """The default: a small risk where the population's numbers tell it, else the level of a client's own test."""
    return LEVEL if population is None else ALPHA


def choose(
    evidence: Evidence,
    population: Population | None = None,
    *,
    alpha: float | None = None,
    weights: Sequence[float] = WEIGHTS,
) -> Choice:
    """Choose as the rule says; nothing but the client's own evidence and the population's numbers is looked at.

    Args:
        evidence: what the client knows.
        population: what the server sent; without it the client tests each candidate by itself.
        alpha: how likely the client may be to lose by its choice, in truth; without a population the level of its test.
            The defaults are ``ALPHA`` and ``LEVEL``.
        weights: how much of the personal model each candidate has; the last is the personal model itself.

    >>> row = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    >>> choose(Evidence(np.stack([row, row]), 0.3), weights=(0.5, 1.0)).weight
    0.5
    >>> choose(Evidence(np.stack([-row, -row]), 0.3), weights=(0.5, 1.0)).weight
    0.0
    """
    alpha = choose_alpha(population) if alpha is None else alpha
    proper_fraction("alpha", alpha)
    must(len(evidence.gains) == len(weights), "evidence", f"of {len(weights)} candidates", len(evidence.gains))
    rows = evidence.gains.shape[1]
    if not evidence.finite:
        return Choice(0.0, 0.0, 1.0, rows, 1.0, 1.0)
    better, worse = compute_p_value(evidence.gains[-1]), compute_p_value(-evidence.gains[-1])
    if population is None:
        gain = evidence.gains.mean(1) if rows else np.zeros(len(weights))
        risk, error = np.array([compute_p_value(gains) for gains in evidence.gains]), np.zeros(len(weights))
        safe = risk <= alpha / len(weights)
    else:
        gain, error, risk = conclude(evidence, population)
        safe = risk <= alpha
    safe &= gain > 0
    best = int(np.where(safe, gain - error, -np.inf).argmax()) if safe.any() else len(weights) - 1
    weight = float(weights[best]) if safe.any() else 0.0
    return Choice(weight, float(gain[best]), float(risk[best]), rows, better, worse)


def find_discoveries(p_values: Sequence[float], level: float = 0.05) -> list[int]:
    """The positions that Benjamini and Hochberg (1995) reject: of these at most a share ``level`` is false on average.

    >>> find_discoveries([0.001, 0.5, 0.02, 0.04])
    [0, 2]
    """
    proper_fraction("level", level)
    order = np.argsort(p_values, kind="stable")
    below = np.sort(p_values) <= level * np.arange(1, len(order) + 1) / max(1, len(order))
    count = int(np.flatnonzero(below).max()) + 1 if below.any() else 0
    return sorted(int(i) for i in order[:count])
