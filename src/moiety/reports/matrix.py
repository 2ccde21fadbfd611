"""A matrix of numbers as a heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from moiety.errors import must
from moiety.reports.figures import blank

if TYPE_CHECKING:
    from moiety.reports.figures import Figure


def heat_map(
    rows: Mapping[str, Sequence[float]],
    columns: Sequence[str],
    *,
    label: str,
    marks: Mapping[str, Sequence[str]] | None = None,
    digits: int = 1,
    title: str = "",
) -> Figure:
    """Numbers as colours, each written into its cell; brighter is more.

    Args:
        rows: by name, from the top, a number for each column.
        columns: their names, from the left.
        label: what the numbers are.
        marks: a word below each number, in the shape of ``rows``; none by default.
        digits: decimals.
        title: above the figure.
    """
    must(len(rows) > 0 and len(columns) > 0, "rows", "at least one, with a column", "none")
    odd = [name for name, values in rows.items() if len(values) != len(columns)]
    must(not odd, "rows", f"of {len(columns)} numbers each", f"another in {', '.join(odd)}")
    figure, axes = blank(1.8 + 0.62 * len(rows))
    numbers = list(rows.values())
    shown = axes.imshow(numbers, cmap="cividis", aspect="auto")
    low, high = min(map(min, numbers)), max(map(max, numbers))
    for at, (name, values) in enumerate(rows.items()):
        for column, value in enumerate(values):
            dark = value < (low + high) / 2
            word = "" if marks is None else f"\n{marks[name][column]}"
            colour = "white" if dark else "black"
            axes.text(column, at, f"{value:.{digits}f}{word}", ha="center", va="center", fontsize=9, color=colour)
    axes.set_xticks(range(len(columns)), [name.replace(", ", ",\n") for name in columns], fontsize=10)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=11)
    axes.tick_params(axis="x", labelrotation=35)
    axes.set_title(title, fontsize=14)
    figure.colorbar(shown, ax=axes).set_label(label, fontsize=12)
    return figure
