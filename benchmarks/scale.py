"""``python -m benchmarks.scale``: a round and the memory it takes, from a thousand clients to a million.

FedAlt with a personal head of 330 numbers, 50 clients a round, four examples each; features are mapped from disk and
personal states live in the run's folder. The last round is followed by the evaluation of a thousand clients and a
checkpoint, both apart from the rounds that are timed. Each population in a process of its own, all in turn, the best
turn counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import psutil

from benchmarks import results
from benchmarks.memory import family
from benchmarks.turns import Turn, keep_turns
from benchmarks.work import FOLDER

POPULATIONS = (1_000, 10_000, 100_000, 1_000_000)
FEATURES, CLASSES, EXAMPLES, EVALUATED, COHORT, WARM_UP = 32, 10, 4, 1_000, 50, 5


def prepare(clients: int) -> Path:
    """A folder with the data of that many clients, written once."""
    import numpy as np

    from moiety.data.federated import FederatedData, NumberNames

    folder = FOLDER / f"scale-{clients}"
    if folder.exists():
        return folder
    folder.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients * EXAMPLES, FEATURES), dtype=np.float32)
    y = (x @ rng.standard_normal((FEATURES, CLASSES), dtype=np.float32)).argmax(1)
    ends = EXAMPLES * np.arange(1, clients + 1)
    bounds = np.stack([ends - EXAMPLES, ends, ends, ends], axis=1)
    FederatedData({"x": x, "y": y}, bounds, NumberNames(clients), CLASSES).save(folder)
    return folder


def child(clients: int, rounds: int) -> None:
    """One population, in a process of its own. Start-up is from the birth of the process to the end of round one."""
    import moiety as mo

    process = psutil.Process()
    fed = mo.data.open_folder(FOLDER / f"scale-{clients}")
    model = mo.models.mlp(FEATURES, CLASSES, hidden=(32,))
    ends, started, memory = [], [], []

    def tick(run: mo.Run, record: object) -> None:
        ends.append(time.perf_counter())
        started.append(time.time() - process.create_time())
        if len(ends) >= run.config["run"]["rounds"] - 1:  # once before the evaluation and once after it
            memory.append(family(process.pid))

    out = FOLDER / f"scale-{clients}-run"
    shutil.rmtree(out, ignore_errors=True)
    mo.fit(
        model,
        fed,
        mo.fedalt(shared=mo.sgd(0.1, batch_size=2), personal=mo.sgd(0.1, batch_size=2)),
        split=mo.split.output_layer(model),
        rounds=rounds,
        cohort=COHORT,
        settings=mo.Settings(evaluate_every=rounds, evaluate_clients=min(clients, EVALUATED)),
        out=out,
        callbacks=[tick],
    )
    each = [b - a for a, b in zip(ends[WARM_UP:-2], ends[WARM_UP + 1 : -1], strict=True)]
    found = {
        "clients": clients,
        "start_up": started[0],
        "seconds": median(each),
        "fastest": min(each),
        "resident_mb": memory[0].resident,
        "mapped_mb": memory[0].mapped,
        "memory_mb": max(memory[1].resident, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "end": ends[-1] - ends[-2] - median(each),
    }
    print("\n" + json.dumps(found), flush=True)


def main() -> None:
    """All populations in turn, or one of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--clients", default=",".join(map(str, POPULATIONS)))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the two smaller populations, nothing written")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.repeats = 1
    wanted = [int(n) for n in options.clients.split(",")][: 2 if options.quick else None]
    if options.prepare:
        prepare(wanted[0])
        return
    if options.child:
        child(wanted[0], options.rounds)
        return
    turns = keep_turns(
        None if options.quick else "scale",
        {"clients": wanted, "rounds": options.rounds},
        options.repeats,
        lambda turn: run_turn(turn, wanted, options.rounds),
    )
    found = {str(n): min((turn[str(n)] for turn in turns), key=lambda one: one["seconds"]) for n in wanted}
    print("\n" + results.scale_text({n: {"rows": row} for n, row in found.items()}))
    if not options.quick:
        results.update("scale", found, sum(one["whole"] for turn in turns for one in turn.values()) / 60)


def run_turn(turn: int, populations: Sequence[int], rounds: int) -> Turn:
    """All populations, each in a process of its own."""
    found, environ = {}, {**os.environ, "PYTHONPATH": str(results.ROOT)}
    for clients in populations:
        began = time.perf_counter()
        again = [sys.executable, "-m", "benchmarks.scale", "--clients", str(clients), "--rounds", str(rounds)]
        subprocess.run([*again, "--prepare"], check=True, cwd=results.ROOT, env=environ)
        done = subprocess.run(
            [*again, "--child"], check=True, stdout=subprocess.PIPE, text=True, cwd=results.ROOT, env=environ
        )
        found[str(clients)] = one = json.loads(done.stdout.strip().splitlines()[-1])
        one["whole"] = time.perf_counter() - began
        print(f"turn {turn + 1}", one, flush=True)
    return found


if __name__ == "__main__":
    main()
