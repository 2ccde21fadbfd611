"""What the pages of several papers share: parts of a page, claims as rows, means with their intervals as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from moiety.experiments import Page, Row, Section, claim, count_verdicts, table_row

Figures = Mapping[str, tuple[str, Callable[[], Any]]]
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


def judge_row(
    row: str,
    differences: Sequence[float],
    *,
    above: float = 0.0,
    within: float | None = None,
    paper: float | None = None,
    scale: float = 1.0,
) -> Row:
    """A claim with its verdict, as a row of ``table_row``, from one difference a seed.

    >>> judge_row("FedAlt beats FedSim", [0.003, 0.004, 0.0035], scale=100)["verdict"]
    'holds'
    """
    verdict = claim(row, differences, above=above, within=within).verdict
    return table_row(row, differences, paper=paper, scale=scale, verdict=verdict)


def show_mean(row: Mapping[str, Any], *, scale: float = 1.0, sign: str = "") -> str:
    """A mean with its interval, from a row with ``mean``, ``low`` and ``high``.

    >>> show_mean({"mean": 0.5, "low": 0.25, "high": 0.75}, scale=100)
    '50.00 [25.00, 75.00]'
    """
    ends = "" if row["low"] is None else f" [{scale * row['low']:{sign}.2f}, {scale * row['high']:{sign}.2f}]"
    return f"{scale * row['mean']:{sign}.2f}{ends}"
