"""Letters to nodes and their answers, over Flower's grid: pushed, then pulled as they come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from moiety.deploy.answers import Late, pull_answers
from moiety.deploy.calls import Patience, is_trouble, store_patiently
from moiety.deploy.flower_private import (
    change_rule,
    change_store,
    find_invoker,
    has_parts,
    push_letters,
    shorten_pauses,
)
from moiety.deploy.letters import LONGEST_HEAD, Letter, LostError, read_message, write_record
from moiety.errors import MoietyError, must, tell_error

TYPES = {
    "hello": "query.hello",
    "welcome": "query.welcome",
    "train": "train",
    "evaluate": "evaluate",
    "weigh": "query.weigh",
    "end": "query.end",
}
"""The kinds of letters, and Flower's types of messages that carry them."""
SHORTEST, LONGEST = 0.02, 0.25
"""Seconds between two looks for answers; they grow while nothing comes."""
SPARE = 1 << 20
"""Bytes that Flower adds to a letter, and many more."""
PAUSES = (0.5, 1.0, 2.0, 4.0, *(8.0,) * 12)
"""Seconds before each new call of a SuperLink that could not answer."""

log = logging.getLogger("moiety")
T = TypeVar("T")


def outlive_trouble(grid: Grid) -> None:
    """Let every call of the server's process be made again while the SuperLink has trouble of its own.

    By itself Flower stops giving signs of life at the first such error, and the SuperLink ends the run a minute later.
    """
    if has_parts(grid):
        change_rule(shorten_pauses(find_invoker(grid)), Patience().soften)
        change_store(grid, store_patiently)


class Mailbox:
    """Sends letters to nodes and collects their answers, whose body may have at most ``largest`` bytes."""

    def __init__(self, grid: Grid, largest: int) -> None:
        self.grid, self.largest = grid, largest
        self.late: dict[str, Late] = {}
        """Answers of which parts are missing, by ticket."""

    def online(self) -> set[int]:
        """The nodes that are connected."""
        return set(self._call(self.grid.get_node_ids))

    def _call(self, function: Callable[[], Iterable[T]]) -> Iterable[T]:
        """Call the SuperLink; again where it has trouble of its own, such as a database that was busy for too long."""
        for pause in PAUSES:
            try:
                return function()
            except (httpx.HTTPStatusError, LostError) as error:
                if not (is_trouble(error) or isinstance(error, LostError)):
                    raise
                log.warning("the SuperLink could not answer, asked again in %g s: %s", pause, error)
            time.sleep(pause)
        return function()

    def send(self, kind: str, letters: Sequence[tuple[int, Letter]], group: str, ttl: float) -> list[str]:
        """Send a letter to each of the nodes; a ticket for each answer."""

        def push() -> list[str]:  # each try has messages of its own: the SuperLink takes none twice
            messages = [
                Message(write_record(letter), dst_node_id=node, message_type=TYPES[kind], ttl=ttl, group_id=group)
                for node, letter in letters
            ]
            return push_letters(self.grid, messages)

        tickets = list(self._call(push)) if letters else []
        size = max((len(letter.body) for _, letter in letters), default=0)
        must(len(tickets) == len(letters), "message", "one that the SuperLink takes", f"one of {size} bytes")
        return tickets

    def pull(self, tickets: Iterable[str]) -> Iterator[tuple[str, Letter | MoietyError]]:
        """The answers that are there now, or why one cannot be used."""
        pending, most = set(tickets), self.largest + LONGEST_HEAD + SPARE
        for ticket, answer in (
            self._call(lambda: list(pull_answers(self.grid, pending, most, self.late))) if pending else ()
        ):
            if ticket not in pending:
                continue
            if isinstance(answer, MoietyError):
                yield ticket, answer
                continue
            try:
                yield ticket, read_message(answer, self.largest)
            except Exception as error:  # whatever a node sends, the others go on
                yield ticket, error if isinstance(error, MoietyError) else MoietyError(tell_error(error))

    def collect(self, tickets: Iterable[str], until: float) -> Iterator[tuple[str, Letter | MoietyError]]:
        """Answers as they come, until all are there or the moment (of ``time.monotonic``) has passed."""
        pending, pause = set(tickets), SHORTEST
        while pending:
            some = False
            for ticket, answer in self.pull(pending):
                pending.discard(ticket)
                some = True
                yield ticket, answer
            seconds = until - time.monotonic()
            if not pending or seconds <= 0:
                return
            pause = SHORTEST if some else min(pause * 1.5, LONGEST)
            time.sleep(min(pause, max(seconds, 0.0)))
