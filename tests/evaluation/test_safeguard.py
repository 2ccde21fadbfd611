"""The rule of the safeguard: posteriors and choices by hand, its levels by simulation, discoveries against scipy."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import false_discovery_control, norm, truncnorm, ttest_1samp

from moiety.errors import MoietyError
from moiety.evaluation.paired import compute_p_value
from moiety.evaluation.safeguard import (
    Candidate,
    Evidence,
    Population,
    Summary,
    choose,
    conclude,
    describe_population,
    find_discoveries,
    spread_bias,
    summarise,
)

KNOWN = Candidate((0.1, 0.02), (0.001, 0.0, 0.0), 0.04, 0.2)


def test_the_posterior_by_hand():
    """Rows 1 and 0 with the hint at 2 deviations: prior mean 0.1 + 0.04, precision 25.

    The variance of a row is (10 0.2 + 1 0.5) / 11, so two rows have precision 8.8 around 0.5; the uncertainty of b_0
    enters by its share of the prior.
    """
    population = Population((1.0, 0.5, 0.0, 3.0), (KNOWN,))
    gain, error, risk = conclude(Evidence(np.array([[1.0, 0.0]]), 2.0), population)
    mean, variance = (25 * 0.14 + 8.8 * 0.5) / 33.8, 1 / 33.8 + (25 / 33.8) ** 2 * 0.001
    assert (gain[0], error[0] ** 2) == (pytest.approx(mean), pytest.approx(variance))
    choice = choose(Evidence(np.array([[1.0, 0.0]]), 2.0), population, alpha=0.2, weights=(1.0,))
    assert choice.risk == risk[0] == pytest.approx(norm.cdf(-mean / math.sqrt(variance)))
    assert (choice.weight, choice.rows) == (1.0, 2)


def test_rows_that_the_shared_model_saw_are_raised_by_hand():
    """One fresh row of gain 1, two seen ones of 0.2 and 0: these are raised by 0.3, which is known.

    The variance of a row is (10 0.2 + 1 0.02) / 11, around two means; (1 + 0.5 + 0.3) / 3 has three rows.
    """
    population = Population((1.0, 0.5, 0.0, 3.0), (KNOWN._replace(bias=(0.3, 0.0)),), 0.5)
    evidence = Evidence(np.array([[1.0, 0.2, 0.0]]), 2.0, seen=2)
    gain, error, risk = conclude(evidence, population)
    precision = 3 / (2.02 / 11)
    mean = (25 * 0.14 + precision * 0.6) / (25 + precision)
    variance = 1 / (25 + precision) + (25 / (25 + precision)) ** 2 * 0.001
    assert gain[0] == pytest.approx(mean)
    assert error[0] ** 2 == pytest.approx(variance)
    assert risk[0] == pytest.approx(norm.cdf(-mean / math.sqrt(variance)))
    assert summarise(evidence) == Summary((1.0,), (0.1,), (pytest.approx(0.02),), 1, 2, 2.0)


@pytest.mark.parametrize("bias", [(0.02, 0.03), (-0.05, 0.02), (0.3, 0.01)])
def test_an_unsure_bias_is_averaged_over(bias):
    """Against scipy's normal that is cut off at zero: its mean, and the risk as an integral."""
    cut = truncnorm(-bias[0] / bias[1], np.inf, loc=bias[0], scale=bias[1])
    values = spread_bias(bias)
    assert len(values) == 25
    assert values == pytest.approx(cut.ppf((np.arange(25) + 0.5) / 25), abs=1e-9)
    population = Population((0.0, 1.0, -1.0, 1.0), (KNOWN._replace(bias=bias),), 0.8)
    evidence = Evidence(np.array([[0.5, 0.1, -0.2, 0.0, -0.1]]), 0.0, seen=4)
    gain, error, risk = conclude(evidence, population)
    own = conclude(evidence, Population(population.hint, (KNOWN,)))  # the same rows, nothing to raise
    precision = 5 / ((10 * 0.2 + 3 * np.var(evidence.gains[0, 1:]) * 4 / 3) / 13)
    share = (25 * 0.8 + precision * 0.8) / (25 + precision)
    raised = own.gain[0] + precision / (25 + precision) * 0.8 * values.mean()
    assert gain[0] == pytest.approx(raised)
    assert error[0] ** 2 == pytest.approx(own.error[0] ** 2 + share**2 * values.var())
    integral = cut.expect(lambda c: norm.cdf(-(gain[0] + share * (c - values.mean())) / own.error[0]))
    assert risk[0] == pytest.approx(integral, rel=0.05)


def test_a_client_without_rows_goes_with_the_population_and_hints_beyond_it_do_not_count_more():
    population = Population((1.0, 0.5, 0.0, 3.0), (KNOWN,))
    none = np.zeros((1, 0))
    assert conclude(Evidence(none, 1.0), population)[0][0] == pytest.approx(0.1)
    assert conclude(Evidence(none, 100.0), population)[0][0] == pytest.approx(0.1 + 4 * 0.02)
    sure = Population(population.hint, (KNOWN._replace(spread=0.0001, covariance=(0.0, 0.0, 0.0)),))
    assert choose(Evidence(none, 1.0), sure, weights=(1.0,)).weight == 1
    assert choose(Evidence(none, 1.0), None, weights=(1.0,)).weight == 0
    against = Population(population.hint, (KNOWN._replace(coefficients=(-0.1, 0.0)),))
    assert choose(Evidence(none, 1.0), against, weights=(1.0,)).weight == 0


