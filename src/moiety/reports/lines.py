"""Figures of lines: means with bands, scores along runs, curves on logarithmic axes; and a heat map of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from moiety.errors import must
from moiety.reports.figures import COLOURS, MARKS, Rows, legend_below, make_axes, make_panels, use_logarithm

if TYPE_CHECKING:
    from moiety.reports.figures import Figure

Points = Sequence[tuple[float, float]]
Line = tuple[Sequence[float], Sequence[float]]
"""The two coordinates of a line's points."""

STROKES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
BESIDE = 0.15
"""How far apart the marks of names stand that are not joined by lines."""
MARKED = 20
"""Lines of up to this many points have marks."""
MOST_LINES = 8
"""How many lines of one name can be told apart."""


def bands(series: Mapping[str, Mapping[str, Rows]], *, x: str, y: str, columns: int = 3, joined: bool = True) -> Figure:
    """Means as lines and their intervals as bands, in panels; a name has its colour and mark in all of them.

    Intervals of numbers in per cent are drawn from 0 to 100 at most.

    Args:
        series: for each panel its lines by name: rows with ``x``, ``mean`` and, where they are known, ``low`` and
            ``high``.
        x: label of the horizontal axes.
        y: label of the vertical axes.
        columns: the most panels in a row.
        joined: whether the means of a name are joined by a line. If ``x`` counts things without an order between them,
            give False: marks then stand side by side, with bars as intervals.

    >>> import moiety as mo
    >>> rows = [{"x": 1, "mean": 50.0, "low": 45.0, "high": 55.0}, {"x": 2, "mean": 60.0, "low": 57.0, "high": 63.0}]
    >>> figure = mo.reports.bands({"digits": {"fedavg": rows}}, x="rounds", y="accuracy (%)")
    """
    must(len(series) > 0 and all(series.values()), "series", "panels with at least one line each", "none")
    names = list(dict.fromkeys(name for lines in series.values() for name in lines))
    must(len(names) <= len(COLOURS), "series", f"lines of at most {len(COLOURS)} names", len(names))
    figure, places = make_panels(series, columns=columns, margin=0.8, height=2.9, x=x, y=y)
    stroke = "-" if joined else " "
    for axes, lines in places:
        for name, points in lines.items():
            colour, mark = COLOURS[names.index(name)], MARKS[names.index(name)]
            aside = 0.0 if joined else BESIDE * (names.index(name) - (len(names) - 1) / 2)
            across, mean = [p["x"] + aside for p in points], [p["mean"] for p in points]
            marker = mark if len(points) <= MARKED or not joined else None
            axes.plot(across, mean, color=colour, marker=marker, markersize=5, linestyle=stroke)
            if all(p.get("low") is not None for p in points):
                low, high = ([keep_possible(p[key], y) for p in points] for key in ("low", "high"))
                if joined:
                    axes.fill_between(across, low, high, color=colour, alpha=0.15, linewidth=0)
                else:
                    axes.vlines(across, low, high, color=colour, linewidth=1.4)
    for name, colour, mark in zip(names, COLOURS, MARKS, strict=False):
        places[0][0].plot([], [], color=colour, marker=mark, markersize=5, linestyle=stroke, label=name)
    legend_below(figure, len(names))
    return figure


def keep_possible(value: float, label: str) -> float:
    """The end of an interval, within 0 and 100 where the label of its axis says that it is in per cent.

    >>> keep_possible(104.2, "test accuracy (%)"), keep_possible(104.2, "distance")
    (100.0, 104.2)
    """
    return min(max(value, 0.0), 100.0) if "(%)" in label else value


def courses(
    series: Mapping[str, Sequence[Line]],
    *,
    across: str,
    label: str,
    scale: float = 1.0,
    title: str = "",
) -> Figure:
    """A score along runs: lines in the colour and stroke of their name, one for every seed.

    Where a name has more than eight lines, they are pale, and their mean is drawn over them. Where some lines end ten
    times as far as others, the horizontal axis is logarithmic.

    Args:
        series: lines by name, one for each seed.
        across: label of the horizontal axis.
        label: label of the vertical axis.
        scale: what values are multiplied by.
        title: above the figure.

    >>> import moiety as mo
    >>> one_seed, other_seed = [(1, 0.5), (2, 0.6)], [(1, 0.4), (2, 0.7)]
    >>> figure = mo.reports.courses({"fedavg": [one_seed, other_seed]}, across="rounds", label="accuracy")
    """
    must(bool(series) and all(series.values()), "series", "at least one, each with a line", "none")
    must(len(series) <= len(STROKES), "series", f"at most {len(STROKES)}", len(series))
    figure, axes = make_axes(5.5, x=across, y=label, title=title)
    for (name, lines), colour, stroke in zip(series.items(), COLOURS, STROKES, strict=False):
        scaled = [(list(x), [scale * v for v in y]) for x, y in lines]
        pale = len(scaled) > MOST_LINES
        for seed, (x, y) in enumerate(scaled):
            legend = name if seed == 0 and not pale else None
            width, alpha = (0.8, 0.2) if pale else (1.6, 1.0)
            axes.plot(x, y, color=colour, linestyle=stroke, linewidth=width, alpha=alpha, label=legend)
        if pale:
            means = [[fmean(column) for column in zip(*(line[k] for line in scaled), strict=False)] for k in (0, 1)]
            axes.plot(*means, color=colour, linestyle=stroke, linewidth=2.2, label=name)
    ends = [max(x) for lines in series.values() for x, _ in lines]
    if min(ends) > 0 and max(ends) > 10 * min(ends):
        use_logarithm(axes)
    axes.grid(alpha=0.3, linewidth=0.6)
    if len(series) > 1:
        legend_below(figure, len(series))
    return figure


