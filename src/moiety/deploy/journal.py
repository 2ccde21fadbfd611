"""What a device keeps of one run, in a folder of its own: written whole or not at all, with checksums, for its owner.

A turn is a file of the new personal state, a file of the bytes that were sent, and a table that says what they hash to.
The table is written last, so a turn is there or it is not. A turn counts only when the server says so: each message
names the last turn of this client that was ``used``, and the device goes on from the state of that turn. So a message
that comes twice gets the same answer, and a turn whose answer was lost, came late or was left out changes nothing.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save

from moiety import tree
from moiety.errors import is_whole, must
from moiety.files import make_folder, remove_file, report_unreadable, write_file
from moiety.run.checkpoint import read_tensors
from moiety.seals import digest, read_sealed, write_sealed
from moiety.types import Params, Tree

DEVICE, MEMBER, RECEIVED, NOISE = "device.json", "member.json", "received.json", "noise.json"
RUN = re.compile(r"[0-9a-f]{1,64}")
TURN = re.compile(r"turn-(\d{8,})\.json")
RESTORE = "Restore the device's folder from a copy, or let it join under another name."


class Turn(NamedTuple):
    """One turn of the device: what it was asked (a hash), and what it answered."""

    round: int
    asked: str
    head: dict[str, Any]
    upload: str
    state: str


def device_token(folder: Path) -> str:
    """The secret by which the server knows the device again; made when it first starts."""
    path = make_folder(folder) / DEVICE
    if not path.exists():
        write_sealed(path, {"token": secrets.token_hex(32)}, None)
    return str(read_sealed(path, keys=["token"])["token"])


def list_runs(folder: Path) -> list[str]:
    """The runs that a device's folder has something of; whatever else somebody has put there is passed over."""
    return sorted(each.name for each in (folder / "runs").glob("*") if RUN.fullmatch(each.name) and each.is_dir())


