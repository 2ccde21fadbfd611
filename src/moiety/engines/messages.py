"""What the leading process and its workers tell each other: JSON, and the numbers of rows as bytes. Nothing is pickled.

An order is the length of its JSON part (8 bytes), that part, and then the arrays of all jobs one after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from moiety.engines.base import RoundInfo
from moiety.engines.jobs import Jobs
from moiety.engines.rows import AlikeRows, Job, Rows
from moiety.errors import MoietyError
from moiety.transport import PrivacyError

Share = tuple[list[int], Sequence[Job]]
"""The slots of the states and the results of jobs, and the jobs."""
ERRORS = (PrivacyError, MoietyError)
"""The errors that a worker passes on as they are, the narrower first."""


def pack_order(function: str, share: Share, info: RoundInfo) -> bytes:
    """The order to run a function for a share of the clients. Their states are not in it: they lie in mapped memory."""
    slots, jobs = share
    heads: list[Any] = []
    arrays: list[np.ndarray] = []
    alike = None
    if isinstance(jobs, Jobs):
        alike = jobs.clients, jobs.examples, jobs.key, jobs.turn
        for name, plan in jobs.rows.items():
            heads.append((name, plan.orders.shape[1], len(plan.sizes), plan.own_count))
            arrays += [plan.orders.reshape(-1), plan.sizes]
    else:
        for job in jobs:
            rows = [(name, len(each.order), len(each.sizes)) for name, each in job.rows.items()]
            heads.append((job.client, job.examples, job.key, job.turn, job.round_trip, rows))
            arrays += [array for each in job.rows.values() for array in each]
    head = json.dumps([function, info, slots, alike, heads], default=np.generic.item).encode()
    numbers = np.concatenate(arrays, dtype=np.int64) if arrays else np.empty(0, np.int64)
    return b"".join((len(head).to_bytes(8, "little"), head, numbers.data))


def unpack_order(packed: bytes) -> tuple[str, Share, RoundInfo]:
    """The function, the share (its jobs without states) and the round of an order."""
    end = 8 + int.from_bytes(packed[:8], "little")
    function, info, slots, alike, heads = json.loads(packed[8:end])
    numbers = np.frombuffer(packed, np.int64, offset=end).copy()  # PyTorch wants memory that it may write to
    at = 0

    def take(count: int) -> np.ndarray:
        nonlocal at
        at += count
        return numbers[at - count : at]

    if alike is not None:
        clients, examples, key, turn = alike
        plans = {
            name: AlikeRows(take(len(clients) * length).reshape(len(clients), length), take(batches), own_count)
            for name, length, batches, own_count in heads
        }
        return function, (slots, Jobs(clients, examples, [None] * len(clients), plans, key, turn)), RoundInfo(*info)
    jobs = []
    for client, examples, key, turn, round_trip, phases in heads:
        rows = {name: Rows(take(length), take(batches)) for name, length, batches in phases}
        jobs.append(Job(client, rows, examples, None, key, turn, round_trip))
    return function, (slots, jobs), RoundInfo(*info)


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
