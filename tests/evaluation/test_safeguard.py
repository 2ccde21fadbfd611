"""The rule of the safeguard: posteriors and choices by hand, its levels by simulation, discoveries against scipy."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import false_discovery_control, norm, ttest_1samp

from moiety.errors import MoietyError
from moiety.evaluation.paired import compute_p_value
from moiety.evaluation.safeguard import (
    ALPHA,
    WEIGHTS,
    Candidate,
    Evidence,
    Population,
    choose,
    conclude,
    describe_population,
    find_discoveries,
    summarise,
)

KNOWN = Candidate((0.1, 0.02), (0.001, 0.0, 0.0), 0.04, 0.2)


def test_the_posterior_by_hand():
    """Rows 1 and 0 with the hint at 2 deviations: prior mean 0.1 + 0.04, precision 25.

    The variance of a row is (10 0.2 + 1 0.5) / 11, so two rows have precision 8.8 around 0.5; the uncertainty of b_0
    enters by its share of the prior.
    """
    population = Population((1.0, 0.5, 0.0, 3.0), (KNOWN,))
    mean, variance, of_a_row = conclude(Evidence(np.array([[1.0, 0.0]]), 2.0), population)
    assert mean[0] == pytest.approx((25 * 0.14 + 8.8 * 0.5) / 33.8)
    assert variance[0] == pytest.approx(1 / 33.8 + (25 / 33.8) ** 2 * 0.001)
    choice = choose(Evidence(np.array([[1.0, 0.0]]), 2.0), population, alpha=0.2, weights=(1.0,))
    assert of_a_row[0] == pytest.approx(2.5 / 11)
    assert choice.risk == pytest.approx(norm.cdf(-mean[0] / math.sqrt(variance[0] + 2.5 / 11 / 200)))
    assert (choice.weight, choice.rows) == (1.0, 2)


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
    """Means 0.04, 0.05, 0.1 with errors 0.01, 0.015, 0.06: they differ by 0.03, 0.035, 0.04; risks 3e-5, 4e-4, 0.05.

    An error is that of the mean of 200 rows to come: the posterior's variance and a 200th of that of a row.
    """

    def settle(*pairs, row=0.002):
        candidates = [Candidate((gain, 0.0), (0.0, 0.0, 0.0), error**2 - row / 200, row) for gain, error in pairs]
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


def draw_population(rng, clients, b, tau, noise):
    """Clients as the rule supposes them: true gains, and evidence with one candidate."""
    hints = rng.normal(size=clients)
    gains = b[0] + b[1] * hints + tau * rng.normal(size=clients)
    rows = rng.integers(3, 30, size=clients)
    return gains, [
        Evidence((g + noise * rng.normal(size=n))[None], h) for g, n, h in zip(gains, rows, hints, strict=True)
    ]


def test_the_population_is_found_and_few_of_those_who_leave_are_worse_off():
    rng = np.random.default_rng(0)
    leavers = worse = 0
    for _ in range(20):
        gains, clients = draw_population(rng, 60, (0.02, 0.03), 0.04, 0.3)
        population = describe_population(clients)
        weights = np.array([choose(each, population, alpha=0.1, weights=(1.0,)).weight for each in clients])
        leavers += int((weights > 0).sum())
        worse += int(((weights > 0) & (gains < 0)).sum())
    assert leavers > 100
    assert worse / leavers <= 0.1
    _, many = draw_population(rng, 3000, (0.02, 0.03), 0.04, 0.3)
    candidate = describe_population(many).candidates[0]
    assert candidate.coefficients == pytest.approx((0.02, 0.03), abs=0.006)
    assert math.sqrt(candidate.spread) == pytest.approx(0.04, abs=0.015)
    assert candidate.row_variance == pytest.approx(0.09, rel=0.03)


def test_where_nobody_gains_almost_nobody_leaves():
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(20):
        _, clients = draw_population(rng, 40, (0.0, 0.0), 0.0, 0.3)
        population = describe_population(clients)
        shares.append(np.mean([choose(each, population, alpha=0.1, weights=(1.0,)).weight > 0 for each in clients]))
    assert np.mean(shares) <= 0.1


def draw_thin_clients(rng, clients, gain):
    """Clients with four validation rows, alike for all mixtures, and twelve rows of folds that speak for nothing."""
    gains = [np.append(gain + 0.3 * rng.normal(size=4), -0.1 + 0.3 * rng.normal(size=12)) for _ in range(clients)]
    return [Evidence(np.broadcast_to(each, (4, 16)), rng.normal(), validation=4) for each in gains]


def test_where_no_client_can_tell_by_itself_all_validation_rows_together_decide():
    """The default is the smallest mixture where Student's t over clients says so, and nobody leaves by itself."""
    clients = draw_thin_clients(np.random.default_rng(6), 30, 0.1)
    means = [each.gains[0, :4].mean() for each in clients]
    assert ttest_1samp(means, 0, alternative="greater").pvalue < 0.01
    alone = describe_population(clients)._replace(default=0.0)
    assert {choose(each, alone).weight for each in clients} == {0.0}
    population = describe_population(clients)
    assert population.default == WEIGHTS[0]
    assert {choose(each, population).weight for each in clients} == {WEIGHTS[0]}
    newcomer = Evidence(np.zeros((4, 0)), 0.0)
    assert choose(newcomer, population).weight == WEIGHTS[0]
    assert choose(newcomer, population).risk > ALPHA


