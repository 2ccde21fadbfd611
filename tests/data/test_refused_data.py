"""Data that cannot be right is refused in one line that says where: missing values, odd names, files made up."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moiety as mo
from moiety.data import FederatedData, from_arrays, from_clients, load, open_folder
from moiety.data.folder import FORMAT, read_meta
from moiety.errors import MoietyError
from moiety.seals import digest, write_sealed

MASKED = np.ma.array([[1.0, 2.0], [3.0, -9999.0], [5.0, 6.0]], mask=[[0, 0], [0, 1], [0, 0]])


def small(**changes: Any) -> FederatedData:
    columns = {"x": np.arange(8.0).reshape(4, 2), "y": np.array([0, 1, 0, 1])}
    fields = {"columns": columns, "bounds": np.array([[0, 1, 1, 2], [2, 3, 3, 4]]), "ids": ["ann", "bob"], "classes": 2}
    return FederatedData(**{**fields, **changes})


@pytest.mark.parametrize(
    "values",
    [MASKED, list(MASKED), MASKED.astype(int), MASKED[:, 1].tolist(), [[1.0], [np.ma.masked], [5.0]]],
    ids=["array", "list of rows", "integers", "None", "constant"],
)
def test_masked_places_are_missing_values(values: Any) -> None:
    with pytest.raises(MoietyError, match=r"`columns.x` must be .*(client 'b', row 1|object)"):
        from_arrays({"x": values}, client=["a", "b", "a"])


def test_masked_places_say_row_column_and_client() -> None:
    text = (
        r"`columns.x` must be without missing values, got 1 masked, the first at client 'b', row 1, place \[1\]. "
        "Remove or fill such rows."
    )
    with pytest.raises(MoietyError, match=text):
        from_arrays({"x": MASKED}, client=["a", "b", "a"])
    with pytest.raises(MoietyError, match=r"1 masked, the first at row 1, place \[1\] in client 'ann'"):
        from_clients({"ann": {"x": MASKED}})
    with pytest.raises(MoietyError, match=r"`client` must be without missing values, got 1 masked, the first at row 2"):
        from_arrays({"x": np.zeros(3)}, client=np.ma.array([1, 2, 3], mask=[0, 0, 1]))
    with pytest.raises(MoietyError, match=r"`columns.x` must be without missing values"):
        small(columns={"x": np.ma.array(np.zeros(4), mask=[0, 0, 1, 0])})


@pytest.mark.parametrize(
    "values", [[[[1.0]], [[np.ma.masked]]], [(MASKED[0],), (MASKED[1],)], [([0],), ([MASKED[1, 1]],)]]
)
def test_no_list_is_too_deep_for_a_mask_to_be_seen(values: Any) -> None:
    with pytest.raises(
        MoietyError, match=r"`columns.x` must be without missing values, got 1 masked.*client 'b', row 1"
    ):
        from_arrays({"x": values}, client=["a", "b"])


def test_ids_that_no_array_holds_are_refused_before_they_are_shown() -> None:
    ids: Any = ["a", "b", "a"]
    for _ in range(100):
        ids = [ids]
    with pytest.raises(MoietyError, match=r"^`client` must be one id for each row, got values that NumPy refuses"):
        from_arrays({"x": MASKED}, client=ids)


def test_a_mask_that_hides_nothing_is_none() -> None:
    whole = np.ma.array([[1.0], [2.0]], mask=False)
    fed = from_arrays({"x": whole}, client=["a", "b"], test=0)
    assert fed.columns["x"].tolist() == [[1.0], [2.0]]
    assert type(fed.columns["x"]) is np.ndarray


@pytest.mark.parametrize("name", ["a\0", "a\0b", "\ud800", "x\udfff"])
def test_names_that_no_file_can_hold(name: str) -> None:
    rows = {"x": np.zeros(2)}
    with pytest.raises(MoietyError, match="names of valid Unicode, without the character 0"):
        from_arrays(rows, client=[name, "a"])
    with pytest.raises(MoietyError, match="names of valid Unicode, without the character 0"):
        from_arrays(rows, client=np.array([name, "a"], dtype=object))
    with pytest.raises(MoietyError, match="names of valid Unicode, without the character 0"):
        from_clients({name: rows, "a": rows})
    with pytest.raises(MoietyError, match="names of valid Unicode, without the character 0"):
        small(ids=[name, "a"])


def test_rows_of_two_clients() -> None:
    with pytest.raises(MoietyError, match="no row belongs to two clients"):
        small(bounds=np.array([[0, 1, 1, 3], [2, 3, 3, 4]]))
    with pytest.raises(MoietyError, match="no row belongs to two clients"):
        small(bounds=np.array([[0, 2, 2, 4], [1, 2, 2, 3]]))
    small(bounds=np.array([[2, 3, 3, 4], [0, 1, 1, 2]]))  # any order, and nobody need have rows
    small(bounds=np.array([[0, 3, 3, 4], [2, 2, 2, 2]]))


@pytest.mark.parametrize("columns", [{"x": np.array(["a"] * 4)}, {"x": [1, 2, 3, 4]}, {"x": np.array(1.0)}])
def test_columns_that_are_no_numbers(columns: Any) -> None:
    with pytest.raises(MoietyError, match=r"`columns.x` must be an array of numbers or booleans"):
        small(columns=columns)


# --- folders of data ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small().save(tmp_path / "data")
    return tmp_path / "data"


def change_meta(folder: Path, **changes: Any) -> None:
    """As someone would who can compute checksums."""
    write_sealed(folder / "meta.json", {**read_meta(folder), **changes}, None, format=FORMAT)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("columns", ["../../x"]),
        ("columns", ["x", "/etc/passwd"]),
        ("columns", "x"),
        ("columns", [1]),
        ("named", 1),
        ("classes", "two"),
        ("classes", -2),
        ("classes", True),
        ("spec", []),
        ("digest", None),
    ],
)
def test_meta_says_what_is_damaged(folder: Path, key: str, value: Any) -> None:
    np.save(folder.parent / "x.npy", np.zeros(4))  # what ../../x would find
    change_meta(folder, **{key: value})
    with pytest.raises(MoietyError, match=f"`{key}` of meta.json is missing or damaged") as error:
        open_folder(folder)
    assert "\n" not in str(error.value)


def test_meta_that_is_nested_too_deeply(folder: Path) -> None:
    (folder / "meta.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(MoietyError, match=r"^`meta.json` must be as it was written"):
        open_folder(folder)


def change_head(folder: Path, file: str, head: int = 20) -> None:
    """Let ``meta.json`` expect the file that is there now."""
    content = (folder / file).read_bytes()
    entry = {"bytes": len(content), "checked": head, "check": digest(content[:head])}
    change_meta(folder, files={**read_meta(folder)["files"], file: entry})


@pytest.mark.parametrize("head", [b"(", b"{'descr': [", b"{'descr': '<f8', 'shape': (2, 4)", b"\0"])
def test_heads_that_numpy_cannot_read(folder: Path, head: bytes) -> None:
    path = folder / "bounds.npy"
    path.write_bytes(path.read_bytes()[:10] + head.ljust(118) + path.read_bytes()[128:])
    change_head(folder, "bounds.npy", 128)
    with pytest.raises(MoietyError, match=r"bounds.npy is missing, truncated or damaged"):
        open_folder(folder)


@pytest.mark.parametrize(
    "files", [None, [], {}, {"bounds.npy": 3}, {"bounds.npy": {"checked": -2, "bytes": 1, "check": 0}}]
)
def test_files_that_meta_does_not_describe(folder: Path, files: Any) -> None:
    change_meta(folder, files=files)
    with pytest.raises(MoietyError, match=r"bounds.npy is missing, truncated or damaged"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("file", "array"),
    [
        ("ids.npy", np.array([1, 2])),
        ("ids.npy", np.array("ann")),
        ("bounds.npy", np.zeros((2, 4))),
        ("columns/x.npy", np.array(["a"] * 4)),
        ("columns/x.npy", np.arange(4, dtype=">f4")),
    ],
)
def test_arrays_of_other_kinds(folder: Path, file: str, array: Any) -> None:
    np.save(folder / file, array)
    change_head(folder, file)
    with pytest.raises(MoietyError, match=f"{file} holds no such array as was written"):
        open_folder(folder)


def test_an_archive_in_the_place_of_an_array(folder: Path) -> None:
    with (folder / "bounds.npy").open("wb") as file:
        np.savez(file, x=np.zeros(3))
    change_head(folder, "bounds.npy")
    with pytest.raises(MoietyError, match=r"bounds.npy holds no such array"):
        open_folder(folder)


# --- data sets by name ---


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write isolet1.npz with some of its arrays changed."""
    monkeypatch.setenv("MOIETY_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    whole = {"X": rng.normal(size=(40, 617)), "y": np.arange(40) % 26, "client": np.repeat(np.arange(4), 10)}

    def write(**changes: Any) -> Path:
        np.savez_compressed(tmp_path / "isolet1.npz", **{**whole, **changes})
        return tmp_path / "isolet1.npz"

    return write


def test_a_made_up_file_is_not_that_data_set(write: Callable[..., Path]) -> None:
    path = write()
    with pytest.warns(UserWarning, match="results are not of that data set") as records:
        assert len(load("isolet")) == 4
    assert [str(each.message) for each in records] == [
        f"{path} is not the isolet1 that moiety knows: results are not of that data set."
    ]


@pytest.mark.skipif(not os.environ.get("MOIETY_DATA"), reason="MOIETY_DATA is not set")
@pytest.mark.parametrize("name", ["isolet", "letter", "uci_har", "covtype"])
def test_the_real_file_is_that_data_set(name: str) -> None:
    clients = {"clients": 5} if name == "letter" else {}
    load(name, **clients)  # a warning would be an error


@pytest.mark.filterwarnings("ignore:.*results are not of that data set")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_file_with_values_that_are_not_finite(write: Callable[..., Path], value: float) -> None:
    x = np.zeros((40, 617))
    x[7, 3] = value
    write(X=x)
    with pytest.raises(
        MoietyError, match=rf"`columns.x` must be finite everywhere, got {value} \(row 7 of the rows of"
    ):
        load("isolet")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.full((40, 617), "a")}, "X` must be real numbers"),
        ({"X": np.zeros((40, 617), complex)}, "X` must be real numbers"),
        ({"client": np.full(40, np.nan)}, "client` must be whole numbers"),
        ({"y": np.zeros(40)}, "y` must be whole numbers"),
    ],
)
def test_arrays_of_other_kinds_in_a_file(write: Callable[..., Path], changes: dict[str, Any], message: str) -> None:
    write(**changes)
    with pytest.raises(MoietyError, match=message):
        load("isolet")


