"""The canvas of all figures, and figures of who gains and who loses (4, 5 and 7 to 11 of Pillutla et al. 2022).

Each function gives a figure of matplotlib, which the extra ``report`` brings; ``save`` writes it as PNG. Figures are
1000 pixels wide. Colours are those of Okabe and Ito, which colour-blind readers can tell apart, and marks differ in
shape as well.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from moiety.errors import MoietyError, must
from moiety.files import make_folder, write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

V = TypeVar("V")
Rows = Sequence[Mapping[str, Any]]

BLUE, ORANGE, GREEN, VERMILION, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#7F7F7F"
COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, GREY)
MARKS = "osD^vPX*"
PARTS = {"train": "training rows", "test": "test rows"}
KINDS: tuple[tuple[str, str, str, Callable[[float], bool]], ...] = (
    ("helped", BLUE, "o", lambda change: change > 0),
    ("unchanged", GREY, "s", lambda change: change == 0),
    ("hurt", VERMILION, "v", lambda change: change < 0),
)
WIDTH, DPI = 10.0, 100
LAYOUT: Literal["constrained"] | None = "constrained"
"""How matplotlib makes room for labels. It takes two thirds of the time of a figure."""


def _make_grid(height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure of ``height`` inches with a grid of axes, row after row."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MoietyError("Figures need matplotlib: pip install 'moiety[report]'.") from None
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout=LAYOUT)
    figure._repr_png_ = partial(_draw_png, figure)  # type: ignore[attr-defined]  # notebooks show what has this
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=11)
    return figure, grid


def _set_labels(axes: Axes, title: str, x: str, y: str, size: int) -> None:
    axes.set_title(title, fontsize=size)
    axes.set_xlabel(x, fontsize=12)
    axes.set_ylabel(y, fontsize=12)


def make_axes(height: float, *, x: str, y: str, title: str) -> tuple[Figure, Axes]:
    """An empty figure of ``height`` inches with one pair of axes and their labels."""
    figure, [axes] = _make_grid(height)
    _set_labels(axes, title, x, y, 14)
    return figure, axes


def make_panels(
    series: Mapping[str, V], *, columns: int, margin: float, height: float, x: str, y: str, title: str = ""
) -> tuple[Figure, list[tuple[Axes, V]]]:
    """An empty figure with a panel for each name, and the axes of each with what is to be drawn there.

    Args:
        series: what to draw, by the title of its panel.
        columns: the most panels in a row.
        margin: inches of the figure besides the panels.
        height: inches of each row of panels.
        x: label of the horizontal axes, below the last row only.
        y: label of the vertical axes.
        title: above all panels.
    """
    columns = min(columns, len(series))
    rows = -(-len(series) // columns)
    figure, grid = _make_grid(margin + height * rows, rows, columns)
    if title:
        figure.suptitle(title, fontsize=14)
    for place, (axes, name) in enumerate(zip(grid, series, strict=False)):
        _set_labels(axes, name, x if place >= len(series) - columns else "", y, 12)
    for axes in grid[len(series) :]:
        axes.set_visible(False)
    return figure, list(zip(grid, series.values(), strict=False))


def legend_below(figure: Figure, columns: int, axes: Axes | None = None) -> None:
    """One legend below the figure, for what has a label in all panels, or in ``axes`` alone.

    It has as many columns as fit, at most ``columns``.
    """
    entries = [] if axes is None else axes.get_legend_handles_labels()
    labels = [label for each in ([axes] if axes else figure.axes) for label in each.get_legend_handles_labels()[1]]
    longest = max(map(len, labels), default=0)
    fit = max(1, int(figure.get_size_inches()[0] / (0.7 + 0.08 * longest)))  # inches: the mark, and each letter
    figure.legend(*entries, fontsize=11, loc="outside lower center", ncols=min(columns, fit), frameon=False)


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, whole or not at all; the same figure gives the same bytes."""
    target = Path(path)
    make_folder(target.parent, private=False)
    write_file(target, _draw_png(figure), private=False)


def _draw_png(figure: Figure) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    canvas: Any = FigureCanvasAgg(figure)  # ``savefig`` draws twice
    canvas.print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def _draw_zero(axes: Axes) -> None:
    axes.axhline(0, color="black", linewidth=1, linestyle="--", zorder=1)


def _label_change(unit: str) -> str:
    return f"change ({'percentage points' if unit == 'pp' else unit})" if unit else "change"


