"""Answers of nodes, pulled from the SuperLink one by one: bounded before they are read, each refused for itself.

Flower's own grid pulls answers together. It reads each whole, however large it is, an answer that it cannot read ends
the call for all, and whom an answer is for is what its sender wrote into it. Pulling them one by one needs parts of
Flower that are not public (``flower_private.py``). With another version of Flower its grid is asked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from moiety.deploy.calls import is_trouble
from moiety.deploy.flower_private import (
    Head,
    confirm_answer,
    find_http_client,
    has_parts,
    join_parts,
    list_array_parts,
    pull_heads,
    pull_parts,
)
from moiety.deploy.letters import LostError
from moiety.errors import MoietyError, must, refuse, tell_error

MOST_PARTS = 4096
"""The most parts of an answer. Flower cuts arrays into parts of 5 MiB."""
LOOK = 0.5
"""Seconds between two looks for a part that is missing."""
KEEP, MOST_LATE = 7200.0, 4096
"""Seconds for which an answer with missing parts is kept, and how many are."""
PATH = "/v1/runtime/pull-object"
"""Where the SuperLink gives a part of a message."""

log = logging.getLogger("moiety")

Answer = tuple[str, Message | MoietyError]
"""The ticket of a letter, and what was answered, or why that cannot be read."""


class Late(NamedTuple):
    """An answer of which parts are missing: its sender is still sending them, or never will."""

    head: Head
    sizes: dict[str, int] | None
    """The bytes of the parts that have come, by name; None before the first look.

    Parts are not kept: they are pulled again when all are there.
    """
    due: float
    """When to look for more."""
    since: float


def pull_answers(grid: Grid, tickets: set[str], largest: int, late: dict[str, Late] | None = None) -> Iterator[Answer]:
    """The answers that are there now; of one with more than ``largest`` bytes no more than these are read.

    The SuperLink names each answer once. One that is named before all its parts are there is kept in ``late``, by
    ticket, and comes with a later call: nobody else waits for it.
    """
    if has_parts(grid):
        yield from _pull_apart(grid, tickets, largest, {} if late is None else late)
        return
    for message in grid.pull_messages(tickets):
        yield message.metadata.reply_to_message_id, message


def _pull_apart(grid: Grid, tickets: set[str], largest: int, late: dict[str, Late]) -> Iterator[Answer]:
    refuse_large_parts(find_http_client(grid), largest)
    now = time.monotonic()
    for ticket in [ticket for ticket, each in late.items() if now - each.since > KEEP]:
        del late[ticket]
    others = tickets - set(late)  # of an answer that it has named, the SuperLink says that there is none
    entries = [each for ticket, each in late.items() if ticket in tickets and each.due <= now]
    entries += [Late(head, None, now, now) for head in (pull_heads(grid, others) if others else ())]
    for entry in entries:
        head = entry.head
        answer = _pull_or_refuse(grid, entry, largest)
        if isinstance(answer, dict):
            late.pop(head.ticket, None)
            late[head.ticket] = entry._replace(sizes=answer, due=now + LOOK)
            while len(late) > MOST_LATE:
                del late[next(iter(late))]
            continue
        late.pop(head.ticket, None)
        try:
            confirm_answer(grid, head)  # also one that is refused: the SuperLink need not keep it
        except httpx.HTTPError as error:  # it names no answer twice, so one that is here must not be lost
            if not is_trouble(error):
                raise
            log.warning("the SuperLink keeps an answer that it need not keep: %s", error)
        yield head.ticket, answer


def _pull_or_refuse(grid: Grid, entry: Late, largest: int) -> Message | MoietyError | dict[str, int]:
    """One answer, or why it cannot be read, or the bytes of its parts so far."""
    try:
        return _pull_one(grid, entry, largest)
    except LostError as error:
        return error
    except httpx.HTTPError as error:
        if not is_trouble(error):
            raise
        return LostError(f"the SuperLink could not give the answer: {error}")
    except Exception as error:
        return MoietyError(f"`message` must be one that can be read, got {tell_error(error, 200)}")


def _pull_one(grid: Grid, entry: Late, largest: int) -> Message | dict[str, int]:
    """One answer, or the bytes of its parts so far, by name, where some are missing. Parts are counted as they come."""
    head, sizes = entry.head, entry.sizes
    must(len(head.parts) <= MOST_PARTS, "message", f"of at most {MOST_PARTS} parts", len(head.parts))
    names = list(dict.fromkeys(head.parts))
    if sizes is not None:
        sizes = _count_more(grid, names, sizes, largest)
        if len(sizes) < len(names):
            return sizes
    contents = _pull_some(grid, names, largest)
    if len(contents) < len(names):
        return measure(contents)
    size = measure_arrays(contents)
    must(size <= largest, "message", f"of at most {largest} bytes", size)
    message = join_parts(head, contents)
    if not isinstance(message, Message):
        refuse("message", "a message of Flower", type(message).__name__)
    return message


def _count_more(grid: Grid, names: Sequence[str], sizes: dict[str, int], largest: int) -> dict[str, int]:
    """The bytes of the parts that came before and have come since; one question to the SuperLink where none has."""
    missing = [name for name in names if name not in sizes]
    for some in (missing[:1], missing[1:]):
        parts = _pull_some(grid, some, largest, sum(sizes.values()))
        if not parts:
            break
        sizes = sizes | measure(parts)
    return sizes


def _pull_some(grid: Grid, names: Sequence[str], largest: int, size: int = 0) -> dict[str, bytes]:
    """Those of the parts that are there; ``size`` bytes have come before."""
    return pull_parts(grid, names, lambda pull: count_bytes(pull, largest, size)) if names else {}


def measure(parts: Mapping[str, bytes]) -> dict[str, int]:
    """The bytes of parts, by name."""
    return {name: len(part) for name, part in parts.items()}


def measure_arrays(contents: Mapping[str, bytes]) -> int:
    """The bytes of all arrays among the parts of an answer, written out: an array may name one part many times."""
    return sum(len(contents[name]) for content in contents.values() for name in list_array_parts(content))


def count_bytes(pull: Callable[[str], bytes], largest: int, size: int = 0) -> Callable[[str], bytes]:
    """``pull``, which gives a part by its name, until parts and ``size`` have more than ``largest`` bytes together."""
    lock = threading.Lock()

    def pull_part(name: str) -> bytes:
        nonlocal size
        part = pull(name)
        with lock:
            size += len(part)
            must(size <= largest, "message", f"of at most {largest} bytes", "more")
        return part

    return pull_part


def refuse_large_parts(client: httpx.Client, largest: int) -> None:
    """Let a client refuse a part of a message that says it is larger than ``largest`` bytes, before it reads it."""

    def look_at_length(response: httpx.Response) -> None:
        size = int(response.headers.get("content-length") or 0)
        if response.request.url.path == PATH:
            must(size <= largest, "message", f"of at most {largest} bytes", size)

    client.event_hooks = {**client.event_hooks, "response": [look_at_length]}
