"""``moiety report``: the folders of runs as one page of HTML."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moiety.cli.compare import list_ended, read_groups
from moiety.cli.output import say
from moiety.errors import MoietyError
from moiety.reports.groups import are_alike
from moiety.reports.page import write_report
from moiety.run.folder import LEDGER
from moiety.run.verify import list_runs

if TYPE_CHECKING:
    from moiety.run.result import Run

REPORT = "report.html"
MOST_RUNS = 200
"""Of more runs no page is made unless it is asked for: reading them takes long."""


def report_folders(folders: Sequence[Path], out: Path) -> None:
    """Read the runs of the folders and write the page."""
    runs = [run for folder in folders for run in list_ended(folder)]
    say(f"report in {write_report(read_groups(runs), out)}")


def report_end(folder: Path, run: Run | None = None, *, quiet: bool) -> None:
    """Write the page of what has ended into its folder and say where it is; a run's results do not depend on it.

    Args:
        folder: with runs below it, unless ``run`` is in it.
        run: the one that has just ended there.
        quiet: say nothing.
    """
    try:
        target = _report_below(folder) if run is None else run.report(folder / REPORT)
    except MoietyError as error:
        warnings.warn(f"No report was written: {error}", stacklevel=2)
        return
    if target is not None and not quiet:
        say(f"report in {target}\n")


def _report_below(folder: Path) -> Path | None:
    """The page of all ended runs below a folder, where they can be shown on one page."""
    runs = [run for run in list_runs(folder) if (run / LEDGER).is_file()]
    groups = read_groups(runs) if len(runs) <= MOST_RUNS else []
    # Cells of other data or metrics have their page in table.md.
    return write_report(groups, folder / REPORT) if groups and are_alike(groups) else None
