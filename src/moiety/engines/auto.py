"""Engines by name, and ``auto``: the fastest by formula, or by a short measurement where the run is long enough."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from moiety.engines.base import Engine, Functions, RoundInfo
from moiety.engines.forecast import Load, measure_loads, predict_seconds
from moiety.engines.problem import Problem
from moiety.engines.processes import SPIN_SECONDS, TIMEOUT, Processes, can_fork, count_cores
from moiety.engines.ray import Ray
from moiety.engines.rows import Job, Rows
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import MoietyError, choice
from moiety.types import Params

ENGINES: dict[str, Callable[..., Engine]] = {
    "sequential": Sequential,
    "vectorised": Vectorised,
    "processes:sequential": partial(Processes, inner=Sequential),
    "processes:vectorised": partial(Processes, inner=Vectorised),
    "ray:sequential": partial(Ray, inner=Sequential),
    "ray:vectorised": partial(Ray, inner=Vectorised),
}
"""How each engine is made. ``processes`` and ``ray`` stand for the faster of their two forms, ``auto`` for the fastest
of all but those of ``ray``, which is for clusters and must be asked for."""

OPEN = ("auto", "processes", "ray")
SHORT = 3.0
"""Nothing is measured for runs that are expected to take fewer seconds than this."""
SHARE = 0.05
"""The largest share of the expected run that may go into measuring."""
LONGEST = 3.0
"""The most seconds that go into measuring, however long the run."""
NEAR, CLOSE = 4.0, 1.5
"""Engines forecast within the first factor of the fastest are measured; those measured within the second, again."""
TURNS = 5
"""How often each engine is measured at most."""
START_SECONDS = 0.1
"""About what it takes to fork workers."""

log = logging.getLogger("moiety")
log.addHandler(logging.NullHandler())  # what a run logs (engine, dropped clients, stops) is for those who ask for it


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


def pick_engine(
    name: str,
    problem: Problem,
    functions: Functions,
    jobs: Sequence[Job],
    received: Params,
    info: RoundInfo,
    *,
    flops: Sequence[float],
    rounds: int,
    workers: int | None,
    timeout: float = TIMEOUT,
) -> tuple[Engine, str]:
    """The fastest engine for ``rounds`` rounds like these jobs, among those that ``name`` leaves open; and why.

    A formula says how long a round takes with each. A run of a few seconds takes the best by formula. In a longer one
    engines that are near it are measured, for at most a twentieth of the expected run. All engines give the same
    numbers (to rounding), so trying them out has no effect but the time it takes. What was computed meanwhile is not
    kept: it is of a part of the cohort, and which clients are computed together decides about the last bits.

    Args:
        name: ``auto``, or ``processes`` or ``ray`` for the better of two forms.
        problem: the task, the split and the data.
        functions: what the engine is to run.
        jobs: the first cohort's.
        received: what its clients received.
        info: of the first round.
        flops: the operations of each job.
        rounds: how many rounds are left.
        workers: how many processes, where there are any.
        timeout: of a worker.
    """
    count = workers or count_cores()
    names = [n for n in ENGINES if n.startswith(name) or (name == "auto" and not n.startswith("ray"))]
    if count == 1 or len(jobs) == 1 or not can_fork() or problem.device.type != "cpu":
        names = [n for n in names if not n.startswith("processes")] or names
    loads = measure_loads(jobs, flops)

    def predict(engine: str, sample: Sequence[Load]) -> float:
        return predict_seconds(engine, problem, sample, count)

    forecasts = {n: predict(n, loads) for n in names}
    refusal = _find_refusal(problem, functions, jobs, received, info, forecasts)
    if refusal:
        forecasts = {n: t for n, t in forecasts.items() if not n.endswith("vectorised")}
    order = sorted(forecasts, key=forecasts.__getitem__)
    best, notes = order[0], [f"vectorised cannot run it ({refusal})"] if refusal else []
    budget = min(LONGEST, SHARE * rounds * forecasts[best])
    near = [n for n in order if forecasts[n] < NEAR * forecasts[best]]
    size = _choose_sample(near, loads, predict, budget, 2 * count)
    # A cluster may not have room for the actors of two engines.
    if name == "ray" or len(near) == 1 or not size or rounds * forecasts[best] < SHORT:
        engine = make_engine(best, problem, functions, workers, timeout)
        text = ", ".join(f"{n} {_show(forecasts[n])}" for n in order)
        return engine, "; ".join([f"expected for a round, by size: {text}", *notes])
    log.info("measuring engines")
    engines = {n: make_engine(n, problem, functions, workers, timeout) for n in near}
    seconds = {n: (predict(n, loads[:size]), forecasts[n]) for n in near}
    times: dict[str, float] = {}
    try:
        times = _measure(engines, jobs[:size], received, info, seconds, rounds)
    finally:
        best = min(times, key=times.__getitem__) if times else ""
        for n, engine in engines.items():
            if n != best:
                engine.close()
    text = ", ".join(f"{n} {_show(t)}" for n, t in times.items())
    reason = f"measured on {size} clients of the first cohort, for a round: {text}"
    return engines[best], "; ".join([reason, *notes])


def _show(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _choose_sample(
    names: Sequence[str],
    loads: Sequence[Load],
    predict: Callable[[str, Sequence[Load]], float],
    budget: float,
    least: int,
) -> int:
    """How many clients engines are measured on: all, or as many as leave time to measure each twice; 0 if too few."""
    forks = START_SECONDS * sum(n.startswith("processes") for n in names)
    size = len(loads)
    while size >= min(least, len(loads)):
        if forks + 2 * sum(predict(n, loads[:size]) for n in names) <= budget:
            return size
        size //= 2
    return 0


def _measure(
    engines: dict[str, Engine],
    jobs: Sequence[Job],
    received: Params,
    info: RoundInfo,
    forecasts: dict[str, tuple[float, float]],
    rounds: int,
) -> dict[str, float]:
    """The seconds that a round takes with each engine: the least that the jobs took, scaled to a round by formula.

    Engines take turns, so that a busy moment of the machine slows all of them. Measurements that no longer fit into the
    allowed time are left out.

    Args:
        engines: by name.
        jobs: what each is to do.
        received: by the clients.
        info: of the first round.
        forecasts: of each engine, the seconds for these jobs and for a whole round.
        rounds: how many there will be.
    """
    least: dict[str, float] = {}
    times: dict[str, float] = {}
    start_time, pace = time.perf_counter(), 1.0
    for turn in range(TURNS):
        for n, engine in engines.items():
            sample, whole = forecasts[n]
            if times:
                ends = time.perf_counter() - start_time + least.get(n, pace * sample)
                fastest = min(times.values())
                too_slow = turn > 0 and times.get(n, 0.0) > CLOSE * fastest
                if too_slow or ends > min(LONGEST, SHARE * rounds * fastest):
                    continue
            if not turn:  # the first call pays for set-up
                engine.map("train", [_shrink(job, tuple(job.rows)) for job in jobs], received, info)
            time.sleep(SPIN_SECONDS)  # until workers of the last engine are asleep
            start = time.perf_counter()
            engine.map("train", jobs, received, info)
            seconds = time.perf_counter() - start
            least[n] = min(seconds, least.get(n, seconds))
            times[n] = least[n] * whole / sample
            pace = least[n] / sample
    return times


def _find_refusal(
    problem: Problem,
    functions: Functions,
    jobs: Sequence[Job],
    received: Params,
    info: RoundInfo,
    forecasts: dict[str, float],
) -> str:
    """Why the problem cannot be vectorised, tried on a few rows where that may be chosen; empty where it can."""
    fastest = min(forecasts.values())
    if not any(n.endswith("vectorised") and t < NEAR * fastest for n, t in forecasts.items()):
        return ""
    trial = Vectorised(replace(problem, quiet=True, warned=set()), functions)
    try:
        for function in ("train", "score"):  # one that trains must be able to evaluate too
            phases = functions[function].phases
            few = [_shrink(job, phases, batches) for batches, job in enumerate(jobs[:2], 1)]
            trial.map(function, few, received, info)
    except MoietyError as error:
        return str(error)
    return ""


def _shrink(job: Job, phases: Sequence[str], batches: int = 1) -> Job:
    """The job with batches of its first row, twice."""
    start, _ = next(iter(job.rows.values())).span()
    rows = Rows(np.full(2 * batches, start), np.full(batches, 2))
    return job._replace(rows=dict.fromkeys(phases, rows))
