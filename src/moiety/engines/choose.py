"""Engines by name, and ``auto``: measure for a moment on the first cohort, then keep the faster one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from moiety.engines.plan import Job
from moiety.engines.problem import Function, Problem
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import MoietyError, choice
from moiety.types import Params, Tree


class Engine(Protocol):
    """Runs a pure function of one client for many; the answer does not depend on which engine it is."""

    name: str

    def map(
        self, problem: Problem, function: Function, jobs: Sequence[Job], received: Params, *, scale: float, round: int
    ) -> list[Tree]:
        """``function`` for each job; results in the order of the jobs."""
        ...


ENGINES: dict[str, Callable[[], Engine]] = {"sequential": Sequential, "vectorised": Vectorised}


def check_engine(name: str) -> None:
    """Raise unless ``name`` is an engine or ``auto``."""
    choice("engine", name, [*ENGINES, "auto"])


def fastest(
    problem: Problem, function: Function, jobs: Sequence[Job], received: Params, *, scale: float, seconds: float = 1.0
) -> tuple[Engine, str]:
    """The faster engine for these jobs, and why; takes about ``seconds``.

    Both engines give the same numbers (to rounding), so trying them out has no effect but the time it takes.
    """
    arguments: dict[str, Any] = {"scale": scale, "round": 0}
    slow, quick = Sequential(), Vectorised()

    def clock(engine: Engine, sample: Sequence[Job]) -> float:
        began = time.perf_counter()
        engine.map(problem, function, sample, received, **arguments)
        return time.perf_counter() - began

    clock(slow, jobs[:1])  # the first call pays for lazy set-up
    per_client = max(clock(slow, jobs[:1]), 1e-6)
    sample = jobs[: max(1, min(len(jobs), int(seconds / 4 / per_client)))]
    try:
        clock(quick, sample)
    except MoietyError as error:
        return slow, f"vectorised cannot run it: {error}"
    times = {e.name: min(clock(e, sample) for _ in range(2)) for e in (slow, quick)}
    chosen: Engine = quick if times[quick.name] < times[slow.name] else slow
    shown = ", ".join(f"{name} {1e3 * t:.1f} ms" for name, t in times.items())
    return chosen, f"measured on {len(sample)} clients of the first cohort: {shown}"
