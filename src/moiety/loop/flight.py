"""What is under way on a virtual clock: uploads that have not arrived, broadcasts that are still in use."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from moiety import tree
from moiety.errors import MoietyError, message
from moiety.types import ClientUpdate, Params, Tree


class Parcel(NamedTuple):
    """A turn of a client whose upload has not arrived; parcels are in the order of their arrival.

    ``due`` is a virtual time or a round, ``number`` counts parcels and so decides between those due together. ``turn``
    is the round whose batches and chance the client worked with, ``version`` counts the server's steps (for delays in
    rounds: the rounds) before its broadcast. ``update`` is what it sends, None where that is computed on arrival;
    ``state`` is what is needed on arrival, None where nothing is.
    """

    due: float
    number: int
    client: int
    turn: int
    version: int
    fine: bool
    update: ClientUpdate | None
    state: Tree


@dataclass
class Flight:
    """All that is under way, and what the clock counts."""

    parcels: list[Parcel] = field(default_factory=list)
    """A heap."""
    versions: dict[int, Params] = field(default_factory=dict)
    """Broadcasts by the round that they were first made in."""
    turns: dict[int, int] = field(default_factory=dict)
    """How many turns clients have had."""
    staleness: list[int] = field(default_factory=list)
    """Of the uploads that arrived since the last evaluation."""
    time: float = 0.0
    sent: int = 0
    steps: int = 0
    """How often the server has moved."""

    def send(
        self, due: float, client: int, turn: int, version: int, fine: bool, update: ClientUpdate | None, state: Tree
    ) -> None:
        """Put a parcel on its way, in memory of its own: an engine's results may lie where it writes again."""
        parcel = Parcel(due, self.sent, client, turn, version, fine, _copy(update), _copy(state))
        heapq.heappush(self.parcels, parcel)
        self.sent += 1

    def next(self) -> Parcel:
        """Take out the parcel that arrives first."""
        return heapq.heappop(self.parcels)

    def turn(self, client: int) -> int:
        """The number of this turn of a client, counted from 0."""
        at = self.turns.get(client, 0)
        self.turns[client] = at + 1
        return at


FILES = ("flight.safetensors", "working.safetensors")
"""What crosses or has crossed, and what stays on clients."""
NUMBERS = ("time", "sent", "steps")


def packed(flight: Flight) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """A note for JSON, and tensors by file: uploads and broadcasts in one, states of clients in the other."""
    parcels = sorted(flight.parcels)
    updates = [p.update for p in parcels if p.update is not None]
    note = {
        **{name: getattr(flight, name) for name in NUMBERS},
        "staleness": flight.staleness,
        "turns": {str(client): count for client, count in flight.turns.items()},
        "parcels": [[p.due, p.number, p.client, p.turn, p.version, p.fine] for p in parcels],
        "versions": list(flight.versions),
        # The order of names, which a file does not keep, may decide the order of sums.
        "up": list(updates[0].upload) if updates else [],
        "down": next((list(each) for each in flight.versions.values()), []),
    }
    shared = {f"update/{k}": v for k, v in _stacked(updates).items()}
    shared |= {f"version/{k}": v for k, v in _stacked(list(flight.versions.values())).items()}
    states = _stacked([p.state for p in parcels if p.state is not None])
    return note, dict(zip(FILES, (shared, states), strict=True))


def unpack(flight: Flight, note: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]], first: Tree) -> None:
    """Put what ``packed`` gave into a fresh flight; ``first`` is a state as all are laid out."""
    shared, states = (files[name] for name in FILES)
    try:
        held = {part: _rows(shared, f"{part}/") for part in ("update", "version")}
        # An empty dict takes whatever stands there.
        up: Tree = ClientUpdate({name: {} for name in note["up"]}, {}, {})  # type: ignore[misc, arg-type]
        updates = [tree.refill(up, row) for row in held["update"]]
        versions = [tree.refill({name: {} for name in note["down"]}, row) for row in held["version"]]
        kept = [tree.refill(first, row) for row in _rows(states, "")]
        missing: list[None] = [None] * len(note["parcels"])
        parcels = [
            Parcel(*(*numbers, update, state))
            for numbers, update, state in zip(note["parcels"], updates or missing, kept or missing, strict=True)
        ]
        flight.versions = dict(zip(note["versions"], versions, strict=True))
        flight.turns = {int(client): count for client, count in note["turns"].items()}
        flight.parcels, flight.staleness = parcels, list(note["staleness"])
        flight.time, flight.sent, flight.steps = (note[name] for name in NUMBERS)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, MoietyError):
            raise
        raise MoietyError(message("checkpoint", "whole in what is under way", repr(error))) from None


def _copy(value: Tree) -> Tree:
    return None if value is None else tree.map_leaves(torch.clone, value)


def _stacked(trees: list[Tree]) -> dict[str, Tensor]:
    """One tensor per leaf."""
    return {k: v.contiguous() for k, v in tree.leaves(tree.stack(trees)).items()} if trees else {}


def _rows(tensors: Mapping[str, Tensor], start: str) -> list[dict[str, Tensor]]:
    """The inverse: for each row its leaves, in memory of their own."""
    columns = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
    count = len(next(iter(columns.values()))) if columns else 0
    return [{k: v[row].clone() for k, v in columns.items()} for row in range(count)]
