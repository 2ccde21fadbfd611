"""Lines over rounds, panel beside panel, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from moiety.errors import must
from moiety.reports.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, panels

if TYPE_CHECKING:
    from moiety.reports.figures import Figure

Line = Sequence[tuple[float, float]]

COLOURS, STYLES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, GREY), ("-", "--", "-.", ":")


def log_panels(
    shown: Mapping[str, Mapping[str, Line]], *, x: str = "rounds", y: str, columns: int = 2, title: str = ""
) -> Figure:
    """Lines by name in panels by name; what is not positive has no place on such an axis and is left out.

    Args:
        shown: for each panel its lines, each as points (round, number).
        x: what is to the right.
        y: what is upwards, on a logarithmic axis.
        columns: panels in a row.
        title: above all panels.
    """
    must(len(shown) > 0 and all(shown.values()), "shown", "panels with at least one line each", "none")
    rows = -(-len(shown) // columns)
    figure, axes = panels(0.4 + 3.6 * rows, rows, columns)
    for place, (name, lines) in zip(axes, shown.items(), strict=False):
        for i, (label, points) in enumerate(lines.items()):
            kept = [(a, b) for a, b in points if b > 0]
            # Later lines are thinner, so that one that lies below another can still be seen.
            width = 3.6 - 2.4 * i / max(1, len(lines) - 1)
            style, colour = STYLES[i % len(STYLES)], COLOURS[i % len(COLOURS)]
            place.plot([a for a, _ in kept], [b for _, b in kept], style, color=colour, linewidth=width, label=label)
        place.set_yscale("log")
        place.set_title(name, fontsize=12)
        place.set_xlabel(x, fontsize=11)
        place.set_ylabel(y, fontsize=11)
        place.grid(visible=True, which="major", linewidth=0.4, color="#CCCCCC")
        place.legend(fontsize=10, loc="best")
    for place in axes[len(shown) :]:
        place.set_visible(False)
    if title:
        figure.suptitle(title, fontsize=14)
    return figure
