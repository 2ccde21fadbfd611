"""Reading archives of strangers: in memory, members by name, within limits, without links or ways out of a folder."""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from moiety.data.originals.compress import decompress_z
from moiety.errors import must, refuse

MOST_BYTES = 8 * 10**9
"""What all members of an archive, or one compressed file, may unpack to."""
MOST_MEMBERS = 200_000

OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".lzma": lzma.open,
    ".xz": lzma.open,
}


def read_members(archive: Path | IO[bytes], matches: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """The names and contents of those members of a zip or tar archive whose name ``matches``, one at a time.

    The whole archive is refused where it holds more than it may, links, devices, or names that lead out of a folder.
    A tar archive is only read once, so it is refused at the first such member.
    """
    name = archive.name if isinstance(archive, Path) else "archive"
    if zipfile.is_zipfile(archive):
        yield from _read_zip(name, archive, matches)
        return
    with tarfile.open(archive) if isinstance(archive, Path) else tarfile.open(fileobj=archive) as tar:
        total = 0
        for count, member in enumerate(tar, 1):
            total += member.size
            plain = member.isfile() or member.isdir()
            _check_member(name, member.name, plain, count, total)
            if member.isfile() and matches(member.name):
                stream = tar.extractfile(member)
                assert stream is not None
                yield member.name, stream.read()


def read_member(archive: Path | IO[bytes], *names: str) -> list[bytes]:
    """The contents of the members with these file names, whatever folders they lie in; each must be there once."""
    contents: dict[str, bytes] = {}
    for path, content in read_members(archive, lambda path: PurePosixPath(path).name in names):
        file = PurePosixPath(path).name
        must(file not in contents, file, "in the archive once", "twice")
        contents[file] = content
    missing = [file for file in names if file not in contents]
    must(not missing, "archive", f"one that holds {', '.join(names)}", f"one without {', '.join(missing)}")
    return [contents[file] for file in names]


def read_compressed(path: Path) -> bytes:
    """What a file compressed by gzip, bzip2 or lzma holds."""
    with OPENERS[path.suffix](path) as stream:
        return read_bounded(path.name, stream)


def read_bounded(name: str, stream: Any) -> bytes:
    """The rest of a stream, refused where it is longer than an archive may be."""
    content: bytes = stream.read(MOST_BYTES + 1)
    _check_size(name, len(content))
    return content


def unpack_z(name: str, content: bytes) -> bytes:
    """What Unix ``compress`` packed."""
    return decompress_z(name, content, MOST_BYTES)


def _read_zip(name: str, archive: Path | IO[bytes], matches: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as file:
        members, total = file.infolist(), 0
        for count, member in enumerate(members, 1):
            total += member.file_size
            link = stat.S_ISLNK(member.external_attr >> 16)
            _check_member(name, member.filename, not link, count, total)
        for member in members:
            if not member.is_dir() and matches(member.filename):
                with file.open(member) as stream:
                    # What a header says may be false: no more than it says is read.
                    content = stream.read(member.file_size + 1)
                must(len(content) == member.file_size, member.filename, f"{member.file_size:,} bytes", "others")
                yield member.filename, content


def _check_member(archive: str, member: str, plain: bool, count: int, total: int) -> None:
    path = PurePosixPath(member.replace("\\", "/"))
    inside = not path.is_absolute() and ".." not in path.parts and ":" not in path.parts[0] if path.parts else True
    if not (plain and inside):
        problem = f"{member!r:.80}, {'which leads out of it' if plain else 'a link or a device'}"
        refuse(archive, "an archive of plain files in their folder", problem, "Do not open it.")
    must(count <= MOST_MEMBERS, archive, f"an archive of at most {MOST_MEMBERS:,} files", "more", "Do not open it.")
    _check_size(archive, total)


def _check_size(name: str, size: int) -> None:
    must(size <= MOST_BYTES, name, f"at most {MOST_BYTES:,} bytes when unpacked", "more", "Do not open it.")
