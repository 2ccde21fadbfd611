import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moiety.evaluation import client_rows, summarise, worst_decile

NAN = float("nan")


def rows(personal, shared, n_test, higher):
    count = len(personal)
    two = tuple((np.array(m, dtype=float) * 10, np.array(m, dtype=float)) for m in (personal, shared))
    ids = [f"c{i}" for i in range(count)]
    return client_rows(ids, np.arange(1, count + 1), np.array(n_test), *two, higher_is_better=higher)


def test_gain_is_such_that_more_is_better():
    """Accuracy 0.75 after 0.5 is a gain of 0.25; an error of 0.75 after 0.5 is a loss of 0.25."""
    (up, down) = rows([0.75, 0.5], [0.5, 0.75], [4, 4], higher=True)
    assert (up["gain"], up["hurt"], down["gain"], down["hurt"]) == (0.25, False, -0.25, True)
    (down, up) = rows([0.75, 0.5], [0.5, 0.75], [4, 4], higher=False)
    assert (up["gain"], up["hurt"], down["gain"], down["hurt"]) == (0.25, False, -0.25, True)


def test_every_column():
    (row,) = rows([0.75], [0.5], [3], higher=True)
    assert row == {
        "client": "c0",
        "n": 1,
        "n_test": 3,
        "loss": 7.5,
        "metric": 0.75,
        "shared_loss": 5.0,
        "shared_metric": 0.5,
        "gain": 0.25,
        "hurt": False,
    }


def test_a_client_without_test_rows_counts_nowhere():
    scores = rows([0.5, NAN, 1.0], [0.75, NAN, 0.75], [1, 0, 3], higher=True)
    assert math.isnan(scores[1]["metric"])
    assert math.isnan(scores[1]["gain"])
    assert scores[1]["hurt"] is False
    summary = summarise(scores, higher_is_better=True)
    # By test examples (0.5 + 3 * 1) / 4, unweighted (0.5 + 1) / 2; gains -0.25 and 0.25.
    assert (summary["metric"], summary["metric_unweighted"]) == (0.875, 0.75)
    assert (summary["gain"], summary["gain_unweighted"]) == (0.125, 0.0)
    assert (summary["loss"], summary["shared_loss"]) == (8.75, 7.5)
    assert (summary["hurt"], summary["helped"], summary["clients"]) == (1, 1, 2)
    assert summarise(rows([NAN], [NAN], [0], higher=True), higher_is_better=True) == {"clients": 0}


def test_neither_helped_nor_hurt():
    summary = summarise(rows([0.5, 0.25], [0.5, 0.25], [1, 1], higher=False), higher_is_better=False)
    assert (summary["hurt"], summary["helped"]) == (0, 0)


def test_worst_decile_by_hand():
    """Of 25 clients the worst 3 (2.5 rounded up): accuracies 0, 1, 2 have mean 1; errors 22, 23, 24 have mean 23."""
    values = np.random.default_rng(0).permutation(25).astype(float)
    assert worst_decile(values, higher_is_better=True) == 1.0
    assert worst_decile(values, higher_is_better=False) == 23.0
    assert worst_decile(np.array([0.3]), higher_is_better=True) == 0.3


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.booleans())
def test_the_worst_decile_is_no_better_than_the_mean(values, higher):
    worst = worst_decile(np.array(values), higher_is_better=higher)
    mean = np.mean(values)
    assert worst <= mean + 1e-12 if higher else worst >= mean - 1e-12


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=12))
def test_the_weighted_mean_is_that_of_the_pooled_examples(clients):
    """Accuracy of each client weighted by its test examples is the share of all examples that are right."""
    sizes = np.array([n for n, _ in clients])
    right = np.array([min(n, k) for n, k in clients])
    scores = rows(list(right / sizes), list(right / sizes), list(sizes), higher=True)
    assert summarise(scores, higher_is_better=True)["metric"] == pytest.approx(right.sum() / sizes.sum(), rel=1e-12)
