"""What the leading process and its workers tell each other: JSON, and the numbers of rows as bytes. Nothing is pickled.

An order is the length of its JSON part (8 bytes), that part, and then the arrays of all jobs one after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np

from moiety.engines.base import RoundInfo
from moiety.engines.rows import Job, Rows
from moiety.errors import MoietyError
from moiety.transport import PrivacyError

Share = Sequence[tuple[int, Job]]
"""Jobs, each with the slot of its state and its result."""
ERRORS = (PrivacyError, MoietyError)
"""The errors that a worker passes on as they are, the narrower first."""


def pack_order(function: str, share: Share, info: RoundInfo) -> bytes:
    """The order to run a function for a share of the clients. Their states are not in it: they lie in mapped memory."""
    heads, arrays = [], []
    for slot, job in share:
        rows = [(name, len(each.order), len(each.sizes)) for name, each in job.rows.items()]
        heads.append((slot, job.client, job.examples, job.key, job.turn, job.round_trip, rows))
        arrays += [array for each in job.rows.values() for array in each]
    head = json.dumps([function, heads, info], default=np.generic.item).encode()
    numbers = np.concatenate(arrays, dtype=np.int64) if arrays else np.empty(0, np.int64)
    return b"".join((len(head).to_bytes(8, "little"), head, numbers.data))


def unpack_order(packed: bytes) -> tuple[str, list[tuple[int, Job]], RoundInfo]:
    """The function, the share (its jobs without states) and the round of an order."""
    end = 8 + int.from_bytes(packed[:8], "little")
    function, heads, info = json.loads(packed[8:end])
    numbers = np.frombuffer(packed, np.int64, offset=end).copy()  # PyTorch wants memory that it may write to
    share, at = [], 0
    for slot, client, examples, key, turn, round_trip, phases in heads:
        rows = {}
        for name, length, batches in phases:
            middle, stop = at + length, at + length + batches
            rows[name] = Rows(numbers[at:middle], numbers[middle:stop])
            at = stop
        share.append((slot, Job(client, rows, examples, None, key, turn, round_trip)))
    return function, share, RoundInfo(*info)


def pack_answer(answer: Iterable[str] | Exception) -> bytes:
    """A worker's answer: its warnings, or the error that stopped it. Unknown errors become a RuntimeError."""
    if not isinstance(answer, Exception):
        return json.dumps(["", list(answer)]).encode()
    for kind in ERRORS:
        if isinstance(answer, kind):
            return json.dumps([kind.__name__, str(answer)]).encode()
    return json.dumps([RuntimeError.__name__, repr(answer)]).encode()


def unpack_answer(packed: bytes) -> list[str] | Exception:
    """The warnings or the error of an answer."""
    kind, content = json.loads(packed)
    if not kind:
        warned: list[str] = content
        return warned
    return {each.__name__: each for each in ERRORS}.get(kind, RuntimeError)(content)
