"""Partitions and binary tasks of a user's own arrays, and of federated data that is dealt anew."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

import moiety as mo
from moiety.errors import MoietyError

ROWS = {"x": np.arange(120.0)[:, None], "y": np.arange(120) % 6}


@pytest.mark.parametrize("name", sorted(set(mo.data.PARTITIONS) - {"natural"}))
def test_arrays_are_dealt_as_the_same_rows_by_name(name: str) -> None:
    arguments = {"dirichlet": (0.3,), "classes_per_client": (3,), "quantity": (0.5,)}.get(name, ())
    partition = mo.data.PARTITIONS[name](*arguments)
    x, y = load_digits(return_X_y=True)
    options = {"clients": 12, "partition": partition, "validation": 0.1, "seed": 3}
    own = mo.data.load({"x": (x / 16).astype(np.float32), "y": y}, **options)
    digits = mo.data.load("digits", **options)
    assert own.fingerprint() == digits.fingerprint()
    assert own.classes == 10
    assert own.spec == {}  # no file can name them


def test_federated_data_is_dealt_anew_with_all_its_rows() -> None:
    names = np.repeat(["ann", "bob", "eve"], 40)
    fed = mo.data.from_arrays(ROWS, names, test=0.3, validation=0.1, seed=1)
    again = mo.data.load(fed, clients=6, partition=mo.data.classes_per_client(1), test=0.25, seed=2)
    assert sorted(again.columns["x"][:, 0].tolist()) == list(range(120))
    for client in range(6):
        labels = {int(k) for part in ("train", "test") for k in again.at(client, part)["y"]}
        assert len(labels) == 1
    np.testing.assert_array_equal(again.columns["x"][:, 0] % 6, again.columns["y"])  # rows stay together
    same = mo.data.load(fed, test=0.5, seed=2)  # its own clients, split anew
    assert [str(name) for name in same.ids] == ["ann", "bob", "eve"]
    assert same.sizes("test").tolist() == [20, 20, 20]
    rows = [*same.client("bob", "train")["x"][:, 0], *same.client("bob", "test")["x"][:, 0]]
    assert sorted(rows) == list(range(40, 80))


def test_rows_that_no_client_has_are_not_dealt() -> None:
    fed = mo.data.FederatedData(ROWS, np.array([[0, 30, 30, 40], [60, 80, 80, 90]]), ["a", "b"], classes=6)
    again = mo.data.load(fed, clients=5, partition=mo.data.iid())
    assert sorted(again.columns["x"][:, 0].tolist()) == [*range(40), *range(60, 90)]


@pytest.mark.parametrize("federated", [False, True])
def test_binary_tasks_of_own_rows(federated: bool) -> None:
    rows = {"x": np.arange(400.0)[:, None], "y": np.arange(400) % 8}
    source = mo.data.from_arrays(rows, np.arange(400) % 5) if federated else rows
    fed = mo.data.binary_tasks(source, clients=4, per_class=5, validation_per_class=2, test_per_class=3, seed=1)
    number = fed.columns["x"][:, 0].astype(int)
    assert len(set(number)) == 4 * 2 * 10
    merged = set((number % 8)[fed.columns["y"] == 0])
    assert len(merged) == 2  # floor(0.3 * 8)
    for client in range(4):
        for part, size in (("train", 5), ("validation", 2), ("test", 3)):
            own = fed.at(client, part)
            assert np.bincount(own["y"]).tolist() == [size, size]
            assert set(own["x"][own["y"] == 1, 0].astype(int) % 8) == {int(own["task"][0])}
            assert int(own["task"][0]) not in merged


def test_labels_are_not_needed_to_deal() -> None:
    fed = mo.data.load({"x": np.arange(10.0)}, clients=2, test=0.2)
    assert fed.classes is None
    assert fed.total == 10


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: mo.data.load(3, clients=2),
            "`name` must be the name of a data set, a table of arrays or FederatedData",
        ),
        (lambda: mo.data.load(ROWS), "`clients` must be a number for your data with this partition, got none."),
        (
            lambda: mo.data.load(ROWS, clients=2, unit="word"),
            "`data` must be a table of known keys for your data, got unit",
        ),
        (
            lambda: mo.data.load(ROWS, clients=2, partition=mo.data.natural()),
            "`partition` must be another one for your",
        ),
        (
            lambda: mo.data.load({"x": [1.0, np.nan]}, clients=2),
            "`columns.x` must be finite everywhere, got nan (row 1)",
        ),
        (lambda: mo.data.load({"x": [1.0], "y": [0, 1]}, clients=1), "`columns` must be of one length"),
        (lambda: mo.data.binary_tasks([1, 2]), "`source` must be the name of a data set, a table of arrays or"),
        (
            lambda: mo.data.binary_tasks({"x": np.zeros(9)}),
            "`source` must be a data set with features x and one label y",
        ),
        (lambda: mo.data.binary_tasks("no such"), "`source` must be one of the known names"),
    ],
)
def test_one_line_for_other_rows(call, words: str) -> None:
    with pytest.raises(MoietyError) as error:
        call()
    assert str(error.value).startswith(words)
