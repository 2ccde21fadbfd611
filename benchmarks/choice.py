"""``python -m benchmarks.choice``: how often ``auto`` takes the fastest engine, and how long it takes to choose.

It measures nothing by itself. Every turn of a work is a try, since all engines run in it by themselves, and ``auto``
twice: with as many rounds as the work has, and told that there will be thousands, so that it measures; that run is
stopped early. A choice is right where its engine is within 15% of the fastest of that turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

from benchmarks import results, work
from benchmarks.turns import Found, Turn, find_turns
from benchmarks.variants import LONG, MOIETY, PLANNED, RAY, variants

NEAR = 1.15


def judge(turns: Sequence[Turn], name: str) -> list[Found]:
    """For each of the two runs, how many choices were right, and the largest share of the run that choosing took."""
    engines = [v.name for v in variants([]) if v.engine not in (None, "auto") and name in v.works and v.name != RAY]
    rows = []
    for auto in (MOIETY, PLANNED):
        right, shares, chosen = 0, [], set()
        rounds = LONG[name] if auto == PLANNED else work.ALL[name].rounds
        for turn in turns:
            times = {turn[who]["engine"]: median(turn[who]["seconds"]) for who in engines}
            engine = turn[auto]["engine"]
            chosen.add(engine)
            right += times.get(engine, float("inf")) <= NEAR * min(times.values())
            shares.append(turn[auto]["choosing"] / (rounds * min(times.values())))
        rows.append(
            {"rounds": rounds, "right": right, "tries": len(turns), "engines": sorted(chosen), "share": max(shares)}
        )
    return rows


def main() -> None:
    """All works whose turns were kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choice", description=__doc__)
    parser.add_argument("--works", default=",".join(LONG), help="which works, for instance a,d")
    for name in parser.parse_args().works.split(","):
        turns = find_turns(name)
        if not turns:
            print(f"no turn of ({name}) was kept: python -m benchmarks.run --works {name}")
            continue
        rows = judge(turns, name)
        print(f"\n{results.choice_text({name: {'rows': rows}})}\n", flush=True)
        results.update("choice", {name: rows}, 0.0)


if __name__ == "__main__":
    main()
