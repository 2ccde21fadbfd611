"""How long a round takes with each engine, by formula: from steps, operations and sizes, before anything is run.

The constants are of one core of 2024. Another machine may be twice as fast, but so it is for all engines: their order
is what counts, and whether a run takes seconds or hours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from moiety.engines.problem import Problem
from moiety.engines.rows import Job
from moiety.engines.vectorised import BLOCK_BYTES, BLOCK_CLIENTS
from moiety.transport import value_bytes

RATE = 6e10
"""Operations in a second."""
STEP_SECONDS = 6e-5
"""What a step takes for each tensor of the model, whatever its size: calls, not arithmetic."""
BYTE_SECONDS = 1.5e-10
"""What a step takes for each byte of the model: gradients and weights are read and written."""
BLOCK_STEP = 3.0
"""How much longer that is for a step of a block of clients."""
BLOCK_CONVOLUTIONS = 1.5
"""How much longer the arithmetic of convolutions takes in a block, where each client has weights of its own."""
ROUND_SECONDS, JOB_SECONDS = 1e-3, 2e-5
"""What it takes to wake worker processes, and to describe a job to one."""
COPY_RATE = 4e9
"""Bytes copied in a second: states and results go through shared memory."""


class Load(NamedTuple):
    """What a client's turn consists of."""

    steps: int
    flops: float


def measure_loads(jobs: Sequence[Job], flops: Sequence[float]) -> list[Load]:
    """The loads of jobs whose numbers of operations are known."""
    steps = (sum(len(rows.sizes) for rows in job.rows.values()) for job in jobs)
    return [Load(*pair) for pair in zip(steps, flops, strict=True)]


def predict_seconds(engine: str, problem: Problem, loads: Sequence[Load], workers: int) -> float:
    """How long the engine of that name takes for one round of clients with these loads."""
    forked = engine.startswith(("processes", "ray"))
    share = math.ceil(len(loads) / workers) if forked else len(loads)  # clients of one worker
    part = share / len(loads)
    values, model = problem.task.init.values(), value_bytes(problem.task.init)
    call = STEP_SECONDS * len(values)
    steps = part * sum(load.steps for load in loads)
    arithmetic = part * sum(load.flops for load in loads) / RATE + steps * model * BYTE_SECONDS
    if engine.endswith("vectorised"):
        block = max(1, min(BLOCK_CLIENTS, BLOCK_BYTES // (4 * model)))
        calls = math.ceil(share / block) * max(load.steps for load in loads) * BLOCK_STEP * call
        arithmetic *= BLOCK_CONVOLUTIONS if any(value.dim() > 2 for value in values) else 1.0
    else:
        calls = steps * call
    transfer = ROUND_SECONDS + len(loads) * (JOB_SECONDS + 3 * model / COPY_RATE) if forked else 0.0
    return calls + arithmetic + transfer
