"""Saving and opening: what comes back, and what is refused."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from failing_disk import Disk
from night import NIGHTLY

from moiety import files, verify
from moiety.cli import main
from moiety.data import FederatedData, digest, folder, from_arrays, from_spec, open_folder
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
    data = FederatedData(fed.columns, fed.bounds, fed.ids, spec={"name": "digits", "partition": {"name": "iid"}})
    data.save(tmp_path / "d")
    assert open_folder(tmp_path / "d").spec == {"name": "digits", "partition": {"name": "iid"}}


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(MoietyError, match=r"`folder` must be a new one, got .*d. Remove it first"):
        make().save(tmp_path / "d")
    with pytest.raises(MoietyError, match="inside a folder that exists"):
        make().save(tmp_path / "a" / "b")


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_every_call_of_a_save_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_good: bool) -> None:
    """Either the folder is there and whole, or there is none; one line says so, and the next try succeeds."""
    counter = Disk()
    with monkeypatch.context() as patch:
        patch.setattr(files, "system_call", counter)
        make().save(tmp_path / "whole")
    assert counter.calls.count("fsync") > 10
    assert {"open", "write", "fsync", "replace", "rename", "mkdir"} == set(counter.calls)
    for n, call in enumerate(counter.calls):
        disk, target = Disk(n, for_good=for_good), tmp_path / f"{n}"
        with monkeypatch.context() as patch:
            patch.setattr(files, "system_call", disk)
            with pytest.raises(MoietyError, match=r"^`out` must be a folder that can be written, got [^\n]*$"):
                make().save(target)
        if target.exists():  # only the flush after the rename failed
            assert n == len(counter.calls) - 1
        elif not for_good:
            assert {p.name for p in tmp_path.iterdir()} == {"whole"}, call
        if not target.exists():
            make().save(target)
        assert open_folder(target).fingerprint() == make().fingerprint()
        shutil.rmtree(target)


def test_writes_that_stop_short_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "system_call", Disk(only_short=True))
    make().save(tmp_path / "d")
    assert (tmp_path / "d/columns/x.npy").read_bytes() == npy_bytes(make().columns["x"])
    assert verify(tmp_path / "d") == []


def npy_bytes(array: np.ndarray) -> bytes:
    """What NumPy itself writes."""
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def test_files_are_numpys_and_for_their_owner_alone(tmp_path: Path) -> None:
    """Also where rows are written in several pieces, or lie in another order in memory."""
    fed = make()
    odd = replace(fed, columns={"x": np.asfortranarray(fed.columns["x"]), "z": fed.columns["x"].astype(">f4")[:, ::-1]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "CHUNK_BYTES", 40)
        odd.save(tmp_path / "d")
    assert (tmp_path / "d/columns/x.npy").read_bytes() == npy_bytes(fed.columns["x"])
    assert (tmp_path / "d/columns/z.npy").read_bytes() == npy_bytes(np.array(odd.columns["z"], dtype="<f4", order="C"))
    assert (tmp_path / "d/bounds.npy").read_bytes() == npy_bytes(fed.bounds)
    modes = {p.name: p.stat().st_mode & 0o777 for p in [tmp_path / "d", *(tmp_path / "d").rglob("*")]}
    assert modes == {name: 0o600 if "." in name else 0o700 for name in modes}
    assert len(modes) == 7


def test_every_byte_counts(tmp_path: Path) -> None:
    """A flipped bit or a cut at any place, and bytes after the end: ``verify`` and ``open_folder`` name the file."""
    make().save(tmp_path / "d")
    assert verify(tmp_path / "d") == []
    for file in ("columns/x.npy", "columns/y.npy", "bounds.npy", "ids.npy", "meta.json"):
        path = tmp_path / "d" / file
        content = path.read_bytes()
        bits = range(0, 8 * len(content), 1 if NIGHTLY else 37)
        damages = [_flip(content, bit) for bit in bits] + [content[: len(content) // 2], content + b"\n"]
        for damage in damages:
            path.write_bytes(damage)
            (problem,) = verify(tmp_path / "d")
            assert file in problem or f"other values in column {path.stem}" in problem, problem
            assert "\n" not in problem
            with pytest.raises(MoietyError):
                open_folder(tmp_path / "d")
        path.write_bytes(content)
        path.rename(tmp_path / "gone")
        assert len(verify(tmp_path / "d")) == 1
        (tmp_path / "gone").rename(path)
    assert sorted(p.name for p in (tmp_path / "d/columns").iterdir()) == [
        "x.npy",
        "x.npy.digest",
        "y.npy",
        "y.npy.digest",
    ]


def _flip(content: bytes, bit: int) -> bytes:
    return content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


def test_a_folder_of_an_older_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was written before ``meta.json`` had a checksum: one line with both numbers, and nothing is touched."""
    old = Path(shutil.copytree(Path(__file__).parent / "format_2", tmp_path / "old"))
    before = {p: p.read_bytes() for p in old.rglob("*") if p.is_file()}
    pattern = (
        r"^`folder` must be of format 3, got format 2 in [^\n]*meta.json\. Use the version of moiety that wrote it\.$"
    )
    with pytest.raises(MoietyError, match=pattern):
        open_folder(old)
    with pytest.raises(MoietyError, match=pattern):
        from_spec({"name": "folder", "path": str(old)})
    assert main(["verify", str(old)]) == 2
    assert re.fullmatch(pattern[1:-1] + "\n", capsys.readouterr().err.removeprefix("moiety: "))
    assert {p: p.read_bytes() for p in old.rglob("*") if p.is_file()} == before


