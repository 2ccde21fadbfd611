"""What the pages of the FedPop recipes share: differences, wide tables, and reliability over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moiety.experiments import Page, Row, Section, table_row
from moiety_recipes.pages import Figures, judge_row

DIFFERENCES = "Differences"
SHARES = ("accuracy", "worst", "ece", "client_ece", "covered", "mass", "gap", "auroc", "auroc_information")
"""The measures that are shown in per cent, with one digit; others have two."""


def measure_row(row: str, values: Sequence[float], measure: str, **labels: Any) -> Row:
    """A row of one measure, in per cent where that is how it is shown."""
    scale = 100 if measure in SHARES else 1
    return {**labels, "measure": measure, **table_row(row, values, scale=scale)}


def judge(row: str, differences: Sequence[float], *, scale: float = 1.0, **labels: Any) -> Row:
    """A claim that the differences, one a seed, are above 0."""
    return {**judge_row(row, differences, scale=scale), **labels}


def count_intervals(differences: Sequence[Row]) -> str:
    """How many differences have their whole interval above 0, and how many below.

    >>> count_intervals([{"low": 0.1, "high": 0.2}, {"low": -0.2, "high": -0.1}, {"low": -0.1, "high": 0.3}])
    'ahead in 1 of 3 differences and behind in 1, by their 95% intervals over seeds'
    """
    known = [row for row in differences if row["low"] is not None]
    ahead, behind = sum(row["low"] > 0 for row in known), sum(row["high"] < 0 for row in known)
    return (
        f"ahead in {ahead} of {len(differences)} differences and behind in {behind}, by their 95% intervals over seeds"
    )


def widen(rows: Sequence[Row], *, line: str, column: str, digits: int | None = None) -> list[Row]:
    """One line for each value of ``line``, with the score and its interval in a column for each of ``column``."""
    lines: dict[str, Row] = {}
    for row in rows:
        places = digits or (1 if row["measure"] in SHARES else 2)
        ends = "" if row["low"] is None else f" ({row['low']:.{places}f} to {row['high']:.{places}f})"
        cells = lines.setdefault(row[line], {line: row[line]})
        cells[row[column]] = f"{row['ours']:.{places}f}{ends}"
    return list(lines.values())


def pool_bins(seeds: Sequence[Sequence[Row]]) -> list[Row]:
    """The bins of reliability of several seeds, as if all their examples were one set."""
    bins: dict[float, list[Row]] = {}
    for row in (row for rows in seeds for row in rows):
        bins.setdefault(row["low"], []).append(row)
    pooled = []
    for low, rows in sorted(bins.items()):
        n = sum(row["n"] for row in rows)
        means = {key: sum(row["n"] * row[key] for row in rows) / n for key in ("confidence", "accuracy")}
        pooled.append({"low": low, "high": rows[0]["high"], "n": n, **means})
    return pooled


SIGNS = "A difference above 0 says that it is so, one below 0 the contrary."
UNJUDGED = "Nothing is judged here: verdicts are for runs of scale `night`, whose claims were planned before."


def build_page(
    *,
    about: str,
    size: str,
    tables: Sequence[Section],
    rows: Sequence[Row],
    claims: Sequence[Row],
    notes: Sequence[str],
    sentence: str,
    figures: Figures | None = None,
    unit: str = "difference",
    digits: int = 3,
) -> Page:
    """The page: sizes, tables, differences without verdicts, notes, figures; ``table.json`` has rows, then claims."""
    columns = {"row": "is it so that", "ours": unit, "interval": "95% interval over seeds"}
    return Page(
        about=about,
        rows=[*rows, *claims],
        sections=[
            Section(text=size),
            *tables,
            Section(title=DIFFERENCES, text=f"{SIGNS} {UNJUDGED}", rows=claims, columns=columns, digits=digits),
            Section(title="Decided here", notes=notes),
        ],
        sentence=sentence,
        figures=figures or {},
        more={"notes": list(notes)},
    )
