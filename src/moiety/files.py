"""The only code that writes files: whole or not at all, flushed, locked, with a digest to check them by."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from moiety.errors import must, refuse, report_errors

try:
    import fcntl
except ImportError:  # Windows has none: folders are not locked there
    fcntl = None  # type: ignore[assignment]

CONFIG, PIPELINE, RECIPE = "config.toml", "pipeline.toml", "recipe.json"
"""The file that says what is in a folder: a run, a pipeline or a recipe. The last two have runs in folders below."""
LOCK = ".lock"
_locks: set[int] = set()
"""The files that this process holds a lock on."""


def report_failure(target: Path) -> AbstractContextManager[None]:
    """Turn the system's error for a write that failed (full disk, no permission) into one line."""
    return report_errors("out", "a folder that can be written", OSError, f" at {target}")


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
    with report_errors(path.name, "readable TOML in UTF-8", (OSError, ValueError, RecursionError), f" at {path}"):
        return tomllib.loads(path.read_bytes().decode())


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


def make_folder(folder: Path) -> Path:
    """The folder, made with those above it where it is not there."""
    with report_failure(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_json(path: Path, content: Mapping[str, Any], indent: int | None = 1) -> None:
    """Write a table as JSON, whole or not at all."""
    write_file(path, (json.dumps(content, indent=indent) + "\n").encode())


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Fill a new folder whole or not at all: under another name next to its place, which is renamed at the end."""
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.rmtree(aside, ignore_errors=True)  # a process of that number may have been killed
        aside.mkdir()
        yield aside
        aside.rename(target)
        sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


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
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
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
