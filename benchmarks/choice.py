"""``python -m benchmarks.choice``: how often ``auto`` takes the fastest engine, and how long it takes to choose.

In every try each engine runs the work by itself, and ``auto`` runs it twice: with as many rounds as the work has, and
told that there will be thousands, so that it measures; that run is stopped early. A choice is right where its engine is
within 15% of the fastest of that try. Tries are kept like turns, so that one may stop in between.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import median

from benchmarks import results, work
from benchmarks.run import ByRow, run_turns, sum_minutes
from benchmarks.turns import Found
from benchmarks.variants import MOIETY, RAY, Variant, variants

LONG = {"a": 10_000, "b": 200, "d": 10_000}
"""How many rounds ``auto`` is told of in the longer run."""
PLANNED = f"{MOIETY}, of a long run"
NEAR = 1.15


def list_rows(name: str) -> list[Variant]:
    """``auto`` in a short and in a long run, and every engine by itself."""
    ours = [v for v in variants([]) if v.runner == "moiety_runner" and name in v.works and v.partial and not v.commit]
    ours = [v for v in ours if v.name != RAY]  # which `auto` never takes
    auto = next(v for v in ours if v.name == MOIETY)
    return [*ours, replace(auto, name=PLANNED, planned=LONG[name])]


def judge(found: dict[str, list[Found]], name: str) -> list[Found]:
    """For each of the two runs, how many choices were right, and the largest share of the run that choosing took."""
    rows = []
    tries = [dict(zip(found, each, strict=True)) for each in zip(*found.values(), strict=True)]
    for auto in (MOIETY, PLANNED):
        right, shares, engines = 0, [], set()
        rounds = LONG[name] if auto == PLANNED else work.ALL[name].rounds
        for one in tries:
            times = {row["engine"]: median(row["seconds"]) for who, row in one.items() if who not in (MOIETY, PLANNED)}
            engine = one[auto]["engine"]
            engines.add(engine)
            right += times.get(engine, float("inf")) <= NEAR * min(times.values())
            shares.append(one[auto]["choosing"] / (rounds * min(times.values())))
        rows.append(
            {"rounds": rounds, "right": right, "tries": len(tries), "engines": sorted(engines), "share": max(shares)}
        )
    return rows


def main() -> None:
    """All works, several tries each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choice", description=__doc__)
    parser.add_argument("--works", default=",".join(LONG), help="which works, for instance a,d")
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing kept: a look")
    options = parser.parse_args()
    for name in options.works.split(","):
        rounds = max(2, work.ALL[name].rounds // (5 if options.quick else 1))

        def show(found: ByRow, name: str = name) -> None:
            rows = judge(found, name)
            print(f"\n{results.choice_text({name: {'rows': rows}})}\n", flush=True)
            if not options.quick:
                results.update("choice", {name: rows}, sum_minutes(found))

        run_turns(name, list_rows(name), rounds, options.tries, None if options.quick else f"choice {name}", show)


if __name__ == "__main__":
    main()
