"""The rule that decides claims, on differences made up so that the truth is known.

A client's difference has a part that all clients of a seed share and a part of its own, both from a skewed
distribution (exponential: skewness 2), in either direction. A seed's difference is the mean over clients, weighted by
their rows.
"""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pytest

from moiety.errors import MoietyError
from moiety.experiments import FAILS, HOLDS, UNDECIDED, claim, decide

DRAWS, CLIENTS = 1_000, 30
SPREADS = {5: 0.35, 6: 0.4, 8: 0.5, 10: 0.6, 24: 1.1}
"""The seeds of pages at scale night, and the standard deviation over seeds, in margins, that they can afford."""
POOLED_SPREADS = {5: 1.2, 6: 1.4, 8: 1.6, 10: 1.8, 24: 3.0}
"""The same for the mean over six settings."""
MOST_FALSE = 0.05 + 2 * math.sqrt(0.05 * 0.95 / DRAWS)
"""5% and two standard errors of a share of so many draws: 6.4%."""
MARGIN = 1.0


def draw(rng, *, skew, seeds=10, draws=DRAWS, correlation=0.5):
    """Differences of mean 0 and standard deviation 1 over seeds, by draw and seed."""
    weights = rng.integers(5, 60, size=CLIENTS)
    shared = rng.exponential(size=(draws, seeds)) - 1
    own = (rng.exponential(size=(draws, seeds, CLIENTS)) - 1) @ (weights / weights.sum())
    differences = math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own
    variance = correlation + (1 - correlation) * float((weights / weights.sum()) @ (weights / weights.sum()))
    return skew * differences / math.sqrt(variance)


def share(verdict, tables, **rule):
    """How often ``decide`` gives the verdict; each table holds a setting's differences by draw and seed."""
    names = [f"setting {i}" for i in range(len(tables))]
    rows = [
        decide("made up", dict(zip(names, each, strict=True)), **rule)
        for each in zip(*(table.tolist() for table in tables), strict=True)
    ]
    return fmean(row["verdict"] == verdict for row in rows)


@pytest.mark.parametrize("seeds", SPREADS)
@pytest.mark.parametrize("skew", [-1, 1])
@pytest.mark.parametrize("correlation", [0.1, 0.5])
def test_a_claim_at_the_edge_of_the_null_is_seldom_said_to_hold_or_to_fail(skew, correlation, seeds):
    tables = [draw(np.random.default_rng(1), skew=skew, correlation=correlation, seeds=seeds) + MARGIN]
    assert share(HOLDS, tables, above=MARGIN) <= MOST_FALSE
    assert share(FAILS, tables, above=MARGIN) <= MOST_FALSE
    assert share(HOLDS, [0.2 * (tables[0] - MARGIN) + MARGIN], within=MARGIN) <= MOST_FALSE
    assert share(HOLDS, [0.2 * (tables[0] - MARGIN) - MARGIN], within=MARGIN) <= MOST_FALSE


