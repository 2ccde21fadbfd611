"""Saving and opening: what comes back, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from moiety.data import FederatedData, from_arrays, from_spec, open_folder
from moiety.errors import MoietyError


def make(names: bool = True) -> FederatedData:
    client = ["zoë", "ann", "zoë", "ann", "zoë"] if names else [1, 0, 1, 0, 1]
    return from_arrays({"x": np.arange(10.0).reshape(5, 2), "y": [0, 1, 2, 1, 0]}, client, test=0.5)


@pytest.mark.parametrize("names", [True, False])
def test_round_trip(tmp_path: Path, names: bool) -> None:
    fed = make(names)
    fed.save(tmp_path / "d")
    back = open_folder(tmp_path / "d")
    assert isinstance(back.columns["x"], np.memmap)
    assert list(back.ids) == list(fed.ids)
    assert back.classes == 3
    assert back.fingerprint() == fed.fingerprint()
    np.testing.assert_array_equal(back.bounds, fed.bounds)
    for name, column in fed.columns.items():
        np.testing.assert_array_equal(back.columns[name], column)
        assert back.columns[name].dtype == column.dtype
    assert back.index("zoë" if names else "1") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d"]


def test_spec_is_kept(tmp_path: Path) -> None:
    fed = make()
    made = FederatedData(fed.columns, fed.bounds, fed.ids, spec={"name": "digits", "partition": {"name": "iid"}})
    made.save(tmp_path / "d")
    assert open_folder(tmp_path / "d").spec == {"name": "digits", "partition": {"name": "iid"}}


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(MoietyError, match=r"`folder` must be a new one, got .*d. Remove it first"):
        make().save(tmp_path / "d")
    with pytest.raises(MoietyError, match="inside a folder that exists"):
        make().save(tmp_path / "a" / "b")


def test_a_failed_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="no space"):
        make().save(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_appears_by_one_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(aside: Path, target: Path) -> None:
        assert sorted(p.name for p in aside.iterdir()) == ["bounds.npy", "columns", "ids.npy", "meta.json"]
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        make().save(tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("file", ["columns/x.npy", "columns/y.npy", "bounds.npy", "ids.npy"])
@pytest.mark.parametrize("kept", [0, 40, -1])
def test_truncated_files_are_named(tmp_path: Path, file: str, kept: int) -> None:
    make().save(tmp_path / "d")
    path = tmp_path / "d" / file
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(MoietyError) as error:
        open_folder(tmp_path / "d")
    assert f"{file} is missing, truncated or damaged. Save the data again." in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(MoietyError, match="which is no folder"):
        open_folder(tmp_path / "none")
    with pytest.raises(MoietyError, match=r"meta.json is missing or damaged. Save the data again."):
        open_folder(tmp_path)
    for text in ["{", "[]", json.dumps({"format": "other"}), json.dumps({"format": "moiety data 1"})]:
        (tmp_path / "meta.json").write_text(text)
        with pytest.raises(MoietyError, match=r"meta.json is (missing or damaged|not of format)"):
            open_folder(tmp_path)


def test_a_replaced_column_is_noticed(tmp_path: Path) -> None:
    make().save(tmp_path / "d")
    np.save(tmp_path / "d" / "columns" / "x.npy", np.zeros((5, 2)))
    with pytest.raises(MoietyError, match="`folder` must be as it was saved"):
        open_folder(tmp_path / "d")


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    make().save(tmp_path / "d")
    np.save(tmp_path / "d" / "columns" / "x.npy", np.array([{}] * 5, dtype=object), allow_pickle=True)
    with pytest.raises(MoietyError, match=r"columns/x.npy is missing, truncated or damaged"):
        open_folder(tmp_path / "d")


def test_a_file_can_name_data_of_ones_own(tmp_path, monkeypatch):
    """By the path that it was opened with. Validation rows may be counted as training rows there, too."""
    fed = from_arrays(
        {"x": np.arange(8.0), "y": np.arange(8) % 2}, np.repeat(["a", "b"], 4), test=0.25, validation=0.25
    )
    fed.save(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    opened = open_folder("own")
    assert opened.spec == {"name": "folder", "path": "own"}
    assert from_spec(opened.spec).fingerprint() == fed.fingerprint()
    opened.save("copy")
    assert open_folder("copy").spec == {"name": "folder", "path": "copy"}  # and not where it once was
    trained = from_spec(opened.with_validation_in_train().spec)
    assert trained.sizes("train").tolist() == [3, 3]
    assert trained.fingerprint() == fed.with_validation_in_train().fingerprint()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"name": "folder"}, "`data.path` must be a folder that FederatedData.save wrote, got None"),
        ({"name": "folder", "path": "none"}, "`folder` must be a folder written by FederatedData.save, got none"),
        ({"name": "folder", "path": "none", "clients": 3}, "`data` must be one of the known names, got 'clients'"),
    ],
)
def test_a_folder_that_cannot_be_named(spec, text):
    with pytest.raises(MoietyError, match=text):
        from_spec(spec)
