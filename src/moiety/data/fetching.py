"""Data sets by name: fetch the publisher's files, convert them, and check what is there."""

from __future__ import annotations

import importlib
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moiety.data.catalogue import DATA_SETS, VARIANTS, DataSet, Original, rows_of
from moiety.data.download import Bar, download
from moiety.data.federated import Array
from moiety.data.sources.files import read_npz
from moiety.data.sources.folders import find_file, target_folder
from moiety.data.sources.provenance import (
    UNKNOWN,
    FileUse,
    checksum_of,
    digest_arrays,
    judge_file,
    read_record,
    write_record,
)
from moiety.errors import MoietyError, choice, must, report_errors
from moiety.files import make_folder, write_stream

ORIGINALS = "originals"
"""The folder, beside the npz files, that keeps the publisher's files."""


def fetch(name: str, *, originals: str | Path | None = None, bar: Bar | None = None, again: bool = False) -> Path:
    """Make the file of a data set from the publisher's files, and give its path.

    Args:
        name: one of those that ``moiety data list`` shows.
        originals: a folder with the publisher's files, or the file itself where there is one; those that are missing
            are downloaded. A file of another checksum than the known one is used with a warning.
        bar: shows how downloads go on.
        again: make the file even where it is there.

    Returns:
        The file, in the folder that ``MOIETY_DATA`` names, else in the cache of this user.
    """
    choice("name", name, (*DATA_SETS, *VARIANTS))
    rows = rows_of(name)
    row = rows[0] if originals is not None else next((each for each in rows if not each.by_hand), rows[0])
    folder = target_folder()
    path = folder / row.file
    if not again and _is_known_file(path):
        return path
    make_folder(folder, private=False)
    hint = "Set MOIETY_DATA to another folder, or to nothing for the cache of this user."
    must(os.access(folder, os.W_OK), "data folder", "one that can be written", folder, hint)
    files: dict[str, Path] = {}
    records: list[dict[str, Any]] = []
    for original in row.originals:
        own, right = _find_own(row, original, originals)
        if own is None:
            own, right = download(original, folder / ORIGINALS / _name_originals(row), bar), True
        files[original.name] = own
        checksum = {} if original.folder else {"sha256": checksum_of(own)}
        records.append({"name": original.name, **checksum, "check": original.check, "right": right})
    arrays = convert(row, files)
    _write_npz(path, arrays)
    write_record(path, digest_arrays(arrays), records, trusted=all(record["right"] for record in records))
    return path


def _is_known_file(path: Path) -> bool:
    """Whether a file is there, can be read, and is known or was made here."""
    try:
        return path.is_file() and judge_file(path, digest_arrays(read_npz(path))).state != UNKNOWN
    except MoietyError:  # damaged
        return False


def _name_originals(row: DataSet) -> str:
    """The folder of a row's originals: that of the first row with the same ones, so that they are fetched once."""
    return next((each.name for each in DATA_SETS.values() if each.originals == row.originals), row.name)


def convert(row: DataSet, files: Mapping[str, Path]) -> dict[str, Array]:
    """The arrays of a data set from the publisher's files, after a check of their lengths."""
    module, _, function = row.converter.partition(":")
    converter: Callable[[Mapping[str, Path]], dict[str, Array]] = getattr(
        importlib.import_module(f"moiety.data.originals.{module}"), function
    )
    hint = "The publisher may have changed it."
    # Any exception: each library has its own for files that are not what they should be.
    with report_errors(row.name, "made of the publisher's files", Exception, f" in {', '.join(files)}", hint):
        arrays = converter(files)
    for name, length in row.lengths.items():
        must(len(arrays[name]) == length, f"{row.name}: {name}", f"of {length:,} rows", f"{len(arrays[name]):,}", hint)
    return arrays


def _find_own(row: DataSet, original: Original, originals: str | Path | None) -> tuple[Path | None, bool]:
    """The file that the user has, if it is there, and whether its checksum is not another than the known one."""
    place = None if originals is None else Path(originals)
    if place is not None and place.is_dir() and place.name != original.name:
        place = place / original.name
    exists = place is not None and (place.is_dir() if original.folder else place.is_file())
    if place is not None and len(row.originals) > 1:  # one file is not all of them
        exists = exists and place.name == original.name
    if place is None or not exists:
        what = "folder" if original.folder else "file"
        hint = f"{row.note} See {row.page}. Then: {row.command}"
        must(bool(original.addresses), "--from", f"a folder that holds the {what} {original.name}", originals, hint)
        return None, False
    kind, _, checksum = original.check.partition(":")
    right = not original.check or checksum_of(place, kind) == checksum
    if not right:
        warnings.warn(f"{place} is not the {original.name} that moiety knows, of {original.check}.", stacklevel=3)
    return place, right


def _write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as NumPy does, compressed, whole or not at all, and with the same bytes each time."""
    with (
        write_stream(path, private=False, name="data folder") as stream,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


class State(NamedTuple):
    """What ``check`` says of one data set: its row, its file if it is there, and what is known of that or is wrong."""

    row: DataSet
    path: Path | None
    use: FileUse | None
    problem: str


def check() -> Iterator[State]:
    """Read the file of each data set that is there, and compare it with what is known of it."""
    for row in DATA_SETS.values():
        path = find_file(row.file)
        if path is None:
            yield State(row, None, None, "")
            continue
        try:
            use = judge_file(path, digest_arrays(read_npz(path)))
        except MoietyError as error:
            yield State(row, path, None, str(error))
            continue
        record = read_record(path)
        was_changed = use.state == UNKNOWN and "sha256" in record and record["sha256"] != checksum_of(path)
        yield State(row, path, use, f"{path} was changed since it was made. Get it again." if was_changed else "")
