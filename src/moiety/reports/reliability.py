"""Figures of uncertainty, after Figures 4, S8 and S9 of Kotelevskii et al. 2022: reliability diagrams, densities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moiety.errors import must
from moiety.reports.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, panels

if TYPE_CHECKING:
    from moiety.reports.figures import Axes, Figure

KEYS = ("low", "high", "n", "accuracy", "confidence")
COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, GREY)


def reliability_diagram(series: Mapping[str, Sequence[Mapping[str, Any]]], *, title: str = "") -> Figure:
    """Accuracy against confidence, a panel for each name: on the diagonal, probabilities mean what they say.

    Args:
        series: by name, rows as ``moiety.evaluation.calibration.reliability`` gives them.
        title: above all panels.
    """
    must(bool(series) and all(series.values()), "series", "rows for at least one name, and for every name", "none")
    for name, rows in series.items():
        odd = sorted({key for row in rows for key in KEYS if key not in row})
        must(not odd, f"series[{name!r}]", f"rows with {', '.join(KEYS)}", f"none with {', '.join(odd)}")
    columns = min(3, len(series))
    lines = -(-len(series) // columns)
    figure, grid = panels(1.0 + 10.0 / columns * lines, lines, columns)
    if title:
        figure.suptitle(title, fontsize=14)
    for axes, (name, rows) in zip(grid, series.items(), strict=False):
        _diagram(axes, rows)
        total = sum(row["n"] for row in rows)
        error = sum(row["n"] * abs(row["accuracy"] - row["confidence"]) for row in rows) / total
        axes.set_title(f"{name}: calibration error {error:.3f}", fontsize=11)
    for axes in grid[len(series) :]:
        axes.set_visible(False)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=11, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _diagram(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    total = sum(row["n"] for row in rows)
    low, width = [row["low"] for row in rows], [row["high"] - row["low"] for row in rows]
    axes.bar(low, [row["accuracy"] for row in rows], width, align="edge", color=BLUE, alpha=0.55, label="accuracy")
    shares = [row["n"] / total for row in rows]
    # A line for each bin, not one through all: bins without examples have no row.
    axes.hlines(shares, low, [row["high"] for row in rows], color=GREY, linewidth=2.5, label="examples")
    axes.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle="--")
    places = [row["confidence"] for row in rows]
    axes.scatter(places, [row["accuracy"] for row in rows], s=30, color=VERMILION, zorder=3, label="mean of a bin")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_xlabel("confidence", fontsize=12)
    axes.set_ylabel("accuracy; share of examples", fontsize=12)


def densities(
    series: Mapping[str, Mapping[str, Sequence[float]]], *, label: str = "predictive entropy (nats)", title: str = ""
) -> Figure:
    """Histograms of a score, a panel for each name: examples of the client's kind against others (Figures 4 and S8).

    Args:
        series: by name, scores by the kind of their examples.
        label: of the horizontal axes.
        title: above all panels.
    """
    full = bool(series) and all(kinds and all(map(len, kinds.values())) for kinds in series.values())
    must(full, "series", "scores for at least one name, and for every name and kind", "none")
    figure, grid = panels(0.6 + 3.6 * (-(-len(series) // 2)), -(-len(series) // 2), min(2, len(series)))
    if title:
        figure.suptitle(title, fontsize=14)
    most = max(max(some) for kinds in series.values() for some in kinds.values()) or 1.0
    edges = [most * k / 30 for k in range(31)]
    for axes, (name, kinds) in zip(grid, series.items(), strict=False):
        for colour, (kind, some) in zip(COLOURS, kinds.items(), strict=False):
            axes.hist(list(some), edges, density=True, histtype="stepfilled", alpha=0.45, color=colour, label=kind)
        axes.set_title(name, fontsize=12)
        axes.set_xlabel(label, fontsize=12)
        axes.set_ylabel("density", fontsize=12)
        axes.legend(fontsize=10)
    for axes in grid[len(series) :]:
        axes.set_visible(False)
    return figure
