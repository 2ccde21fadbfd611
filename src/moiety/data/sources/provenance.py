"""What is known of a file that data was read from, and which files were read while something ran."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moiety.data.catalogue import row_of_file
from moiety.data.federated import Array
from moiety.data.sources.digests import DIGESTS
from moiety.files import write_json
from moiety.seals import VERSION

KNOWN, MADE, UNKNOWN = "known", "made", "unknown"
"""A file has the arrays that our results were computed from; or it was made here from the publisher's files; or not."""
IN_WORDS = {
    KNOWN: "the file that the results of this project were computed from",
    MADE: "made by `moiety data fetch` from the publisher's files",
    UNKNOWN: "**a file that moiety does not know: results are not of that data set**",
}


@dataclass(frozen=True)
class FileUse:
    """A file that data was read from: its variant of the data set, its name, what is known of it, and its digest."""

    name: str
    file: str
    state: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name} (`{self.file}`, digest {self.digest}), {IN_WORDS[self.state]}"


def digest_arrays(arrays: Mapping[str, Array]) -> str:
    """A digest of the names, types, shapes and values of arrays, however a file packs them."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {arrays[name].shape};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def judge_file(path: Path, digest: str) -> FileUse:
    """What is known of a file whose arrays have that digest; it is entered in all lists of ``note_files``."""
    row = row_of_file(path.name)
    state = UNKNOWN
    if digest == DIGESTS.get(path.name):
        state = KNOWN
    elif (record := read_record(path)).get("arrays") == digest and record.get("trusted") is True:
        state = MADE
    use = FileUse(row.name if row else path.stem, path.name, state, digest)
    for uses in _lists:
        uses[use.file] = asdict(use)
    return use


_lists: list[dict[str, dict[str, str]]] = []


@contextlib.contextmanager
def note_files() -> Iterator[dict[str, dict[str, str]]]:
    """A table, by name, that gains each file that is read within the block."""
    uses: dict[str, dict[str, str]] = {}
    _lists.append(uses)
    try:
        yield uses
    finally:
        _lists[:] = [each for each in _lists if each is not uses]


def record_path(path: Path) -> Path:
    """Where it is written how a file was made."""
    return path.with_name(f"{path.name}.json")


def read_record(path: Path) -> dict[str, Any]:
    """What ``write_record`` wrote about a file; nothing where that is missing or damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        record = json.loads(record_path(path).read_bytes())
        if isinstance(record, dict):
            return record
    return {}


def write_record(path: Path, digest: str, originals: Sequence[Mapping[str, Any]], trusted: bool) -> None:
    """Write beside a file how it was made: its checksum, the digest of its arrays, and from what.

    ``trusted`` says that no original has another checksum than the one that is known of it.
    """
    content = {
        "format": 1,
        "moiety": VERSION,
        "date": datetime.date.today().isoformat(),
        "sha256": checksum_of(path),
        "arrays": digest,
        "originals": list(originals),
        "trusted": trusted,
    }
    write_json(record_path(path), content, private=False)


def checksum_of(path: Path, kind: str = "sha256") -> str:
    """The checksum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()
