"""``moiety sweep`` and ``moiety tune``: a line for each run, and what came out."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from moiety.cli.folders import RUNS, run_name
from moiety.cli.output import say, show_page
from moiety.cli.progress import show_progress
from moiety.cli.report import report_end
from moiety.cli.request import read_seeds
from moiety.errors import must
from moiety.experiments.config import Table, assign, read_file
from moiety.experiments.grid import read_grid
from moiety.experiments.parallel import count_jobs
from moiety.experiments.records import Row
from moiety.experiments.sweep import check_seeds, sweep
from moiety.experiments.tune import read_space, tune
from moiety.reports.words import format_metric


def run_sweep(
    target: str, grid: Sequence[str], seeds: str, sets: Sequence[str], jobs: int | None, out: str | None, quiet: bool
) -> None:
    """Run what has not ended yet, and print the table."""
    tables, folder = open_file(target, sets, out, "sweep")
    entries, values = read_seeds("seeds", seeds), read_grid(grid)
    numbers = check_seeds(entries[0] if len(entries) == 1 else entries)
    count = count_jobs(jobs, len(numbers) * math.prod(map(len, values.values())))
    with show_progress(quiet or count > 1) as watch:
        on_result = None if quiet else show_result
        result = sweep(
            tables,
            values,
            seeds=numbers,
            out=folder,
            jobs=count,
            watch=lambda label, place: watch(label),
            on_result=on_result,
        )
    if quiet:
        say(result.sentence)
    else:
        say()
        show_page(result.page)
        say()
    report_end(folder, quiet=quiet)
    say(f"results in {folder}")


def run_tune(
    target: str, space: Sequence[str], trials: int, seed: int, sets: Sequence[str], out: str | None, quiet: bool
) -> None:
    """Run the trials that have not ended yet, and print the best."""
    tables, folder = open_file(target, sets, out, "tune")
    with show_progress(quiet) as watch:
        on_result = None if quiet else show_result
        result = tune(
            tables,
            dict(read_space(space)),
            trials=trials,
            seed=seed,
            out=folder,
            watch=lambda label, place: watch(label),
            on_result=on_result,
        )
    say(result.sentence)
    say(f"results in {folder}")


def open_file(target: str, sets: Sequence[str], out: str | None, what: str) -> tuple[Table, Path]:
    """The tables of the file, with what the command sets, and the folder that results go to."""
    must(bool(target), "target", "a TOML file", "nothing")
    must(out != "", "out", "a folder", "nothing")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    path = Path(target)
    tables = read_file(path)
    for assignment in sets:
        assign(tables, assignment)
    return tables, RUNS / f"{run_name(path)}-{what}" if out is None else Path(out)


def show_result(name: str, row: Row, number: int, total: int) -> None:
    """Print a line for a run that has ended."""
    outcome = row.get("failed") or row.get("state", "")
    if row["score"] is not None:
        outcome = f"{row.get('part', 'validation')} {row['metric']} {format_metric(row['score'], row['metric'])}"
    say(f"{number:>{len(str(total))}}/{total}  {name}  {outcome}")
