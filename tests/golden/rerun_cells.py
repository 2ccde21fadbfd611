"""Runs small cells of recipes on engines that are named, and prints what is kept of them: one process of a test.

    python rerun_cells.py RECIPE ENGINE [RECIPE ENGINE ...]

An ENGINE of ``-``, or two of them, are the recipe's own.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from moiety.experiments.registry import load_recipe
from moiety.experiments.runner import Runner

LEFT_OUT = ("seconds", "commit", "files")
MOST = 4
"""So many cells are run at most."""


def run_first(name: str, engine: str | None) -> dict[str, Any]:
    """What is kept of a recipe's first cells at scale ci, up to the first that begins where another ended."""
    experiment = load_recipe(name)
    runner = Runner(None, engine, experiment.engine)
    cells = experiment.cells(experiment.plan("ci"), range(1))
    with contextlib.suppress(StopIteration):
        cell = next(cells)
        while True:
            several = cell if isinstance(cell, list) else [cell]
            enough = several[0].start or len(runner.results) + len(several) >= MOST
            rows = [runner.run(one) for one in several[: 1 if several[0].start else MOST]]
            if enough:
                break
            cell = cells.send(rows if isinstance(cell, list) else rows[0])
    return {
        " ".join(map(str, key)): {field: value for field, value in row.items() if field not in LEFT_OUT}
        for key, row in runner.results.items()
    }


def run_all(pairs: Sequence[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Run the cells of recipes on their engines, in the order given."""
    engines = {engine: None if engine == "-" or " " in engine else engine for _, engine in pairs}
    return {f"{name} {engine}": run_first(name, engines[engine]) for name, engine in pairs}


def main(words: list[str]) -> None:
    """Run the cells in the order given, and print what is kept of them."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(json.dumps(run_all(list(zip(words[::2], words[1::2], strict=True)))))


if __name__ == "__main__":
    main(sys.argv[1:])
