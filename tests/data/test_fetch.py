"""``moiety data``: downloads from a server on this machine, right and wrong, and what is said of the files made."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_originals as small
from local_server import PAGE, Publisher, serve

import moiety as mo
from moiety import files as moiety_files
from moiety.cli import main
from moiety.data import fetch
from moiety.data.catalogue import DATA_SETS, rows_of
from moiety.data.download import RETRIES
from moiety.data.originals import archives
from moiety.data.sources.provenance import note_files
from moiety.errors import MoietyError

NAME, FILE = "pendigits", "pendigits.npz"


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with serve() as publisher:
        yield publisher


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the user; nothing else is named, and nobody waits between two tries."""
    monkeypatch.delenv("MOIETY_DATA", raising=False)
    monkeypatch.setattr("moiety.data.sources.folders.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    return tmp_path / "cache"


def offer(publisher: Publisher, monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> dict[str, np.ndarray]:
    """Publish the small files of a data set; the arrays that they must become."""
    files, arrays = small.MAKERS[name]()
    monkeypatch.setitem(DATA_SETS, name, publisher.publish(name, files, **changes))
    return arrays


def list_files(folder: Path) -> set[str]:
    """All files below a folder, those that a write leaves beside a place included."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


FETCHED = [name for name, row in DATA_SETS.items() if not row.by_hand]


@pytest.mark.parametrize("name", FETCHED)
def test_every_set_is_fetched_converted_and_read(name, publisher, cache, monkeypatch) -> None:
    arrays = offer(publisher, monkeypatch, name)
    path = fetch(name)
    assert path == cache / DATA_SETS[name].file
    with np.load(path, allow_pickle=False) as file:
        for key in set(file.files) & set(arrays):
            np.testing.assert_array_equal(file[key], arrays[key])
    record = json.loads((cache / f"{path.name}.json").read_text())
    assert record["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [each["name"] for each in record["originals"]] == [each.name for each in DATA_SETS[name].originals]
    count = len(publisher.asked)
    first = path.read_bytes()
    assert fetch(name) == path
    assert len(publisher.asked) == count  # it is there
    fetch(name, again=True)
    assert len(publisher.asked) == count  # the originals are there
    assert path.read_bytes() == first  # the same bytes each time
    if name != "letter":  # its first 16,000 rows are for training, and there are 8
        source = mo.data.SOURCES[name]()  # without a warning, which would be an error
        assert source.columns


def by_hand_folder(name: str, folder: Path, **options: int) -> dict[str, np.ndarray]:
    files, arrays = small.MAKERS[name](**options)
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return arrays


@pytest.mark.parametrize("name", [name for name in DATA_SETS if name not in FETCHED])
def test_every_other_set_is_read_from_the_users_files(name, publisher, cache, monkeypatch, tmp_path) -> None:
    by_hand_folder(name, tmp_path / "mine")
    offer(publisher, monkeypatch, name)
    with pytest.raises(MoietyError, match=r"`--from` must be a folder that holds the (file|folder) .*, got None"):
        fetch(name)
    assert {path.rpartition("/")[0] for path in list_files(cache)} <= {"originals/gldv2"}  # what could be fetched
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = fetch(name, originals=tmp_path / "mine")
        assert path.is_file()
        source = mo.data.SOURCES[name]()
    assert len(source.columns.get("y", source.columns.get("tokens", ()))) > 0


def test_the_command_prints_terms_source_and_checksum(publisher, cache, monkeypatch, capsys) -> None:
    offer(publisher, monkeypatch, NAME)
    assert main(["data", "fetch", NAME]) == 0
    out, err = capsys.readouterr()
    row = DATA_SETS[NAME]
    for words in (row.licence, row.citation, row.page, "sha256:", str(cache / FILE)):
        assert words in out
    assert err == ""
    assert main(["data", "check"]) == 0
    assert f"{NAME}: made, arrays " in capsys.readouterr().out
    assert main(["data", "list"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert (lines[NAME][1], lines["mnist"][1]) == ("found", "absent")
    assert main(["data", "where"]) == 0
    assert "MOIETY_DATA: not set" in capsys.readouterr().out


def check_refusal(capsys: pytest.CaptureFixture[str], words: str, *argv: str) -> None:
    """The command ends with 2 and one line that holds these words."""
    capsys.readouterr()
    assert main(["data", "fetch", *argv]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.startswith("moiety: ")
    assert err.count("\n") == 1


def test_a_wrong_checksum_is_tried_again_and_leaves_nothing(publisher, cache, monkeypatch, capsys) -> None:
    offer(publisher, monkeypatch, NAME)
    (path,) = publisher.files
    publisher.files[path] = b"X" + publisher.files[path][1:]
    check_refusal(capsys, "got a file of another checksum than sha256:", NAME)
    assert len(publisher.asked) == 1 + RETRIES
    assert list_files(cache) == set()


def test_a_connection_that_breaks_is_tried_again(publisher, cache, monkeypatch, capsys) -> None:
    offer(publisher, monkeypatch, NAME)
    (path,) = publisher.files
    publisher.broken[path] = 2
    assert fetch(NAME).is_file()
    assert len(publisher.asked) == 3
    for file in (cache / FILE, *(cache / "originals").rglob("*.zip")):
        file.unlink()
    publisher.broken[path] = 100
    check_refusal(capsys, "got ChunkedEncodingError from http://127.0.0.1", NAME)
    assert list_files(cache) == {f"{FILE}.json"}


def test_a_second_address_is_asked_where_the_first_fails(publisher, cache, monkeypatch) -> None:
    offer(publisher, monkeypatch, "mnist")
    row = DATA_SETS["mnist"]
    originals = [
        mo.data.catalogue.Original(name=o.name, check=o.check, addresses=(f"{publisher.address}/gone", *o.addresses))
        for o in row.originals
    ]
    monkeypatch.setitem(DATA_SETS, "mnist", type(row)(**{**vars(row), "originals": tuple(originals)}))
    assert fetch("mnist").is_file()
    assert publisher.asked.count("/gone") == 4 * (1 + RETRIES)


@pytest.mark.parametrize("name", [NAME, "sensorless"])  # a checksum is known of the first alone
def test_a_web_page_in_the_place_of_an_archive(name, publisher, cache, monkeypatch, capsys) -> None:
    offer(publisher, monkeypatch, name)
    (path,) = publisher.files
    publisher.files[path] = PAGE[: len(publisher.files[path])]
    check_refusal(capsys, "got a web page in its place from", name)
    assert len(publisher.asked) == 1
    assert list_files(cache) == set()


def test_nobody_answers(cache, publisher, monkeypatch, capsys) -> None:
    offer(publisher, monkeypatch, NAME)
    publisher.files.clear()
    check_refusal(capsys, "got HTTPError from", NAME)
    row = DATA_SETS[NAME]
    (original,) = row.originals
    away = mo.data.catalogue.Original(name=original.name, addresses=("http://127.0.0.1:1/x.zip",))
    monkeypatch.setitem(DATA_SETS, NAME, type(row)(**{**vars(row), "originals": (away,)}))
    check_refusal(capsys, "got ConnectionError from http://127.0.0.1:1/x.zip. Fetch the file yourself", NAME)


def test_more_bytes_than_the_file_may_have(publisher, cache, monkeypatch, capsys) -> None:
    offer(publisher, monkeypatch, NAME)
    (path,) = publisher.files
    publisher.files[path] += b"\0" * 1000
    check_refusal(capsys, "bytes from http://127.0.0.1", NAME)
    assert len(publisher.asked) == 1
    assert list_files(cache) == set()


def test_an_archive_that_unpacks_to_too_much(publisher, cache, monkeypatch, capsys) -> None:
    offer(publisher, monkeypatch, NAME)
    monkeypatch.setattr(archives, "MOST_BYTES", 100)
    check_refusal(capsys, "must be at most 100 bytes when unpacked", NAME)
    assert not (cache / FILE).exists()


def test_a_full_disk_at_every_call_leaves_no_half_file(publisher, cache, monkeypatch, capsys) -> None:
    offer(publisher, monkeypatch, NAME)
    calls = 0
    failing = 10**9

    def call(function: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == failing and function is not os.unlink:
            if function is os.write and len(arguments[1]) > 1:
                os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return function(*arguments)

    monkeypatch.setattr(moiety_files, "system_call", call)
    fetch(NAME)
    whole, total, first = list_files(cache), calls, (cache / FILE).read_bytes()
    assert total > 10
    for at in range(1, total + 1):
        failing = at
        shutil.rmtree(cache, ignore_errors=True)
        calls = 0
        try:
            fetch(NAME)
        except MoietyError as error:
            assert "No space left on device" in str(error)  # noqa: PT017
        # Whole files or none: what is there is as it would be without the failure.
        assert list_files(cache) <= whole if cache.exists() else True
        if (cache / FILE).exists():
            assert (cache / FILE).read_bytes() == first
    calls, failing = 0, 10**9
    assert fetch(NAME).read_bytes() == first


def test_a_failed_conversion_keeps_the_file_that_was_there(publisher, cache, monkeypatch) -> None:
    offer(publisher, monkeypatch, NAME)
    before = fetch(NAME).read_bytes()
    monkeypatch.setattr(archives, "MOST_BYTES", 100)
    with pytest.raises(MoietyError):
        fetch(NAME, again=True)
    assert (cache / FILE).read_bytes() == before


def test_files_of_the_user_with_another_checksum_are_used_with_a_warning(
    publisher, cache, monkeypatch, tmp_path
) -> None:
    offer(publisher, monkeypatch, NAME)
    by_hand_folder(NAME, tmp_path / "mine", seed=8)  # other rows than those that were published
    with pytest.warns(UserWarning, match="is not the .*zip that moiety knows"):
        fetch(NAME, originals=tmp_path / "mine")
    assert publisher.asked == []
    with (
        pytest.warns(UserWarning, match=r"pendigits.npz is not the pendigits that moiety knows"),
        note_files() as files,
    ):
        mo.data.SOURCES[NAME]()
    assert files[FILE]["state"] == "unknown"


def test_moiety_data_comes_first(publisher, cache, monkeypatch, tmp_path) -> None:
    offer(publisher, monkeypatch, NAME)
    fetch(NAME)
    other = tmp_path / "named"
    other.mkdir()
    monkeypatch.setenv("MOIETY_DATA", str(other))
    assert len(mo.data.SOURCES[NAME]().columns["y"]) == 10  # the cache's: the folder has none
    assert fetch(NAME) == other / FILE  # and files are fetched to the folder
    (cache / FILE).unlink()
    assert len(mo.data.SOURCES[NAME]().columns["y"]) == 10


def test_sets_of_one_archive_share_it_and_others_do_not(publisher, cache, monkeypatch) -> None:
    files, _ = small.emnist("byclass", 0)
    other, _ = small.emnist("digits", 0)
    with zipfile.ZipFile(io.BytesIO(files["gzip.zip"])) as a, zipfile.ZipFile(io.BytesIO(other["gzip.zip"])) as b:
        both = {name: archive.read(name) for archive in (a, b) for name in archive.namelist()}
    row = publisher.publish("emnist", {"gzip.zip": small.zip_of(both)})
    monkeypatch.setitem(DATA_SETS, "emnist", row)
    digits = dataclasses.replace(DATA_SETS["emnist-digits"], originals=row.originals, lengths={})
    monkeypatch.setitem(DATA_SETS, "emnist-digits", digits)
    offer(publisher, monkeypatch, "mnist")
    offer(publisher, monkeypatch, "fashion_mnist")
    for name in ("emnist", "emnist-digits", "mnist", "fashion_mnist"):
        fetch(name)
    for name in ("mnist", "fashion_mnist"):
        fetch(name, again=True)
    assert len(publisher.asked) == len(set(publisher.asked)) == 1 + 4 + 4


def test_a_damaged_file_is_made_again(publisher, cache, monkeypatch) -> None:
    offer(publisher, monkeypatch, NAME)
    path = fetch(NAME)
    content = path.read_bytes()
    path.write_bytes(content[:100])
    assert fetch(NAME).read_bytes() == content


def test_damage_is_found(publisher, cache, monkeypatch, capsys) -> None:
    offer(publisher, monkeypatch, NAME)
    path = fetch(NAME)
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) // 2])
    assert main(["data", "check"]) == 2
    assert "must be a readable npz archive" in capsys.readouterr().err
    np.savez(path, x=np.zeros(3))
    assert main(["data", "check"]) == 2
    assert "was changed since it was made" in capsys.readouterr().err


def test_lossless_pictures_are_preferred(publisher, cache, monkeypatch, tmp_path) -> None:
    by_hand_folder("cifar10-jpeg", tmp_path / "mine")
    offer(publisher, monkeypatch, "cifar10-jpeg")
    fetch("cifar10-jpeg", originals=tmp_path / "mine")
    with note_files() as files:
        assert len(mo.data.SOURCES["cifar10"]().columns["y"]) == 6
    assert [use["name"] for use in files.values()] == ["cifar10-jpeg"]
    arrays = offer(publisher, monkeypatch, "cifar10")
    fetch("cifar10")
    with note_files() as files:
        x = mo.data.SOURCES["cifar10"]().columns["x"]
    assert [(use["name"], use["state"]) for use in files.values()] == [("cifar10", "made")]
    np.testing.assert_array_equal(np.rint(x * 255), arrays["x_train"].transpose(0, 3, 1, 2))
    assert len(mo.data.SOURCES["cifar10-jpeg"]().columns["y"]) == 6


def test_shakespeare_is_read_from_the_variant_that_is_there(publisher, cache, monkeypatch, tmp_path) -> None:
    assert [row.name for row in rows_of("shakespeare")] == ["shakespeare-roles", "shakespeare-tff"]
    with pytest.raises(MoietyError, match=r"To make the file, run: moiety data fetch shakespeare-tff\.$"):
        mo.data.load("shakespeare")
    offer(publisher, monkeypatch, "shakespeare-tff")
    assert fetch("shakespeare").name == "shakespeare_tff.npz"  # the one that can be fetched
    assert "BEATRICE" in [str(name) for name in mo.data.load("shakespeare", length=40, test=0.2).ids]
    offer(publisher, monkeypatch, "shakespeare-roles")
    by_hand_folder("shakespeare-roles", tmp_path / "mine")
    assert fetch("shakespeare", originals=tmp_path / "mine").name == "shakespeare_roles.npz"
    with note_files() as files:
        mo.data.load("shakespeare", length=40)
    assert list(files) == ["shakespeare_roles.npz"]


def test_a_bar_is_filled(publisher, cache, monkeypatch) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from moiety.cli.data import DownloadBar

    offer(publisher, monkeypatch, NAME)
    (content,) = publisher.files.values()
    with Progress(console=Console(file=io.StringIO(), force_terminal=True)) as progress:
        fetch(NAME, bar=DownloadBar(progress, NAME))
    (task,) = progress.tasks
    assert (task.total, task.completed) == (len(content), len(content))


def test_one_file_of_the_user_is_not_all_of_them(publisher, cache, monkeypatch, tmp_path) -> None:
    offer(publisher, monkeypatch, "usps")
    name, content = next(iter(small.usps(seed=8)[0].items()))
    (tmp_path / name).write_bytes(content)
    with pytest.warns(UserWarning, match=f"is not the {name} that moiety knows"):
        fetch("usps", originals=tmp_path / name)
    assert publisher.asked == ["/usps/usps.t.bz2"]


def test_names_that_nobody_knows(cache, capsys) -> None:
    check_refusal(capsys, "Did you mean", "emnst")
    check_refusal(capsys, "must be a file or folder that exists", NAME, "--from", "/nowhere")
