"""Where personal states live between rounds. Nothing in a store ever goes to the server.

A checkpoint holds what changed in a store since the one before (``changes``); the store takes it over (``settle``) when
the checkpoint is safely written. So a run that is killed finds the states as of its last checkpoint, whatever it did
since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moiety import tree
from moiety.clients.records import LAYOUT, Records, create_records, open_records
from moiety.errors import must
from moiety.seals import START_AGAIN, read_sealed
from moiety.types import Tree

Changes = np.ndarray[Any, np.dtype[np.int64]]
"""A row for each client whose state changed: client, round, slot and checksum."""


class Store:
    """Personal states by client, in memory, for runs without a folder or without states."""

    def __init__(self, first: Callable[[], Tree]) -> None:
        """``first`` makes the state of a client that was never asked."""
        self.first = first
        self.states: dict[int, Tree] = {}

    def get(self, clients: Iterable[int]) -> list[Tree]:
        """The states of ``clients``; a client never asked has the first state."""
        first = self.first()  # nobody writes into a state, so one is enough for all that were never asked
        if not self.states and isinstance(clients, Sized):
            return [first] * len(clients)
        return [self.states.get(int(client), first) for client in clients]

    def put(self, clients: Iterable[int], states: Iterable[Tree]) -> None:
        """Keep copies of the new states of ``clients``: an engine's results may lie in memory that it uses again."""
        for client, state in zip(map(int, clients), states, strict=True):
            self.states[client] = tree.clone(state)

    def owners(self) -> list[int]:
        """The clients that have a state of their own, ascending."""
        return sorted(self.states)

    def changes(self, round: int) -> Changes:
        """What the checkpoint of that round must hold of the store."""
        return np.zeros((0, 4), dtype=np.int64)

    def digest(self, changes: Changes) -> str:
        """A checksum of the store with these changes."""
        return ""

    def settle(self, changes: Changes) -> None:
        """Called when the checkpoint that holds these changes is written."""

    def restart(self, round: int, changes: Changes, checksum: str) -> None:
        """Go on from the checkpoint of that round, which holds these changes and the store's checksum."""

    def start_again(self) -> None:
        """Begin without a checkpoint."""

    def check_states(self) -> None:
        """Compare all states with their checksums, before a run goes on with them."""


class DiskStore(Store):
    """States in a sparse file of records, read and written where they lie: O(cohort) per round.

    Reads and writes are by position, not through a map of the file, so that resident memory does not grow with the
    number of clients ever asked; the system's page cache does the rest.
    """

    def __init__(
        self, first: Callable[[], Tree], folder: Path, clients: int, run: str = "", *, resumed: bool = False
    ) -> None:
        """Create the files of the run with that id, or open existing ones; a ``resumed`` run must have them."""
        super().__init__(first)
        self.example, self.folder, self.run = first(), folder, run
        kinds = tree.leaves(self.example)
        self.sizes = [x.numel() * x.element_size() for x in kinds.values()]
        leaves = {path: [str(x.dtype), list(x.shape)] for path, x in kinds.items()}
        self.layout = {"clients": clients, "leaves": leaves}
        if not resumed and not (folder / LAYOUT).exists():
            create_records(folder, self.layout, sum(self.sizes), run)
        layout = read_sealed(folder / LAYOUT, run, ("clients", "leaves", "bytes"), START_AGAIN)
        same = {key: layout[key] for key in self.layout} == self.layout
        must(same, "clients", "states of this model and data", f"others in {folder}")
        self.records: Records = open_records(folder, run)

    def get(self, clients: Iterable[int]) -> list[Tree]:
        """The states of ``clients``; a client never asked has the first state."""
        return [self._decode(self.records.read(client)) for client in map(int, clients)]

    def _decode(self, record: bytes | None) -> Tree:
        if record is None:
            return self.first()
        at, tensors = 0, []
        for size, like in zip(self.sizes, tree.values(self.example), strict=True):
            # One buffer per leaf: a tensor over a shared buffer could lie at an odd address for its type.
            piece = bytearray(record[at : at + size])
            value = torch.frombuffer(piece, dtype=like.dtype).view(like.shape) if size else like.clone()
            tensors.append(value.to(like.device))
            at += size
        return tree.maker(self.example)(iter(tensors))

    def put(self, clients: Iterable[int], states: Iterable[Tree]) -> None:
        """Write the new states of ``clients``."""
        for client, state in zip(map(int, clients), states, strict=True):
            # As bytes: NumPy does not know every type that torch has.
            leaves = (x.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for x in tree.values(state))
            self.records.write(client, b"".join(x.numpy().tobytes() for x in leaves))

    def owners(self) -> list[int]:
        """The clients that have a state of their own, ascending."""
        return self.records.owners()

    def changes(self, round: int) -> Changes:
        """The entries of the index that the checkpoint of that round must hold; their states are on disk by then."""
        return self.records.changes(round)

    def digest(self, changes: Changes) -> str:
        """A checksum of the whole index with these changes."""
        return self.records.digest(changes)

    def settle(self, changes: Changes) -> None:
        """Write the changes to the index."""
        self.records.settle(changes)

    def restart(self, round: int, changes: Changes, checksum: str) -> None:
        """Check that the index is the checkpoint's, and settle its changes where a kill came between."""
        clients, slots = changes[:, 0], changes[:, 2]
        valid = bool(((clients >= 0) & (clients < self.records.clients) & (slots > 0) & (slots < 3)).all())
        same, fault = valid and self.digest(changes) == checksum, f"another index in {self.folder}"
        must(same, "clients", f"as the checkpoint of round {round} has it", fault, START_AGAIN)
        if self.digest(changes[:0]) != checksum:
            self.settle(changes)

    def check_states(self) -> None:
        """Compare all states with their checksums, one after the other."""
        for client in self.records.owners():
            self.records.read(client)

    def start_again(self) -> None:
        """Empty the store, unless a checkpoint was written that is lost."""
        last = self.records.last_round()
        constraint = f"there, for clients has states of round {last}"
        must(not last, "checkpoint", constraint, f"none in {self.folder.parent}", START_AGAIN)
        if self.records.owners():
            create_records(self.folder, self.layout, sum(self.sizes), self.run)
            self.records = open_records(self.folder, self.run)