def test_an_archive_that_unpacks_to_more_than_the_memory(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(more=np.zeros(1_000_000))  # eight megabytes, packed to some kilobytes
    monkeypatch.setattr("moiety.machine.free_memory", lambda: 4_000_000)
    with pytest.raises(MoietyError, match=r"such that it fits the free memory, 4.0 MB, got 8.2 MB"):
        load("isolet")


def test_an_array_that_claims_more_than_it_holds(write: Callable[..., Path]) -> None:
    path = write()
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("X", "y", "client"):
            with archive.open(f"{name}.npy", "w") as stream:
                header = {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
                np.lib.format.write_array_header_1_0(stream, header)
    with pytest.raises(MoietyError, match="of 8,000,000,000,000,000 bytes, as it claims, got 0"):
        load("isolet")


def test_masked_columns_of_a_run_are_refused_too() -> None:
    fed = from_arrays({"x": np.zeros((4, 2)), "y": np.arange(4) % 2}, client=[0, 0, 1, 1], test=0)
    model = mo.models.linear(inputs=2, outputs=2)
    run = mo.fit(model, fed, mo.fedavg(shared=0.1), rounds=1, engine="sequential")
    with pytest.raises(MoietyError, match="must be without missing values"):
        run.onboard({"x": np.ma.array(np.zeros((2, 2)), mask=[[0, 0], [1, 0]]), "y": np.array([0, 1])})
