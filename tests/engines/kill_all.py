"""A process of its own that kills runs, pipelines and runs with a clock; ``test_killed_run`` reads what it found.

    python kill_all.py FOLDER QUICK_FOLDER SEED STEP

Single runs are killed at every STEP-th change of their folder, those with a clock at every fifth if STEP is 1, else at
every seventh.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from clock_harness import kill_clocked
from kill_harness import kill_runs
from pipeline_harness import kill_pipelines


def new_folder(path: Path) -> Path:
    path.mkdir()
    return path


def main() -> None:
    disk, memory, seed, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    results = kill_runs(disk, memory, seed, step)
    results["pipelines"] = kill_pipelines(new_folder(memory / "pipelines"))
    results["clocked"] = kill_clocked(new_folder(memory / "clocked"), step=5 if step == 1 else 7)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
