"""``moiety sweep``: the values of a grid and several seeds, a line for each run, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moiety.cli.folders import RUNS, run_name
from moiety.cli.output import say, show_page
from moiety.cli.progress import show_progress
from moiety.cli.request import read_seeds
from moiety.errors import must
from moiety.experiments.config import assign, read_file
from moiety.experiments.grid import read_grid
from moiety.experiments.parallel import count_jobs
from moiety.experiments.records import Row
from moiety.experiments.sweep import check_seeds, sweep
from moiety.reports.words import format_metric


def run_sweep(
    target: str, grid: Sequence[str], seeds: str, sets: Sequence[str], jobs: int | None, out: str | None, quiet: bool
) -> None:
    """Run what has not ended yet, and print the table."""
    must(bool(target), "target", "a TOML file", "nothing")
    must(out != "", "out", "a folder", "nothing")
    path = Path(target)
    tables = read_file(path)
    for assignment in sets:
        assign(tables, assignment)
    numbers = read_seeds("seeds", seeds)
    values = read_grid(grid)
    runs = len(check_seeds(numbers[0] if len(numbers) == 1 else numbers))
    for each in values.values():
        runs *= len(each)
    count = count_jobs(jobs, runs)
    folder = RUNS / f"{run_name(path)}-sweep" if out is None else Path(out)
    with show_progress(quiet or count > 1) as watch:
        result = sweep(
            tables,
            values,
            seeds=numbers[0] if len(numbers) == 1 else numbers,
            out=folder,
            jobs=count,
            watch=watch,
            on_result=None if quiet else show_result,
        )
    if quiet:
        say(result.sentence)
    else:
        say()
        show_page(result.page)
        say()
    say(f"results in {folder}")


def show_result(name: str, row: Row, done: int, of: int) -> None:
    """Print a line for a run that has ended."""
    shown = row.get("failed") or f"{row['part']} {row['metric']} {format_metric(row['score'], row['metric'])}"
    say(f"{done:>{len(str(of))}}/{of}  {name}  {shown}")
