"""Calibration by hand, and against scikit-learn and pair counting."""

import math

import numpy as np
import pytest
from sklearn.metrics import log_loss

import moiety as mo
from moiety.evaluation import calibration as cal

P = np.array([[0.9, 0.1], [0.7, 0.3], [0.35, 0.65], [0.2, 0.8], [0.6, 0.4]])
Y = np.array([0, 1, 1, 1, 1])


def test_reliability_by_hand():
    """Confidences 0.9, 0.7, 0.65, 0.8, 0.6, right or wrong 1, 0, 1, 1, 0; bins (0.4, 0.6], (0.6, 0.8], (0.8, 1]."""
    rows = cal.reliability(P, Y, bins=5)
    assert [row["n"] for row in rows] == [1, 3, 1]
    assert [row["low"] for row in rows] == pytest.approx([0.4, 0.6, 0.8])
    assert [row["confidence"] for row in rows] == pytest.approx([0.6, (0.7 + 0.65 + 0.8) / 3, 0.9])
    assert [row["accuracy"] for row in rows] == pytest.approx([0.0, 2 / 3, 1.0])


def test_expected_calibration_error_by_hand():
    """(1 * |0.6 - 0| + 3 * |2.15/3 - 2/3| + 1 * |0.9 - 1|) / 5 = (0.6 + 0.15 + 0.1) / 5."""
    assert cal.expected_calibration_error(P, Y, bins=5) == pytest.approx(0.17)


def test_brier_by_hand():
    """Two classes: twice the squared distance of the label's probability from 1."""
    expected = 2 * np.mean([0.1**2, 0.7**2, 0.35**2, 0.2**2, 0.6**2])
    assert cal.brier(P, Y) == pytest.approx(expected)


def test_log_likelihood_is_scikit_learns():
    assert cal.negative_log_likelihood(P, Y) == pytest.approx(log_loss(Y, P))
    assert math.isfinite(cal.negative_log_likelihood(np.array([[1.0, 0.0]]), np.array([1])))


