"""``python -m benchmarks.leader``: what the leading process does in a round besides the clients' work.

It is measured on work (d), as CPU time of the thread: cohort, broadcast, jobs, guard, sum, server, ledger and record.
Blocks of clients are computed in the same thread; their time is taken off.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks import results, work
from benchmarks.turns import Turn, keep_turns

WORK, ROUNDS = "d", 250


def child() -> None:
    """One run, in a process of its own: microseconds of every round, without the clients' work and with it alone."""
    import moiety as mo
    from benchmarks.runners.moiety_runner import algorithm_of
    from moiety.engines.base import RoundInfo
    from moiety.engines.jobs import Job
    from moiety.engines.vectorised import Vectorised
    from moiety.types import Params

    arrays, compute = work.load(WORK), Vectorised.map
    in_engine, ends = [0.0], list[tuple[float, float]]()

    def compute_and_time(
        engine: Vectorised, function: str, jobs: Sequence[Job], received: Params, info: RoundInfo
    ) -> Any:
        began = time.thread_time()
        found = compute(engine, function, jobs, received, info)
        in_engine[0] += time.thread_time() - began
        return found

    Vectorised.map = compute_and_time  # type: ignore[method-assign]
    owner = np.repeat(np.arange(arrays.work.clients), work.EXAMPLES)
    mo.fit(
        work.module(arrays.work, arrays.weights),
        mo.data.from_arrays({"x": arrays.x, "y": arrays.y}, client=owner, test=0.0),
        algorithm_of(arrays.work),
        rounds=ROUNDS,
        cohort=arrays.work.cohort,
        engine="vectorised",
        settings=mo.Settings(evaluate_every=ROUNDS),
        callbacks=[lambda run, record: ends.append((time.thread_time(), in_engine[0]))],
    )
    both, engine = 1e6 * np.diff(np.array(ends[work.WARM_UP : -1]), axis=0).T
    found = {"leader": median(both - engine), "least": min(both - engine), "engine": median(engine)}
    print("\n" + json.dumps(found), flush=True)


def run_turn(turn: int) -> Turn:
    """One run."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.leader", "--child"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=results.ROOT)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"turn {turn + 1}  " + ", ".join(f"{name} {us:.0f} us" for name, us in found.items()), flush=True)
    return {WORK: found | {"whole": time.perf_counter() - began}}


def main() -> None:
    """Some runs, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leader", description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="nothing kept or written: a look")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child()
        return
    work.make(WORK, ROUNDS)
    turns = keep_turns(None if options.quick else "leader", {}, options.turns, run_turn)
    found = [turn[WORK] for turn in turns]
    if not options.quick:
        results.update("leader", {WORK: found}, sum(one["whole"] for one in found) / 60)


if __name__ == "__main__":
    main()