def test_the_default_is_the_shared_model_otherwise():
    rng = np.random.default_rng(6)
    clients = draw_thin_clients(rng, 30, 0.1)
    assert describe_population(clients).default > 0
    folds = [each._replace(validation=0) for each in clients]
    assert describe_population(folds).default == 0
    assert describe_population([*clients[:7], *folds[7:]]).default == 0
    assert describe_population([each._replace(gains=-each.gains) for each in clients]).default == 0
    assert describe_population([each._replace(gains=each.gains[:1]) for each in clients]).default == 0
    sure = Evidence(np.broadcast_to(0.5 + 0.1 * rng.normal(size=60), (4, 60)), clients[0].hint, validation=60)
    population = describe_population([*clients, sure])
    assert choose(sure, population).weight > 0
    assert population.default == 0
    lone = Population((0.0, 1.0, -1.0, 1.0), (KNOWN._replace(coefficients=(-0.1, 0.0)),), WEIGHTS[0])
    assert choose(Evidence(np.zeros((1, 0)), 0.0), lone, weights=(1.0,)).weight == 0  # it has no such mixture


def test_probabilities_decide_the_default_where_there_are_any():
    """Right answers get fewer, and probabilities rise by 0.01 in each validation row."""
    rng = np.random.default_rng(7)
    likely = [np.append(0.01 + 0.001 * rng.normal(size=2), np.zeros(6)) for _ in range(12)]
    clients = [Evidence(np.full((4, 8), -0.1), rng.normal(), np.broadcast_to(each, (4, 8)), 2) for each in likely]
    assert summarise(clients[0]).validation == pytest.approx(likely[0][:2].mean())
    assert summarise(clients[0]._replace(validation=0)).validation is None
    assert describe_population(clients).default == WEIGHTS[0]
    assert describe_population([each._replace(likely=-each.likely) for each in clients]).default == 0


def test_where_nobody_gains_the_default_is_a_mixture_at_most_as_often_as_the_level_says():
    rng = np.random.default_rng(8)
    draws = [describe_population(draw_thin_clients(rng, 15, 0.0)).default > 0 for _ in range(400)]
    assert np.mean(draws) <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / 400)


def test_too_few_clients_make_no_population_and_numbers_survive_a_file():
    _, clients = draw_population(np.random.default_rng(2), 9, (0.1, 0.0), 0.1, 0.3)
    assert describe_population(clients[:7]) is None
    assert describe_population([*clients[:7], Evidence(np.zeros((1, 0)), 0.0)]) is None
    population = describe_population(clients)
    assert Population.from_dict(json.loads(json.dumps(population.as_dict()))) == population


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
