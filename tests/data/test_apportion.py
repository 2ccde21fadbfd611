"""Largest remainders and the split, against exact fractions and by hand."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moiety.data.apportion import assign_parts, largest_remainder


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_by_hand() -> None:
    """7, 2, 1 of 10 rows, 4 wanted: shares 2.8, 0.8, 0.4; whole parts 2, 0, 0; the two left go to 0.8 and 0.8."""
    counts, group = np.array([7, 2, 1, 5]), np.array([0, 0, 0, 1])
    assert largest_remainder(counts, group, np.array([4, 2]), rng()).tolist() == [3, 1, 0, 2]


def test_more_wanted_than_there_is() -> None:
    """Ratios 2 : 1 over 100 rows are 66.7 and 33.3."""
    shares = largest_remainder(np.array([2, 1]), np.zeros(2, dtype=np.int64), np.array([100]), rng())
    assert shares.tolist() == [67, 33]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30)), min_size=1, max_size=25), st.data())
def test_quota_rule(cells: list[tuple[int, int]], data: st.DataObject) -> None:
    """Each share is its exact fraction rounded down or up, sums are exact, and no larger remainder goes without."""
    group = np.array([g for g, _ in cells])
    counts = np.array([c for _, c in cells])
    sums = np.bincount(group, weights=counts, minlength=5).astype(int)
    totals = np.array([data.draw(st.integers(0, int(s))) for s in sums])
    shares = largest_remainder(counts, group, totals, rng())
    assert np.bincount(group, weights=shares, minlength=5).astype(int).tolist() == totals.tolist()
    for g in range(5):
        exact = [Fraction(int(totals[g]) * int(c), int(sums[g])) for c in counts[group == g]]
        extra = [int(m) - floor(e) for m, e in zip(shares[group == g], exact, strict=True)]
        assert set(extra) <= {0, 1}
        rounded_up = [e - floor(e) for e, up in zip(exact, extra, strict=True) if up]
        rounded_down = [e - floor(e) for e, up in zip(exact, extra, strict=True) if not up]
        assert not rounded_up or not rounded_down or min(rounded_up) >= max(rounded_down)


rows = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=80)


@settings(max_examples=80, deadline=None)
@given(rows, st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.8]), st.sampled_from([0.0, 0.1, 0.15]))
def test_split_of_each_client(table: list[tuple[int, int]], test: float, validation: float) -> None:
    owner, labels = np.array([o for o, _ in table]), np.array([k for _, k in table])
    part = assign_parts(owner, labels, 6, test=test, validation=validation, generator=rng())
    for client in set(owner.tolist()):
        own = owner == client
        n = int(own.sum())
        tests = min(max(floor(Fraction(test).limit_denominator(100) * n + Fraction(1, 2)), 1), n - 1) if test else 0
        count = floor(Fraction(validation).limit_denominator(100) * n + Fraction(1, 2))
        assert int((part[own] == 2).sum()) == tests
        assert int((part[own] == 1).sum()) == min(count, n - tests - 1)
        assert (part[own] == 0).any()
        for label in range(4):
            mask = own & (labels == label)
            assert abs(int((part[mask] == 2).sum()) - Fraction(tests * int(mask.sum()), n)) < 1
            rest, total = int((part[mask] != 2).sum()), n - tests
            share = Fraction(int((part[own] == 1).sum()) * rest, total)
            assert abs(int((part[mask] == 1).sum()) - share) < 1


def test_sizes_by_hand() -> None:
    """0.2 of 1, 2, 5, 12, 13 rows: none (the only row trains), one at least, 1, 2.4 -> 2, 2.6 -> 3."""
    sizes = np.array([1, 2, 5, 12, 13])
    owner = np.repeat(np.arange(5), sizes)
    part = assign_parts(owner, None, 5, test=0.2, validation=0.0, generator=rng())
    assert np.bincount(owner[part == 2], minlength=5).tolist() == [0, 1, 1, 2, 3]


def test_shares_that_floating_point_misses() -> None:
    """30 * 0.1 is 3.0000000000000004 in floating point; it is 3 rows, not 4."""
    part = assign_parts(np.zeros(30, dtype=np.int64), None, 1, test=0.1, validation=0.1, generator=rng())
    assert np.bincount(part).tolist() == [24, 3, 3]


def test_equal_remainders_are_drawn_by_lot() -> None:
    """40 clients with one row of each of 10 labels: each label is tested somewhere, and trained somewhere."""
    owner, labels = np.repeat(np.arange(40), 10), np.tile(np.arange(10), 40)
    part = assign_parts(owner, labels, 40, test=0.2, validation=0.0, generator=rng())
    counts = np.bincount(labels[part == 2], minlength=10)
    assert counts.sum() == 80
    assert counts.min() > 0
    assert counts.max() < 20


def test_a_given_mask_is_kept() -> None:
    owner = np.array([0, 0, 0, 1, 1])
    mask = np.array([True, False, False, False, False])
    part = assign_parts(owner, None, 2, test=mask, validation=0.4, generator=rng())
    assert part[0] == 2
    assert np.bincount(part[:3]).tolist() == [1, 1, 1]
    assert np.bincount(part[3:]).tolist() == [1, 1]
