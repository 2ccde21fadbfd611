"""Engines by name, and ``auto``: measure for a moment on the first cohort, then keep the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from moiety.engines.base import Engine, Functions, RoundInfo
from moiety.engines.problem import Problem
from moiety.engines.processes import SPIN_SECONDS, TIMEOUT, Processes, can_fork, count_cores
from moiety.engines.ray import Ray
from moiety.engines.rows import Job
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import MoietyError, choice
from moiety.types import Params

ENGINES: dict[str, Callable[..., Engine]] = {
    "sequential": Sequential,
    "vectorised": Vectorised,
    "processes:sequential": partial(Processes, inner=Sequential),
    "processes:vectorised": partial(Processes, inner=Vectorised),
    "ray": Ray,
}
"""How each engine is made. ``processes`` stands for the faster of its two forms, ``auto`` for the fastest of all but
``ray``, which is for clusters and must be asked for."""

OPEN = ("auto", "processes")
CLOSE = 1.5
"""Engines within this factor of the fastest are measured again."""


def check_engine(name: str) -> None:
    """Raise unless ``name`` is an engine, or one of the names that leave the choice open."""
    choice("engine", name, [*ENGINES, *OPEN])


def make_engine(
    name: str, problem: Problem, functions: Functions, workers: int | None, timeout: float = TIMEOUT
) -> Engine:
    """The engine of that name; ``workers`` and their ``timeout`` count where there are any."""
    options: dict[str, Any] = {"workers": workers} if name.startswith(("processes", "ray")) else {}
    options |= {"timeout": timeout} if name.startswith("processes") else {}
    return ENGINES[name](problem, functions, **options)


def pick_fastest(
    name: str,
    problem: Problem,
    functions: Functions,
    jobs: Sequence[Job],
    received: Params,
    info: RoundInfo,
    *,
    workers: int | None,
    timeout: float = TIMEOUT,
    seconds: float = 1.0,
) -> tuple[Engine, str]:
    """The fastest engine for these jobs among those that ``name`` leaves open, and why; takes a few ``seconds``.

    All engines give the same numbers (to rounding), so trying them out has no effect but the time it takes.
    """

    def time_one(engine: Engine, sample: Sequence[Job]) -> float:
        began = time.perf_counter()
        engine.map("train", sample, received, info)
        return time.perf_counter() - began

    def measure(engine: Engine) -> float:
        # Workers of the last engine stay awake for a moment, on the cores that are now to be measured.
        time.sleep(SPIN_SECONDS)
        first = time_one(engine, sample)
        # The first call pays for set-up and for waking, so it is repeated where that takes little time.
        return first if first > seconds else min(first, time_one(engine, sample), time_one(engine, sample))

    reference = Sequential(problem, functions)
    time_one(reference, jobs[:1])  # the first call pays for lazy set-up
    per_client = max(time_one(reference, jobs[:1]), 1e-6)
    count = workers or count_cores()
    # Enough clients that every worker has some, and else as many as take a moment.
    sample = jobs[: max(2 * count, int(seconds / 4 / per_client))]
    names = [n for n in ENGINES if n.startswith(name) or (name == "auto" and n != "ray")]
    if count == 1 or len(jobs) == 1 or not can_fork():
        names = [n for n in names if not n.startswith("processes")] or names
    times: dict[str, float] = {}
    refused: list[str] = []
    engines = {n: make_engine(n, problem, functions, workers, timeout) for n in names}
    best = None
    try:
        for n, engine in engines.items():
            try:
                _try_scoring(engine, sample[:2], received)  # one that trains must be able to evaluate too
                times[n] = measure(engine)
            except MoietyError as error:
                refused.append(f"{n} cannot run it ({error})")
        if not times:
            raise MoietyError(refused[0])
        # In turn, so that a moment in which the machine is busy hits all that are near each other.
        for _ in range(2):
            for n in [n for n, t in times.items() if t < CLOSE * min(times.values())]:
                times[n] = min(times[n], measure(engines[n]))
        best = min(times, key=lambda n: times[n])
    finally:
        for n, engine in engines.items():
            if n != best:
                engine.close()
    shown = ", ".join(f"{n} {1e3 * t:.1f} ms" for n, t in times.items())
    reason = f"measured on {len(sample)} clients of the first cohort: {shown}"
    return engines[best], "; ".join([reason, *refused])


def _try_scoring(engine: Engine, jobs: Sequence[Job], received: Params) -> None:
    """Score once, on the rows that the jobs have."""
    phases = engine.functions["score"].phases
    rows = [next(iter(job.rows.values())) for job in jobs]
    scored = [job._replace(rows=dict.fromkeys(phases, own)) for job, own in zip(jobs, rows, strict=True)]
    engine.map("score", scored, received, RoundInfo())
