"""Data sets by name: dealing, own test sets, standardising, and making the same data again from a table."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moiety.data import (
    SOURCES,
    Partition,
    classes_per_client,
    dirichlet,
    from_spec,
    iid,
    load,
    natural,
    shards,
)
from moiety.data.sources import plain
from moiety.errors import MoietyError

pytestmark = pytest.mark.filterwarnings("ignore:.*results are not of that data set")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small files: satimage (own test set) and isolet (four natural clients)."""
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "satimage.npz",
        x_train=rng.integers(0, 200, (120, 36)).astype(np.uint8),
        y_train=(np.arange(120) % 6).astype(np.uint8),
        x_test=rng.integers(0, 200, (60, 36)).astype(np.uint8),
        y_test=np.repeat(np.arange(6), [20, 10, 10, 10, 8, 2]).astype(np.uint8),
    )
    np.savez(
        tmp_path / "isolet1.npz",
        X=rng.normal(3, 2, (80, 617)).astype(np.float32),
        y=(np.arange(80) % 26).astype(np.uint8),
        client=np.repeat(np.arange(4), 20).astype(np.uint8),
    )
    monkeypatch.setenv("MOIETY_DATA", str(tmp_path))
    return tmp_path


def test_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from the package's file; asked from the package where that is not where it was."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    for places in (None, "nowhere"):
        if places:
            monkeypatch.setattr(plain, "find_spec", lambda name: None)
        columns = plain.digits().columns
        assert np.array_equal(columns["x"], (x / 16).astype(np.float32))
        assert np.array_equal(columns["y"], y)


def test_digits_come_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOIETY_DATA", raising=False)
    fed = load("digits", clients=10)
    assert len(fed) == 10
    assert fed.total == 1797
    assert fed.classes == 10
    assert fed.columns["x"].dtype == np.float32
    assert fed.columns["x"].shape[1:] == (64,)
    assert (fed.columns["x"].min(), fed.columns["x"].max()) == (0.0, 1.0)
    assert fed.columns["y"].dtype == np.int64
    # 179 or 180 rows a client, of which a fifth (35.8 and 36) is for testing
    assert set(fed.sizes("test").tolist()) == {36}
    assert set(fed.sizes("train").tolist()) == {143, 144}


@pytest.mark.parametrize(
    "arguments",
    [
        {"clients": 12, "partition": dirichlet(0.3), "seed": 3, "validation": 0.1},
        {"clients": 12, "partition": shards(per_client=3), "test": 0.5},
        {"clients": 7, "validation": 0.2, "validation_in_train": True},
        {"clients": 9, "partition": classes_per_client(2)},
    ],
)
def test_from_spec_makes_the_same_again(arguments: dict[str, Any]) -> None:
    fed = load("digits", **arguments)
    again = from_spec(json.loads(json.dumps(fed.spec)))
    assert again.fingerprint() == fed.fingerprint()
    assert again.spec == fed.spec
    for name, column in fed.columns.items():
        np.testing.assert_array_equal(again.columns[name], column)
    assert load("digits", **{**arguments, "seed": 99}).fingerprint() != fed.fingerprint()


def test_the_seed_deals_anew(folder: Path) -> None:
    deals = [load("digits", clients=10, test=0, seed=seed).fingerprint() for seed in (0, 1)]
    deals += [load("satimage", clients=4, test_per_client=0, seed=seed).fingerprint() for seed in (0, 1)]
    assert len(set(deals)) == 4


def test_what_spec_holds() -> None:
    assert load("digits", clients=5, partition=dirichlet(0.3), seed=1).spec == {
        "name": "digits",
        "clients": 5,
        "partition": {"name": "dirichlet", "alpha": 0.3},
        "seed": 1,
        "test": 0.2,
        "validation": 0.0,
    }
    own = Partition(lambda labels, rows, clients, generator: np.arange(rows) % clients)
    assert load("digits", clients=5, partition=own).spec == {}
    assert load("digits", partition=natural(np.arange(1797) % 3)).spec == {}


