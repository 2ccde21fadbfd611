r"""Do no harm: a client chooses between its personal model, the shared one and mixtures of both, from few rows.

A candidate k gives the client's own model a weight w_k > 0 and the shared model 1 - w_k. The client knows, for each,

- the gains d_j of rows that its model was not trained on: the metric with the candidate minus that with the shared
  model, on the same row, signed such that more is better. They are of validation rows, and of training rows that were
  held out fold by fold. The latter speak a little against personal models, because these had fewer rows, and the shared
  model had seen them: the rule errs on the side of the shared model. Where rows are right or wrong, d_j is the mean of
  that gain and of the gain in the probability of the right answer, which says more of a single row;
- a hint h: how much lower the loss of its personal model is on its training rows. It flatters, but it tells clients
  that differ much from others apart from those that do not.

The population says how gains are distributed: client i's true gain is normal, N(b_0 + b_1 h_i, tau^2), and the mean of
its n rows is N(gain, s_i^2 / n) around that (Fay and Herriot 1979). b, tau and the variance of a row are estimated from
all clients, once for each candidate. The server sends them: 33 numbers, with the default below. What a client concludes
is the posterior

    gain_i | rows ~ N(m, v),

and with it what its next 200 rows will show: their mean gain is N(m, e^2), e^2 = v + s_i^2 / 200. The risk is the
probability that this is a loss.

**Rule**: among the candidates with m > 0 and a risk of at most alpha, take the one with the largest m - e; if there is
none, take the population's default. With few rows a client goes with the population, with many it decides by itself.

**Default**: the shared model. Where no client at all has a candidate that it may take, rows are too few for each but
perhaps not for all together: then the default is the mixture with the smallest weight, if the validation rows of all
clients show that it is better (the mean gain of each client, in the probability of the right answer where there is one;
Student's t over clients, one-sided, at level 0.01).

**Bounds.** If the population is as described, at most a share alpha of the clients that leave the shared model is worse
off over 200 more rows, and fewer in truth, for e^2 > v. Without the population's numbers each candidate is tested by
itself at level alpha / candidates (the exact test of McNemar for right and wrong, else Student's t): then a client for
which no candidate is better leaves the shared model with probability at most alpha, whatever the population.
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
ALPHA = 0.1
"""How likely a client may be to lose by its choice."""
AHEAD = 200
"""Over how many rows to come a loss counts as one."""
DEFAULT_LEVEL = 0.01
"""The level at which all validation rows together must show that the default is better than the shared model."""
FEWEST_CLIENTS = 8
"""From how many clients with held-out rows a population is estimated."""
PRIOR_ROWS = 10
"""For how many rows the population's variance of a row counts, beside a client's own."""
SPREADS = 25
"""How many values of tau are tried."""


class Evidence(NamedTuple):
    """What one client knows of the candidates.

    ``gains`` are those of its held-out rows [candidates, rows], multiplied by the row's weight over the mean weight;
    ``hint`` is the gain of the personal model in the mean loss of training rows. ``likely`` are the gains of the same
    rows in the probability of the right answer, where there is one. The first ``validation`` rows are validation rows,
    the others folds of training rows.
    """

    gains: np.ndarray
    hint: float
    likely: np.ndarray | None = None
    validation: int = 0

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
    """

    coefficients: tuple[float, float]
    covariance: tuple[float, float, float]
    spread: float
    row_variance: float


class Population(NamedTuple):
    """What the server sends: of hints the mean, the deviation and the ends, and the gains of each candidate.

    ``default`` is the weight of the personal model for clients that cannot tell by themselves.
    """

    hint: tuple[float, float, float, float]
    candidates: tuple[Candidate, ...]
    default: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """As a file holds it."""
        candidates = [list(each) for each in self.candidates]
        return {"hint": list(self.hint), "candidates": candidates, "default": self.default}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Population:
        """What ``as_dict`` wrote."""
        rows = [Candidate(tuple(b), tuple(v), float(t), float(s)) for b, v, t, s in table["candidates"]]
        mean, deviation, low, high = map(float, table["hint"])
        return cls((mean, deviation, low, high), tuple(rows), float(table["default"]))


class Choice(NamedTuple):
    """A client's choice: the weight of its personal model (0 is the shared model), and what it is based on.

    ``gain`` and ``risk`` are of the candidate taken; where none was, those of the personal model. The risk of the
    population's default may be above alpha. ``p_better`` and
    ``p_worse`` are the p-values of the client's own held-out rows, personal against shared model.
    """

    weight: float
    gain: float
    risk: float
    rows: int
    p_better: float
    p_worse: float


class Summary(NamedTuple):
    """What the server sees of a client's evidence, once: the mean and variance of each candidate's gains, and hint.

    ``validation`` is the mean gain of the first candidate on validation rows, in the probability of the right answer
    where there is one; None without such rows.
    """

    means: tuple[float, ...]
    variances: tuple[float, ...]
    rows: int
    hint: float
    validation: float | None = None


def summarise(evidence: Evidence) -> Summary | None:
    """The numbers of a client that the population is estimated from; None where it has nothing to say."""
    return _summarise(evidence) if evidence.gains.shape[1] and evidence.finite else None


def _summarise(evidence: Evidence) -> Summary:
    rows = evidence.gains.shape[1]
    means = tuple(float(gains.mean()) if rows else 0.0 for gains in evidence.joint)
    variances = tuple(float(gains.var(ddof=1)) if rows > 1 else 0.0 for gains in evidence.joint)
    first = (evidence.gains if evidence.likely is None else evidence.likely)[0, : evidence.validation]
    return Summary(means, variances, rows, evidence.hint, float(first.mean()) if len(first) else None)


