"""``python -m benchmarks.planted --out FILE``: how often ``mo.recommend`` finds a planted answer.

The problems and the seeds that count are those of ``tests/oracles/planted_problems.py``. Asked: 9 of 10 for the input
layer, 9 of 10 for the second layer, and one model for all in 19 of 20 where clients differ in nothing. FILE has a line
of JSON for each problem; the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "oracles"))
from planted_problems import ANSWERS, SEEDS, find_answer

from moiety.experiments.page import find_commit


def run_problem(kind: str, seed: int) -> dict[str, Any]:
    """The answer to one problem, and whether it is right."""
    clock = time.process_time()
    answer = find_answer(kind, seed)
    return {
        "kind": kind,
        "seed": seed,
        "best": answer.best,
        "rival": answer.rival,
        "verdict": answer.verdict,
        "right": answer.best.startswith(ANSWERS[kind]),
        "interval": [answer.contrast.low, answer.contrast.mean, answer.contrast.high],
        "evaluations": answer.evaluations,
        "seconds": time.process_time() - clock,
        "commit": find_commit(),
    }


def main() -> None:
    """All problems that have no line yet; then how many were right."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kinds", default=",".join(SEEDS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    rows = {(row["kind"], row["seed"]): row for row in map(json.loads, lines)}
    for kind in options.kinds.split(","):
        for seed in SEEDS[kind]:
            if (kind, seed) not in rows:
                rows[kind, seed] = run_problem(kind, seed)
                with options.out.open("a") as file:
                    file.write(json.dumps(rows[kind, seed]) + "\n")
        counted = [rows[kind, seed] for seed in SEEDS[kind]]
        print(f"{kind}: {sum(row['right'] for row in counted)} of {len(counted)}", flush=True)


if __name__ == "__main__":
    main()