def test_given_ids() -> None:
    fed = load("digits", partition=natural(np.array(["odd", "even"])[1 - np.arange(1797) % 2]))
    assert [str(name) for name in fed.ids] == ["even", "odd"]
    assert (fed.bounds[:, 3] - fed.bounds[:, 0]).tolist() == [899, 898]


def test_own_test_set_follows_each_client(folder: Path) -> None:
    """A client's quota of a label is 12 x its share, rounded down or up, unless the test pool has fewer."""
    fed = load("satimage", clients=5, partition=dirichlet(0.5), test_per_client=12, validation=0.25)
    available = [20, 10, 10, 10, 8, 2]
    assert fed.sizes("train").tolist() == [18] * 5
    assert fed.sizes("validation").tolist() == [6] * 5
    for client in range(5):
        parts = [fed.client(client, part)["y"] for part in ("train", "validation", "test")]
        counts = np.bincount(np.concatenate(parts[:2]), minlength=6)
        tests = np.bincount(parts[2], minlength=6)
        for label in range(6):
            share = Fraction(12 * int(counts[label]), 24)
            assert tests[label] == available[label] or abs(int(tests[label]) - share) < 1
            assert tests[label] <= available[label]
        rows = fed.client(client, "test")["x"]
        assert len(np.unique(rows, axis=0)) == len(rows)  # none twice within a client
    assert fed.spec["test_per_client"] == 12
    assert from_spec(fed.spec).fingerprint() == fed.fingerprint()


def test_own_test_set_is_the_cap(folder: Path) -> None:
    """One client with even labels asks for 10 of each of six labels out of 60; two labels have only 8 and 2."""
    fed = load("satimage", clients=1, test_per_client=1000)
    assert np.bincount(fed.client(0, "test")["y"]).tolist() == [10, 10, 10, 10, 8, 2]
    assert load("satimage", clients=3, test_per_client=0).sizes("test").tolist() == [0, 0, 0]
    assert load("satimage", clients=60).sizes("test").min() > 0


def test_train_rows_standardise_all_rows(folder: Path) -> None:
    with np.load(folder / "satimage.npz") as file:
        train, test = file["x_train"].astype(np.float64), file["x_test"].astype(np.float64)
    fed = load("satimage", clients=3, test_per_client=20)
    scaled = {tuple(row) for row in ((test - train.mean(0)) / train.std(0)).round(3).tolist()}
    rows = fed.columns["x"][fed.all_rows("test")].astype(np.float64).round(3).tolist()
    near = np.array(sorted(scaled))
    assert all(np.abs(near - row).max(axis=1).min() < 0.003 for row in np.array(rows))
    x = fed.columns["x"][fed.all_rows("train")].astype(np.float64)
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(0), 1, atol=1e-6)


def test_standardising_leaves_test_and_validation_rows_out(folder: Path) -> None:
    fed = load("isolet", validation=0.2, test=0.3)
    train = fed.columns["x"][fed.all_rows("train")].astype(np.float64)
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-6)
    assert np.abs(fed.columns["x"][fed.all_rows("test")].mean(0)).max() > 0.05


def test_natural_clients(folder: Path) -> None:
    fed = load("isolet")
    assert list(fed.ids) == ["0", "1", "2", "3"]
    assert fed.sizes("train").tolist() == [16] * 4
    assert fed.spec == {"name": "isolet", "partition": {"name": "natural"}, "seed": 0, "test": 0.2, "validation": 0.0}
    two = [load("isolet", clients=2, seed=s) for s in range(20)]
    assert all(len(f) == 2 and f.total == 40 for f in two)
    assert len({tuple(str(name) for name in f.ids) for f in two}) > 2
    assert all(list(f.ids) == sorted(f.ids) for f in two)
    assert from_spec(two[3].spec).fingerprint() == two[3].fingerprint()
    assert [str(name) for name in from_spec(two[3].spec).ids] == [str(name) for name in two[3].ids]
    assert load("isolet", clients=4).fingerprint() == fed.fingerprint()
    other = load("isolet", clients=8, partition=iid())
    assert other.sizes("train").tolist() == [8] * 8
    assert from_spec("isolet").fingerprint() == fed.fingerprint()


