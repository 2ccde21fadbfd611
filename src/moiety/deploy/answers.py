"""Answers of nodes, pulled from the SuperLink one by one: bounded before they are read, each refused for itself.

Flower's own grid pulls answers together. It reads each whole, however large it is, an answer that it cannot read ends
the call for all, and whom an answer is for is what its sender wrote into it. Pulling them one by one needs parts of
Flower that are not public (``flower_private.py``). With another version of Flower its grid is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

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
PATH = "/v1/runtime/pull-object"
"""Where the SuperLink gives a part of a message."""

Answer = tuple[str, Message | MoietyError]
"""The ticket of a letter, and what was answered, or why that cannot be read."""


def pull_answers(grid: Grid, tickets: set[str], largest: int) -> Iterator[Answer]:
    """The answers that are there now; of one with more than ``largest`` bytes no more than these are read."""
    if has_parts(grid):
        yield from _pull_apart(grid, tickets, largest)
        return
    for message in grid.pull_messages(tickets):
        yield message.metadata.reply_to_message_id, message


def _pull_apart(grid: Grid, tickets: set[str], largest: int) -> Iterator[Answer]:
    refuse_large_parts(find_http_client(grid), largest)
    for head in pull_heads(grid, tickets):
        message: Message | MoietyError
        try:
            message = _pull_one(grid, head, largest)
        except httpx.HTTPError:  # the SuperLink's own trouble
            raise
        except LostError as error:
            message = error
        except Exception as error:
            message = MoietyError(f"`message` must be one that can be read, got {tell_error(error, 200)}")
        confirm_answer(grid, head)  # also one that is refused: the SuperLink need not keep it
        yield head.ticket, message


def _pull_one(grid: Grid, head: Head, largest: int) -> Message:
    """One answer. Its parts are counted as they come."""
    must(len(head.parts) <= MOST_PARTS, "message", f"of at most {MOST_PARTS} parts", len(head.parts))
    contents = pull_parts(grid, head, lambda pull: count_bytes(pull, largest))
    size = measure_arrays(contents)
    must(size <= largest, "message", f"of at most {largest} bytes", size)
    message = join_parts(head, contents)
    if not isinstance(message, Message):
        refuse("message", "a message of Flower", type(message).__name__)
    return message


def measure_arrays(contents: Mapping[str, bytes]) -> int:
    """The bytes of all arrays among the parts of an answer, written out: an array may name one part many times."""
    return sum(len(contents[name]) for content in contents.values() for name in list_array_parts(content))


def count_bytes(pull: Callable[[str], bytes], largest: int) -> Callable[[str], bytes]:
    """``pull``, which gives a part by its name, until parts have more than ``largest`` bytes together."""
    size, lock = 0, threading.Lock()

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