def scatter_change(series: Mapping[str, Rows], *, unit: str = "pp", scale: float = 100, title: str = "") -> Figure:
    """The change of every client against the number of its training rows (Figures 5, 8, 9, 10).

    Points that would hide each other are moved apart sideways. Where all clients have as many rows, they stand in the
    order of their change.

    Args:
        series: by name, the change rows of one seed; each is a line of two panels, training rows and test rows (only
            the latter where nothing is known of the former).
        unit: unit of the changes, as shown.
        scale: what they are multiplied by; 100 makes percentage points of shares.
        title: above all panels.
    """
    must(len(series) > 0, "series", "at least one named list of rows", "none")
    parts = [part for part in PARTS if any(row.get(part) is not None for rows in series.values() for row in rows)]
    must(len(parts) > 0, "series", "rows with changes", "none")
    points = {
        f"{name}, {PARTS[part]}": [(row["n"], scale * row[part]) for row in rows if row.get(part) is not None]
        for name, rows in series.items()
        for part in parts
    }
    x, y = "training rows of the client", _label_change(unit)
    figure, places = make_panels(points, columns=len(parts), margin=0.6, height=3.4, x=x, y=y, title=title)
    for axes, some in places:
        _draw_points(axes, some)
    return figure


BESIDE = 1.06
"""Parts with as many parameters are drawn this factor apart."""
SAME_PLACE, APART = 0.015, 0.012
"""Points closer than this share of both axes hide each other; they are moved apart by that share of the horizontal."""


def _move_apart(points: Sequence[tuple[float, float]], logarithmic: bool) -> list[tuple[float, float]]:
    """The points, those that would hide each other side by side; others stay where they are."""
    across = [math.log(x) if logarithmic else x for x, _ in points]
    widths = [(max(values) - min(values)) or 1.0 for values in (across, [y for _, y in points])]
    piles: dict[tuple[int, int], list[int]] = {}
    for at, (x, (_, y)) in enumerate(zip(across, points, strict=True)):
        piles.setdefault((round(x / widths[0] / SAME_PLACE), round(y / widths[1] / SAME_PLACE)), []).append(at)
    places = list(points)
    for pile in piles.values():
        for place, at in enumerate(pile if len(pile) > 1 else []):
            x = across[at] + (place - (len(pile) - 1) / 2) * APART * widths[0]
            places[at] = (math.exp(x) if logarithmic else x, points[at][1])
    return places


def _draw_points(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    _draw_zero(axes)
    sizes = [n for n, _ in points]
    logarithmic = bool(sizes) and min(sizes) > 0 and max(sizes) > 30 * min(sizes)
    if len(sizes) > 1 and len(set(sizes)) == 1:  # they would all stand on one line
        points = list(enumerate(sorted((change for _, change in points)), 1))
        axes.set_xlabel(f"clients by their change, {sizes[0]:g} rows each", fontsize=12)
    elif points:
        points = _move_apart(points, logarithmic)
    for kind, colour, mark, holds in KINDS:
        some = [(n, change) for n, change in points if holds(change)]
        if some:
            x, y = zip(*some, strict=True)
            label = f"{kind}: {len(some)} of {len(points)}"
            axes.scatter(x, y, s=26, c=colour, marker=mark, alpha=0.65, linewidths=0, label=label, zorder=2)
    if logarithmic:
        use_logarithm(axes)
    else:
        axes.locator_params(axis="x", integer=True)
    if points:  # above the panel, where it hides no point
        place: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "borderaxespad": 0.2}
        axes.legend(fontsize=10, ncols=len(KINDS), frameon=False, columnspacing=1.2, handletextpad=0.1, **place)
        axes.set_title(axes.get_title(), fontsize=12, pad=24)


