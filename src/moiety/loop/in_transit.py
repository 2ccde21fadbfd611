"""What is in transit on a virtual clock: uploads that have not arrived, broadcasts that are still in use."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from moiety import tree
from moiety.errors import report_errors
from moiety.types import ClientUpdate, Params, Tree


class Message(NamedTuple):
    """A turn of a client whose upload has not arrived; messages sort by their arrival.

    ``due`` is a virtual time or a round, ``number`` counts messages and so decides between those due together. ``turn``
    is the round whose batches and draws the client worked with, ``version`` counts the server's steps (for delays in
    rounds: the rounds) before its broadcast. ``update`` is what the client sends, None where that is computed on
    arrival; ``state`` is what is needed on arrival, None where nothing is.
    """

    due: float
    number: int
    client: int
    turn: int
    version: int
    finite: bool
    update: ClientUpdate | None
    state: Tree


@dataclass
class InTransit:
    """All messages under way, and what the clock counts."""

    messages: list[Message] = field(default_factory=list)
    """A heap."""
    versions: dict[int, Params] = field(default_factory=dict)
    """Broadcasts by the round that they were first made in."""
    turns: dict[int, int] = field(default_factory=dict)
    """How many turns clients have had."""
    staleness: list[int] = field(default_factory=list)
    """The staleness of each upload that arrived since the last evaluation."""
    time: float = 0.0
    count: int = 0
    """How many messages were sent."""
    steps: int = 0
    """How often the server has moved."""

    def send(
        self, due: float, client: int, turn: int, version: int, finite: bool, update: ClientUpdate | None, state: Tree
    ) -> None:
        """Put a message on its way, with copies: the engine may write to the memory of its results again."""
        copies = (None if value is None else tree.clone(value) for value in (update, state))
        heapq.heappush(self.messages, Message(due, self.count, client, turn, version, finite, *copies))
        self.count += 1

    def receive_next(self) -> Message:
        """Take out the message that arrives first."""
        return heapq.heappop(self.messages)

    def count_turn(self, client: int) -> None:
        """Count a turn of a client."""
        self.turns[client] = self.turns.get(client, 0) + 1

    def copy(self) -> InTransit:
        """A copy to go back to if the round fails. Turns stay: only a round that succeeds counts them."""
        messages, versions, staleness = list(self.messages), dict(self.versions), list(self.staleness)
        return replace(self, messages=messages, versions=versions, staleness=staleness)


FILES = ("in_transit.safetensors", "working.safetensors")
"""The first file has what crosses or has crossed, the second what stays on clients."""
NUMBERS = ("time", "count", "steps")


def pack_in_transit(transit: InTransit) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """A note for JSON, and tensors by file: uploads and broadcasts in one, states of clients in the other."""
    messages = sorted(transit.messages)
    updates = [m.update for m in messages if m.update is not None]
    note = {
        **{name: getattr(transit, name) for name in NUMBERS},
        "staleness": transit.staleness,
        "turns": {str(client): count for client, count in transit.turns.items()},
        "messages": [list(m[:-2]) for m in messages],
        "versions": list(transit.versions),
        # The order of names, which a file does not keep, may decide the order of sums.
        "up": list(updates[0].upload) if updates else [],
        "down": next((list(each) for each in transit.versions.values()), []),
    }
    shared = tree.pack_rows(updates, "update/") | tree.pack_rows(list(transit.versions.values()), "version/")
    states = tree.pack_rows([m.state for m in messages if m.state is not None])
    return note, dict(zip(FILES, (shared, states), strict=True))


def unpack_in_transit(
    transit: InTransit, note: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]], first: Tree
) -> None:
    """Put what ``pack_in_transit`` gave into a fresh record; ``first`` is a state as all are laid out."""
    shared, states = (files[name] for name in FILES)
    with report_errors("checkpoint", "whole in what is under way", (KeyError, TypeError, ValueError, AttributeError)):
        # An empty dict takes whatever stands there.
        up: Tree = ClientUpdate({name: {} for name in note["up"]}, {}, {})  # type: ignore[misc, arg-type]
        updates = tree.unpack_rows(shared, up, "update/")
        versions = tree.unpack_rows(shared, {name: {} for name in note["down"]}, "version/")
        rows = tree.unpack_rows(states, first)
        missing: list[None] = [None] * len(note["messages"])
        transit.messages = [
            Message(*(*numbers, update, state))
            for numbers, update, state in zip(note["messages"], updates or missing, rows or missing, strict=True)
        ]
        transit.versions = dict(zip(note["versions"], versions, strict=True))
        transit.turns = {int(client): count for client, count in note["turns"].items()}
        transit.staleness = list(note["staleness"])
        for name in NUMBERS:
            setattr(transit, name, note[name])
