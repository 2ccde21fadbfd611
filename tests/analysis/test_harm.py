"""Who is hurt, from rows made by hand."""

from __future__ import annotations

import math

import pytest

from moiety.analysis.harm import by_size, change_rows, hurt_when, over_seeds, share_hurt, sweep
from moiety.errors import MoietyError


def rows(metrics, sizes=(10, 20, 30, 40)):
    """Clients a, b, c, ...; a metric of None is a client without rows of the part."""
    return [
        {"client": name, "n": n, "n_test": 0 if m is None else 5, "metric": math.nan if m is None else m}
        for name, n, m in zip("abcdef", sizes, metrics, strict=False)
    ]


def make_changes(*gains, sizes=(10, 20, 30, 40)):
    return [
        {"client": name, "n": n, "n_test": 5, "test": gain, "train": None}
        for name, n, gain in zip("abcdef", sizes, gains, strict=False)
    ]


def test_changes_on_both_parts():
    changes = change_rows(
        rows([0.75, 0.5, None, 0.5]),
        rows([0.5, 0.75, None, 0.5]),
        train=(rows([1.0, 1.0, 0.5, 0.75]), rows([0.5, 0.75, 0.5, 1.0])),
    )
    assert [(r["client"], r["n"], r["n_test"], r["test"], r["train"]) for r in changes] == [
        ("a", 10, 5, 0.25, 0.5),
        ("b", 20, 5, -0.25, 0.25),
        ("c", 30, 0, None, 0),
        ("d", 40, 5, 0, -0.25),
    ]


def test_an_error_that_falls_is_a_gain_and_rounding_is_none():
    changes = change_rows(rows([1.0, 2.0, 1 / 3]), rows([1.5, 1.5, 0.3333333432674408]), higher_is_better=False)
    assert [r["test"] for r in changes] == [0.5, -0.5, 0]
    assert [r["train"] for r in changes] == [None] * 3


def test_other_clients_are_refused():
    with pytest.raises(MoietyError, match="`clients` must be the same"):
        change_rows(rows([1.0, 1.0]), rows([1.0]))
    with pytest.raises(MoietyError, match=r"\['b'\] on one only"):
        over_seeds([make_changes(1, 2), make_changes(1)])


SEEDS = [make_changes(0.2, -0.1, 0.1, -0.3), make_changes(0.1, 0.2, 0.0, -0.1), make_changes(0.3, -0.4, 0.2, -0.2)]
"""a is never hurt, b in two seeds of three, c in none, d in all."""


def test_over_seeds_in_ascending_order():
    clients = over_seeds(SEEDS)
    assert [r["client"] for r in clients] == ["d", "b", "c", "a"]
    assert [r["mean"] for r in clients] == pytest.approx([-0.2, -0.1, 0.1, 0.2])
    assert [(r["min"], r["max"], r["hurt"], r["seeds"], r["n"]) for r in clients] == [
        (-0.3, -0.1, 3, 3, 40),
        (-0.4, 0.2, 2, 3, 20),
        (0, 0.2, 0, 3, 30),
        (0.1, 0.3, 0, 3, 10),
    ]
    assert hurt_when(SEEDS) == {"always": ["d"], "sometimes": ["b"], "never": ["c", "a"]}


def test_the_share_hurt_over_seeds():
    """2/4, 1/4, 2/4: mean 5/12, deviations 1/12, -2/12, 1/12, std sqrt(6/144/2); t for 2 degrees is 4.3027."""
    share = share_hurt(SEEDS)
    half = 4.3027 * math.sqrt(6 / 144 / 2) / math.sqrt(3)
    assert share.mean == pytest.approx(5 / 12)
    assert (share.low, share.high) == pytest.approx((5 / 12 - half, 5 / 12 + half), abs=1e-4)
    assert share_hurt(SEEDS[:1]).low is None


def test_a_client_without_rows_in_some_seed_is_left_out():
    seeds = [make_changes(None, -1.0), make_changes(1.0, 1.0)]
    assert [r["client"] for r in over_seeds(seeds)] == ["b"]
    assert share_hurt(seeds).mean == 0.5


def test_a_sweep_has_a_row_for_every_value():
    """At 0.3, one seed: changes 0, 0, 2, 2, median 1, spread 1. At 0, two seeds: medians 0 and 1, spreads 1 and 0."""
    table = sweep({0: [make_changes(-1.0, 1.0), make_changes(1.0, 1.0)], 0.3: [make_changes(0.0, 0.0, 2.0, 2.0)]})
    assert [r["value"] for r in table] == [0, 0.3]
    assert [(r["mean"], r["median"], r["spread"], r["share_hurt"]) for r in table] == [
        (0.5, 0.5, 0.5, 0.25),
        (1, 1, 1, 0),
    ]
    # means 0 and 1: std sqrt(1/2), half 12.706 / 2; shares 1/2 and 0, half as wide
    assert table[0]["mean_low"] == pytest.approx(0.5 - 6.353, abs=1e-3)
    assert table[0]["share_hurt_high"] == pytest.approx(0.25 + 6.353 / 2, abs=1e-3)
    assert (table[1]["mean_low"], table[1]["share_hurt_high"], table[1]["seeds"]) == (None, None, 1)


def test_by_size_cuts_at_the_median():
    """Sizes 10, 20, 30, 40: the median is 25."""
    table = by_size([make_changes(-2.0, 2.0, 1.0, 1.0)])
    assert [r["value"] for r in table] == ["n <= 25", "n > 25"]
    assert [(r["share_hurt"], r["spread"], r["mean"]) for r in table] == [(0.5, 2, 0), (0, 0, 1)]
    assert len(by_size([make_changes(1.0, -1.0, sizes=(5, 5))])) == 1


def test_bad_input():
    with pytest.raises(MoietyError, match="`column` must be one of the known names"):
        over_seeds(SEEDS, column="validation")
    with pytest.raises(MoietyError, match="`seeds` must be at least one"):
        share_hurt([])
    with pytest.raises(MoietyError, match="has train rows"):
        share_hurt(SEEDS, column="train")
