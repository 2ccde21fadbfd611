"""``python -m benchmarks.run``: the same work in turn by all, several times; a table of ratios; docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import threading
from typing import Any

from benchmarks import results, work
from benchmarks.environments import PEERS, ROOT, python_of
from benchmarks.memory import family
from benchmarks.variants import BASE, Variant, variants

Found = dict[str, Any]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--works", default=",".join(work.WORKS), help="which works, for instance a,d")
    parser.add_argument("--peers", default=",".join(PEERS), help="which peers, for instance pfl,fluke")
    parser.add_argument("--no-peers", action="store_true", help="only moiety and the bare loop")
    parser.add_argument("--only", default="", help="only rows whose name holds one of these words, and the base")
    parser.add_argument("--repeats", type=int, default=3, help="how many times all run in turn")
    parser.add_argument("--quick", action="store_true", help="one turn of a few rounds, nothing written: does it run?")
    options = parser.parse_args()
    options.works = [w for w in options.works.split(",") if w]
    options.peers = [] if options.no_peers else [p for p in options.peers.split(",") if p]
    for given, known in ((options.works, work.WORKS), (options.peers, PEERS)):
        wrong = sorted(set(given) - set(known))
        if wrong:
            parser.error(f"{', '.join(wrong)} is none of {', '.join(known)}")
    if options.quick:
        options.repeats = 1
    return options


def measure(variant: Variant, name: str, rounds: int) -> Found:
    """One run in a process of its own: what it printed, and the peak of the memory of its whole family."""
    environ = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    environ |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    if variant.processes > 1:
        environ["OMP_NUM_THREADS"] = "1"
    command = variant.command(name, rounds)
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peak, done = [0.0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, done))
    watcher.start()
    out, err = process.communicate()
    done.set()
    watcher.join()
    try:
        found: Found = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": (err.strip() or out.strip()).splitlines()[-1:] or ["no output"]}
    found["memory_mb"] = max(found["memory_mb"], peak[0])
    return found


def _watch(pid: int, peak: list[float], done: threading.Event) -> None:
    """Look at the memory of a process and all below it twice a second."""
    while not done.wait(0.5):
        peak[0] = max(peak[0], family(pid).resident)


def main() -> None:
    """Build, run in turn, compare, print and write."""
    options = arguments()
    for peer in options.peers:
        python_of(peer)
    rounds = {w: min(2, work.WORKS[w].rounds) if options.quick else work.WORKS[w].rounds for w in options.works}
    for name in options.works:
        work.make(name, rounds[name])
    rows = [v for v in variants(options.peers) if v.name == BASE or any(o in v.name for o in options.only.split(","))]
    found: dict[str, dict[str, list[Found]]] = {w: {} for w in options.works}
    for turn in range(options.repeats):
        for name in options.works:
            able = [v for v in rows if name in v.works]
            for variant in able[turn % len(able) :] + able[: turn % len(able)]:
                one = measure(variant, name, rounds[name])
                found[name].setdefault(variant.name, []).append(one)
                print(f"turn {turn + 1}  {name}  {variant.name:36} {results.brief(one)}", flush=True)
    order = [v.name for v in rows]
    tables = {name: results.table(name, found[name], order) for name in options.works}
    for name, table in tables.items():
        print(f"\n{results.text(name, table)}")
    if not options.quick and not options.only:
        results.update("works", tables)
    wrong = [f"{name}: {row['name']}: {row['problem']}" for name, t in tables.items() for row in t if row["problem"]]
    if wrong:
        raise SystemExit("\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
