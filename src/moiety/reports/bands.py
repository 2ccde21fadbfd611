"""Means with their intervals as lines with bands, panel beside panel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from moiety.errors import must
from moiety.reports.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, Rows, panels

if TYPE_CHECKING:
    from moiety.reports.figures import Figure

LOOKS = ((VERMILION, "v"), (ORANGE, "s"), (BLUE, "o"), (GREEN, "^"), (PURPLE, "D"), (GREY, "P"))
MARKED = 20
"""Lines of up to this many points have marks."""


def bands(shown: Mapping[str, Mapping[str, Rows]], *, x: str, y: str, columns: int = 3) -> Figure:
    """Lines by name in panels by name; a name has its colour and mark in all of them.

    Args:
        shown: for each panel its lines, of rows with ``x``, ``mean`` and, where they are known, ``low`` and ``high``.
        x: what is to the right.
        y: what is upwards.
        columns: panels in a row.
    """
    must(len(shown) > 0 and all(shown.values()), "shown", "panels with at least one line each", "none")
    names = list(dict.fromkeys(name for lines in shown.values() for name in lines))
    must(len(names) <= len(LOOKS), "shown", f"lines of at most {len(LOOKS)} names", len(names))
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = panels(0.8 + 2.9 * rows, rows, columns)
    for at, (place, (title, lines)) in enumerate(zip(axes, shown.items(), strict=False)):
        for name, points in lines.items():
            colour, mark = LOOKS[names.index(name)]
            across, mean = [p["x"] for p in points], [p["mean"] for p in points]
            place.plot(across, mean, color=colour, marker=mark if len(points) <= MARKED else None, markersize=5)
            if all(p.get("low") is not None for p in points):
                low, high = ([p[key] for p in points] for key in ("low", "high"))
                place.fill_between(across, low, high, color=colour, alpha=0.15, linewidth=0)
        place.set_title(title, fontsize=12)
        place.set_xlabel(x if at >= len(shown) - columns else "", fontsize=12)
        place.set_ylabel(y if at % columns == 0 else "", fontsize=12)
    for place in axes[len(shown) :]:
        place.set_visible(False)
    for name, (colour, mark) in zip(names, LOOKS, strict=False):  # one legend for all panels
        axes[0].plot([], [], color=colour, marker=mark, markersize=5, label=name)
    figure.legend(fontsize=11, loc="outside lower center", ncols=len(names), frameon=False)
    return figure
