"""``python -m benchmarks.bench``: everything that docs/benchmarks.md shows, what matters most first.

It says beforehand how long it will take. Stop it at any time: the same command goes on where it was. Whatever was
measured is on the page already. ``--parts`` runs some of it, ``--plan`` only says what is left.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from typing import NamedTuple

from benchmarks import results
from benchmarks.environments import PEERS, python_of
from benchmarks.turns import find_turns


class Part(NamedTuple):
    """A command, how many turns it takes, and the names under which these are kept with the seconds of one turn.

    The seconds are guesses for two quiet cores, made from earlier tables; a turn that was kept says better.
    """

    command: str
    turns: int
    seconds: dict[str, float]


PARTS = {
    "limits": Part("limit", 1, {}),  # a few seconds, measured anew each time
    "start-up": Part("start_up", 5, {"start-up": 20}),
    "leader": Part("leader", 5, {"leader": 8}),
    "quick works": Part("run --works a,d", 5, {"a": 105, "d": 155}),
    "convnet": Part("run --works b", 5, {"b": 200}),
    "choices": Part("choice", 1, {}),  # of the turns before
    "heads": Part("run --works c,e", 5, {"c": 200, "e": 190}),
    "scale": Part("scale --repeats 3", 3, {"scale": 70}),
    "own works": Part("run --works g,h,f", 5, {"g": 30, "h": 60, "f": 120}),
    "sizes": Part("run --works 1e4,1e5,1e6,1e7", 5, {"1e4": 12, "1e5": 15, "1e6": 30, "1e7": 75}),
    "uploads": Part("uploads", 1, {"uploads": 90}),
    "cohorts": Part(
        "run --works 'cohort 10,cohort 100,cohort 1000'", 5, {"cohort 10": 15, "cohort 100": 20, "cohort 1000": 45}
    ),
    "whole runs": Part(
        "whole --rounds 100",
        3,
        {"a x 100": 15, "d x 100": 35, "g x 100": 20, "h x 100": 90, "b x 100": 270, "c x 100": 150, "f x 100": 400},
    ),
    "long runs": Part("whole --rounds 10000", 3, {"d x 10000": 90, "a x 10000": 400}),
}
"""In the order in which they run. Up to the own works, an hour and a half, they hold all ratios against others."""


def seconds_left(part: Part) -> float:
    """About how long the turns of a part take that were not kept yet."""
    total = 0.0
    for name, guess in part.seconds.items():
        done = find_turns(name)
        took = [sum(row.get("whole", 0.0) for row in turn.values()) for turn in done]
        total += max(0, part.turns - len(done)) * (sum(took) / len(took) if took else guess)
    return total


def show_plan(names: list[str]) -> None:
    """What is left to do, in minutes, and whether the machine is quiet."""
    left = {name: seconds_left(PARTS[name]) for name in names}
    for name, seconds in left.items():
        print(f"{name:16} {seconds / 60:6.1f} min left   python -m benchmarks.{PARTS[name].command}")
    print(f"about {sum(left.values()) / 3600:.1f} hours in all, on two quiet cores")
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"the load of this machine is {load:.1f}: others use it, and what is measured now will be noise")


def main() -> None:
    """Say what is left, then do it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts, for instance 'quick works,scale'")
    parser.add_argument("--plan", action="store_true", help="only say what is left")
    options = parser.parse_args()
    names = [name for name in options.parts.split(",") if name]
    wrong = sorted(set(names) - set(PARTS))
    if wrong:
        parser.error(f"{', '.join(wrong)} is none of {', '.join(PARTS)}")
    show_plan(names)
    if options.plan:
        return
    for peer in PEERS:
        python_of(peer)
    failed = []
    for name in names:
        module, *words = shlex.split(PARTS[name].command)
        print(f"\n== {name} ==", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *words], cwd=results.ROOT)
        failed += [name] if done.returncode else []
    if failed:
        raise SystemExit(f"something is wrong in: {', '.join(failed)}")


if __name__ == "__main__":
    main()