def test_the_largest_gain_less_its_error_among_those_that_are_safe():
    """Means 0.04, 0.05, 0.1 with errors 0.01, 0.015, 0.06: they differ by 0.03, 0.035, 0.04; risks 3e-5, 4e-4, 0.05."""

    def settle(*pairs):
        candidates = [Candidate((gain, 0.0), (0.0, 0.0, 0.0), error**2, 0.002) for gain, error in pairs]
        return Population((0.0, 1.0, -1.0, 1.0), tuple(candidates))

    population, evidence = settle((0.04, 0.01), (0.05, 0.015), (0.1, 0.06)), Evidence(np.zeros((3, 0)), 0.0)
    weights = (0.25, 0.5, 1.0)
    assert [choose(evidence, population, alpha=a, weights=weights).weight for a in (0.2, 0.01, 0.0001, 1e-6)] == [
        1.0,
        0.5,
        0.25,
        0.0,
    ]
    assert choose(evidence, population, alpha=0.2, weights=weights).risk == pytest.approx(norm.cdf(-0.1 / 0.06))
    unsure = settle((0.04, 0.01), (0.05, 0.015), (0.1, 0.08))  # the last differs by 0.02 only
    assert choose(evidence, unsure, alpha=0.2, weights=weights).weight == 0.5
    with pytest.raises(MoietyError, match="`alpha` must be > 0 and < 1, got 1"):
        choose(evidence, population, alpha=1, weights=weights)
    with pytest.raises(MoietyError, match="`evidence` must be of 4 candidates, got 3"):
        choose(evidence, population)


def test_how_probable_right_answers_are_counts_as_much_as_whether_they_are_given():
    """Rows that are right or wrong decide p-values alone; the posterior is of the mean of both."""
    right, likely = np.array([[1.0, 0.0, 0.0]]), np.array([[0.5, 0.1, -0.3]])
    both, mean = Evidence(right, 0.2, likely), Evidence(np.array([[0.75, 0.05, -0.15]]), 0.2)
    population = Population((1.0, 0.5, 0.0, 3.0), (KNOWN,))
    assert summarise(both).means == pytest.approx((0.65 / 3,))
    for ours, theirs in zip(conclude(both, population), conclude(mean, population), strict=True):
        assert ours == pytest.approx(theirs)
    assert choose(both, population, weights=(1.0,)).p_better == choose(Evidence(right, 0.2), weights=(1.0,)).p_better
    assert not Evidence(right, 0.2, np.full((1, 3), np.nan)).finite


def test_how_alpha_is_set_depends_on_whether_there_is_a_population():
    """Six wins of eight have a p-value of 1/64: enough at 0.1 / 4. The risk of N(0.1, 0.05^2) is 2.3%: not at 0.01."""
    row = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    assert choose(Evidence(np.stack([row] * 4), 0.0)).weight == 0.25
    for deviation, weight in ((0.05, 0.0), (0.04, 1.0)):
        population = Population((0.0, 1.0, -1.0, 1.0), (Candidate((0.1, 0.0), (0.0,) * 3, deviation**2, 0.2),))
        assert choose(Evidence(np.zeros((1, 0)), 0.0), population, weights=(1.0,)).weight == weight


@pytest.mark.parametrize("rows", [8, 30])
def test_alone_a_client_leaves_the_shared_model_for_nothing_at_most_at_the_level(rows):
    """Four candidates that are as good as the shared model, and alike or not: wins and losses are equally likely."""
    rng = np.random.default_rng(rows)
    for alike in (True, False):
        leavers = 0
        for _ in range(800):
            gains = rng.choice([-1.0, 0.0, 0.0, 1.0], size=(1 if alike else 4, rows))
            leavers += choose(Evidence(np.broadcast_to(gains, (4, rows)), 0.0), alpha=0.2).weight > 0
        assert leavers / 800 <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / 800)


def draw_population(rng, clients, b, tau, noise, bias=0.0, fresh=None):
    """Clients as the rule supposes them: true gains, and evidence with one candidate.

    Of the rows, all but ``fresh`` are ones that the shared model saw: their gains are lower by ``bias``.
    """
    hints = rng.normal(size=clients)
    gains = b[0] + b[1] * hints + tau * rng.normal(size=clients)
    evidence = []
    for gain, n, hint in zip(gains, rng.integers(3, 30, size=clients), hints, strict=True):
        seen = 0 if fresh is None else int(n)
        rows = gain + noise * rng.normal(size=n if fresh is None else n + fresh)
        rows[len(rows) - seen :] -= bias
        evidence.append(Evidence(rows[None], hint, seen=seen))
    return gains, evidence