class Journal:
    """The part of a device's folder that belongs to one run."""

    def __init__(self, folder: Path, run: str) -> None:
        must(RUN.fullmatch(run) is not None, "run", "the id of a run", repr(run)[:80])
        self.folder, self.run = folder / "runs" / run, run

    def join(self, member: Mapping[str, Any]) -> None:
        """Write down what the device is in this run."""
        make_folder(self.folder.parent)
        make_folder(self.folder)
        if not (self.folder / MEMBER).exists() or self.read_member() != dict(member):
            write_sealed(self.folder / MEMBER, member, self.run)

    def is_member(self) -> bool:
        """Whether the device has joined the run."""
        return (self.folder / MEMBER).exists()

    def read_member(self) -> dict[str, Any]:
        """What the device is in this run: its name and position, and the recipe for its table."""
        must(self.is_member(), "run", "one that the device has joined", self.run)
        table = read_sealed(self.folder / MEMBER, self.run)
        table.pop("run")
        return table

    def list_turns(self) -> list[int]:
        """The rounds of the turns that are here, ascending."""
        names = (TURN.fullmatch(each.name) for each in self.folder.glob("turn-*.json"))
        return sorted(int(name[1]) for name in names if name)

    def read_turn(self, round: int) -> Turn | None:
        """A turn, if it is here."""
        path = self._table(round)
        if not path.exists():
            return None
        table = read_sealed(path, self.run, Turn._fields, RESTORE)
        return Turn(*(table[key] for key in Turn._fields))

    def read_upload(self, turn: Turn) -> bytes:
        """The bytes that a turn sent."""
        path = self._upload(turn.round)
        with report_unreadable(path, RESTORE):
            content = path.read_bytes()
        must(digest(content) == turn.upload, path.name, "as it was written", f"others in {path}", RESTORE)
        return content

    def check_turn(self, round: int) -> None:
        """Raise unless a turn that the server used is here."""
        turns = self.list_turns()
        listing = f"turns {', '.join(map(str, turns)) or 'none'}"
        must(round in turns, "state", f"that of turn {round}, which the server used", listing, RESTORE)

    def read_state(self, round: int, first: Tree) -> Tree:
        """The state after a turn; ``first`` is laid out as all states are."""
        self.check_turn(round)
        turn = self.read_turn(round)
        assert turn is not None
        rows = tree.unpack_rows(read_tensors(self._state(round), turn.state, RESTORE), first)
        return rows[0] if rows else first

    def write_turn(self, round: int, question: str, head: dict[str, Any], body: bytes, state: Tree) -> None:
        """Write a turn, the table last; an earlier attempt at the same turn, which the server never used, goes."""
        remove_file(self._table(round))
        values = save(tree.pack_rows([state]))
        write_file(self._state(round), values)
        write_file(self._upload(round), body)
        write_sealed(self._table(round), Turn(round, question, head, digest(body), digest(values))._asdict(), self.run)

    def keep_turns(self, rounds: set[int]) -> None:
        """Remove all turns but those of these rounds, tables first; and what a kill left half-written."""
        for round in set(self.list_turns()) - rounds:
            remove_file(self._table(round))
        names = {
            path.name for round in rounds for path in (self._state(round), self._upload(round), self._table(round))
        }
        for path in self.folder.glob("turn-*"):
            if path.name not in names:
                remove_file(path)
        for path in self.folder.glob(".turn-*.moiety"):
            remove_file(path)

    def note_received(self, round: int, used: int, received: Params, *, settled: bool = True) -> None:
        """Keep the shared model that was last received, and which turn was the last that the server used.

        Where that is not ``settled``, the server has no checkpoint of it yet, and may take it back. The two files of
        models take turns, so that the one which the table names is never written over.
        """
        table = self._read_received_table()
        slot = 1 - table["file"] if table else 0
        content = save({name: p.contiguous() for name, p in received.items()})
        if table and table["digest"] == digest(content):
            slot = table["file"]
        else:
            write_file(self._model(slot), content)
        last = used if settled else self.last_settled()
        entry = {"round": round, "used": used, "settled": last, "file": slot, "digest": digest(content)}
        entry["names"] = list(received)
        write_sealed(self.folder / RECEIVED, entry, self.run)
        remove_file(self._model(1 - slot))

    def read_received(self) -> tuple[Params, int, int] | None:
        """The shared model that was last received, its round, and the last turn used; None before the first."""
        table = self._read_received_table()
        if table is None:
            return None
        values = read_tensors(self._model(table["file"]), table["digest"], RESTORE)
        return {name: values[name] for name in table["names"]}, table["round"], table["used"]

    def read_noise(self) -> tuple[int, float | None]:
        """How many draws of local noise were counted, and the noise that all of them have; None before the first."""
        path = self.folder / NOISE
        if not path.exists():
            return 0, None
        table = read_sealed(path, self.run, ("drawn", "noise"), RESTORE)
        return int(table["drawn"]), float(table["noise"])

    def count_noise(self, drawn: int, noise: float) -> None:
        """Count a draw of local noise, before it is made."""
        write_sealed(self.folder / NOISE, {"drawn": drawn, "noise": noise}, self.run)

    def last_settled(self) -> int:
        """The last turn that the server used and will not take back, -1 before any."""
        table = self._read_received_table()
        return -1 if table is None else int(table["settled"])

    def _read_received_table(self) -> dict[str, Any] | None:
        path = self.folder / RECEIVED
        if not path.exists():
            return None
        table = read_sealed(path, self.run, ("round", "used", "settled", "file", "digest", "names"), RESTORE)
        must(is_whole(table["file"]) and table["file"] in (0, 1), RECEIVED, "as it was written", f"another in {path}")
        return table

    def _model(self, slot: int) -> Path:
        return self.folder / f"received-{slot}.safetensors"

    def _table(self, round: int) -> Path:
        return self.folder / f"turn-{round:08d}.json"

    def _state(self, round: int) -> Path:
        return self.folder / f"turn-{round:08d}.safetensors"

    def _upload(self, round: int) -> Path:
        return self.folder / f"turn-{round:08d}.upload"
