"""Intervals, with quantiles of Student's t from a printed table: 12.706, 4.3027 and 2.7764 for 1, 2 and 4 degrees."""

from __future__ import annotations

import math

import pytest

from moiety.analysis.intervals import FAILS, HOLDS, UNDECIDED, claim, interval, table_row
from moiety.errors import MoietyError


def test_three_seeds():
    """Mean 2, deviations -1, 0, 1: std 1, half-width 4.3027 / sqrt 3 = 2.4842."""
    result = interval([1, 2, 3])
    assert (result.mean, result.std, result.seeds) == (2, 1, 3)
    assert (result.low, result.high) == pytest.approx((2 - 2.4842, 2 + 2.4842), abs=1e-4)


def test_five_seeds_and_another_level():
    """0, 0, 0, 0, 5: mean 1, squares 4 * 1 + 16 = 20, std sqrt(20 / 4); half 2.7764 sqrt 5 / sqrt 5. At 90%, 2.1318."""
    assert interval([0, 0, 0, 0, 5]).low == pytest.approx(1 - 2.7764, abs=1e-4)
    assert interval([0, 0, 0, 0, 5], level=0.9).high == pytest.approx(1 + 2.1318, abs=1e-4)


def test_one_seed_has_no_interval():
    result = interval([0.25])
    assert (result.mean, result.std, result.low, result.high, result.seeds) == (0.25, None, None, None, 1)


@pytest.mark.parametrize(("values", "message"), [([], "at least one"), ([1.0, math.nan], "finite")])
def test_bad_values(values, message):
    with pytest.raises(MoietyError, match=message):
        interval(values)
    with pytest.raises(MoietyError, match="`level` must be"):
        interval([1.0], level=1.0)


@pytest.mark.parametrize(
    ("differences", "how", "verdict"),
    [
        # two seeds, 2 and 3: mean 2.5, std sqrt(1/2), half 12.706 / 2 = 6.35
        ([2.0, 3.0], {}, UNDECIDED),
        # three seeds, 2, 3, 4: half 2.484
        ([2.0, 3.0, 4.0], {}, HOLDS),
        ([-2.0, -3.0, -4.0], {}, FAILS),
        ([2.0, 3.0, 4.0], {"above": 0.5}, HOLDS),
        ([2.0, 3.0, 4.0], {"above": 0.6}, UNDECIDED),
        ([2.0, 3.0, 4.0], {"above": 5.5}, FAILS),
        # close to nothing: 0.516 to 5.484
        ([2.0, 3.0, 4.0], {"within": 6.0}, HOLDS),
        ([2.0, 3.0, 4.0], {"within": 5.0}, UNDECIDED),
        ([2.0, 3.0, 4.0], {"within": 0.5}, FAILS),
        ([-2.0, -3.0, -4.0], {"within": 0.5}, FAILS),
        ([-1.0, 0.0, 1.0], {"within": 2.0}, UNDECIDED),
        ([7.0], {}, UNDECIDED),
        ([0.0], {"within": 1.0}, UNDECIDED),
        # a difference that is the same in all seeds
        ([1.0, 1.0], {}, HOLDS),
        ([0.0, 0.0], {}, UNDECIDED),
        ([0.0, 0.0], {"within": 0.1}, HOLDS),
    ],
)
def test_claims(differences, how, verdict):
    result = claim("it is so", differences, **how)
    assert (result.name, result.verdict, result.interval.seeds) == ("it is so", verdict, len(differences))
    assert str(result) == f"it is so: {verdict}"


def test_a_margin_and_a_side_exclude_each_other():
    with pytest.raises(MoietyError, match="`above` must be left out"):
        claim("both", [1.0], above=1.0, within=1.0)
    with pytest.raises(MoietyError, match="`within` must be > 0"):
        claim("nothing", [1.0], within=0.0)


def test_a_row_of_a_table():
    """0.01, 0.02, 0.03 in per cent: 1, 2, 3."""
    row = table_row("output layer", [0.01, 0.02, 0.03], paper=2.5, scale=100, verdict="holds")
    assert row.pop("low") == pytest.approx(2 - 2.4842, abs=1e-4)
    assert row.pop("high") == pytest.approx(2 + 2.4842, abs=1e-4)
    expected = {"row": "output layer", "paper": 2.5, "ours": 2, "std": 1, "seeds": 3, "verdict": "holds"}
    assert row == pytest.approx(expected)