def use_logarithm(axes: Axes) -> None:
    """A logarithmic horizontal axis with numbers as people write them."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.12g}")
    axes.xaxis.set_minor_formatter(lambda x, _: f"{x:,.12g}" if _is_labelled(x, *axes.get_xlim()) else "")


def _is_labelled(x: float, low: float, high: float) -> bool:
    """Whether a number between powers of ten has a label: 2, 4 and 6 of them, on an axis that has one power or none."""
    return high < 20 * low and f"{x:e}"[0] in "246"


def violins(
    series: Mapping[str, Sequence[float | None]],
    *,
    label: str = "",
    unit: str = "pp",
    scale: float = 100,
    title: str = "",
) -> Figure:
    """The distribution of clients' changes, one violin for each name (Figure 7).

    The white dot is the median, the black box spans the quartiles, the line goes from the least to the largest.

    Args:
        series: changes by name; None (a client without such rows) is left out.
        label: label of the horizontal axis: what the names are values of.
        unit: unit of the changes, as shown.
        scale: what they are multiplied by.
        title: above the figure.

    >>> import moiety as mo
    >>> gains = {"0.1": [0.1, 0.0, -0.1], "0.2": [0.2, 0.1, None]}
    >>> figure = mo.reports.violins(gains, label="learning rate")
    """
    import numpy as np  # here, so that the table of recipes need not load it

    values = {name: [scale * v for v in some if v is not None] for name, some in series.items()}
    empty = [name for name, some in values.items() if not some]
    must(bool(values) and not empty, "series", "changes of at least one client for every name", empty or "none")
    figure, axes = make_axes(5.0, x=label, y=_label_change(unit), title=title)
    _draw_zero(axes)
    places = list(range(1, len(values) + 1))
    bodies = axes.violinplot(list(values.values()), places, widths=0.8, showextrema=False)
    for body in bodies["bodies"]:  # type: ignore[attr-defined]
        body.set(facecolor=BLUE, edgecolor=BLUE, alpha=0.4, zorder=2)
    for place, some in zip(places, values.values(), strict=True):
        low, first, middle, third, high = np.quantile(some, (0, 0.25, 0.5, 0.75, 1))
        axes.vlines(place, low, high, color="black", linewidth=1, zorder=3)
        axes.vlines(place, first, third, color="black", linewidth=9, zorder=3)
        axes.scatter([place], [middle], s=30, color="white", zorder=4)
    hurt = [sum(v < 0 for v in some) / len(some) for some in values.values()]
    names = [f"{name}\n{share:.0%} hurt" for name, share in zip(values, hurt, strict=True)]
    axes.set_xticks(places, names, fontsize=11)
    return figure


def seed_bands(rows: Rows, *, unit: str = "pp", scale: float = 100, title: str = "") -> Figure:
    """The change of every client over seeds, the mean as a line and least to largest as a band (Figure 11).

    Args:
        rows: as ``moiety.analysis.over_seeds`` gives them, in ascending order of the mean.
        unit: unit of the changes, as shown.
        scale: what they are multiplied by.
        title: above the figure.
    """
    must(len(rows) > 0, "rows", "those of at least one client", "none")
    figure, axes = make_axes(5.0, x="clients, in the order of their mean change", y=_label_change(unit), title=title)
    ranks = list(range(1, len(rows) + 1))
    mean, low, high = ([scale * row[key] for row in rows] for key in ("mean", "min", "max"))
    _draw_zero(axes)
    seeds = rows[0]["seeds"]
    axes.fill_between(ranks, low, high, color=BLUE, alpha=0.25, linewidth=0, label=f"least to largest of {seeds} seeds")
    axes.plot(ranks, mean, color=BLUE, linewidth=2, label="mean over seeds")
    sometimes = [i for i, row in enumerate(rows) if 0 < row["hurt"] < row["seeds"]]
    if sometimes:
        label = f"hurt in some seeds only: {len(sometimes)} of {len(rows)}"
        x, y = [ranks[i] for i in sometimes], [mean[i] for i in sometimes]
        axes.scatter(x, y, s=16, color=ORANGE, edgecolors="black", linewidths=0.4, zorder=3, label=label)
    always = [i for i, row in enumerate(rows) if row["hurt"] == row["seeds"]]
    label = f"hurt in every seed: {len(always)} of {len(rows)}"
    x, y = [ranks[i] for i in always], [mean[i] for i in always]
    axes.scatter(x, y, s=24, color=VERMILION, marker="v", linewidths=0, zorder=3, label=label)
    legend_below(figure, 2)
    return figure


def accuracy_against_parameters(rows: Rows, *, unit: str = "pp", scale: float = 100, title: str = "") -> Figure:
    """What personal parts gain against their number of parameters, on a logarithmic axis (Figure 4).

    Args:
        rows: as ``moiety.analysis.against_parameters`` gives them; bars are the intervals over seeds.
        unit: unit of the changes, as shown.
        scale: what they are multiplied by.
        title: above the figure.
    """
    must(len(rows) > 0, "rows", "at least one", "none")
    must(all(row["personal"] > 0 for row in rows), "rows", "parts with personal parameters", "one with none")
    figure, axes = make_axes(5.0, x="personal parameters", y=_label_change(unit), title=title)
    _draw_zero(axes)
    counts: dict[int, int] = {}
    for i, row in enumerate(rows):
        y = scale * row["difference"]
        x = row["personal"] * BESIDE ** counts.get(row["personal"], 0)  # as many parameters: side by side
        counts[row["personal"]] = counts.get(row["personal"], 0) + 1
        bars = None if row["low"] is None else [[y - scale * row["low"]], [scale * row["high"] - y]]
        mark, colour = MARKS[i % len(MARKS)], COLOURS[i % len(COLOURS)]
        label = f"{row['row']}: {row['personal']:,} ({100 * row['share']:.3g}% of all)"
        axes.errorbar([x], [y], yerr=bars, fmt=mark, color=colour, markersize=10, capsize=4, label=label)
    use_logarithm(axes)
    legend_below(figure, 2)  # an interval may reach any corner of the panel
    return figure