@pytest.mark.parametrize(
    ("bias", "fresh", "alpha", "most"),
    [
        (0.0, None, 0.1, 0.1),
        (0.05, 5, 0.1, 0.1),
        (0.2, 5, 0.1, 0.1),
        (0.0, 2, 0.1, 0.15),
        (0.0, None, 0.01, 0.05),
        (0.05, 5, 0.01, 0.05),
    ],
)
def test_few_of_those_who_leave_are_worse_off(bias, fresh, alpha, most):
    """About a share alpha, also where the shared model saw most rows.

    It is more for a small alpha, because the population is estimated, and where c is zero and fresh rows are few.
    """
    rng = np.random.default_rng(0)
    leavers = worse = 0
    for _ in range(60):
        gains, clients = draw_population(rng, 60, (0.02, 0.03), 0.04, 0.3, bias, fresh)
        population = describe_population(clients)
        weights = np.array([choose(each, population, alpha=alpha, weights=(1.0,)).weight for each in clients])
        leavers += int((weights > 0).sum())
        worse += int(((weights > 0) & (gains < 0)).sum())
    assert leavers > 100
    assert worse / leavers <= most


def test_the_population_is_found():
    rng = np.random.default_rng(0)
    for bias, fresh in ((0.0, None), (0.05, 5)):
        _, many = draw_population(rng, 3000, (0.02, 0.03), 0.04, 0.3, bias, fresh)
        population = describe_population(many)
        (candidate,) = population.candidates
        assert candidate.coefficients == pytest.approx((0.02, 0.03), abs=0.006)
        assert math.sqrt(candidate.spread) == pytest.approx(0.04, abs=0.015)
        assert candidate.row_variance == pytest.approx(0.09, rel=0.03)
        assert spread_bias(candidate.bias).mean() == pytest.approx(bias, abs=0.01)
        assert population.seen == pytest.approx(0 if fresh is None else 0.73, abs=0.02)


def test_folds_that_understate_the_gain_keep_nobody_from_a_plain_one():
    """Everybody gains 0.1, and rows that the shared model saw say -0.05: with five fresh rows each, most go along."""
    rng = np.random.default_rng(5)
    shares = []
    for _ in range(10):
        _, clients = draw_population(rng, 40, (0.1, 0.0), 0.0, 0.3, 0.15, 5)
        population = describe_population(clients)
        shares.append(np.mean([choose(each, population, weights=(1.0,)).weight for each in clients]))
    assert np.mean(shares) > 0.7
    few = describe_population([each._replace(gains=each.gains[:, 5:]) for each in clients])
    assert few.candidates[0].bias == (0.0, 0.0)  # without fresh rows, nothing is raised
    assert few.candidates[0].coefficients[0] < 0


@pytest.mark.parametrize("fresh", [None, 5])
def test_where_nobody_gains_almost_nobody_leaves(fresh):
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(20):
        _, clients = draw_population(rng, 40, (0.0, 0.0), 0.0, 0.3, 0.05, fresh)
        population = describe_population(clients)
        shares.append(np.mean([choose(each, population, weights=(1.0,)).weight > 0 for each in clients]))
    assert np.mean(shares) <= 0.05


def test_too_few_clients_make_no_population_and_numbers_survive_a_file():
    _, clients = draw_population(np.random.default_rng(2), 9, (0.1, 0.0), 0.1, 0.3)
    assert describe_population(clients[:7]) is None
    assert describe_population([*clients[:7], Evidence(np.zeros((1, 0)), 0.0)]) is None
    population = describe_population(clients)
    assert Population.from_dict(json.loads(json.dumps(population.as_dict()))) == population
    table = population.as_dict()  # of a folder that was written before bias was known
    older = {"hint": table["hint"], "candidates": [each[:4] for each in table["candidates"]]}
    assert Population.from_dict(json.loads(json.dumps(older))) == population


def test_a_model_that_diverged_is_not_taken_and_spoils_nobody():
    _, clients = draw_population(np.random.default_rng(4), 12, (0.2, 0.0), 0.05, 0.3)
    outliers = [Evidence(np.array([[1.0, 1.0]]), math.nan), Evidence(np.array([[math.inf, 1.0]]), 0.0)]
    population = describe_population(clients)
    assert describe_population([*clients, *outliers]) == population
    assert [choose(each, population, weights=(1.0,)).weight for each in outliers] == [0, 0]


def test_p_values_and_discoveries():
    rng = np.random.default_rng(3)
    gains = rng.normal(0.2, 1, size=12)
    assert compute_p_value(gains) == pytest.approx(ttest_1samp(gains, 0, alternative="greater").pvalue)
    assert compute_p_value(np.array([1.0, 1, 1, -1, 0])) == pytest.approx(5 / 16)  # 3 or 4 wins of 4: (4 + 1) / 16
    assert compute_p_value(np.zeros(3)) == compute_p_value(np.zeros(0)) == compute_p_value(np.array([0.3])) == 1
    p = rng.random(200) ** 3
    assert find_discoveries(p, 0.1) == np.flatnonzero(false_discovery_control(p) <= 0.1).tolist()
    assert find_discoveries([0.9, 0.8]) == find_discoveries([]) == []