def log_panels(
    series: Mapping[str, Mapping[str, Points]],
    *,
    x: str = "rounds",
    y: str,
    columns: int = 2,
    title: str = "",
    legend_under: bool = False,
) -> Figure:
    """Lines in panels with a logarithmic vertical axis, on which numbers that are not positive are left out.

    Args:
        series: for each panel its lines by name, each as points (round, number).
        x: label of the horizontal axes.
        y: label of the vertical axes.
        columns: the most panels in a row.
        title: above all panels.
        legend_under: whether one legend below the figure, that of the first panel, takes the place of one in each.

    >>> import moiety as mo
    >>> figure = mo.reports.log_panels({"digits": {"ffgg": [(1, 1.0), (2, 0.1)]}}, y="distance to the minimiser")
    """
    must(len(series) > 0 and all(series.values()), "series", "panels with at least one line each", "none")
    margin = 1.2 if legend_under else 0.4
    figure, places = make_panels(series, columns=columns, margin=margin, height=3.6, x=x, y=y, title=title)
    for axes, lines in places:
        for i, (label, points) in enumerate(lines.items()):
            positive = [(a, b) for a, b in points if b > 0]
            # Later lines are thinner, so that a line below another can still be seen.
            width = 3.6 - 2.4 * i / max(1, len(lines) - 1)
            style, colour = STROKES[i % 4], COLOURS[i % len(COLOURS)]
            coordinates = [a for a, _ in positive], [b for _, b in positive]
            axes.plot(*coordinates, linestyle=style, color=colour, linewidth=width, label=label)
        axes.set_yscale("log")
        axes.grid(visible=True, which="major", linewidth=0.4, color="#CCCCCC")
        if not legend_under:
            axes.legend(fontsize=10, loc="best")
    if legend_under:
        legend_below(figure, 4, places[0][0])
    return figure


def heat_map(
    rows: Mapping[str, Sequence[float]],
    columns: Sequence[str],
    *,
    label: str,
    marks: Mapping[str, Sequence[str]] | None = None,
    digits: int = 1,
    title: str = "",
    x: str = "",
    y: str = "",
) -> Figure:
    """A matrix of numbers as colours, each written into its cell; brighter is more.

    Args:
        rows: by name, from the top, a number for each column.
        columns: their names, from the left.
        label: what the numbers are.
        marks: a word below each number, in the shape of ``rows``; none by default.
        digits: decimals.
        title: above the figure.
        x: what the columns are.
        y: what the rows are.

    >>> import moiety as mo
    >>> rows = {"fedavg": [90.0, 91.0], "fedalt": [95.0, 94.0]}
    >>> figure = mo.reports.heat_map(rows, ["digits", "letter"], label="accuracy (%)")
    """
    must(len(rows) > 0 and len(columns) > 0, "rows", "at least one, with a column", "none")
    odd = [name for name, values in rows.items() if len(values) != len(columns)]
    must(not odd, "rows", f"of {len(columns)} numbers each", f"another in {', '.join(odd)}")
    figure, axes = make_axes(1.8 + 0.62 * len(rows), x=x, y=y, title=title)
    numbers = list(rows.values())
    image = axes.imshow(numbers, cmap="cividis", aspect="auto")
    middle = (min(map(min, numbers)) + max(map(max, numbers))) / 2
    for at, (name, values) in enumerate(rows.items()):
        for column, value in enumerate(values):
            word = "" if marks is None else f"\n{marks[name][column]}"
            colour = "white" if value < middle else "black"
            axes.text(column, at, f"{value:.{digits}f}{word}", ha="center", va="center", fontsize=9, color=colour)
    axes.set_xticks(range(len(columns)), [name.replace(", ", ",\n") for name in columns], fontsize=10)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=11)
    for tick in axes.get_xticklabels():  # each ends below its column
        tick.set(rotation=35, ha="right", rotation_mode="anchor")
    figure.colorbar(image, ax=axes).set_label(label, fontsize=12)
    return figure


def forest(rows: Rows, *, x: str, title: str = "", line: float = 0.0) -> Figure:
    """Means with their intervals, one below another, in the order given.

    Args:
        rows: with ``row``, ``mean`` and, where they are known, ``low`` and ``high``; ``strong`` ones are drawn heavier.
        x: label of the horizontal axis.
        title: above the figure.
        line: where the vertical line stands; the label says so where it is not at 0.

    >>> import moiety as mo
    >>> row = {"row": "fedalt beats fedavg", "mean": 1.2, "low": 0.3, "high": 2.1}
    >>> figure = mo.reports.forest([row], x="points")
    """
    must(len(rows) > 0, "rows", "at least one", "none")
    if line:
        x = f"{x}; the grey line is at {line:g}"
    figure, axes = make_axes(1.2 + 0.24 * len(rows), x=x, y="", title=title)
    axes.axvline(line, color="grey", linewidth=0.8)
    axes.set_ylim(0.6 - len(rows), 0.6)  # no row lies on the frame
    for at, row in enumerate(rows):
        strong = bool(row.get("strong"))
        colour = COLOURS[1] if strong else COLOURS[0]
        if row.get("low") is not None:
            axes.plot([row["low"], row["high"]], [-at, -at], color=colour, linewidth=2.5 if strong else 1.2)
        axes.plot([row["mean"]], [-at], color=colour, marker="D" if strong else "o", markersize=6 if strong else 4)
    axes.set_yticks([-at for at in range(len(rows))], [str(row["row"]) for row in rows], fontsize=8)
    return figure