@pytest.mark.parametrize("seeds", SPREADS)
@pytest.mark.parametrize("skew", [-1, 1])
def test_a_pooled_claim_at_the_edge_of_the_null_is_seldom_said_to_hold(skew, seeds):
    """Eight settings of unequal spread, some above the edge and some below, and one with half of the seeds."""
    rng = np.random.default_rng(2)
    means, spreads = np.array([3, -3, 1, -1, 0.5, -0.5, 2, -2]), (0.3, 2.0, 0.5, 1.0, 0.7, 0.2, 1.5, 0.4)
    tables = [m + s * draw(rng, skew=skew, seeds=seeds) for m, s in zip(means, spreads, strict=True)]
    tables[3] = tables[3][:, : seeds // 2]
    assert share(HOLDS, tables) <= MOST_FALSE
    assert share(FAILS, tables) <= MOST_FALSE
    assert share(HOLDS, [table + MARGIN for table in tables], within=MARGIN) <= MOST_FALSE


def test_settings_that_share_their_clients_noise_stay_below_it_too():
    """Splits of one setting are not independent: they are averaged within a seed, before anything is pooled."""
    rng = np.random.default_rng(3)
    splits = [0.5 * draw(rng, skew=-1) for _ in range(3)]
    common = draw(rng, skew=-1)
    assert share(HOLDS, [common + np.mean(splits, axis=0)]) <= MOST_FALSE


def test_the_rule_of_a_first_look_does_not():
    """Why there is another rule: at 95% two-sided about one claim in ten at the edge is said to hold."""
    table = draw(np.random.default_rng(1), skew=-1)
    holds = fmean(claim("made up", each).verdict == HOLDS for each in table.tolist())
    assert holds > MOST_FALSE


@pytest.mark.parametrize("seeds", SPREADS)
@pytest.mark.parametrize("skew", [-1, 1])
def test_an_effect_of_one_margin_is_found(skew, seeds):
    rng = np.random.default_rng(4)
    tables = [SPREADS[seeds] * draw(rng, skew=skew, seeds=seeds) + MARGIN]
    assert share(HOLDS, tables) >= 0.8
    assert share(FAILS, [table - 2 * MARGIN for table in tables]) >= 0.8
    assert share(HOLDS, [table - MARGIN for table in tables], above=-MARGIN) >= 0.8
    pooled = [MARGIN + POOLED_SPREADS[seeds] * draw(rng, skew=skew, seeds=seeds) for _ in range(6)]
    assert share(HOLDS, pooled) >= 0.8


def test_half_a_margin_is_found_over_eight_settings():
    rng = np.random.default_rng(4)
    for skew in (-1, 1):
        assert share(HOLDS, [0.5 * MARGIN + 0.6 * draw(rng, skew=skew) for _ in range(8)]) >= 0.8


def test_the_seeds_that_it_would_take_decide_in_four_of_five_draws():
    """With normal differences, for which the count is made: as many seeds as it asks for, and some fewer."""
    rng = np.random.default_rng(5)

    def find_share(seeds, mean, **rule):
        return share(HOLDS, [mean + rng.normal(size=(DRAWS, seeds))], **rule)

    # Differences of mean 0.5 and standard deviation 1 exactly.
    each = np.array([-1.0, 1.0, -1.0, 1.0, 0.0]) + 0.5
    row = decide("made up", {"one": each.tolist()})
    assert (row["mean"], row["verdict"]) == (pytest.approx(0.5), UNDECIDED)
    assert find_share(row["needed"], 0.5) == pytest.approx(0.8, abs=0.04)
    assert find_share(row["needed"] // 2, 0.5) < 0.6
    row = decide("made up", {"one": each.tolist()}, within=1.25)
    assert find_share(row["needed"], 0.5, within=1.25) == pytest.approx(0.8, abs=0.04)


def test_one_setting_is_students_interval_at_99_per_cent():
    """1, 2, 3, 4, 5: mean 3, standard deviation 1.5811, and 4.6041 (a printed table) x 1.5811 / sqrt(5) = 3.2556."""
    row = decide("made up", {"one": [1.0, 2.0, 3.0, 4.0, 5.0]})
    assert (row["mean"], row["low"], row["high"]) == pytest.approx((3.0, 3 - 3.2556, 3 + 3.2556), abs=1e-4)
    assert (row["verdict"], row["seeds"], row["settings"]) == (UNDECIDED, 5, 1)


def test_two_settings_are_welchs_interval():
    """Variances of means 1/3 and 4/3 at 2 degrees each: error sqrt(5/3) / 2, and (5/3)^2 / (1/18 + 16/18) degrees."""
    from scipy.stats import t

    row = decide("made up", {"one": [1.0, 2.0, 3.0], "two": [0.0, 2.0, 4.0]})
    degrees, error = (5 / 3) ** 2 / (17 / 18), math.sqrt(5 / 3) / 2
    assert row["high"] - row["mean"] == pytest.approx(float(t.ppf(0.995, degrees)) * error)
    assert row["mean"] == 2


@pytest.mark.parametrize("value", [0.0, 2.2, -1.0])
def test_seeds_that_all_agree_say_nothing_about_chance(value):
    """A spread of zero is no estimate of a spread: an interval of no width would decide anything."""
    near = [value * (1 + 4e-16 * i) for i in range(5)]  # apart by rounding alone
    for each in ([value] * 5, near):
        for rule in ({}, {"within": 3.0}):
            row = decide("made up", {"one": each}, **rule)
            assert (row["verdict"], row["low"], row["high"], row["needed"]) == (UNDECIDED, None, None, None)
            assert decide("made up", {"one": each, "two": [value] * 5}, **rule)["verdict"] == UNDECIDED
    # Pooled with a setting whose seeds differ, the spread is known: 1, 2, 3, 4, 5 as below, at half the weight.
    row = decide("made up", {"one": [2.0] * 5, "two": [1.0, 2.0, 3.0, 4.0, 5.0]})
    assert (row["mean"], row["high"]) == pytest.approx((2.5, 2.5 + 3.2556 / 2), abs=1e-4)


def test_what_cannot_be_decided():
    assert decide("made up", {"one": [5.0]})["verdict"] == UNDECIDED
    assert decide("made up", {"one": [0.0, 0.0, 0.0]})["verdict"] == UNDECIDED
    assert decide("made up", {"one": [0.1, -0.1, 0.1, -0.1001]})["needed"] is None  # more than a thousand
    for odd in ({}, {"one": []}, {"one": [math.nan, 1.0]}):
        with pytest.raises(MoietyError, match="differences"):
            decide("made up", odd)
    with pytest.raises(MoietyError, match="within"):
        decide("made up", {"one": [1.0, 2.0]}, within=0.0)
