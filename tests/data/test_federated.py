"""The record itself: where rows lie, names, fingerprints, the summary."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from moiety.data import FederatedData, digest
from moiety.data.federated import NumberNames
from moiety.errors import MoietyError


def make(**changes: object) -> FederatedData:
    """Two clients: ann has rows 0-1 train, 2 validation, 3 test; bob has row 4 train, 5 and 6 test."""
    fields = {
        "columns": {"x": np.arange(14.0, dtype=np.float32).reshape(7, 2), "y": np.array([0, 1, 0, 1, 2, 2, 0])},
        "bounds": np.array([[0, 2, 3, 4], [4, 5, 5, 7]]),
        "ids": ["ann", "bob"],
        "classes": 3,
    }
    return FederatedData(**{**fields, **changes})  # type: ignore[arg-type]


def test_rows_sizes_and_views_by_hand() -> None:
    fed = make()
    assert len(fed) == 2
    assert fed.total == 7
    assert [fed.rows(0, p) for p in ("train", "validation", "test")] == [(0, 2), (2, 3), (3, 4)]
    assert [fed.rows(1, p) for p in ("train", "validation", "test")] == [(4, 5), (5, 5), (5, 7)]
    assert fed.sizes("test").tolist() == [1, 2]
    assert fed.all_rows("train").tolist() == [0, 1, 4]
    assert fed.all_rows("test").tolist() == [3, 5, 6]
    assert fed.client("bob", "test")["y"].tolist() == [2, 0]
    assert np.shares_memory(fed.client(0)["x"], fed.columns["x"])


def test_an_int_is_a_position_and_a_str_a_name() -> None:
    for ids in (["zero", "1"], ["ann", "7"], NumberNames(2), np.array(["ann", "bob"])):
        fed = make(ids=ids)
        assert fed.index(1) == 1
        assert fed.index(np.int64(1)) == 1
        assert fed.index(str(ids[1])) == 1


@pytest.mark.parametrize("ids", [["1", "2"], np.array(["1", "2"])])
def test_an_int_that_is_another_clients_name_is_refused(ids: object) -> None:
    """Position 1 is client "2", and "1" is at position 0: nobody can tell which is meant. 0 is no client's name."""
    fed = make(ids=ids)
    for one in (1, np.int64(1)):
        with pytest.raises(MoietyError) as error:
            fed.index(one)
        text = "`client` must be one client, got 1, which is the name of one and the position of client '2'."
        assert str(error.value) == f'{text} Say "1" for the name, or data.ids[1] for the position.'
    assert [fed.index(client) for client in ("1", fed.ids[1], 0)] == [0, 1, 0]
    assert [fed.position(client) for client in ("1", 1, 0)] == [0, 1, 0]
    assert fed.rows(1) == (4, 5)


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("anne", "`client` must be the name of a client, got 'anne'. Did you mean ann?"),
        (2, '`client` must be a position from 0 to 1, got 2. A client\'s name is a str, as in "2".'),
        (-1, '`client` must be a position from 0 to 1, got -1. A client\'s name is a str, as in "-1".'),
        (1.0, "`client` must be a position from 0 to 1, got 1.0. A client's name is a str."),
    ],
)
def test_unknown_clients(client: object, text: str) -> None:
    with pytest.raises(MoietyError) as error:
        make().client(client)  # type: ignore[arg-type]
    assert str(error.value) == text


