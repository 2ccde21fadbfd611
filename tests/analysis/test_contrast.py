"""Two ways to train, client by client: the interval against formulas written out here, and against its own promise."""

import math

import numpy as np
import pytest
from scipy.stats import t

from moiety import MoietyError
from moiety.analysis.contrast import contrast, describe_clients
from moiety.analysis.recommendation import NO_DIFFERENCE, PERSONAL, SHARED, decide, word_answer


def rows(metric, n_test):
    return [{"client": str(i), "n_test": n, "metric": m} for i, (m, n) in enumerate(zip(metric, n_test, strict=True))]


def test_with_equal_weights_and_one_seed_it_is_the_paired_t_interval():
    gains = np.array([0.1, -0.05, 0.2, 0.0, 0.07])
    old = np.full(5, 0.5)
    result = contrast([rows(old + gains, [8] * 5)], [rows(old, [8] * 5)], higher_is_better=True)
    half = t.ppf(0.975, 4) * gains.std(ddof=1) / math.sqrt(5)
    assert (result.mean, result.low, result.high) == pytest.approx(
        (gains.mean(), gains.mean() - half, gains.mean() + half)
    )


def test_seeds_add_their_own_half_width():
    """Two clients, two seeds, all by hand: gains 1 and 3 with one seed, 3 and 5 with the other."""
    old = rows([0.0, 0.0], [1, 1])
    result = contrast([rows([1.0, 3.0], [1, 1]), rows([3.0, 5.0], [1, 1])], [old, old], higher_is_better=True)
    over_clients, over_seeds = 1.0, 1.0  # clients' means 2 and 4: variance 2, of the mean 1; seeds' means 2 and 4 too
    half = math.sqrt((t.ppf(0.975, 1) ** 2) * (over_clients + over_seeds))
    assert (result.mean, result.high - result.mean) == pytest.approx((3.0, half))
    assert result.gains == {"0": 2.0, "1": 4.0}


def test_clients_weigh_as_their_rows_and_less_of_a_loss_is_a_gain():
    new, old = rows([1.0, 4.0], [30, 10]), rows([2.0, 4.0], [30, 10])
    result = contrast([new], [old], higher_is_better=False)
    # d = 0.75; residuals 0.25 and -0.75, weights 0.75 and 0.25: the variance of a ratio, times 2 / (2 - 1)
    half = t.ppf(0.975, 1) * math.sqrt(2 * ((0.75 * 0.25) ** 2 + (0.25 * 0.75) ** 2))
    assert (result.mean, result.high - result.mean) == pytest.approx((0.75, half))


def test_where_nothing_differs_the_interval_leaves_zero_out_as_often_as_it_says():
    """Clients and seeds both vary; the true mean is 0. A one-sided error should come in about 2.5% of 2,000 draws."""
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(2000):
        clients, seeds = 0.05 * rng.normal(size=30), 0.02 * rng.normal(size=3)
        new = [rows(clients + seed + 0.03 * rng.normal(size=30), [20] * 30) for seed in seeds]
        above += contrast(new, [rows(np.zeros(30), [20] * 30)] * 3, higher_is_better=True).beyond_chance
    assert 10 <= above <= 60  # at most 50 expected, with a deviation of 7


def test_one_client_is_refused():
    with pytest.raises(MoietyError, match="at least two clients"):
        contrast([rows([1.0], [5])], [rows([0.0], [5])], higher_is_better=True)


def test_clients_are_described_by_mean_worst_decile_and_share_hurt():
    metric = np.linspace(0.0, 1.0, 20)
    result = describe_clients(rows(metric, [5] * 20), rows(np.full(20, 0.5), [5] * 20), higher_is_better=True)
    assert result["mean"] == pytest.approx(0.5)
    assert result["worst_decile"] == pytest.approx((0 + 1 / 19) / 2)
    assert result["share_hurt"] == 0.5
    half = 1.96 * metric.std() / math.sqrt(20)
    assert (result["mean_low"], result["mean_high"]) == pytest.approx((0.5 - half, 0.5 + half), abs=0.02)


def make_contrast(mean, half, gains=(0.1, -0.02)):
    from moiety.analysis.contrast import Contrast

    return Contrast(mean, mean - half, mean + half, {str(i): gain for i, gain in enumerate(gains)}, 3)


@pytest.mark.parametrize(
    ("mean", "half", "ahead", "verdict"),
    [
        (0.03, 0.01, True, PERSONAL),
        (0.03, 0.01, False, NO_DIFFERENCE),  # validation rows chose: test rows alone must not
        (0.03, 0.04, True, NO_DIFFERENCE),
        (-0.03, 0.01, True, SHARED),
    ],
)
def test_personal_parts_must_be_ahead_twice(mean, half, ahead, verdict):
    assert decide(make_contrast(mean, half), ahead=ahead) == verdict


def test_the_sentence_is_one_that_a_manager_understands():
    numbers = {"ours": 0.912, "shared": 0.884, "metric": "accuracy", "beyond": 1}
    text = word_answer(PERSONAL, "A personal output layer (FedAlt)", result=make_contrast(0.028, 0.01), **numbers)
    assert text == (
        "A personal output layer (FedAlt) is best: 91.2% accuracy against 88.4% for one model for all (difference +2.8"
        " points, 95% interval +1.8 to +3.8); 1 of 2 clients would be worse off by more than a point (1 beyond noise)."
        " One model for all is enough if you cannot keep state on devices and 88.4% will do."
    )
    text = word_answer(NO_DIFFERENCE, "Finetuning", result=make_contrast(0.028, 0.05), **numbers)
    assert text.startswith("There is no difference beyond chance: one model for all has 88.4% accuracy")
    text = word_answer(SHARED, "Finetuning", result=make_contrast(-0.028, 0.01), **numbers)
    assert text.startswith("One model for all is best: 88.4% accuracy against 91.2% for its best rival, finetuning")
