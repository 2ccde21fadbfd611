"""``python -m benchmarks.run``: the same work in turn by all, several times; a table of ratios; docs/benchmarks.md.

Every turn of a work is kept as soon as all have run it, so that a run that was stopped goes on with the next turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from benchmarks import results, work
from benchmarks.environments import PEERS, ROOT, python_of
from benchmarks.memory import family
from benchmarks.turns import Found, Turn, keep_turns
from benchmarks.variants import Variant, base_of, variants

ByRow = dict[str, list[Found]]
"""For each row what was found in every turn."""
GROUPS = {"works": work.WORKS, "sizes": work.SIZES, "cohorts": work.COHORTS}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--works", default=",".join(work.ALL), help="which works, for instance a,d")
    parser.add_argument("--peers", default=",".join(PEERS), help="which peers, for instance pfl,fluke")
    parser.add_argument("--no-peers", action="store_true", help="only moiety and the bare loop")
    parser.add_argument("--only", default="", help="only rows whose name holds one of these words, and the base")
    parser.add_argument("--turns", type=int, default=5, help="how many times all run in turn")
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing kept or written: a look")
    options = parser.parse_args()
    options.works = [w for w in options.works.split(",") if w]
    options.peers = [] if options.no_peers else [p for p in options.peers.split(",") if p]
    for given, known in ((options.works, work.ALL), (options.peers, PEERS)):
        wrong = sorted(set(given) - set(known))
        if wrong:
            parser.error(f"{', '.join(wrong)} is none of {', '.join(known)}")
    return options


def measure(variant: Variant, name: str, rounds: int) -> Found:
    """One run of a work in a process of its own."""
    environ = {"PYTHONPATH": variant.path(), "PYTHONWARNINGS": "ignore", work.STARTED: str(time.time())}
    if variant.processes > 1:
        environ["OMP_NUM_THREADS"] = "1"
    found = run_and_watch(variant.command(name, rounds), environ)
    if "seconds" in found:  # of ten thousand rounds, say: these three have the same least and the same median
        found["seconds"] = [f(found["seconds"]) for f in (min, median, max)]
    return found


def run_and_watch(command: Sequence[str], environ: Mapping[str, str]) -> Found:
    """What a command printed as its last line, its whole time, and the peak of the memory of its family."""
    inherited = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    began, pipe = time.perf_counter(), subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, env={**inherited, **environ}, stdout=pipe, stderr=pipe, text=True)
    peak, done = [0.0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, done))
    watcher.start()
    out, err = process.communicate()
    whole = time.perf_counter() - began
    done.set()
    watcher.join()
    try:
        found: Found = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": (err.strip() or out.strip()).splitlines()[-1:] or ["no output"]}
    found["memory_mb"] = max(found["memory_mb"], peak[0])
    return found | {"whole": whole}


def _watch(pid: int, peak: list[float], done: threading.Event) -> None:
    """Look at the memory of a process and all below it twice a second."""
    while not done.wait(0.5):
        peak[0] = max(peak[0], family(pid).resident)


def run_turn(turn: int, name: str, rows: Sequence[Variant], rounds: int) -> Turn:
    """All rows of a work, one after the other, beginning with another one in each turn."""
    found = {}
    for variant in [*rows[turn % len(rows) :], *rows[: turn % len(rows)]]:
        found[variant.name] = measure(variant, name, rounds)
        print(f"turn {turn + 1}  {name:>5}  {variant.name:36} {results.brief(found[variant.name])}", flush=True)
    return found


def run_turns(
    name: str,
    rows: Sequence[Variant],
    rounds: int,
    turns: int,
    kept_as: str | None,
    after: Callable[[ByRow], None] = lambda found: None,
) -> ByRow:
    """Every turn of a work; ``after`` gets what was found so far."""

    def by_row(done: Sequence[Turn]) -> ByRow:
        return {v.name: [turn[v.name] for turn in done] for v in rows}

    def run(turn: int) -> Turn:
        return run_turn(turn, name, rows, rounds)

    work.make(name, rounds)
    who = {"rows": [v.name for v in rows], "rounds": rounds}
    return by_row(keep_turns(kept_as, who, turns, run, lambda done: after(by_row(done))))


def sum_minutes(found: ByRow) -> float:
    """How long all turns took."""
    return sum(one.get("whole", 0.0) for runs in found.values() for one in runs) / 60


def main() -> None:
    """Build, run in turn, compare, print and write."""
    options = arguments()
    for peer in options.peers:
        python_of(peer)
    rows = [v for v in variants(options.peers) if not options.only or any(o in v.name for o in options.only.split(","))]
    wrong = []
    for name in options.works:
        kept = [v for v in variants(options.peers) if name in v.works and (v in rows or v.name == base_of(name))]
        rounds = max(2, work.ALL[name].rounds // 10) if options.quick else work.ALL[name].rounds
        write = not options.quick and not options.only and not options.no_peers

        def show(found: ByRow, name: str = name, order: Sequence[Variant] = kept, write: bool = write) -> None:
            table = results.table(name, found, [v.name for v in order])
            print(f"\n{results.text(name, table)}\n", flush=True)
            if write:
                group = next(g for g, members in GROUPS.items() if name in members)
                results.update(group, {name: table}, sum_minutes(found))

        found = run_turns(name, kept, rounds, options.turns, name if write else None, show)
        table = results.table(name, found, [v.name for v in kept])
        wrong += [f"{name}: {row['name']}: {row['problem']}" for row in table if row["problem"]]
    if wrong:
        raise SystemExit("\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