def test_the_folder_appears_by_one_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(aside: Path, target: Path) -> None:
        assert sorted(p.name for p in aside.iterdir()) == ["bounds.npy", "columns", "ids.npy", "meta.json"]
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        make().save(tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("file", ["columns/x.npy", "columns/y.npy", "bounds.npy", "ids.npy"])
@pytest.mark.parametrize("end", [0, 40, -1])
def test_truncated_files_are_named(tmp_path: Path, file: str, end: int) -> None:
    make().save(tmp_path / "d")
    path = tmp_path / "d" / file
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(MoietyError) as error:
        open_folder(tmp_path / "d")
    assert f"{file} is missing, truncated or damaged. Save the data again." in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(MoietyError, match="which is no folder"):
        open_folder(tmp_path / "none")
    with pytest.raises(MoietyError, match=r"^`meta.json` must be as it was written, got .*Save the data again\.$"):
        open_folder(tmp_path)
    for text, message in {
        "{": "`meta.json` must be as it was written",
        "[]": "`meta.json` must be as it was written",
        json.dumps({"format": "other"}): "of format 3, got format other",
        json.dumps({"format": "moiety data 1"}): "of format 3, got format 1",
    }.items():
        (tmp_path / "meta.json").write_text(text)
        with pytest.raises(MoietyError, match=message):
            open_folder(tmp_path)


def test_changed_classes_are_noticed(tmp_path: Path) -> None:
    make().save(tmp_path / "d")
    meta = tmp_path / "d/meta.json"
    meta.write_text(meta.read_text().replace('"classes": 3', '"classes": 4'))
    with pytest.raises(MoietyError, match=r"`meta.json` must be as it was written, got another checksum in"):
        open_folder(tmp_path / "d")


def test_a_replaced_column_is_noticed(tmp_path: Path) -> None:
    make().save(tmp_path / "d")
    np.save(tmp_path / "d" / "columns" / "x.npy", np.zeros((5, 2)))
    with pytest.raises(MoietyError, match="`folder` must be as it was saved, got other values in column x, client ann"):
        open_folder(tmp_path / "d")


@pytest.fixture
def read_columns(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of columns that were read to the end, one after the other. Files count as settled at once."""
    shapes: list[tuple[int, ...]] = []
    plain = digest.digest_column

    def watched(column: np.ndarray, edges: np.ndarray) -> digest.Digest:
        shapes.append(column.shape)
        return plain(column, edges)

    monkeypatch.setattr(digest, "digest_column", watched)
    monkeypatch.setattr(digest, "SETTLED", -1)
    return shapes


def test_a_folder_is_read_once(tmp_path: Path, read_columns: list[tuple[int, ...]]) -> None:
    """The second start reads nothing, nor does a question for the digest; a copy is read again."""
    make().save(tmp_path / "d")
    read_columns.clear()
    first = open_folder(tmp_path / "d")
    assert read_columns == [(5, 2), (5,)]
    again = open_folder(tmp_path / "d")
    prints = {first.fingerprint(), again.fingerprint(), again.with_validation_in_train().fingerprint()}
    assert read_columns == [(5, 2), (5,)]
    assert prints == {make().fingerprint()}
    open_folder(tmp_path / "d", read_all=True)
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    open_folder(tmp_path / "copy")
    assert read_columns == 4 * [(5, 2), (5,)]  # one of them for make()


def test_a_file_that_may_still_change_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change within one tick of the file system's clock leaves its times as they were."""
    monkeypatch.setattr(digest, "SETTLED", 10**18)
    make().save(tmp_path / "d")
    open_folder(tmp_path / "d")
    state = digest._file_state(tmp_path / "d/columns/y.npy")
    y = np.load(tmp_path / "d/columns/y.npy", mmap_mode="r+")
    y[4] += 1
    y.flush()
    monkeypatch.setattr(digest, "_file_state", lambda path: state)
    with pytest.raises(MoietyError, match="other values in column y, client zoë"):
        open_folder(tmp_path / "d")


def change_in_place(path: Path) -> None:
    x = np.load(path, mmap_mode="r+")
    x[4, 1] += 1
    x.flush()


def exchange(path: Path) -> None:
    x = np.load(path)
    x[4, 1] += 1
    np.save(path.with_name("new.npy"), x)
    os.replace(path.with_name("new.npy"), path)


@pytest.mark.parametrize("change", [change_in_place, exchange])
def test_a_change_is_noticed_though_the_digest_is_kept(
    tmp_path: Path, read_columns: list[tuple[int, ...]], change: object
) -> None:
    """Also where the file has the size and the time that it had."""
    make().save(tmp_path / "d")
    fed, path = open_folder(tmp_path / "d"), tmp_path / "d/columns/x.npy"
    before, digest = os.stat(path), fed.digest()
    change(path)  # type: ignore[operator]
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(path).st_size == before.st_size
    # What is mapped already is what counts for who has it: the changed file, or the one that was there before.
    difference = "other values in column x, client zoë" if change is change_in_place else ""
    assert fed.explain_difference(digest) == difference
    for _ in range(2):
        with pytest.raises(MoietyError, match="must be as it was saved, got other values in column x, client zoë"):
            open_folder(tmp_path / "d")


def test_a_digest_that_cannot_be_kept_or_is_damaged_is_made_again(
    tmp_path: Path, read_columns: list[tuple[int, ...]]
) -> None:
    """As in a read-only folder: here a folder stands in the file's place, which root cannot write either."""
    make().save(tmp_path / "d")
    file = tmp_path / "d/columns/x.npy.digest"
    file.mkdir()
    for _ in range(2):
        assert open_folder(tmp_path / "d").fingerprint() == make().fingerprint()
    assert read_columns.count((5, 2)) == 1 + 2 + 2  # saving, two times opening, and the two of make()
    file.rmdir()
    open_folder(tmp_path / "d")
    content = file.read_bytes()
    for at in range(0, len(content), 7):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert open_folder(tmp_path / "d").fingerprint() == make().fingerprint()


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
    own = open_folder("own")
    assert own.spec == {"name": "folder", "path": "own"}
    assert from_spec(own.spec).fingerprint() == fed.fingerprint()
    own.save("copy")
    assert open_folder("copy").spec == {"name": "folder", "path": "copy"}  # and not where it once was
    other = from_spec(own.with_validation_in_train().spec)
    assert other.sizes("train").tolist() == [3, 3]
    assert other.fingerprint() == fed.with_validation_in_train().fingerprint()


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
