"""``python -m benchmarks.whole``: whole runs, from the start of the process to its end.

moiety chooses its engine by itself. The bare loop runs beside it where that takes minutes and not hours.
"""

from __future__ import annotations

import argparse

from benchmarks import results
from benchmarks.run import ByRow, run_turns, sum_minutes
from benchmarks.variants import BASE, MOIETY, RAY, variants

RUNS = [(name, 100) for name in "adghbcf"] + [("d", 10_000), ("a", 10_000)]
"""Works and rounds, the quickest first. One round of (e) visits all its clients: it is whole in the table of works."""
BESIDE = {("a", 100): (BASE,), ("b", 100): (BASE,), ("d", 100): (BASE, RAY), ("a", 10_000): (BASE,)}
"""Who else runs."""


def name_of(name: str, rounds: int) -> str:
    """What the turns of a run are kept as."""
    return f"{name} x {rounds}"


def main() -> None:
    """All runs in turn; what was stopped goes on where it was."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole", description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="only the runs of so many rounds")
    options = parser.parse_args()
    for name, rounds in RUNS:
        if options.rounds not in (None, rounds):
            continue
        wanted = (MOIETY, *BESIDE.get((name, rounds), ()))
        rows = [v for v in variants([]) if v.name in wanted]

        def show(found: ByRow, name: str = name, rounds: int = rounds) -> None:
            table = {"work": name, "rounds": rounds, "runs": found}
            results.update("whole", {name_of(name, rounds): table}, sum_minutes(found))

        run_turns(name, rows, rounds, options.turns, name_of(name, rounds), show)


if __name__ == "__main__":
    main()
