"""How rows are dealt: invariants for all partitions, limits and moments of the Dirichlet ones, shards by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moiety.data import (
    PARTITIONS,
    Partition,
    classes_per_client,
    dirichlet,
    iid,
    natural,
    quantity,
    shards,
)
from moiety.data.partition import deal
from moiety.errors import MoietyError
from moiety.spec import build


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(owner: np.ndarray, labels: np.ndarray, clients: int) -> np.ndarray:
    """Counts [clients, labels] of the rows that were dealt."""
    counts = np.zeros((clients, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (owner[owner >= 0], labels[owner >= 0]), 1)
    return counts


USES_ALL_ROWS = [
    iid(),
    dirichlet(1.0, balanced=False, min_examples=1),
    shards(2),
    quantity(0.5, min_examples=1),
    classes_per_client(2),
]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(USES_ALL_ROWS), st.integers(2, 6), st.integers(0, 20), st.integers(0, 99))
def test_every_row_goes_to_one_client(partition: Partition, clients: int, more: int, seed: int) -> None:
    labels = rng(seed).permutation(np.arange(4 * clients * 3 + more) % 4)
    owner = deal(partition, labels, len(labels), clients, rng(seed))
    assert owner.dtype == np.int64
    assert owner.min() >= 0
    assert set(owner.tolist()) == set(range(clients))
    np.testing.assert_array_equal(owner, deal(partition, labels, len(labels), clients, rng(seed)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(0, 7), st.floats(1e-4, 1e4), st.integers(0, 99))
def test_balanced_dirichlet_deals_equally_many(clients: int, more: int, alpha: float, seed: int) -> None:
    labels = rng(seed).integers(0, 5, 8 * clients + more % clients)
    owner = deal(dirichlet(alpha), labels, len(labels), clients, rng(seed))
    assert np.bincount(owner[owner >= 0], minlength=clients).tolist() == [8] * clients
    assert int((owner == -1).sum()) == more % clients


def test_seeds() -> None:
    labels = np.arange(400) % 10
    for partition in (iid(), dirichlet(0.3), shards(), quantity(1.0), classes_per_client(2)):
        one, two = (deal(partition, labels, 400, 10, rng(s)) for s in (0, 1))
        assert (one != two).any()


def test_iid_sizes_differ_by_at_most_one() -> None:
    owner = deal(iid(), None, 103, 10, rng())
    assert sorted(np.bincount(owner).tolist()) == [10] * 7 + [11] * 3


def test_dirichlet_with_huge_alpha_has_the_prior_ratios() -> None:
    """1,000 draws a client: a share's deviation is sqrt(p (1 - p) / 1000), at most 0.016; six of them are 0.095.

    The client that is served last takes what is left, the sum of the nineteen others' errors: sqrt(19) times more.
    """
    labels = np.repeat([0, 1, 2], [10_000, 6_000, 4_000])
    for seed in range(5):
        shares = table(deal(dirichlet(1e6), labels, 20_000, 20, rng(seed)), labels, 20) / 1000
        errors = np.sort(np.abs(shares - [0.5, 0.3, 0.2]).max(axis=1))
        assert errors[-2] < 0.095
        assert errors[-1] < 0.095 * 19**0.5


def test_dirichlet_with_tiny_alpha_has_one_label_a_client() -> None:
    labels = np.arange(20_000) % 10
    counts = table(deal(dirichlet(1e-4), labels, 20_000, 200, rng()), labels, 200)
    assert np.mean(counts.max(axis=1) / 100 > 0.99) > 0.85
    assert set(counts.argmax(axis=1).tolist()) == set(range(10))


def test_dirichlet_of_even_labels_is_symmetric_with_alpha() -> None:
    """Two even labels and alpha 1: Dir(1, 1), so shares are uniform with variance 1/12.

    Fifty rows drawn with that share add E[q (1 - q)] / 50 = (1/4 - 1/12) / 50 = 1/300; in all 0.0867. Without the
    factor 2, Beta(1/2, 1/2) would give 0.1275. The last few clients find a label gone; by less than 0.005.
    """
    labels = np.arange(100_000) % 2
    shares = table(deal(dirichlet(1.0), labels, 100_000, 2000, rng()), labels, 2000)[:, 0] / 50
    assert abs(shares.var() - 0.0867) < 0.005
    assert shares.mean() == 0.5


def test_dirichlet_draws_on_when_labels_run_out() -> None:
    """Two clients of four rows from four 0s and four 1s: whatever the first draws, the second gets what is left."""
    labels = np.array([0, 1] * 4)
    for seed in range(20):
        counts = table(deal(dirichlet(0.5), labels, 8, 2, rng(seed)), labels, 2)
        assert counts.sum(axis=1).tolist() == [4, 4]
        assert counts.sum(axis=0).tolist() == [4, 4]


def test_uneven_dirichlet_limits() -> None:
    labels = np.arange(10_000) % 10
    even = table(deal(dirichlet(1e7, balanced=False), labels, 10_000, 20, rng()), labels, 20)
    assert np.abs(even - 50).max() <= 1
    skewed = table(deal(dirichlet(0.05, balanced=False, min_examples=1), labels, 10_000, 10, rng()), labels, 10)
    assert skewed.max(axis=0).mean() > 600  # most rows of a label with one client
    assert skewed.sum(axis=0).tolist() == [1000] * 10


def test_uneven_dirichlet_is_drawn_again_until_all_have_enough() -> None:
    labels = np.arange(300) % 3
    for seed in range(10):
        owner = deal(dirichlet(0.5, balanced=False, min_examples=5), labels, 300, 8, rng(seed))
        assert np.bincount(owner, minlength=8).min() >= 5


def test_classes_per_client() -> None:
    labels = np.repeat(np.arange(6), [60, 61, 62, 63, 64, 65])
    counts = table(deal(classes_per_client(2), labels, len(labels), 15, rng()), labels, 15)
    mask = counts > 0
    assert mask.sum(axis=1).tolist() == [2] * 15
    assert mask.sum(axis=0).tolist() == [5] * 6  # 15 clients x 2 labels over 6 labels
    for label in range(6):
        own = counts[mask[:, label], label]
        assert own.max() - own.min() <= 1
    assert len({tuple(row) for row in mask.tolist()}) > 3  # pairs vary; they are not three fixed groups


def test_shards_by_hand() -> None:
    """Sorted by label the rows are 1 3 5 6 | 0 2 4 7: shards of two are {1, 3}, {5, 6}, {0, 2}, {4, 7}."""
    labels = np.array([1, 0, 1, 0, 1, 0, 0, 1])
    pairs = [(1, 3), (5, 6), (0, 2), (4, 7)]
    deals = set()
    for seed in range(30):
        owner = deal(shards(2), labels, 8, 2, rng(seed))
        assert all(owner[a] == owner[b] for a, b in pairs)
        assert np.bincount(owner).tolist() == [4, 4]
        deals.add(tuple(owner[[1, 5, 0, 4]].tolist()))
    assert len(deals) == 6  # all ways to give two of four shards to client 0


def test_shards_of_unequal_size_use_all_rows() -> None:
    owner = deal(shards(1), np.zeros(11, dtype=np.int64), 11, 4, rng())
    assert sorted(np.bincount(owner).tolist()) == [2, 3, 3, 3]


def test_quantity() -> None:
    owner = deal(quantity(1e8, min_examples=3), None, 1000, 10, rng())
    assert np.abs(np.bincount(owner) - 100).max() <= 1
    sizes = np.bincount(deal(quantity(0.1, min_examples=3), None, 1000, 20, rng()), minlength=20)
    assert sizes.sum() == 1000
    assert sizes.min() >= 3
    assert sizes.max() > 150
    assert np.bincount(deal(quantity(0.1, min_examples=5), None, 100, 20, rng())).tolist() == [5] * 20


def test_quantity_has_labels_alike() -> None:
    labels = np.repeat([0, 1], 5000)
    counts = table(deal(quantity(5.0, min_examples=500), labels, 10_000, 5, rng()), labels, 5)
    assert np.abs(counts[:, 0] / counts.sum(axis=1) - 0.5).max() < 0.12  # six deviations of 500 draws


def test_natural() -> None:
    assert natural().natural
    assert natural().ids is None
    owner = deal(natural(np.array(["b", "a", "b"])), None, 3, 2, rng())
    assert owner.tolist() == [1, 0, 1]


def test_own_partition() -> None:
    halves = Partition(lambda labels, rows, clients, generator: np.arange(rows) * clients // rows)
    assert deal(halves, None, 4, 2, rng()).tolist() == [0, 0, 1, 1]
    assert halves.spec == {}


def test_specs_build_the_same() -> None:
    labels = np.arange(300) % 5
    for partition in (
        iid(),
        dirichlet(0.3, min_examples=1),
        shards(per_client=3),
        quantity(2.0),
        classes_per_client(2),
    ):
        again = build("partition", PARTITIONS, dict(partition.spec))
        np.testing.assert_array_equal(*(deal(p, labels, 300, 10, rng(4)) for p in (partition, again)))
    assert dirichlet(0.3, balanced=False).spec == {"name": "dirichlet", "alpha": 0.3, "balanced": False}
    assert all(builder().spec["name"] == name for name, builder in PARTITIONS.items() if name in ("iid", "shards"))
    assert all(name == builder.__name__ for name, builder in PARTITIONS.items())


def test_rows_are_dealt_as_types_say() -> None:
    for wrong, text in [
        (lambda *a: np.zeros(3, dtype=np.int64), "one that deals 4 rows, got shape \\[3\\]"),
        (lambda *a: np.full(4, 2), "one that deals to clients 0 to 1"),
        (lambda *a: np.zeros(4), "one that deals to clients 0 to 1, got float64"),
        (lambda *a: np.zeros(4, dtype=np.int64), "one that gives every client a row, got none for 1 clients"),
    ]:
        with pytest.raises(MoietyError, match=text):
            deal(Partition(wrong), None, 4, 2, rng())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: dirichlet(0), "`alpha` must be > 0 and finite, got 0."),
        (lambda: dirichlet(float("inf")), "`alpha` must be > 0 and finite, got inf."),
        (lambda: dirichlet(float("nan")), "`alpha` must be > 0 and finite, got nan."),
        (lambda: dirichlet(True), "`alpha` must be > 0 and finite, got True."),
        (lambda: dirichlet(1.0, min_examples=0), "`min_examples` must be >= 1, got 0."),
        (lambda: quantity(-1.0), "`alpha` must be > 0 and finite, got -1.0."),
        (lambda: shards(0), "`per_client` must be >= 1, got 0."),
        (lambda: classes_per_client(1.5), "`classes` must be a whole number, got 1.5."),
        (lambda: natural([0.5]), "`ids` must be one integer or string for each row, got float64 of shape [1]."),
    ],
)
def test_bad_arguments(make: Any, text: str) -> None:
    with pytest.raises(MoietyError) as error:
        make()
    assert str(error.value).strip() == text


SIX = np.array([0, 0, 0, 1, 1, 2])


@pytest.mark.parametrize(
    ("partition", "labels", "clients", "text"),
    [
        (iid(), SIX, 7, "`clients` must be at most the number of rows, 6, got 7. Use fewer clients."),
        (iid(), SIX, 0, "`clients` must be >= 1, got 0."),
        (iid(), SIX, 2.0, "`clients` must be a whole number, got 2.0."),
        (
            dirichlet(1.0),
            None,
            2,
            "`partition` must be one that needs no labels, as the data has none, got dirichlet. "
            "Use iid, quantity or natural.",
        ),
        (
            shards(),
            None,
            2,
            "`partition` must be one that needs no labels, as the data has none, got shards. "
            "Use iid, quantity or natural.",
        ),
        (
            dirichlet(1.0),
            SIX,
            4,
            "`clients` must be such that each has 2 of 6 rows, got 4. Use fewer clients or a smaller min_examples.",
        ),
        (
            dirichlet(0.001, balanced=False),
            SIX,
            3,
            "`partition` must be one that gives every client 2 rows, got at best 1 for some client in 100 draws. "
            "Use fewer clients, a larger alpha, a smaller min_examples or balanced=True.",
        ),
        (
            quantity(1.0),
            SIX,
            4,
            "`clients` must be such that each has 2 of 6 rows, got 4. Use fewer clients or a smaller min_examples.",
        ),
        (shards(4), SIX, 2, "`per_client` must be such that 6 rows make 2 x per_client shards, got 4."),
        (classes_per_client(4), SIX, 2, "`classes` must be at most the 3 there are, got 4."),
        (
            classes_per_client(1),
            SIX,
            2,
            "`clients` must be enough to hold all 3 classes, got 2. Use more clients or more classes for each.",
        ),
        (
            classes_per_client(3),
            SIX,
            2,
            "`clients` must be few enough that all holders of a label get a row, "
            "got 2 holders of a label with 1 rows. Use fewer clients, or fewer classes for each.",
        ),
        (natural([1, 2]), SIX, 2, "`ids` must be one for each of 6 rows, got 2."),
        (natural(), SIX, 2, "`ids` must be one for each of 6 rows, got none."),
    ],
)
def test_what_cannot_be_dealt(partition: Partition, labels: Any, clients: Any, text: str) -> None:
    with pytest.raises(MoietyError) as error:
        deal(partition, labels, 6, clients, rng())
    assert str(error.value).strip() == text
