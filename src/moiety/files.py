"""The only code that writes files: whole or not at all, flushed, locked, with a digest to check them by."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from moiety.errors import MoietyError, message

try:
    import fcntl
except ImportError:  # Windows has none; nobody is kept out there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_locks: set[int] = set()
"""The files that this process holds a lock on."""


@contextlib.contextmanager
def report_failure(target: Path) -> Iterator[None]:
    """Turn the system's error for a write that failed (full disk, no permission) into one line."""
    try:
        yield
    except OSError as error:
        got = error.strerror or str(error)
        raise MoietyError(message("out", "a folder that can be written", f"{got} at {target}")) from error


@contextlib.contextmanager
def report_unreadable(path: Path, hint: str = "", name: str = "") -> Iterator[None]:
    """Turn whatever a file that is absent, cut short or changed raises into one line."""
    try:
        yield
    except MoietyError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        reason = repr(error) if isinstance(error, KeyError) else error  # that of a key alone says little
        raise MoietyError(message(name or path.name, "whole", f"{path}: {reason}", hint)) from None


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: beside its place first, flushed to disk, then renamed."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with report_failure(path):
        try:
            with open(aside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
            sync_folder(path.parent)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Fill a new folder whole or not at all: under another name next to its place, which is renamed at the end."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
        folder = Path(temporary) / "whole"
        folder.mkdir()
        yield folder
        folder.rename(target)


def append_line(path: Path, line: bytes) -> None:
    """Add one line to a file and flush it; where that fails, the file stays as it was."""
    rest = line + b"\n"
    with report_failure(path):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        before = os.fstat(file).st_size
        try:
            while rest:  # a write may stop short of the end, and only the next one says why
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError:
            os.ftruncate(file, before)
            raise
        finally:
            os.close(file)


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names, so that a rename survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(content: bytes) -> str:
    """A short hash that tells whether a file was changed."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@contextlib.contextmanager
def lock_folder(folder: Path | None) -> Iterator[None]:
    """Keep other processes from training in the folder meanwhile: two that write one history lose both.

    The lock ends with its process, however that ends, and with those forked from it: workers call ``release_locks``.
    """
    if folder is None or fcntl is None:
        yield
        return
    with report_failure(folder):
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _locks.add(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            hint = "Wait until it has ended, or stop it."
            raise MoietyError(message("folder", "one that nobody trains in now", f"{folder}, in use", hint)) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        _locks.discard(file)
        os.close(file)


def release_locks() -> None:
    """In a forked process: do not hold the parent's locks beyond its death."""
    while _locks:
        os.close(_locks.pop())
