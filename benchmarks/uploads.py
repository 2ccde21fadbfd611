"""``python -m benchmarks.uploads``: the memory of a round in which a hundred clients send ten million numbers each.

All of them together would take 4 GB. They are summed as they arrive. Each client has two rows and takes one step.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys

from benchmarks import results
from benchmarks.run import run_and_watch, sum_minutes
from benchmarks.turns import Turn, keep_turns

ENGINES = ("sequential", "processes:sequential")
CLIENTS, FEATURES, CLASSES, HIDDEN = 100, 784, 10, (2800, 2790)


def child(engine: str) -> None:
    """Two rounds of all clients."""
    import numpy as np

    import moiety as mo

    draw = np.random.default_rng(0)
    x = draw.standard_normal((2 * CLIENTS, FEATURES), dtype=np.float32)
    y, owner = draw.integers(CLASSES, size=len(x)), np.repeat(np.arange(CLIENTS), 2)
    fed = mo.data.from_arrays({"x": x, "y": y}, client=owner, test=0.0)
    model = mo.models.mlp(FEATURES, CLASSES, hidden=HIDDEN)
    how = mo.fedavg(shared=mo.sgd(0.01, steps=1, batch_size=2))
    mo.fit(model, fed, how, rounds=2, cohort=CLIENTS, engine=engine, settings=mo.Settings(evaluate_every=2))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("\n" + json.dumps({"parameters": sum(p.numel() for p in model.parameters()), "memory_mb": peak}), flush=True)


def run_turn(turn: int) -> Turn:
    """Each engine in a process of its own."""
    found = {}
    for engine in ENGINES:
        command = [sys.executable, "-m", "benchmarks.uploads", "--child", engine]
        found[engine] = run_and_watch(command, {"PYTHONPATH": str(results.ROOT), "PYTHONWARNINGS": "ignore"})
        print(f"turn {turn + 1}  {engine:22}", found[engine], flush=True)
    return found


def main() -> None:
    """All engines, or one of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.uploads", description=__doc__)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="nothing kept or written: a look")
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    turns = keep_turns(None if options.quick else "uploads", {}, options.turns, run_turn)
    found = {engine: [turn[engine] for turn in turns] for engine in ENGINES}
    if not options.quick:
        results.update("uploads", found, sum_minutes(found))


if __name__ == "__main__":
    main()
