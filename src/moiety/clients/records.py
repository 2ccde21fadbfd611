"""Records of one length, one per client, in files that notice damage and survive a kill at any moment.

``states.bin`` has two slots for each client. ``index.bin`` has an entry for each: the round of its checkpoint, the slot
and a CRC-32 of the record, which is quick and notices any flipped bit and any damage of up to 32 bits in a row. The
index describes the last checkpoint. A newer record goes to the other slot at once, so it never overwrites what the
index names; its entry stays in memory (``pending``). The next checkpoint holds the entries that changed. Once it is in
place they are written to the index, and writing them twice does no harm.
"""

from __future__ import annotations

import os
import struct
import weakref
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moiety.errors import is_whole, must, refuse
from moiety.files import (
    make_empty,
    make_folder,
    open_file,
    read_at,
    report_failure,
    sync_file,
    sync_folder,
    system_call,
    write_at,
)
from moiety.seals import START_AGAIN, read_sealed, write_sealed

LAYOUT, STATES, INDEX = "layout.json", "states.bin", "index.bin"
_ENTRY = struct.Struct("<III")
_CHUNK = 65536
Words = np.ndarray[Any, np.dtype[np.uint64]]


class Entry(NamedTuple):
    """What the index says of a client; slots are 1 and 2, and 0 where it has no record."""

    round: int = 0
    slot: int = 0
    check: int = 0


