"""A letter: what crosses between server and devices, as a small table and at most one piece of bytes.

Only this file and ``app.py`` know how Flower carries them. The table is JSON text; the bytes are what ``transport``
packed, one array of uint8.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from moiety.errors import MoietyError, must

HEAD, BODY, KEY = "head", "body", "b"
REFUSED = 400
"""The code of an error reply of ours: the reason is one line of moiety."""
LOST = (3, 4, 5, 8)
"""Flower's codes for a message or an answer that is gone, a node that is away, and a worker that was killed."""
LONGEST_HEAD = 1 << 24


class LostError(MoietyError):
    """A letter or its answer was lost on the way: nobody refused it."""


class Letter(NamedTuple):
    """What one side tells the other."""

    head: dict[str, Any]
    body: bytes = b""


def write_record(letter: Letter) -> RecordDict:
    """The letter as Flower carries it."""
    record = RecordDict({HEAD: ConfigRecord({"json": json.dumps(letter.head)})})
    if letter.body:
        size = len(letter.body)
        record[BODY] = ArrayRecord({KEY: Array(dtype="uint8", shape=(size,), stype="moiety.raw", data=letter.body)})
    return record


def read_record(record: RecordDict, largest: int) -> Letter:
    """The letter that a record holds; one that is not a letter, or has more than ``largest`` bytes, is refused."""
    extra = sorted(set(record) - {HEAD, BODY})
    must(not extra, "message", f"one with {HEAD} and {BODY} alone", ", ".join(extra)[:80])
    try:
        text = record.config_records[HEAD]["json"]
        bodies = list(record.array_records[BODY].values()) if BODY in record.array_records else []
    except (KeyError, AttributeError, TypeError):
        raise MoietyError("`message` must be one of moiety, got another.") from None
    must(isinstance(text, str) and len(text) <= LONGEST_HEAD, "message", "one with a short head", "another")
    must(len(bodies) <= 1, "message", "one with at most one array", len(bodies))
    body = bodies[0].data if bodies else b""
    must(len(body) <= largest, "message", f"of at most {largest} bytes", len(body), "See `largest_message`.")
    try:
        head = json.loads(str(text))
    except (ValueError, RecursionError):
        head = None
    must(isinstance(head, dict), "message", "one with a table as its head", "another")
    return Letter(head, bytes(body))


def read_message(message: Message, largest: int) -> Letter:
    """The letter of a message; an error reply is raised as moiety's own error."""
    if message.has_error():
        error = message.error
        if error.code == REFUSED:
            raise MoietyError(error.reason)
        kind = LostError if error.code in LOST else MoietyError
        raise kind(f"error {error.code} of the node: {error.reason}")
    return read_record(message.content, largest)


def refuse_message(message: Message, reason: str) -> Message:
    """The reply that refuses a message in one line."""
    return Message(Error(code=REFUSED, reason=" ".join(reason.split())), reply_to=message)