def test_unknown_part() -> None:
    with pytest.raises(MoietyError, match="`part` must be one of the known names, got 'testing'"):
        make().sizes("testing")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"columns": {}}, "`columns` must be at least one named column"),
        ({"columns": {"x": np.zeros(7), "z": np.zeros(6)}}, "`columns` must be of one length"),
        ({"bounds": np.array([[0, 2, 3, 4], [4, 5, 5, 8]])}, "`bounds` must be ascending .* within 0 to 7"),
        ({"bounds": np.array([[0, 3, 2, 4], [4, 5, 5, 7]])}, "`bounds` must be ascending"),
        ({"bounds": np.array([[0, 2, 3], [4, 5, 5]])}, "`bounds` must be int64 \\[clients, 4\\]"),
        ({"bounds": np.zeros((0, 4), dtype=np.int64), "ids": []}, "`bounds` must be of at least one client"),
        ({"ids": ["ann"]}, "`ids` must be one name for each of 2 clients, got 1"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(MoietyError, match=text):
        make(**changes)


def test_validation_in_train() -> None:
    fed = make(spec={"name": "digits"}).with_validation_in_train()
    assert fed.sizes("train").tolist() == [3, 1]
    assert fed.sizes("validation").tolist() == [0, 0]
    assert fed.sizes("test").tolist() == [1, 2]
    assert fed.spec == {"name": "digits", "validation_in_train": True}
    assert make().with_validation_in_train().spec == {}


def test_fingerprint_sees_every_kind_of_change() -> None:
    fed = make()
    assert fed.fingerprint() == make().fingerprint()
    x, y = fed.columns["x"], fed.columns["y"]
    others = [
        make(columns={"x": x + 1, "y": y}),
        make(columns={"x": x.astype(np.float64), "y": y}),
        make(columns={"x": x.reshape(7, 2, 1), "y": y}),
        make(columns={"z": x, "y": y}),
        make(bounds=np.array([[0, 2, 3, 4], [4, 5, 6, 7]])),
    ]
    assert len({f.fingerprint() for f in [fed, *others]}) == 6
    assert make(columns={"y": y, "x": x}).fingerprint() == fed.fingerprint()
    assert make(columns={"x": np.asfortranarray(x), "y": y}).fingerprint() == fed.fingerprint()
    assert make(columns={"x": x.astype(">f4"), "y": y}).fingerprint() == fed.fingerprint()


def test_every_single_value_of_a_large_column_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million numbers, one is changed at each of many places, among them the edges of blocks and chunks."""
    monkeypatch.setattr(digest, "CHUNK_BYTES", 1 << 20)
    x = np.zeros(1_000_000)
    fed = FederatedData({"x": x}, np.array([[0, 10, 10, 10], [10, 1_000_000, 1_000_000, 1_000_000]]), ["ann", "bob"])
    before = fed.digest()
    assert fed.explain_difference(before) == ""
    for at in (0, 9, 10, 63, 4096, 333_333, 524_288, 777_777, 999_999):
        x[at] = 1e-300
        assert fed.explain_difference(before) == f"other values in column x, client {'ann' if at < 10 else 'bob'}"
        x[at] = 0.0


def test_a_difference_has_a_place() -> None:
    """Clients share a block where they are many."""
    rows = np.arange(1000)
    bounds = np.stack([rows, rows + 1, rows + 1, rows + 1], axis=1)
    x, y = np.zeros((1000, 2), np.float32), np.zeros(1000, np.int64)
    fed = FederatedData({"x": x, "y": y}, bounds, NumberNames(1000))
    before = fed.digest()
    for at in (0, 500, 999):
        y[at] = 1
        place = re.fullmatch(
            r"other values in column y, (?:one of the clients (\d+) to (\d+)|client (\d+))",
            fed.explain_difference(before),
        )
        assert place, fed.explain_difference(before)
        first, last, single = place.groups()
        assert int(first or single) <= at <= int(last or single) <= int(first or single) + 20
        y[at] = 0
    for other, text in [
        ({"columns": {"x": x, "z": y}}, "no column y"),
        ({"columns": {"x": x, "y": y, "z": y}}, "a new column z"),
        ({"columns": {"x": x, "y": y.astype(np.int32)}}, "column y of type <i4 and shape [1000]"),
        ({"bounds": bounds - [[0, 1, 0, 0]]}, "other rows for clients or parts"),
        ({"ids": [str(i) for i in range(999)] + ["last"]}, "other names of clients"),
    ]:
        assert replace(fed, **other).explain_difference(before) == text


def test_summary_by_hand() -> None:
    assert make().summary().splitlines() == [
        "FederatedData(2 clients, 7 rows; x float32 [2], y int64)",
        "                         total     min   median     max",
        "train                        3       1      1.5       2",
        "validation                   1       0      0.5       1",
        "test                         3       1      1.5       2",
        "classes (train)              3       1      1.5       2",
    ]
    assert "classes" not in make(classes=None).summary()


def test_numbered_names() -> None:
    names = NumberNames(12)
    assert list(names) == [str(i) for i in range(12)]
    assert names[2:4] == ["2", "3"]
    assert names[-1] == "11"
    assert [("7" in names), ("07" in names), ("12" in names), ("-1" in names), (7 in names), ("٣" in names)] == [
        True,
        False,
        False,
        False,
        False,
        False,
    ]
    with pytest.raises(IndexError):
        names[12]
    with pytest.raises(ValueError, match="'x' is not one of the names"):
        names.index("x")
    with pytest.raises(MoietyError, match="got '12'"):
        make(ids=NumberNames(2)).index("12")


def test_importing_the_package_leaves_torch_alone() -> None:
    code = "import sys, moiety.data; print('torch' in sys.modules, 'sklearn' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "False"]