class Records:
    """The records of ``clients`` in a folder, each of ``size`` bytes."""

    def __init__(self, folder: Path, clients: int, size: int, flags: int) -> None:
        self.folder, self.clients, self.size = folder, clients, size
        self.pending: dict[int, Entry] = {}
        self._check_lengths()
        with report_failure(folder):
            self._states = open_file(folder / STATES, flags)
            weakref.finalize(self, os.close, self._states)
            self._index = open_file(folder / INDEX, flags)
            weakref.finalize(self, os.close, self._index)
        self._sum = sum(sum_entries(*columns) for columns in self._columns()) % 2**64

    def _check_lengths(self) -> None:
        for name, length in file_lengths(self.clients, self.size).items():
            path = self.folder / name
            size = path.stat().st_size if path.exists() else 0
            must(size == length, "clients", f"whole ({length} bytes of {name})", f"{size} bytes in {path}")

    def entry(self, client: int) -> Entry:
        """What the index says of a client, as of the last checkpoint."""
        if not 0 <= client < self.clients:
            refuse("clients", f"those of a run with {self.clients}", f"client {client} in {self.folder.parent}")
        return Entry(*_ENTRY.unpack(read_at(self._index, _ENTRY.size, client * _ENTRY.size)))

    def read(self, client: int) -> bytes | None:
        """The record of a client, compared with its checksum; None where it has none."""
        entry = self.pending.get(client) or self.entry(client)
        if not entry.slot:
            return None
        content = read_at(self._states, self.size, self._place(client, entry.slot)) if entry.slot < 3 else b""
        whole = len(content) == self.size and zlib.crc32(content) == entry.check
        fault = f"another state of client {client} in {self.folder / STATES}"
        must(whole, STATES, "as it was written", fault, START_AGAIN)
        return content

    def write(self, client: int, content: bytes) -> None:
        """Write a record to the slot that the last checkpoint does not need."""
        slot = 2 if self.entry(client).slot == 1 else 1
        with report_failure(self.folder):
            write_at(self._states, content, self._place(client, slot))
        self.pending[client] = Entry(0, slot, zlib.crc32(content))

    def _place(self, client: int, slot: int) -> int:
        return (2 * client + slot - 1) * self.size

    def changes(self, round: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Rows of client, round, slot and check for the checkpoint of that round, once the records are on disk."""
        with report_failure(self.folder):
            sync_file(self._states)
        rows = [(client, round, *self.pending[client][1:]) for client in sorted(self.pending)]
        return np.array(rows, dtype=np.int64).reshape(-1, 4)

    def digest(self, changes: np.ndarray[Any, np.dtype[np.int64]]) -> str:
        """A sum over the whole index with these changes; it takes time for what changed only."""
        before = [(client, *self.entry(client)) for client in changes[:, 0].tolist()]
        old = sum_entries(*np.array(before, dtype=np.int64).reshape(-1, 4).T)
        return f"{(self._sum - old + sum_entries(*changes.T)) % 2**64:016x}"

    def settle(self, changes: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Write the changes of a checkpoint that is in place to the index."""
        total = int(self.digest(changes), 16)
        with report_failure(self.folder):
            for client, *entry in changes.tolist():
                write_at(self._index, _ENTRY.pack(*entry), client * _ENTRY.size)
            sync_file(self._index)
        self._sum, self.pending = total, {}

    def owners(self) -> list[int]:
        """The clients that have a record, ascending."""
        parts = (clients[slots > 0].tolist() for clients, _, slots, _ in self._columns())
        return sorted({*self.pending, *(client for part in parts for client in part)})

    def last_round(self) -> int:
        """The round of the latest checkpoint that wrote to the index."""
        return max(int(rounds.max(initial=0)) for _, rounds, _, _ in self._columns())

    def _columns(self) -> Iterator[tuple[Words, Words, Words, Words]]:
        """Clients, rounds, slots and checks of the settled index, part by part."""
        for first in range(0, self.clients, _CHUNK):
            count = min(_CHUNK, self.clients - first)
            raw = read_at(self._index, count * _ENTRY.size, first * _ENTRY.size)
            rows = np.frombuffer(raw, dtype="<u4").reshape(-1, 3).astype(np.uint64)
            yield np.arange(first, first + count, dtype=np.uint64), rows[:, 0], rows[:, 1], rows[:, 2]


def create_records(folder: Path, layout: Mapping[str, Any], size: int, run: str) -> None:
    """Make the files, all empty."""
    make_folder(folder)
    with report_failure(folder):
        if (folder / LAYOUT).exists():
            system_call(os.unlink, folder / LAYOUT)
        for name, length in file_lengths(int(layout["clients"]), size).items():
            make_empty(folder / name, length)
        sync_folder(folder)
    # Removed first and written last: a folder without it was cut off while being made, and is made anew.
    write_sealed(folder / LAYOUT, {**layout, "bytes": size}, run)


def open_records(folder: Path, run: str, flags: int = os.O_RDWR) -> Records:
    """The records of a folder of that run, whatever they hold."""
    layout = read_sealed(folder / LAYOUT, run, ("clients", "bytes"))
    clients, size = layout["clients"], layout["bytes"]
    fits = all(is_whole(number) and number >= 0 for number in (clients, size))
    must(fits, LAYOUT, "as it was written", f"{clients!r:.40} clients of {size!r:.40} bytes in {folder / LAYOUT}")
    return Records(folder, clients, size, flags)


def file_lengths(clients: int, size: int) -> dict[str, int]:
    """How long the files are."""
    return {STATES: max(1, 2 * clients * size), INDEX: clients * _ENTRY.size}


def sum_entries(clients: Any, rounds: Any, slots: Any, checks: Any) -> int:
    """A sum of one number per entry, modulo 2^64: it can be kept up to date without reading all entries."""
    columns = [np.asarray(column).astype(np.uint64) for column in (clients, rounds, slots, checks)]
    where, what = columns[0] << np.uint64(32) | columns[2], columns[1] << np.uint64(32) | columns[3]
    empty = (columns[2] | what) == 0  # so that the sum of a million clients never asked is 0
    return int(np.where(empty, 0, _scramble(_scramble(where) ^ what)).sum(dtype=np.uint64))


def _scramble(x: Words) -> Words:
    """SplitMix64's mixing function, after Steele, Lea and Flood (2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
