"""A letter: what crosses between server and devices, as a small table and at most one piece of bytes.

Only this file and ``app.py`` know how Flower carries them. The table is JSON text; the bytes are what ``transport``
packed, one array of uint8.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from moiety.errors import MoietyError, is_real, must

HEAD, BODY, KEY = "head", "body", "b"
REFUSED = 400
"""The code of an error reply of ours: the reason is one line of moiety."""
LOST = (3, 4, 5, 8)
"""Flower's codes for a message or an answer that is gone, a node that is away, and a worker that was killed."""
LONGEST_HEAD = 1 << 24
WIDEST = 1 << 63
"""Whole numbers in a head are smaller than this: others have no place in an array, and some in no float."""
LARGEST = 1e18
"""The largest number that is averaged with those of others. No float32 holds the square of one that is much larger."""


class LostError(MoietyError):
    """A letter or its answer was lost on the way: nobody refused it."""


class LetterError(MoietyError):
    """What is wrong with a letter. Its sender may read the text: it says nothing of the receiver's rows and folders."""


@contextlib.contextmanager
def blame_letter() -> Iterator[None]:
    """Turn moiety's errors within the block, which are about nothing but a letter, into those that its sender reads."""
    try:
        yield
    except LetterError:
        raise
    except MoietyError as error:
        raise LetterError(str(error)) from error


def tell_sender(error: Exception) -> str:
    """What the sender of a letter is told of an error that it caused.

    The text of any other error may hold a cell of a table or a path. It stays here: the sender gets the kind of error,
    and what the operating system calls it.

    >>> tell_sender(ValueError("could not convert 'John Smith'"))
    "ValueError: the device's own log says more."
    """
    if isinstance(error, LetterError):
        return str(error)
    cause = error if isinstance(error, OSError) else error.__cause__
    system = f" ({os.strerror(cause.errno)})" if isinstance(cause, OSError) and cause.errno else ""
    return f"{type(error).__name__[:60]}{system}: the device's own log says more."


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
    return Letter(read_head(str(text)), bytes(body))


def read_head(text: str) -> dict[str, Any]:
    """The table that a head holds. All that is wrong with a single value is found here, once, for all who read it.

    >>> read_head('{"round": 3, "info": {"loss": 1e999}}')
    Traceback (most recent call last):
    moiety.errors.MoietyError: `message` must be one whose head has finite numbers and whole text, got another.
    """
    try:
        head = json.loads(text)
        plain = _is_plain(head)
    except (ValueError, RecursionError):
        head, plain = None, True
    must(isinstance(head, dict), "message", "one with a table as its head", "another")
    must(plain, "message", "one whose head has finite numbers and whole text", "another")
    table: dict[str, Any] = head
    return table


def _is_plain(value: Any) -> bool:
    """Whether all numbers in a table are finite and fit into 64 bits, and all text can be written to a file."""
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    return value is None or (abs(value) < WIDEST if isinstance(value, int) else math.isfinite(value))


def clean_text(text: object, most: int = 300) -> str:
    r"""What another party wrote, in one line that a terminal and a log can show.

    >>> clean_text("disk full\n\x1b[2J" + "!" * 1000, most=16)
    'disk full [2J!!!'
    """
    begin = str(text)[: 4 * most]
    return " ".join("".join(each if each.isprintable() else " " for each in begin).split())[:most]


def read_noise(head: Mapping[str, Any]) -> float:
    """The noise that a letter asks for."""
    noise: Any = head.get("noise")
    must(is_small(noise) and noise > 0, "noise", f"a number > 0 and up to {LARGEST:g}", f"{noise!r:.40}")
    return float(noise)


def is_small(value: Any) -> bool:
    """Whether this is a number that can be averaged with those of others: the result is finite."""
    return is_real(value) and abs(value) <= LARGEST


def read_message(message: Message, largest: int) -> Letter:
    """The letter of a message; an error reply is raised as moiety's own error."""
    if message.has_error():
        error = message.error
        reason = clean_text(error.reason)
        if error.code == REFUSED:
            raise MoietyError(reason)
        kind = LostError if error.code in LOST else MoietyError
        raise kind(f"error {error.code} of the node: {reason}")
    return read_record(message.content, largest)


def refuse_message(message: Message, reason: str) -> Message:
    """The reply that refuses a message in one line."""
    return Message(Error(code=REFUSED, reason=" ".join(reason.split())), reply_to=message)
