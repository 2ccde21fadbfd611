"""What the pages of several papers share: parts of a page, means with intervals as text, points of curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from moiety.experiments import Page, Row, Section, count_verdicts

Figures = dict[str, tuple[str, Callable[[], Any]]]
"""By file name, a title and a function that draws the figure."""


class Part(NamedTuple):
    """What a page shows of one data set."""

    rows: Sequence[Row]
    sections: Sequence[Section]
    figures: Figures


def join_parts(about: str, parts: Sequence[Part], more: Mapping[str, Any] | None = None) -> Page:
    """The page of all parts. It ends with how many of their claims hold."""
    rows = [row for part in parts for row in part.rows]
    return Page(
        about=about,
        rows=rows,
        sections=[section for part in parts for section in part.sections],
        sentence=count_verdicts(rows),
        figures={file: figure for part in parts for file, figure in part.figures.items()},
        more=more or {},
    )


def show_mean(row: Mapping[str, Any], *, scale: float = 1.0, sign: str = "") -> str:
    """A mean with its interval, from a row with ``mean``, ``low`` and ``high``.

    >>> show_mean({"mean": 0.5, "low": 0.25, "high": 0.75}, scale=100)
    '50.00 [25.00, 75.00]'
    """
    ends = "" if row["low"] is None else f" [{scale * row['low']:{sign}.2f}, {scale * row['high']:{sign}.2f}]"
    return f"{scale * row['mean']:{sign}.2f}{ends}"
