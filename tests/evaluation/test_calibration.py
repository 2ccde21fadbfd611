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
    wanted = 2 * np.mean([0.1**2, 0.7**2, 0.35**2, 0.2**2, 0.6**2])
    assert cal.brier(P, Y) == pytest.approx(wanted)


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
    found = {"a": (p, np.array([0, 0, 0, 1, 1])), "b": (p, np.array([0] * 5))}
    rows, heap = cal.calibration_rows(found, bins=5)
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
    assert cal.coverage(np.array([0.0, 0.0]), np.array([1.0, 1.0]), np.array([[0.5, 2.0], [1.0, 0.0]])) == 0.75


@pytest.mark.parametrize(
    ("p", "y", "text"),
    [
        (P[0], Y, "`probabilities` must be a table"),
        (P, Y[:2], "`y` must be one label for each of 5 examples"),
        (P * 2, Y, "`probabilities` must be rows that sum to 1"),
        (-P, Y, "`probabilities` must be >= 0"),
        (P, Y + 1, "`y` must be from 0 to 1"),
        (P, Y * 1.0, "`y` must be whole numbers"),
    ],
)
def test_bad_input_is_one_line(p, y, text):
    with pytest.raises(mo.MoietyError) as caught:
        cal.scores(p, y)
    assert str(caught.value).startswith(text)
