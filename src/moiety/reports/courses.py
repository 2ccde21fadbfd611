"""Courses of runs: a score along the way, a line for every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from moiety.errors import must
from moiety.reports.figures import BLUE, GREEN, ORANGE, PURPLE, VERMILION, blank

if TYPE_CHECKING:
    from moiety.reports.figures import Figure

Line = tuple[Sequence[float], Sequence[float]]
"""Where and how much."""
LOOKS = ((BLUE, "-"), (VERMILION, "--"), (GREEN, "-."), (ORANGE, ":"), (PURPLE, (0, (5, 1, 1, 1, 1, 1))))


def courses(
    series: Mapping[str, Sequence[Line]],
    *,
    across: str,
    label: str,
    scale: float = 1.0,
    title: str = "",
) -> Figure:
    """Lines in the colour and stroke of their name, one for every seed.

    Args:
        series: lines by name, one for each seed.
        across: what the horizontal axis shows.
        label: what the vertical axis shows.
        scale: what values are multiplied by.
        title: above the figure.
    """
    must(bool(series) and all(series.values()), "series", "at least one, each with a line", "none")
    must(len(series) <= len(LOOKS), "series", f"at most {len(LOOKS)}", len(series))
    figure, axes = blank(5.5)
    for (name, lines), (colour, stroke) in zip(series.items(), LOOKS, strict=False):
        for at, (x, y) in enumerate(lines):
            shown = name if at == 0 else None
            axes.plot(x, [scale * v for v in y], color=colour, linestyle=stroke, linewidth=1.6, label=shown)
    axes.set_xlabel(across, fontsize=12)
    axes.set_ylabel(label, fontsize=12)
    axes.set_title(title, fontsize=14)
    axes.grid(alpha=0.3, linewidth=0.6)
    figure.legend(fontsize=11, loc="outside lower center", ncols=len(series), frameon=False)
    return figure
