"""``moiety data``: which data sets there are, fetching them, checking their files, and where these lie."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from moiety.cli.output import say, show
from moiety.data.catalogue import DATA_SETS, VARIANTS, DataSet, rows_of
from moiety.data.sources.folders import VARIABLE, cache_folder, find_file, named_folder, target_folder
from moiety.errors import choice, must
from moiety.reports.console import console, on_terminal, table


def list_sets() -> None:
    """Print a line for each data set: whether its file is there, how it is got, its terms and what it is."""
    rows = []
    for row in DATA_SETS.values():
        state = "found" if find_file(row.file) else "absent"
        rows.append([row.name, state, "your files" if row.by_hand else "fetched", row.licence, row.about])
    show(table(["name", "file", "how", "licence", "what it is"], rows, text=(0, 1, 2, 3, 4)))
    say("\nas in: moiety data fetch mnist")
    for name, variants in VARIANTS.items():
        say(f"{name} is read from {' or else '.join(variants)}")


def show_folders() -> None:
    """Print where files are looked for, and where they are fetched to."""
    folder = named_folder()
    say(f"{VARIABLE}: {folder if folder is not None else 'not set'}")
    say(f"cache: {cache_folder()}")
    say(f"moiety data fetch writes to: {target_folder()}")


def fetch_sets(names: Sequence[str], originals: Path | None, again: bool) -> None:
    """Fetch data sets one after another; print terms, citation and source before, and what was made after."""
    from moiety.data.fetching import fetch
    from moiety.data.sources.provenance import read_record

    for name in names:
        choice("name", name, (*DATA_SETS, *VARIANTS))
    must(originals is None or originals.exists(), "--from", "a file or folder that exists", originals)
    for row in dict.fromkeys(rows_of(name)[0].name for name in names):
        _show_terms(DATA_SETS[row])
        with _show_bar(row) as bar:
            path = fetch(row, originals=originals, bar=bar, again=again)
        record = read_record(path)
        if record:
            say(f"  sha256:   {record['sha256']}")
            say(f"  arrays:   {record['arrays']}, {_compare(path.name, record['arrays'])}")
        say(f"  {path}")


def _compare(file: str, digest: str) -> str:
    from moiety.data.sources.digests import DIGESTS

    if file not in DIGESTS:
        return "with none known to compare"
    return f"{'as' if digest == DIGESTS[file] else 'not as'} our results were computed from"


def _show_terms(row: DataSet) -> None:
    say(f"{row.name}: {row.about}")
    facts = {"licence": row.licence, "cite": row.citation, "source": row.page, "note": row.note}
    for label, fact in facts.items():
        if fact:
            say(f"  {label + ':':9} {fact}")


def check_files() -> bool:
    """Read every file that is there and say what is known of it; whether none is damaged."""
    from moiety.data.fetching import check

    good = True
    for row, path, use, problem in check():
        if problem:
            good = False
            print(f"moiety: {problem}", file=sys.stderr)
        elif use is not None:
            say(f"{row.name}: {use.state}, arrays {use.digest}, {path}")
    say("known: as our results were computed from; made: by moiety data fetch; unknown: neither")
    return good


class DownloadBar:
    """A bar of rich, as pooch wants one."""

    def __init__(self, progress: Progress, name: str):
        self.progress = progress
        self.task = progress.add_task(name, total=None)

    @property
    def total(self) -> float:
        """The bytes of the download, 0 where the server does not say."""
        return self.progress.tasks[self.task].total or 0

    @total.setter
    def total(self, total: float) -> None:
        self.progress.reset(self.task, total=total or None)

    def update(self, amount: float) -> None:
        """Count so many bytes more."""
        self.progress.advance(self.task, amount)

    def reset(self) -> None:
        """Count from 0 again."""
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        """The bar of the last file stays."""


@contextmanager
def _show_bar(name: str) -> Iterator[DownloadBar | None]:
    if not on_terminal():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console()) as progress:
        yield DownloadBar(progress, name)
