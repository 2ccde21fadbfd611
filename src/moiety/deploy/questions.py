"""Questions to nodes that each must answer once, and that are asked again where an answer does not come."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from moiety.deploy.letters import Letter, LostError
from moiety.deploy.mailbox import Mailbox
from moiety.errors import MoietyError

log = logging.getLogger("moiety")

FIRST = 30.0
"""Seconds after which a node that has not answered is asked again; each time twice as many."""
SOON = 0.5
"""Seconds after which a node whose letter was lost is asked again; each time twice as many."""
REFUSED = 60.0
"""Seconds after which a node that was refused is asked again: its disk may have room by then."""


class Questions:
    """Letters of one kind to nodes.

    A letter can be lost: a line is cut while it is handed over, a node's process is killed with the letter in hand. The
    node is well and waits for the next one, so it is asked again. It is not asked too often, for it may be busy loading
    its data. Whichever letter it answers first counts.
    """

    def __init__(self, mailbox: Mailbox, kind: str, ttl: float) -> None:
        self.mailbox, self.kind, self.ttl = mailbox, kind, ttl
        self.pending: dict[str, int] = {}
        """Nodes by ticket; one that was asked again has several."""
        self.due: dict[int, float] = {}
        """When a node may be asked again."""
        self.attempts: Counter[int] = Counter()
        """How often a node was asked since it last answered."""
        self.losses: Counter[int] = Counter()
        """How many of its letters were lost since then."""

    def may_ask(self, node: int) -> bool:
        """Whether it is time to ask a node, for the first time or again."""
        return time.monotonic() >= self.due.get(node, 0.0)

    def ask(self, letters: Sequence[tuple[int, Letter]]) -> None:
        """Send a letter to each of the nodes."""
        tickets = self.mailbox.send(self.kind, letters, "join", self.ttl)
        for ticket, (node, _) in zip(tickets, letters, strict=True):
            self.pending[ticket] = node
            self.due[node] = time.monotonic() + min(FIRST * 2 ** self.attempts[node], self.ttl)
            self.attempts[node] += 1

    def collect(self, wait: float) -> Iterator[tuple[int, Letter]]:
        """The answers that come within ``wait`` seconds, by node; a node that refuses is put off."""
        for ticket, answer in self.mailbox.collect(list(self.pending), time.monotonic() + wait):
            node = self.pending.pop(ticket, None)
            if node is None:  # it has answered an earlier letter
                continue
            if isinstance(answer, LostError):
                self._note_loss(node, answer)
            elif isinstance(answer, MoietyError):
                self.put_off(node, str(answer))
            else:
                self._forget(node)
                yield node, answer

    def put_off(self, node: int, why: str) -> None:
        """Ask a node that cannot take part again after a while."""
        self._forget(node)
        self.due[node] = time.monotonic() + REFUSED
        log.warning("node %d cannot take part: %s", node, why)

    def expects_answers(self) -> bool:
        """Whether a node that was asked once has still time to answer."""
        return any(self.attempts[node] == 1 for node in self.pending.values())

    def _note_loss(self, node: int, error: MoietyError) -> None:
        if node not in self.pending.values():
            self.due[node] = time.monotonic() + min(SOON * 2 ** self.losses[node], REFUSED)
            log.info("a letter to node %d was lost, it is asked again: %s", node, error)
        self.losses[node] += 1

    def _forget(self, node: int) -> None:
        self.pending = {ticket: each for ticket, each in self.pending.items() if each != node}
        for table in (self.due, self.attempts, self.losses):
            table.pop(node, None)
