"""Intervals of clients' gains from shares alone: against hand calculations and against the exact test on rows."""

import math

import numpy as np
import pytest

from moiety.evaluation.paired import measure_change
from moiety.reports.noise import bound_change, bound_gains, judge_gains, read_ends


def most_apart(right: int, before: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of rows such that two models with so many right answers disagree as often as they can."""
    new, old = np.zeros(rows), np.zeros(rows)
    new[:right] = 1
    old[rows - before :] = 1
    return new, old


@pytest.mark.parametrize(
    ("right", "before", "rows"), [(7, 0, 7), (0, 6, 7), (3, 5, 7), (40, 25, 60), (2, 2, 9), (5, 4, 5)]
)
def test_the_bound_is_the_interval_of_the_rows_that_disagree_most(right, before, rows):
    exact = measure_change(*most_apart(right, before, rows))
    low, high = bound_change(np.array([right / rows]), np.array([before / rows]), np.array([rows]))
    assert (low[0], high[0]) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_six_answers_to_none_are_beyond_noise_and_five_are_not():
    # McNemar's exact test: 2 / 2**6 = 0.031 and 2 / 2**5 = 0.0625.
    low, high = bound_change(np.array([0, 0, 6 / 7, 5 / 7]), np.array([6 / 7, 5 / 7, 0, 0]), np.full(4, 7))
    assert (high < 0).tolist() == [True, False, False, False]
    assert (low > 0).tolist() == [False, False, True, False]


def test_any_pairing_of_the_same_shares_is_called_hurt_where_the_bound_calls_it_hurt():
    rng = np.random.default_rng(0)
    for _ in range(60):
        rows = int(rng.integers(1, 40))
        new, old = (rng.random(rows) < rng.random()).astype(float), (rng.random(rows) < rng.random()).astype(float)
        low, high = bound_change(np.array([new.mean()]), np.array([old.mean()]), np.array([rows]))
        exact = measure_change(new, old)
        assert not high[0] < 0 or exact.hurt_beyond_noise
        assert not low[0] > 0 or exact.helped_beyond_noise
        assert low[0] - 1e-9 <= new.mean() - old.mean() <= high[0] + 1e-9


def test_more_seeds_do_not_narrow_the_noise_of_the_same_test_rows():
    one = bound_gains(np.array([[6 / 7]]), np.array([[1.0]]), np.array([7]), "accuracy", higher=True)
    many = bound_gains(np.full((9, 1), 6 / 7), np.ones((9, 1)), np.array([7]), "accuracy", higher=True)
    assert one is not None
    assert many is not None
    assert [end[0] for end in one] == pytest.approx([end[0] for end in many])


def test_other_metrics_have_students_interval_over_seeds_and_none_from_two():
    new, old = np.array([[1.0], [2.0], [3.0]]), np.zeros((3, 1))
    ends = bound_gains(new, old, np.array([10]), "mse", higher=False)
    assert ends is not None
    # mean -2, standard deviation 1, t of 0.975 with two degrees of freedom 4.302653
    half = 4.302653 / math.sqrt(3)
    assert [end[0] for end in ends] == pytest.approx([-2 - half, -2 + half], abs=1e-5)
    assert bound_gains(new[:2], old[:2], np.array([10]), "mse", higher=False) is None


def test_shares_of_tokens_are_not_taken_for_shares_of_rows():
    assert bound_gains(np.array([[0.37]]), np.array([[0.5]]), np.array([7]), "token_accuracy", higher=True) is None


def test_verdicts_follow_from_the_ends_and_clients_without_rows_have_none():
    ends = np.array([0.1, -0.2, -0.5, 0.1]), np.array([0.3, 0.2, -0.1, 0.2])
    gains = np.array([0.2, 0.0, -0.3, math.nan])
    assert judge_gains(gains, ends) == ["helped", "within noise", "hurt", "not known"]
    assert judge_gains(gains, None) == ["not known"] * 4
    assert read_ends([{"gain_low": -1.0, "gain_high": 2.0}]) == (np.array([-1.0]), np.array([2.0]))
    assert read_ends([{"gain": 1.0}]) is None
