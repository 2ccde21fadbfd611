"""What tells data from other data: a digest of every byte, in blocks of clients, so that a difference has a place.

A column that is mapped from a file need not be read again at every start. Its digest is kept beside it
(``x.npy.digest``), together with device, inode, size and both times of the file. That notices a file that was changed
or exchanged. It does not notice a disk that decays: for that all bytes must be read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moiety.errors import MoietyError
from moiety.files import read_json, write_json

Array = NDArray[Any]
Digest = dict[str, Any]
"""A table of hashes. That of a column has its type, its shape, and the hashes of its blocks, one after the other."""

BLOCKS = 64
"""Into how many blocks of clients a column is divided at most; with no more clients than that, each has its own."""
HASH = 16
"""Letters of a block's hash."""
CHUNK_BYTES = 1 << 24
"""How much of a column is read at a time."""
SETTLED = 50_000_000
"""Nanoseconds after a change in which another may leave a file's times as they are: clocks of file systems tick."""


class MappedFile(NamedTuple):
    """A mapped column, the file it is mapped from as it was then, and its digest."""

    column: Array
    path: Path
    state: list[int]
    digest: Digest


def digest_data(
    columns: Mapping[str, Array], bounds: Array, ids: Array | int, mapped: Mapping[str, MappedFile]
) -> Digest:
    """What all data is, as a table; ``ids`` is a number where clients have no names.

    A column that is ``mapped`` from a file which is as it was then is not read again.
    """
    edges = block_edges(bounds, len(next(iter(columns.values()))))
    return {
        "bounds": _hash(np.ascontiguousarray(bounds, dtype="<i8")),
        "ids": f"0 to {ids - 1}" if isinstance(ids, int) else _hash(ids),
        "columns": {
            name: _reuse_digest(column, edges, mapped.get(name)) or digest_column(column, edges)
            for name, column in columns.items()
        },
    }


def _reuse_digest(column: Array, edges: Array, file: MappedFile | None) -> Digest | None:
    """The digest of the file that a column is mapped from, if column, file and blocks are what they were."""
    if file is None or column is not file.column or file.digest["edges"] != _hash(edges):
        return None
    return file.digest if _file_state(file.path) == file.state else None


def block_edges(bounds: Array, rows: int) -> Array:
    """The first row of each block of clients, and the number of all ``rows``."""
    starts = np.sort(bounds[:, 0])
    starts = np.unique(starts[np.linspace(0, len(starts) - 1, BLOCKS).astype(np.int64)])
    return np.concatenate([[0], starts[(starts > 0) & (starts < rows)], [rows]])


def digest_column(column: Array, edges: Array) -> Digest:
    """The digest of a column; no more than a chunk of it is in memory at a time."""
    kind = column.dtype.newbyteorder("<")
    step = max(1, CHUNK_BYTES // max(1, column[:1].nbytes))
    blocks = []
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        block = hashlib.blake2b(digest_size=HASH // 2)
        for at in range(first, last, step):
            block.update(_view_bytes(np.ascontiguousarray(column[at : min(at + step, last)], dtype=kind)))
            release_pages(column)
        blocks.append(block.hexdigest())
    return {"type": kind.str, "shape": list(column.shape), "edges": _hash(edges), "blocks": "".join(blocks)}


def open_mapped(path: Path, column: Array, bounds: Array, *, read_all: bool = False) -> MappedFile:
    """A column that has just been mapped from ``path``, with its digest: the one beside it, or a new one.

    With ``read_all`` it is always a new one, which is not kept.
    """
    edges = block_edges(bounds, len(column))
    state, note = _file_state(path), path.with_name(f"{path.name}.digest")
    digest = None if read_all else _read_beside(note, state, _hash(edges))
    if digest is not None:
        return MappedFile(column, path, state, digest)
    entry: dict[str, Any] = {"state": state, "read": time.time_ns(), "digest": digest_column(column, edges)}
    if not read_all and _file_state(path) == state:
        with contextlib.suppress(MoietyError):  # the folder may be read-only: then all is read at every start
            write_json(note, {**entry, "check": fingerprint_of(entry)}, private=False)
    return MappedFile(column, path, state, entry["digest"])


def _read_beside(note: Path, state: list[int], edges: str) -> Digest | None:
    """The digest that was kept beside a file, if it is whole and the file is as it was then."""
    try:
        entry = read_json(note, ("state", "read", "digest", "check"))
    except MoietyError:
        return None
    if fingerprint_of({key: value for key, value in entry.items() if key != "check"}) != entry["check"]:
        return None
    is_old = entry["read"] - max(state[3:], default=0) > SETTLED
    return entry["digest"] if is_old and entry["state"] == state and entry["digest"]["edges"] == edges else None


def _file_state(path: Path) -> list[int]:
    """Device, inode, size, and the times of the last change to content and to the inode; nothing where it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def explain_difference(was: Digest, now: Digest, bounds: Array, ids: Sequence[str] | Array) -> str:
    """Where the data at hand (``now``, ``bounds``, ``ids``) differ from what they were; empty where they do not."""
    if was.get("bounds") != now["bounds"]:
        return "other rows for clients or parts"
    if was.get("ids") != now["ids"]:
        return "other names of clients"
    before, columns = was["columns"], now["columns"]
    for name in sorted({*before, *columns}):
        if name not in before or name not in columns:
            return f"{'a new' if name not in before else 'no'} column {name}"
        one, other = before[name], columns[name]
        if (one["type"], one["shape"]) != (other["type"], other["shape"]):
            return f"column {name} of type {other['type']} and shape {other['shape']}"
        if one["blocks"] != other["blocks"]:
            return f"other values in column {name}{_name_odd_clients(one, other, bounds, ids)}"
    if was.get("preprocessing") != now.get("preprocessing"):
        return "other names of classes or categories, or another preprocessing"
    return "other clients that training never sees" if was.get("unseen") != now.get("unseen") else ""


def _name_odd_clients(was: Digest, now: Digest, bounds: Array, ids: Sequence[str] | Array) -> str:
    """The clients of the first block of a column that differs, in words."""
    edges = block_edges(bounds, now["shape"][0])
    blocks = [slice(HASH * i, HASH * (i + 1)) for i in range(len(edges) - 1)]
    at = next((i for i, block in enumerate(blocks) if was["blocks"][block] != now["blocks"][block]), 0)
    clients = np.flatnonzero((bounds[:, 0] >= edges[at]) & (bounds[:, 3] <= edges[at + 1]))
    names = [str(ids[int(clients[place])]) for place in (0, -1)] if len(clients) else ["", ""]
    if len(clients) < 2:
        return f", client {names[0]}" if names[0] else ""
    return f", one of the clients {names[0]} to {names[1]}"


def fingerprint_of(digest: Digest) -> str:
    """One short hash of a table."""
    return hashlib.blake2b(json.dumps(digest, sort_keys=True).encode(), digest_size=16).hexdigest()


def release_pages(column: Array) -> None:
    """Let go of the pages of a mapped column that were read; the system still caches the file."""
    pages: Any = getattr(column, "_mmap", None)
    # In other modes pages may hold changes that are nowhere else.
    shared = isinstance(pages, mmap.mmap) and getattr(column, "mode", "") in ("r", "r+")
    if shared and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def _hash(array: Array) -> str:
    return hashlib.blake2b(_view_bytes(array), digest_size=HASH // 2).hexdigest()


def _view_bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
