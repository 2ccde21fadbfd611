"""The records of an experiment: cells to run, the page made of their results, and what a run of it gives."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moiety.reports.figures import Figure
    from moiety.run.protocol import Callback
    from moiety.run.result import Run

Row = dict[str, Any]
Key = tuple[str | int, ...]
"""The name of a cell: words, and seeds as whole numbers."""
Results = Mapping[Key, Row]
"""What was kept of each cell, by its key."""
Watch = Callable[[str, "Path | None"], "Callback | None"]
"""Called with the name and folder of each run before it begins; what it returns is a callback of that run."""


def watch_nothing(name: str, folder: Path | None) -> None:
    """Watch nothing."""


def keep_clients(run: Run) -> Row:
    """Keep the row of each client, and the name of the metric."""
    return {"clients": run.clients, "metric": run.history[-1]["metric_name"]}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One piece of an experiment. It runs once, and what is kept of it is read when the experiment is resumed.

    Args:
        key: its name, unique in the experiment. It is also its place: a word is a folder, a number the folder of a
            seed.
        fit: makes the arguments of ``moiety.fit``; called only where the run is needed. The runner adds ``engine``,
            ``device``, ``out``, ``start``, ``callbacks`` and ``progress``.
        keep: what is kept of the run: numbers, texts, lists and tables that JSON can hold. The runner adds ``engine``
            and ``seconds``.
        work: what a cell does that is no single run: gives directly what is kept. Then ``fit`` is left out.
        start: the key of an earlier cell. The run starts where that one ended.
        stored: whether the run has a folder, so that it can be continued and started from. Short runs need none.
        engine: the engine of this cell where the user names none; by default the experiment's.
        group: cells of one group share an engine: where it is left open, the first of them measures.
        vectorise: False for a run that must train one client after another, such as one with dropout.
    """

    key: Key
    fit: Callable[[], Mapping[str, Any]] | None = None
    keep: Callable[[Run], Row] = keep_clients
    work: Callable[[], Row] | None = None
    start: Key | None = None
    stored: bool = True
    engine: str | None = None
    group: str | None = None
    vectorise: bool = True

    @property
    def place(self) -> str:
        """Its folder, below the folder of the experiment.

        >>> Cell(key=(3, "sign flip", "mixing, trimmed mean")).place
        'seed-3/sign_flip/mixing-trimmed_mean'
        """
        return "/".join(_folder_name(part) for part in self.key)

    @property
    def label(self) -> str:
        """Its name in one line, as the progress shows it."""
        return " ".join(f"seed {part}" if isinstance(part, int) else part for part in self.key)


def _folder_name(part: str | int) -> str:
    if isinstance(part, int):
        return f"seed-{part}"
    return part.replace(", ", "-").replace(" ", "_").replace("(", "").replace(")", "").replace("/", "-")


Cells = Generator["Cell | list[Cell]", Any, None]
"""What ``cells`` of an experiment returns: it yields cells. Where a later cell depends on an earlier one, the value of
``yield`` is what was kept: ``row = yield Cell(...)``. Cells of a list, ``rows = yield [Cell(...), ...]``, are run side
by side, each in a process of its own: none of them may start from another."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page: a heading, text, a table and notes, each of them optional.

    ``columns`` are keys of the rows with their headings. By default they are those of rows as ``table_row`` gives them,
    or, where rows have no ``ours``, all keys.
    """

    title: str = ""
    text: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    columns: Mapping[str, str] | None = None
    digits: int = 2
    notes: Sequence[str] = ()
    level: int = 2


@dataclass(frozen=True, kw_only=True)
class Page:
    """What an experiment shows.

    Args:
        about: what it reproduces and how to read it, the first paragraph.
        rows: all numbers, for ``table.json``.
        sections: tables and text, in order.
        sentence: what it shows, in one line.
        figures: by file name, such as ``curves.png``, a title and a function that draws the figure.
        more: other keys of ``table.json``.
    """

    about: str
    rows: Sequence[Row]
    sections: Sequence[Section]
    sentence: str
    figures: Mapping[str, tuple[str, Callable[[], Figure]]] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a run of an experiment gives: the page as Markdown, its closing sentence, and the results of all cells."""

    page: str
    sentence: str
    results: Results
