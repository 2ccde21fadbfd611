"""Arrays, npz files and data folders, mutated: refused in one line, or accepted with exactly the values given."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz_classes import CASES, classify, counted, fuzzed
from hypothesis import given, reject
from hypothesis import strategies as st

from moiety.data import FederatedData, from_arrays, load, open_folder
from moiety.data.folder import FORMAT, read_meta
from moiety.seals import write_sealed

ODD: list[Any] = [
    None,
    np.nan,
    np.inf,
    -np.inf,
    "a",
    "",
    -1,
    10**30,
    2**63,
    1e300,
    1j,
    True,
    [],
    [[]],
    np.ma.masked,
    b"x",
    "\0",
    "\ud800",
    object(),
    np.datetime64("2020"),
]


def mutate_column(draw: Any, values: np.ndarray) -> Any:
    """The column in another dress, or with something odd in it."""
    names = ["as it is", "list", "odd", "mask", "cut", "shape", "nested", "objects"]
    how = draw(st.sampled_from(names + ["dtype", "tensor"] * (values.dtype.kind != "U")))
    if how == "objects":
        return values.astype(object)
    if how == "list":
        return values.tolist()
    if how == "odd":
        odd = values.tolist()
        odd[draw(st.integers(0, len(odd) - 1))] = draw(st.sampled_from(ODD))
        return odd
    if how == "mask":
        places = draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
        mask = np.array(places).reshape(-1, *[1] * (values.ndim - 1)) & np.ones(values.shape, bool)
        masked = np.ma.array(values, mask=mask)
        return draw(st.sampled_from([masked, list(masked), [[each] for each in masked], masked.astype(object)]))
    if how == "dtype":
        kinds = ["f2", "f4", "f8", ">f8", "i1", "u1", ">i4", "u8", "i8", "c8", "U5", "S5", "O", "?"]
        return values.astype(draw(st.sampled_from(kinds)))
    if how == "cut":
        return values[: draw(st.integers(0, len(values)))]
    if how == "shape":
        return values.reshape(draw(st.sampled_from([(-1,), (1, -1), (-1, 1), (len(values), -1, 1)])))
    if how == "nested":
        deep: Any = values.tolist()
        for _ in range(draw(st.sampled_from([1, 10, 40, 100]))):
            deep = [deep]
        return deep
    if how == "tensor":
        import torch

        return torch.from_numpy(values)
    return values


@counted("arrays", CASES)
@fuzzed
@given(st.data())
def test_arrays(data: st.DataObject) -> None:
    draw = data.draw
    rows = draw(st.integers(1, 8))
    clients = draw(st.lists(st.sampled_from(["a", "b", "a b", "é", "0"]), min_size=rows, max_size=rows))
    x, y = np.arange(2.0 * rows).reshape(rows, 2), np.arange(rows) % 3
    columns = {"x": mutate_column(draw, x), "y": mutate_column(draw, y)}
    ids = mutate_column(draw, np.array(clients)) if draw(st.booleans()) else clients
    test = draw(st.sampled_from([0, 0.2, 0.5, 1, -1, np.nan, "a", None, [True] * rows, 10**400]))

    def is_right(fed: FederatedData) -> bool:
        """Every row is there once, with its own client and its values, and nothing was masked."""
        names = np.asarray(ids).astype(str)
        values = np.asarray(columns["x"], dtype=np.float64).reshape(len(names), -1)
        hidden = any(hides(each) for each in (*columns.values(), ids))
        actual = [
            row for at in range(len(fed)) for part in ("train", "validation", "test") for row in _rows(fed, at, part)
        ]
        expected = [(name, *row) for name, row in zip(names, values, strict=True)]
        return not hidden and bool(np.isfinite(values).all()) and sorted(actual) == sorted(expected)

    classify("arrays", lambda: from_arrays(columns, ids, test=test), is_right)


def hides(values: Any) -> bool:
    """Whether something is masked, at any depth."""
    if isinstance(values, list):
        return any(hides(each) for each in values)
    return bool(np.ma.is_masked(values))


def _rows(fed: FederatedData, at: int, part: str) -> list[tuple[Any, ...]]:
    rows = fed.at(at, part)["x"].astype(np.float64)
    return [(str(fed.ids[at]), *row.ravel()) for row in rows]


def damage(draw: Any, path: Path) -> None:
    """Flip a bit, cut, lengthen, empty or remove a file."""
    content = bytearray(path.read_bytes())
    how = draw(st.sampled_from(["bit", "bit", "bit", "cut", "longer", "remove", "zero"]))
    if how == "bit":
        place = draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << draw(st.integers(0, 7))
    elif how == "cut":
        content = content[: draw(st.integers(0, len(content) - 1))]
    elif how == "longer":
        content += draw(st.binary(min_size=1, max_size=20))
    elif how == "zero":
        content = bytearray(len(content))
    path.unlink()
    if how != "remove":
        path.write_bytes(content)


LETTERS = {"X": np.arange(26 * 4 * 16.0).reshape(-1, 16), "y": np.arange(26 * 4) % 26, "n_train": np.array(78)}
COLUMNS = {"x": np.arange(24.0).reshape(8, 3), "y": np.arange(8) % 2}


@pytest.fixture(scope="module")
def place() -> Any:
    path = Path(tempfile.mkdtemp())
    np.savez_compressed(path / "letter.npz", **LETTERS)
    from_arrays(COLUMNS, ["ann", "bob"] * 4).save(path / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOIETY_DATA", str(path))
        yield path
    shutil.rmtree(path)


@counted("npz", CASES)
@fuzzed
@given(st.data())
def test_npz(place: Path, data: st.DataObject) -> None:
    draw, file = data.draw, place / "letter.npz"
    np.savez_compressed(file, **LETTERS)
    arrays = dict(LETTERS)
    if draw(st.booleans()):
        damage(draw, file)
    else:
        name = draw(st.sampled_from(["X", "y", "n_train"]))
        column = mutate_column(draw, np.atleast_1d(LETTERS[name]))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a masked element becomes NaN
                arrays[name] = np.asarray(column)
        except (ValueError, TypeError, OverflowError):
            reject()  # no array can hold it, so no file can
        if name == "n_train" and arrays[name].size == 1:
            arrays[name] = arrays[name].reshape(())
        np.savez(file, **arrays)  # NumPy's own pickles are refused when they are read

    def call() -> Any:
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            return load("letter", clients=2, seed=1), [str(each.message) for each in records]

    def is_right(result: Any) -> bool:
        """It is said that this is not that data set, and nothing is out of range."""
        fed, messages = result
        fine = bool(np.isfinite(fed.columns["x"]).all()) and 0 <= fed.columns["y"].min() <= fed.columns["y"].max() < 26
        return fine and any("results are not of that data set" in text for text in messages)

    classify("npz", call, is_right)


META: list[Any] = [
    None,
    [],
    {},
    "",
    "../x",
    ["../x"],
    ["x", "x"],
    ["x"],
    -1,
    0,
    True,
    1.5,
    [[["x"]]],
    {"name": "folder"},
]


@counted("data folders", CASES)
@fuzzed
@given(st.data())
def test_data_folders(place: Path, data: st.DataObject) -> None:
    draw, folder = data.draw, Path(tempfile.mkdtemp(dir=place)) / "data"
    shutil.copytree(place / "data", folder)
    if draw(st.booleans()):
        damage(draw, folder / draw(st.sampled_from(["columns/x.npy", "columns/y.npy", "bounds.npy", "meta.json"])))
    else:
        meta = read_meta(folder)
        meta[draw(st.sampled_from(sorted(meta)))] = draw(st.sampled_from(META))
        write_sealed(folder / "meta.json", meta, None, format=FORMAT)  # as someone would who can compute checksums

    def is_right(fed: FederatedData) -> bool:
        """The rows of the columns that are named are those that were saved, under the same clients."""
        before = open_folder(place / "data")
        same = all(np.array_equal(fed.columns[name], before.columns[name]) for name in fed.columns)
        named = isinstance(fed.ids, np.ndarray) and list(fed.ids) == list(before.ids)
        return same and named and np.array_equal(fed.bounds, before.bounds)

    try:
        classify("data folders", lambda: open_folder(folder), is_right)
    finally:
        shutil.rmtree(folder.parent)
