"""What holds for any uploads: order does not matter, a common shift shifts the aggregate, agreement is kept.

Vectors are whole multiples of 420, so that differences, means of up to seven, and ties between clients are exact.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moiety.random import generator
from moiety.server.geometric import geometric_median
from moiety.server.preaggregation import bucketing, nearest_neighbour_mixing
from moiety.server.robust import (
    centred_clipping,
    krum,
    mean,
    median,
    multi_krum,
    trimmed_mean,
)
from moiety.types import ClientUpdate

ALL = [
    median(),
    trimmed_mean(byzantine=1),
    krum(byzantine=1),
    multi_krum(byzantine=1, keep=3),
    geometric_median(tolerance=1e-4),
    centred_clipping(radius=1000.0),
    bucketing(size=2, then=median()),
    bucketing(size=2, then=geometric_median(tolerance=1e-4)),
    nearest_neighbour_mixing(byzantine=1, then=trimmed_mean(byzantine=1)),
    nearest_neighbour_mixing(byzantine=2, then=krum(byzantine=1)),
]
NUMBERS = st.integers(-40, 40).map(lambda k: 420 * k)
CLIENTS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=5, max_size=9)


def aggregate_rows(aggregator, rows):
    updates = [
        ClientUpdate({"p": torch.tensor(r[:2], dtype=torch.float64), "q": torch.tensor(float(r[2])).double()}, w, {})
        for r, w in zip(rows, torch.ones(len(rows)), strict=True)
    ]
    result = aggregator.aggregate(updates, generator(0, "aggregate", 1))
    return np.array([*result["p"].tolist(), float(result["q"])])


def by_name(aggregator):
    inner = aggregator.spec.get("then")
    return aggregator.spec["name"] + (f"-{inner['name']}" if inner else "")


@pytest.mark.parametrize("aggregator", ALL, ids=by_name)
@settings(max_examples=30, deadline=None)
@given(rows=CLIENTS, random=st.randoms(use_true_random=False))
def test_the_order_of_updates_does_not_matter_bit_for_bit(aggregator, rows, random):
    """With the same generator also for bucketing, as the permutation is of the ordered vectors."""
    before = aggregate_rows(aggregator, rows)
    permutation = random.sample(rows, len(rows))
    np.testing.assert_array_equal(aggregate_rows(aggregator, permutation), before)


@pytest.mark.parametrize("aggregator", [mean(), *ALL], ids=by_name)
@settings(max_examples=30, deadline=None)
@given(rows=CLIENTS, shift=st.tuples(*[st.integers(-1000, 1000)] * 3))
def test_a_common_shift_shifts_it(aggregator, rows, shift):
    others = [tuple(np.add(r, shift).tolist()) for r in rows]
    np.testing.assert_allclose(aggregate_rows(aggregator, others), aggregate_rows(aggregator, rows) + shift, atol=1e-9)


@pytest.mark.parametrize("aggregator", [mean(), *ALL], ids=by_name)
@settings(max_examples=10, deadline=None)
@given(row=st.tuples(NUMBERS, NUMBERS, NUMBERS), n=st.integers(5, 9))
def test_what_all_say_is_the_aggregate(aggregator, row, n):
    np.testing.assert_allclose(aggregate_rows(aggregator, [row] * n), row, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(rows=CLIENTS)
def test_no_client_is_nearer_to_all_than_the_geometric_median(rows):
    """No vector sent, nor the mean, nor the median, has a mean distance less than that by tolerance times s."""
    points = np.array(rows, dtype=float)
    s = np.sort(np.linalg.norm(points - np.median(points, 0), axis=1))[(len(rows) - 1) // 2]

    def g(z):
        return np.linalg.norm(points - z, axis=1).mean()

    z = aggregate_rows(geometric_median(tolerance=1e-3), rows)
    for other in [*points, points.mean(0), np.median(points, 0)]:
        assert g(z) <= g(other) + 1e-3 * s + 1e-9
