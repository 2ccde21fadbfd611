"""Where personal states live between rounds. Nothing in a store ever goes to the server.

A store keeps what changed since the last checkpoint apart (``pending``) until the checkpoint that holds it is safely
written (``settle``). So a run that is killed finds the states as of its last checkpoint, whatever it did since.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from moiety import tree
from moiety.errors import must
from moiety.files import write_file
from moiety.types import Tree


class Store:
    """Personal states by client, in memory. All of them are always pending, so a checkpoint holds them all."""

    def __init__(self, first: Callable[[], Tree]) -> None:
        """``first`` makes the state of a client that was never asked."""
        self.first = first
        self.pending: dict[int, Tree] = {}

    def get(self, clients: Iterable[int]) -> list[Tree]:
        """The states of ``clients``; a client never asked has the first state."""
        return [self.pending[c] if c in self.pending else self._read(c) for c in map(int, clients)]

    def _read(self, client: int) -> Tree:
        """The state of a client that has none pending."""
        return self.first()

    def put(self, clients: Iterable[int], states: Iterable[Tree]) -> None:
        """Keep copies of the new states of ``clients``: an engine's results may lie in memory that it uses again."""
        for client, state in zip(map(int, clients), states, strict=True):
            self.pending[client] = tree.clone(state)

    def owners(self) -> list[int]:
        """The clients that have a state of their own, ascending."""
        return sorted(self.pending)

    def settle(self, round: int) -> None:
        """Called when the checkpoint of that round, which holds what is pending, is written."""

    def restart(self, round: int) -> None:
        """Go on from the checkpoint of that round; 0 where there is none."""


class DiskStore(Store):
    """States in one sparse file, a record per client, read and written where it lies: O(cohort) per round.

    Reads and writes are by position, not through a map of the file, so that resident memory does not grow with the
    number of clients ever asked; the system's page cache does the rest.
    """

    def __init__(self, first: Callable[[], Tree], folder: Path, clients: int) -> None:
        super().__init__(first)
        self.example = first()
        self.settled = folder / "settled"
        kinds = tree.leaves(self.example)
        self.sizes = [x.numel() * x.element_size() for x in kinds.values()]
        layout = {
            "clients": clients,
            "leaves": {path: [str(x.dtype), list(x.shape)] for path, x in kinds.items()},
        }
        self._open(folder, layout, clients * sum(self.sizes))
        self.states = os.open(folder / "states.bin", os.O_RDWR)
        weakref.finalize(self, os.close, self.states)
        self.present = np.memmap(folder / "present.bin", dtype=np.uint8, mode="r+", shape=(clients,))

    def _open(self, folder: Path, layout: dict[str, object], size: int) -> None:
        """Make the files, or check that those which are there are whole and of this problem."""
        note, text = folder / "layout.json", json.dumps(layout)
        lengths = {"states.bin": max(1, size), "present.bin": int(str(layout["clients"]))}
        if note.exists():
            must(note.read_text() == text, "clients", "states of this model and data", f"others in {folder}")
            for name, length in lengths.items():
                path = folder / name
                here = path.stat().st_size if path.exists() else 0
                must(here == length, "clients", f"whole ({length} bytes of {name})", f"{here} bytes in {path}")
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name, length in lengths.items():
            with open(folder / name, "wb") as file:
                file.truncate(length)  # sparse: no block is taken before it is written
        # Last: a folder without it was cut off while being made, and is made anew.
        write_file(note, text.encode())

    def _read(self, client: int) -> Tree:
        if not self.present[client]:
            return self.first()
        at = client * sum(self.sizes)
        tensors = []
        for size, like in zip(self.sizes, tree.values(self.example), strict=True):
            # One buffer per leaf: a tensor over a shared buffer could lie at an odd address for its type.
            piece = bytearray(os.pread(self.states, size, at))
            tensors.append(torch.frombuffer(piece, dtype=like.dtype).view(like.shape) if size else like.clone())
            at += size
        return tree.maker(self.example)(iter(tensors))

    def owners(self) -> list[int]:
        """The clients that have a state of their own, ascending."""
        return sorted({*np.flatnonzero(self.present).tolist(), *self.pending})

    def restart(self, round: int) -> None:
        """Check that no record is of a later round; where the run starts again, empty the store."""
        text = self.settled.read_text() if self.settled.exists() else "0"
        must(text.isdecimal(), "clients", "whole", f"{text!r:.40} in {self.settled}")
        settled = int(text)
        if round == 0 and settled:
            self.present[:] = 0
            self.present.flush()
            self.settled.unlink()
            return
        hint = "Remove checkpoint and clients to start the run again."
        got = f"round {settled} in {self.settled.parent}"
        must(settled <= round, "clients", f"of round {round}, as the checkpoint is", got, hint)

    def settle(self, round: int) -> None:
        """Write what is pending to its records, flush, and forget it."""
        write_file(self.settled, str(round).encode())
        record = sum(self.sizes)
        for client, state in self.pending.items():
            # As bytes: NumPy does not know every type that torch has.
            raw = b"".join(x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for x in tree.values(state))
            os.pwrite(self.states, raw, client * record)
        os.fsync(self.states)
        self.present[list(self.pending)] = 1
        self.present.flush()
        self.pending = {}