class Posterior(NamedTuple):
    """What a client concludes of each candidate: mean and variance of its gain, and the variance of a row."""

    mean: np.ndarray
    variance: np.ndarray
    row_variance: np.ndarray

    @property
    def error(self) -> np.ndarray:
        """The standard deviation of the mean gain of the next rows."""
        return np.asarray(np.sqrt(self.variance + self.row_variance / AHEAD))

    @property
    def risk(self) -> np.ndarray:
        """The probability that the next rows show a loss."""
        from scipy.special import ndtr

        return np.asarray(ndtr(-self.mean / self.error))


def describe_population(clients: Sequence[Evidence], alpha: float = ALPHA) -> Population | None:
    """Estimate how gains are distributed over clients; None where too few have held-out rows."""
    return estimate_population([each for each in map(summarise, clients) if each is not None], alpha)


def estimate_population(summaries: Sequence[Summary], alpha: float = ALPHA) -> Population | None:
    """The same, of what clients sent.

    tau has a flat prior up to twice the deviation of the observed gains; b and tau^2 are means over its posterior.
    """
    if len(summaries) < FEWEST_CLIENTS:
        return None
    hints = np.array([client.hint for client in summaries])
    mean, deviation = float(hints.mean()), max(float(hints.std()), 1e-9)
    design = np.stack([np.ones(len(summaries)), (hints - mean) / deviation], axis=1)
    rows = np.array([client.rows for client in summaries])
    candidates = []
    for k in range(len(summaries[0].means)):
        gains = np.array([client.means[k] for client in summaries])
        free = rows - 1
        own = np.array([client.variances[k] for client in summaries])
        row_variance = max(float((free * own).sum() / max(1, free.sum())), 1e-6)
        error = _join_variances(own, rows, row_variance) / rows
        candidates.append(_estimate(gains, error, design, row_variance))
    population = Population((mean, deviation, float(hints.min()), float(hints.max())), tuple(candidates))
    return population._replace(default=_choose_default(summaries, population, alpha))


def _choose_default(summaries: Sequence[Summary], population: Population, alpha: float) -> float:
    """The weight of the personal model for clients that cannot tell by themselves: the smallest, or 0."""
    gains = np.array([client.validation for client in summaries if client.validation is not None])
    mixtures = len(population.candidates) == len(WEIGHTS)
    if not mixtures or len(gains) < FEWEST_CLIENTS or compute_p_value(gains) > DEFAULT_LEVEL:
        return 0.0
    return 0.0 if any(_find_safe(_conclude(each, population), alpha).any() for each in summaries) else WEIGHTS[0]


def _join_variances(own: Any, rows: Any, common: float) -> Any:
    """The variance of a client's row: its own estimate and the population's, by degrees of freedom."""
    free = np.maximum(rows - 1, 0)
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


def conclude(evidence: Evidence, population: Population) -> Posterior:
    """What a client concludes of its gains, from its own rows and from the population."""
    return _conclude(_summarise(evidence), population)


def _conclude(client: Summary, population: Population) -> Posterior:
    mean, deviation, low, high = population.hint
    hint = (min(max(client.hint, low), high) - mean) / deviation  # no client is told apart by extrapolation
    means, variances, row_variances = [], [], []
    for gain, own, candidate in zip(client.means, client.variances, population.candidates, strict=True):
        (b_0, b_1), (v_00, v_01, v_11) = candidate.coefficients, candidate.covariance
        centre = b_0 + b_1 * hint
        uncertain = v_00 + 2 * v_01 * hint + v_11 * hint**2
        row_variance = float(_join_variances(own, client.rows, candidate.row_variance))
        precision, prior = client.rows / row_variance, 1 / candidate.spread
        total = prior + precision
        means.append((prior * centre + precision * gain) / total)
        variances.append(1 / total + (prior / total) ** 2 * uncertain)
        row_variances.append(row_variance)
    return Posterior(np.array(means), np.array(variances), np.array(row_variances))


def _find_safe(posterior: Posterior, alpha: float) -> np.ndarray:
    """Which candidates a client may take."""
    return (posterior.risk <= alpha) & (posterior.mean > 0)


def choose(
    evidence: Evidence,
    population: Population | None = None,
    *,
    alpha: float = ALPHA,
    weights: Sequence[float] = WEIGHTS,
) -> Choice:
    """Choose as the rule says; nothing but the client's own evidence and the population's numbers is looked at.

    Args:
        evidence: what the client knows.
        population: what the server sent; without it the client tests each candidate by itself.
        alpha: how likely the client may be to lose by its choice, over its next rows.
        weights: how much of the personal model each candidate has; the last is the personal model itself.

    >>> row = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    >>> choose(Evidence(np.stack([row, row]), 0.3), weights=(0.5, 1.0)).weight
    0.5
    >>> choose(Evidence(np.stack([-row, -row]), 0.3), weights=(0.5, 1.0)).weight
    0.0
    """
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
        safe &= gain > 0
        default = 0.0
    else:
        posterior = conclude(evidence, population)
        gain, risk, error = posterior.mean, posterior.risk, posterior.error
        safe = _find_safe(posterior, alpha)
        default = population.default if population.default in weights else 0.0
    if safe.any():
        best = int(np.where(safe, gain - error, -np.inf).argmax())
    else:
        best = list(weights).index(default) if default else len(weights) - 1
    weight = float(weights[best]) if safe.any() else default
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
