"""The only code that writes files: whole or not at all, flushed, locked.

Every system call that changes a disk goes through ``system_call``. Tests put another function in its place, which
fails the n-th call or writes only a part.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from moiety.errors import kind, must, refuse, report_errors

try:
    import fcntl
except ImportError:  # Windows has none: folders are not locked there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_CHUNK = 1 << 20
_locks: set[int] = set()
"""The files that this process holds a lock on."""


def system_call(call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a system call that changes a disk; tests replace this function to make one fail."""
    return call(*arguments)


def report_failure(target: Path, name: str = "out") -> AbstractContextManager[None]:
    """Turn the system's error for a write that failed (full disk, no permission) into one line."""
    return report_errors(name, "a folder that can be written", OSError, f" at {target}")


def report_unreadable(path: Path, hint: str = "", name: str = "") -> AbstractContextManager[None]:
    """Turn whatever a file that is absent, cut short or changed raises into one line."""
    errors = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)
    return report_errors(name or path.name, "as it was written", errors, f" at {path}", hint)


def read_json(path: Path, keys: Iterable[str] = (), hint: str = "", name: str = "") -> dict[str, Any]:
    """A table from a file, which must have ``keys``."""
    with report_unreadable(path, hint, name):
        content: dict[str, Any] = json.loads(path.read_text())
    missing = sorted(set(keys) - content.keys()) if isinstance(content, dict) else ["table"]
    must(not missing, name or path.name, "as it was written", f"{path}, which has no {', '.join(missing)}", hint)
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    errors = (OSError, ValueError, RecursionError)
    with report_errors(path.name, "readable TOML in UTF-8", errors, f" at {path}"):
        return tomllib.loads(path.read_bytes().decode())


def write_file(path: Path, content: bytes | Iterable[bytes], *, private: bool = True) -> None:
    """Write a file, given whole or in pieces, whole or not at all: beside its place, flushed to disk, then renamed.

    A private file is for its owner alone. It lies in a folder that one process at a time writes to, so the file
    beside it has a fixed name; what a killed process left there is written over or removed by that name.
    """
    with write_stream(path, private=private) as stream:
        for piece in [content] if isinstance(content, bytes) else content:
            stream.write(piece)


@contextlib.contextmanager
def write_stream(path: Path, *, private: bool = True, name: str = "out") -> Iterator[io.RawIOBase]:
    """The same for a file that another library writes; ``name`` is what a message calls its folder."""
    aside = aside_of(path) if private else own_aside_of(path)
    with report_failure(path, name):
        try:
            with open_stream(aside, private=private) as stream:
                yield stream
                system_call(os.fsync, stream.fileno())
            system_call(os.replace, aside, path)
            sync_folder(path.parent)
        except BaseException:
            remove_file(aside)
            raise


@contextlib.contextmanager
def open_stream(path: Path, *, private: bool = True, append: bool = False) -> Iterator[io.RawIOBase]:
    """A file to write to in pieces, from its beginning or after what it holds."""
    place = os.O_APPEND if append else os.O_TRUNC
    handle = open_file(path, os.O_WRONLY | os.O_CREAT | place, private=private)
    try:
        yield _Stream(handle)
    finally:
        os.close(handle)


class _Stream(io.RawIOBase):
    """An open file as other libraries write to one."""

    def __init__(self, handle: int):
        self._handle = handle

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._handle

    def write(self, content: Any) -> int:
        _write_all(self._handle, content)
        return len(content)


def aside_of(path: Path) -> Path:
    """Where a private file is written before it gets its name."""
    return path.with_name(f".{path.name}.moiety")


def own_aside_of(path: Path) -> Path:
    """The same for a page, or for a folder of data: two processes may write them at once."""
    return path.with_name(f".{path.name}.moiety-{os.getpid()}")


def open_file(path: Path, flags: int, *, private: bool = True) -> int:
    """Open a file for writing."""
    # Windows would change line ends in what is written, unless it is told that these are bytes.
    handle: int = system_call(os.open, path, flags | getattr(os, "O_BINARY", 0), 0o600 if private else 0o666)
    return handle


def _write_all(handle: int, content: bytes) -> None:
    """Write at the end of a file: a call may stop short, and only the next one says why."""
    rest = memoryview(content)
    while rest:
        rest = rest[system_call(os.write, handle, rest) :]


def write_at(handle: int, content: bytes, at: int) -> None:
    """Write all of ``content`` at a place of a file."""
    rest = memoryview(content)
    while rest:
        count = system_call(getattr(os, "pwrite", _seek_and_write), handle, rest, at)
        rest, at = rest[count:], at + count


def read_at(handle: int, size: int, at: int) -> bytes:
    """The bytes at a place of a file; fewer where it ends."""
    pieces: list[bytes] = []
    read = getattr(os, "pread", _seek_and_read)
    while size and (piece := read(handle, size, at)):
        pieces.append(piece)
        size, at = size - len(piece), at + len(piece)
    return b"".join(pieces)


def _seek_and_write(handle: int, content: memoryview, at: int) -> int:
    """What ``os.pwrite`` does, for Windows, which does not have it."""
    os.lseek(handle, at, os.SEEK_SET)
    return os.write(handle, content)


def _seek_and_read(handle: int, size: int, at: int) -> bytes:
    """What ``os.pread`` does, for Windows."""
    os.lseek(handle, at, os.SEEK_SET)
    return os.read(handle, size)