def test_labels_drawn_from_the_probabilities_are_calibrated():
    """100,000 examples in 10 bins: each bin is off by about 0.5 / sqrt(10,000); twice as sure is far off."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(100_000, 4))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    y = (p.cumsum(1) < rng.uniform(size=(100_000, 1))).sum(1)
    assert cal.expected_calibration_error(p, y, bins=10) < 0.02
    sure = p**2 / (p**2).sum(1, keepdims=True)
    assert cal.expected_calibration_error(sure, y, bins=10) > 0.1
    assert cal.brier(sure, y) > cal.brier(p, y)
    assert cal.negative_log_likelihood(sure, y) > cal.negative_log_likelihood(p, y)


def test_clients_and_all_of_them():
    """One client too sure by as much as the other is not sure enough: 0 for the heap, 0.2 for each."""
    p = np.array([[0.8, 0.2]] * 5)
    predictions = {"a": (p, np.array([0, 0, 0, 1, 1])), "b": (p, np.array([0] * 5))}
    rows, heap = cal.calibration_rows(predictions, bins=5)
    assert [row["client"] for row in rows] == ["a", "b"]
    assert [row["ece"] for row in rows] == pytest.approx([0.2, 0.2])
    assert heap["ece"] == pytest.approx(0.0)
    assert (heap["n"], heap["accuracy"]) == (10, pytest.approx(0.8))


def test_auroc_counts_pairs():
    rng = np.random.default_rng(1)
    inside, outside = rng.integers(0, 6, size=30).astype(float), rng.integers(2, 9, size=20).astype(float)
    pairs = (outside[:, None] > inside) + 0.5 * (outside[:, None] == inside)
    assert cal.out_of_distribution_auroc(inside, outside) == pytest.approx(pairs.mean())


def test_coverage_counts():
    """Ends belong to an interval: of 0.5, 2, 1 and 0 three lie in [0, 1]."""
    low, y = np.zeros((2, 2)), np.array([[0.5, 2.0], [1.0, 0.0]])
    assert cal.coverage(low, low + 1, y) == 0.75


def test_one_output_is_not_compared_with_the_values_of_other_examples():
    """Intervals [i, i + 1] of a model with one output, and values that lie in those of their own place but for one."""
    low, y = np.arange(8.0)[:, None], np.arange(8.0) + 0.5
    y[3] = 0.5
    for values in (y, y[:, None]):
        assert cal.coverage(low, low + 1, values) == 7 / 8
    assert cal.coverage(low[:, 0], low[:, 0] + 1, y[:, None]) == 7 / 8


@pytest.mark.parametrize(
    ("low", "high", "y", "text"),
    [
        (np.zeros(3), np.ones(3), np.zeros(4), "`low` must be of the shape of y, (4,), got (3,)"),
        (np.zeros((3, 2)), np.ones((3, 2)), np.zeros(3), "`low` must be of the shape of y"),
        (np.zeros(3), np.ones(4), np.zeros(3), "`high` must be of the shape of y"),
        (np.zeros((3, 1)), np.ones((3, 1)), np.zeros((1, 3)), "`low` must be of the shape of y"),
        (0.0, 1.0, np.zeros(3), "`low` must be of the shape of y, (3,), got ()"),
        (np.zeros(3), np.ones(3), np.array([0, np.nan, 1]), "`y` must be finite everywhere, got [nan]"),
        (np.zeros(3), np.array([1, np.inf, 1]), np.zeros(3), "`high` must be finite everywhere"),
        (np.ones(3), np.zeros(3), np.zeros(3), "`low` must be <= high everywhere"),
        (np.zeros(0), np.zeros(0), np.zeros(0), "`y` must be at least one value"),
        ([[0.0], [1.0, 2.0]], np.ones(2), np.zeros(2), "`low` must be an array, got values that NumPy refuses"),
    ],
)
def test_bad_intervals_are_one_line(low, high, y, text):
    with pytest.raises(mo.MoietyError) as error:
        cal.coverage(low, high, y)
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("bins", [3, 7, 10, 15, 100])
def test_exact_edges_belong_to_the_bin_below(bins):
    """Confidence k / bins is in ((k - 1) / bins, k / bins], whatever 100 * 0.57 is rounded to; just above is not."""
    for k in range(bins // 2 + 1, bins):
        edge = k / bins
        for confidence, place in ((edge, k - 1), (np.nextafter(edge, 1), k), (np.nextafter(edge, 0), k - 1)):
            (row,) = cal.reliability(np.array([[confidence, 1 - confidence]]), np.array([0]), bins=bins)
            assert row["low"] == place / bins
    (row,) = cal.reliability(np.array([[1.0, 0.0]]), np.array([0]), bins=bins)
    assert row["high"] == 1.0


def test_sets_by_hand():
    """0.6 and 0.3 are 0.9, though their sum in floating numbers is less: two classes, of mass 0.9.

    0.5, 0.35 and 0.15 are needed of the second example, all of its mass; 0.95 of the third. Labels are in, in, out.
    """
    assert 0.6 + 0.3 < 0.9
    p = np.array([[0.3, 0.6, 0.1], [0.35, 0.15, 0.5], [0.95, 0.02, 0.03]])
    coverage = cal.set_coverage(p, np.array([0, 1, 2]))
    assert coverage == {"covered": 2 / 3, "mass": pytest.approx((0.9 + 1 + 0.95) / 3), "size": 2.0}


def test_labels_drawn_from_the_probabilities_are_in_sets_as_often_as_their_mass_says():
    """Binomial: within 4 standard errors of the mass, and far more often than the level."""
    rng, n = np.random.default_rng(3), 20_000
    p = rng.dirichlet(np.full(6, 0.5), size=n)
    y = (p.cumsum(1) < rng.uniform(size=(n, 1))).sum(1)
    coverage = cal.set_coverage(p, y, level=0.9)
    assert abs(coverage["covered"] - coverage["mass"]) < 4 * np.sqrt(0.05 / n)
    assert coverage["covered"] > 0.93


@pytest.mark.parametrize(
    ("p", "y", "text"),
    [
        (P[0], Y, "`probabilities` must be a table"),
        (P, Y[:2], "`y` must be one label for each of 5 examples"),
        (P * 2, Y, "`probabilities` must be rows that sum to 1"),
        (-P, Y, "`probabilities` must be >= 0"),
        (P, Y + 1, "`y` must be from 0 to 1"),
        (P, Y * 1.0, "`y` must be whole numbers"),
        (P, list("abcde"), "`y` must be whole numbers"),
        (P, [[0], [1, 2], 0, 0, 0], "`y` must be an array, got values that NumPy refuses"),
        ([["a", "b"]] * 5, Y, "`probabilities` must be numbers, got <U1"),
        ([[0.5, 0.5], [1.0]], Y[:2], "`probabilities` must be an array, got values that NumPy refuses"),
        (P * 1j, Y, "`probabilities` must be numbers, got complex128"),
        (P * np.nan, Y, "`probabilities` must be finite everywhere, got [nan]"),
        (np.ones((5, 1)), Y * 0, "`probabilities` must be of two classes or more, got 1"),
    ],
)
def test_bad_input_is_one_line(p, y, text):
    with pytest.raises(mo.MoietyError) as error:
        cal.scores(p, y)
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("inside", "outside", "text"),
    [
        ([0.0, np.nan], [1.0], "`inside` must be finite everywhere, got [nan]"),
        ([0.0], [[1.0, 2.0]], "`outside` must be one score for each example, and some, got (1, 2)"),
        ([], [1.0], "`inside` must be one score for each example, and some, got (0,)"),
        (["a"], [1.0], "`inside` must be numbers, got <U1"),
    ],
)
def test_bad_scores_for_auroc_are_one_line(inside, outside, text):
    with pytest.raises(mo.MoietyError) as error:
        cal.out_of_distribution_auroc(inside, outside)
    assert str(error.value).startswith(text)


def test_clients_have_the_same_classes():
    predictions = {"a": (P, Y), "b": (np.full((2, 4), 0.25), np.array([0, 3]))}
    with pytest.raises(mo.MoietyError) as error:
        cal.calibration_rows(predictions)
    text = "`predictions` must be probabilities of the same classes for all clients, got {'a': 2, 'b': 4}"
    assert str(error.value).startswith(text)