def test_natural_ids_for_data_with_a_test_set_use_own_rows(folder: Path) -> None:
    fed = load("satimage", partition=natural(np.arange(120) % 3), test=0.25)
    assert fed.sizes("test").tolist() == [10, 10, 10]
    assert fed.total == 120


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("digit", {}, "`name` must be one of the known names, got 'digit'. Did you mean digits?"),
        (
            "digits",
            {},
            "`clients` must be a number for digits with this partition, got none. Say how many clients to make.",
        ),
        ("digits", {"clients": 0}, "`clients` must be >= 1, got 0."),
        (
            "digits",
            {"clients": 1798},
            "`clients` must be at most the number of rows, 1797, got 1798. Use fewer clients.",
        ),
        (
            "digits",
            {"client": 5},
            "`data` must be a table of known keys for digits, got client. Did you mean clients or per_client?",
        ),
        (
            "digits",
            {"clients": 5, "partition": "iid"},
            "`partition` must be one such as iid() or dirichlet(0.3), got str.",
        ),
        ("digits", {"clients": 5, "seed": 1.5}, "`seed` must be a whole number, got 1.5."),
        ("digits", {"clients": 5, "test": 1}, "`test` must be a share from 0 to below 1, got 1."),
        ("digits", {"clients": 5, "validation": 2}, "`validation` must be a share from 0 to below 1, got 2."),
        (
            "digits",
            {"clients": 5, "validation": 0.5, "test": 0.6},
            "`test + validation` must be below 1, got 1.1. What is left is for training.",
        ),
        (
            "digits",
            {"clients": 5, "test_per_client": 10},
            "`test_per_client` must be left out for digits, where clients test on rows of their own, got 10. Use test.",
        ),
        (
            "digits",
            {"partition": natural()},
            "`partition` must be another one for digits, which has no natural clients, got natural(). "
            "Use another partition, or natural(ids).",
        ),
        ("digits", {"partition": natural([1, 2])}, "`ids` must be one for each of 1797 rows, got 2."),
        (
            "digits",
            {"clients": 5, "validation_in_train": "yes"},
            "`validation_in_train` must be true or false, got 'yes' (str).",
        ),
        (
            "satimage",
            {"clients": 5, "test": 0.2},
            "`test` must be left out for satimage, which has a test set, got 0.2. Use test_per_client.",
        ),
        (
            "satimage",
            {"clients": 5, "test_per_client": -1},
            "`test_per_client` must be >= 0, got -1.",
        ),
        ("isolet", {"clients": 5}, "`clients` must be at most the 4 natural ones of isolet, got 5."),
        (
            "uci_har",
            {"features": "all"},
            "`features` must be one of the known names, got 'all'. Known: inertial, statistics.",
        ),
    ],
)
def test_bad_arguments(folder: Path, name: str, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(MoietyError) as error:
        load(name, **arguments)
    assert str(error.value).strip() == text


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({}, "`data.name` must be given, got nothing"),
        ({"name": "digits", "clients": 5, "partition": {"name": "dirichlet"}}, "`data.partition` must be complete"),
        ({"name": "digits", "clients": 5, "partition": {"name": "dirichle"}}, "Did you mean dirichlet?"),
        ({"name": "digits", "clients": 5, "partition": {"name": "shards", "per": 1}}, "known keys for shards, got per"),
        ({"name": "digits", "cliants": 5}, "got cliants. Did you mean clients?"),
        ({"name": "shakespeare", "length": "long"}, "`data.length` must be"),
    ],
)
def test_bad_specs(spec: dict[str, Any], text: str) -> None:
    with pytest.raises(MoietyError) as error:
        from_spec(spec)
    assert text in str(error.value)


def test_every_source_says_in_one_line_what_it_is() -> None:
    for name, source in SOURCES.items():
        first = (source.__doc__ or "").splitlines()[0]
        assert source.__name__.replace("_", "-") == name.replace("_", "-")
        assert first.endswith(".")
        assert 20 < len(first) < 115
