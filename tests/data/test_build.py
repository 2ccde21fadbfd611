"""Data from arrays at hand: grouping, dtypes, and a clear line for each kind of bad input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moiety.data import from_arrays, from_clients
from moiety.errors import MoietyError


def test_grouping_by_hand() -> None:
    """Rows of a: 1, 3; of b: 0, 2, 4. A given mask makes rows 3 and 0 test rows; order is kept within a part."""
    mask = [True, False, False, True, False]
    fed = from_arrays({"x": [10, 11, 12, 13, 14]}, ["b", "a", "b", "a", "b"], test=mask)
    assert [str(name) for name in fed.ids] == ["a", "b"]
    assert fed.columns["x"].tolist() == [11, 13, 12, 14, 10]
    assert fed.bounds.tolist() == [[0, 1, 1, 2], [2, 4, 4, 5]]
    assert fed.classes is None


def test_order_is_kept_within_a_client_of_many_rows() -> None:
    fed = from_arrays({"row": np.arange(5000)}, np.arange(5000) % 2, test=np.arange(5000) % 5 == 0)
    for client in (0, 1):
        for part in ("train", "test"):
            assert (np.diff(fed.client(client, part)["row"]) > 0).all()


def test_integer_ids_are_ordered_as_numbers() -> None:
    fed = from_arrays({"x": [0.0, 1.0, 2.0]}, client=[10, 9, -2], test=0)
    assert [str(name) for name in fed.ids] == ["-2", "9", "10"]
    assert fed.columns["x"].tolist() == [2.0, 1.0, 0.0]
    assert fed.client("10")["x"].tolist() == [0.0]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.sampled_from([0.0, 0.2]),
    st.integers(0, 5),
)
def test_every_row_is_kept_once_with_its_client(
    table: list[tuple[int, int]], test: float, validation: float, seed: int
) -> None:
    client, y = np.array([c for c, _ in table]) * 3, [k for _, k in table]
    columns = {"row": np.arange(len(table)), "y": y}
    fed = from_arrays(columns, client, test=test, validation=validation, seed=seed)
    assert sorted(fed.columns["row"].tolist()) == list(range(len(table)))
    np.testing.assert_array_equal(fed.columns["y"], np.array(y)[fed.columns["row"]])
    assert [int(str(name)) for name in fed.ids] == sorted(set(client.tolist()))
    for i, name in enumerate(fed.ids):
        start, stop = fed.bounds[i, 0], fed.bounds[i, 3]
        assert set(client[fed.columns["row"][start:stop]].tolist()) == {int(str(name))}
    assert fed.sizes("train").min() >= 1
    again = from_arrays(columns, client, test=test, validation=validation, seed=seed)
    assert again.fingerprint() == fed.fingerprint()


def test_another_seed_is_another_split() -> None:
    columns, client = {"row": np.arange(200)}, np.arange(200) % 4
    rows = [from_arrays(columns, client, seed=s).columns["row"].tolist() for s in (0, 1, np.int64(1))]
    assert rows[0] != rows[1]
    assert rows[1] == rows[2]


def test_dtypes() -> None:
    types = {"a": "f2", "b": "f4", "c": "f8", "d": "?", "e": "u1", "f": "i2", "g": "u4", "y": "u1"}
    fed = from_arrays({k: np.ones(3, dtype=t) for k, t in types.items()}, [0, 0, 0])
    expected = {"a": "f4", "b": "f4", "c": "f8", "d": "?", "e": "u1", "f": "i8", "g": "i8", "y": "i8"}
    assert {k: c.dtype for k, c in fed.columns.items()} == {k: np.dtype(t) for k, t in expected.items()}
    assert fed.classes == 2


def test_labels_that_are_not_one_integer_a_row() -> None:
    assert from_arrays({"y": [0.5, 1.0, 2.0]}, [0, 0, 0]).classes is None
    assert from_arrays({"y": [[0, 1], [2, 3]]}, [0, 0]).classes is None


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    fed = from_arrays({"x": torch.ones(4, 2), "y": torch.tensor([0, 1, 0, 1])}, client=torch.tensor([0, 0, 1, 1]))
    assert fed.columns["x"].dtype == np.float32
    assert isinstance(fed.columns["x"], np.ndarray)
    with pytest.raises(MoietyError, match=r"`columns.x` must be an array, got values that NumPy refuses"):
        from_arrays({"x": torch.ones(2, requires_grad=True)}, client=[0, 1])


GOOD = {"x": [0.0, 1.0, 2.0, 3.0], "y": [0, 1, 0, 1]}
IDS = ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("columns", "client", "options", "text"),
    [
        ({}, IDS, {}, "`columns` must be at least one named column, got none."),
        ([1], IDS, {}, "`columns` must be a table of named columns, got list."),
        (
            {"x": [1.0], "y": [0, 1]},
            ["a"],
            {},
            "`columns` must be of one length, got {'x': 1, 'y': 2}. Every column has one entry per row.",
        ),
        ({"x": []}, [], {}, "`columns` must be of at least one row, got none."),
        ({"x": 3.0}, [0], {}, "`columns.x` must be an array with an axis of rows, got a single value."),
        (GOOD, ["a"], {}, "`client` must be one id for each of 4 rows, got shape [1]."),
        (GOOD, [0.0, 0.0, 1.0, 1.0], {}, "`client` must be integers or strings, got float64."),
        (GOOD, [True, True, False, False], {}, "`client` must be integers or strings, got bool."),
        (
            {"x": [0.0, 1.0, np.nan, np.inf]},
            IDS,
            {},
            "`columns.x` must be finite everywhere, got nan (client 'b', row 2). Remove or fill such rows.",
        ),
        (
            {"x": [[0.0, 1.0], [1.0, -np.inf], [0.0, 0.0], [np.nan, 0.0]]},
            IDS,
            {},
            "`columns.x` must be finite everywhere, got -inf (client 'a', row 1). Remove or fill such rows.",
        ),
        (
            {"x": ["p", "q", "r", "s"]},
            IDS,
            {},
            "`columns.x` must be of numbers or booleans, got <U1. Turn texts and objects into numbers first.",
        ),
        (
            {"x": np.array([{}, {}, {}, {}])},
            IDS,
            {},
            "`columns.x` must be of numbers or booleans, got object. Turn texts and objects into numbers first.",
        ),
        (
            {"y": [0, 1, -1, 1]},
            IDS,
            {},
            "`columns.y` must be labels from 0, got -1 (row 2). Number the classes 0, 1, ...",
        ),
        (
            {**GOOD, "mask": [1, 1, 1, 1]},
            IDS,
            {},
            "`columns` must be of other names than `mask`, got 'mask'. `mask` marks padding; rename the column.",
        ),
        (
            {"a/b": [1, 2, 3, 4]},
            IDS,
            {},
            "`columns` must be named by letters, digits and underscores, got 'a/b'.",
        ),
        (GOOD, IDS, {"test": 1.0}, "`test` must be a share from 0 to below 1, got 1.0."),
        (GOOD, IDS, {"test": "some"}, "`test` must be a share from 0 to below 1, got 'some'."),
        (GOOD, IDS, {"test": True}, "`test` must be a share from 0 to below 1, got True."),
        (GOOD, IDS, {"test": float("nan")}, "`test` must be a share from 0 to below 1, got nan."),
        (GOOD, IDS, {"validation": -0.1}, "`validation` must be a share from 0 to below 1, got -0.1."),
        (
            GOOD,
            IDS,
            {"test": 0.5, "validation": 0.5},
            "`test + validation` must be below 1, got 1.0. What is left is for training.",
        ),
        (GOOD, IDS, {"test": [True]}, "`test` must be a share or 4 booleans, got bool of shape [1]."),
        (GOOD, IDS, {"test": [0, 1, 0, 1]}, "`test` must be a share or 4 booleans, got int64 of shape [4]."),
        (
            GOOD,
            IDS,
            {"test": [False, False, True, True]},
            "`test` must be such that every client keeps a training row, got none for client 'b'.",
        ),
        (GOOD, IDS, {"seed": 0.5}, "`seed` must be a whole number, got 0.5."),
        (GOOD, IDS, {"seed": True}, "`seed` must be a whole number, got True."),
        (
            {"x": np.array([2**63], dtype=np.uint64)},
            [0],
            {},
            "`columns.x` must be within the range of int64, got 9223372036854775808.",
        ),
    ],
)
def test_bad_arrays(columns: Any, client: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(MoietyError) as error:
        from_arrays(columns, client, **options)
    assert str(error.value).strip() == text


def test_ragged_columns() -> None:
    with pytest.raises(MoietyError, match=r"`columns.x` must be an array, got values that NumPy refuses") as error:
        from_arrays({"x": [[1.0], [1.0, 2.0]]}, [0, 0])
    assert "\n" not in str(error.value)


def test_from_clients_keeps_order_and_names() -> None:
    fed = from_clients({"z": {"x": [1.0, 2.0], "y": [0, 1]}, 5: {"x": [3.0], "y": [2]}}, test=0)  # type: ignore[dict-item]
    assert [str(name) for name in fed.ids] == ["z", "5"]
    assert fed.bounds.tolist() == [[0, 2, 2, 2], [2, 3, 3, 3]]
    assert fed.columns["x"].tolist() == [1.0, 2.0, 3.0]
    assert fed.classes == 3


def test_from_clients_splits_as_from_arrays_does() -> None:
    x = np.arange(40)
    one = from_arrays({"x": x}, np.repeat([0, 1], 20), test=0.25, validation=0.25, seed=3)
    two = from_clients({0: {"x": x[:20]}, 1: {"x": x[20:]}}, test=0.25, validation=0.25, seed=3)
    assert one.fingerprint() == two.fingerprint()
    assert list(one.ids) == list(two.ids)


@pytest.mark.parametrize(
    ("clients", "text"),
    [
        ({}, "`clients` must be at least one client, got none."),
        ({"a": {"x": []}}, "`columns` must be of at least one row, got none in client 'a'."),
        ({"a": {}}, "`columns` must be at least one named column, got none in client 'a'."),
        ({"a": 3}, "`columns` must be a table of named columns in client 'a', got int."),
        ({("a",): {"x": [1]}}, "`clients` must be named by strings or integers, got ('a',)."),
        (
            {1: {"x": [1]}, "1": {"x": [1]}},
            "`clients` must be of different names, got '1' 2 times. 1 and '1' are one name.",
        ),
        (
            {"a": {"x": [1.0]}, "b": {"z": [1.0]}},
            "`columns` must be ['x'] as in client 'a', got ['z'] in client 'b'.",
        ),
        (
            {"a": {"x": [[1.0, 2.0]]}, "b": {"x": [[1.0]]}},
            "`columns.x` must be float64 [2] a row as in client 'a', got float64 [1] a row in client 'b'.",
        ),
        (
            {"a": {"x": [1.0]}, "b": {"x": [1]}},
            "`columns.x` must be float64 a row as in client 'a', got int64 a row in client 'b'.",
        ),
        (
            {"a": {"x": [1.0, 2.0], "y": [1]}},
            "`columns` must be of one length in client 'a', got {'x': 2, 'y': 1}. Every column has one entry per row.",
        ),
        (
            {"a": {"x": [1.0]}, "b": {"x": [0.0, np.nan]}},
            "`columns.x` must be finite everywhere, got nan (client 'b', row 1). Remove or fill such rows.",
        ),
        (
            {"a": {"y": [1]}, "b": {"y": [-2]}},
            "`columns.y` must be labels from 0, got -2 in client 'b' (row 0). Number the classes 0, 1, ...",
        ),
        (
            {"a": {"x": ["t"]}},
            "`columns.x` must be of numbers or booleans, got <U1 in client 'a'. "
            "Turn texts and objects into numbers first.",
        ),
    ],
)
def test_bad_clients(clients: Mapping[str, Any], text: str) -> None:
    with pytest.raises(MoietyError) as error:
        from_clients(clients)
    assert str(error.value).strip() == text


def test_a_hundred_thousand_clients() -> None:
    client, y = np.repeat(np.arange(100_000), 2), np.tile([0, 1], 100_000)
    fed = from_arrays({"x": np.zeros((200_000, 4), dtype=np.float32), "y": y}, client, test=0.5)
    assert fed.sizes("train").tolist() == [1] * 100_000