def sync_file(handle: int) -> None:
    """Flush a file to disk."""
    system_call(os.fsync, handle)


def make_empty(path: Path, size: int) -> None:
    """Make a private file of zeros that takes no room: no block is taken before it is written."""
    handle = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        system_call(os.ftruncate, handle, size)
        system_call(os.fsync, handle)
    finally:
        os.close(handle)


def open_scratch(size: int) -> Any:
    """A file of ``size`` bytes in the system's folder for temporary files; it is gone when nobody uses it any more.

    All its room is taken at once: a disk that fills up later would end the process at a write to mapped memory.
    """
    with report_errors("data", "such that the folder for temporary files can hold it", OSError, f" for {size} bytes"):
        file = tempfile.TemporaryFile(prefix="moiety-")  # noqa: SIM115
        try:
            if hasattr(os, "posix_fallocate"):
                system_call(os.posix_fallocate, file.fileno(), 0, size)
            else:
                for at in range(0, size, _CHUNK):
                    _write_all(file.fileno(), bytes(min(_CHUNK, size - at)))
        except BaseException:
            file.close()
            raise
    return file


def check_path(name: str, path: str | os.PathLike[str], constraint: str) -> None:
    """Refuse what is no path, and a path that no file can have."""
    kind(name, path, (str, os.PathLike), constraint)
    text = os.fspath(path)
    try:
        fits = bool(text)
        os.stat(text)
    except OSError as error:  # whatever else is wrong with it shows when it is used
        fits = fits and error.errno != errno.ENAMETOOLONG
    except ValueError:  # half a character, or the character 0
        fits = False
    must(fits, name, constraint, f"{text!r:.60}")


def make_folder(folder: Path, *, private: bool = True) -> Path:
    """The folder, made with those above it where it is not there; a private one is for its owner alone."""
    with report_failure(folder):
        missing = [place for place in (*reversed(folder.parents), folder) if not place.is_dir()]
        for place in missing:
            try:
                system_call(os.mkdir, place, 0o700 if private and place == folder else 0o777)
            except FileExistsError:
                if not place.is_dir():  # else another process was quicker
                    raise
            sync_folder(place.parent)
    return folder


def write_json(path: Path, content: Mapping[str, Any], indent: int | None = 1, *, private: bool = True) -> None:
    """Write a table as JSON, whole or not at all."""
    write_file(path, (json.dumps(content, indent=indent) + "\n").encode(), private=private)


@contextlib.contextmanager
def new_folder(target: Path, aside: Path) -> Iterator[Path]:
    """Fill a new private folder whole or not at all: as ``aside``, next to its place, and renamed at the end."""
    try:
        remove_folder(aside)  # a process may have been killed
        system_call(os.mkdir, aside, 0o700)
        yield aside
        system_call(os.rename, aside, target)
        sync_folder(target.parent)
    except BaseException:
        remove_folder(aside)
        raise


def remove_file(path: Path) -> None:
    """Remove a file that moiety wrote, if it is there and can be removed."""
    with contextlib.suppress(OSError):
        system_call(os.unlink, path)


def remove_folder(folder: Path, names: Iterable[str] | None = None) -> None:
    """Remove these files of a folder (without ``names`` all of them), and the folder unless it holds others."""
    with contextlib.suppress(OSError):
        for place in [folder / name for name in names] if names is not None else list(folder.iterdir()):
            if place.is_dir() and not place.is_symlink():
                remove_folder(place)
            else:
                remove_file(place)
        system_call(os.rmdir, folder)


def discard_folder(folder: Path) -> None:
    """Remove a folder that moiety wrote, if it is there: from its place at once, then file by file where it can be."""
    aside = aside_of(folder)
    remove_folder(aside)  # what an earlier removal left
    if folder.is_dir():
        with report_failure(folder):
            system_call(os.rename, folder, aside)
        remove_folder(aside)


def append_line(path: Path, line: bytes) -> None:
    """Add one line to a private file and flush it; where that fails, the file stays as it was."""
    with report_failure(path):
        file = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        before = os.fstat(file).st_size
        try:
            _write_all(file, line + b"\n")
            system_call(os.fsync, file)
        except OSError:
            system_call(os.ftruncate, file, before)
            raise
        finally:
            os.close(file)


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names, so that a rename survives a power cut. Windows cannot open a folder."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        system_call(os.fsync, handle)
    finally:
        os.close(handle)


@functools.cache
def warn_of_no_lock() -> None:
    """Warn, once in a process, that nothing keeps two processes from training in one folder."""
    warnings.warn("Folders cannot be locked here: do not train in one folder from two processes.", stacklevel=2)


@contextlib.contextmanager
def lock_folder(folder: Path | None) -> Iterator[None]:
    """Keep other processes from training in the folder: two that write one history would spoil it.

    The lock ends when the process that holds it and all that were forked from it have ended. So forked workers call
    ``release_locks``.
    """
    if folder is None or fcntl is None:
        if folder is not None:
            warn_of_no_lock()
        yield
        return
    with report_failure(folder):
        file = open_file(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        _locks.add(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            hint = "Wait until it has ended, or stop it."
            refuse("folder", "one that nobody trains in now", f"{folder}, in use", hint)
        except OSError:  # a file system without locks
            warn_of_no_lock()
        yield
    finally:
        _locks.discard(file)
        os.close(file)


def release_locks() -> None:
    """In a forked process: do not hold the parent's locks beyond its death."""
    while _locks:
        os.close(_locks.pop())
