"""Figures of uncertainty, after Figures 4, S8 and S9 of Kotelevskii et al. 2022: reliability diagrams, densities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moiety.errors import must
from moiety.reports.figures import BLUE, COLOURS, GREY, VERMILION, legend_below, make_panels

if TYPE_CHECKING:
    from moiety.reports.figures import Figure

KEYS = ("low", "high", "n", "accuracy", "confidence")


def reliability_diagram(series: Mapping[str, Sequence[Mapping[str, Any]]], *, title: str = "") -> Figure:
    """Accuracy against confidence, a panel for each name: on the diagonal, probabilities are right.

    Args:
        series: by name, rows as ``moiety.evaluation.calibration.reliability`` gives them.
        title: above all panels.
    """
    from moiety.evaluation.calibration import calibration_error  # here: it loads NumPy

    must(bool(series) and all(series.values()), "series", "rows for at least one name, and for every name", "none")
    columns = {}
    for name, rows in series.items():
        odd = sorted({key for row in rows for key in KEYS if key not in row})
        must(not odd, f"series[{name!r}]", f"rows with {', '.join(KEYS)}", f"none with {', '.join(odd)}")
        columns[f"{name}: calibration error {calibration_error(rows):.3f}"] = {
            key: [row[key] for row in rows] for key in KEYS
        }
    y = "accuracy; share of examples"
    height = 10.0 / min(3, len(series))
    figure, places = make_panels(columns, columns=3, margin=1.0, height=height, x="confidence", y=y, title=title)
    for axes, bins in places:
        width = [high - low for low, high in zip(bins["low"], bins["high"], strict=True)]
        axes.bar(bins["low"], bins["accuracy"], width, align="edge", color=BLUE, alpha=0.55, label="accuracy in a bin")
        shares = [n / sum(bins["n"]) for n in bins["n"]]
        # A line for each bin, not one through all: bins without examples have no row.
        axes.hlines(shares, bins["low"], bins["high"], color=GREY, linewidth=2.5, label="share of examples")
        axes.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle="--")
        points = bins["confidence"], bins["accuracy"]
        axes.scatter(*points, s=30, color=VERMILION, zorder=3, label="mean confidence and accuracy of a bin")
        axes.set(xlim=(0, 1), ylim=(0, 1))
    legend_below(figure, 3, places[0][0])
    return figure


def densities(
    series: Mapping[str, Mapping[str, Sequence[float]]], *, label: str = "predictive entropy (nats)", title: str = ""
) -> Figure:
    """Histograms of a score, a panel for each name: examples of the client's kind against others (Figures 4 and S8).

    Args:
        series: by name, scores by the kind of their examples.
        label: label of the horizontal axes.
        title: above all panels.

    >>> import moiety as mo
    >>> figure = mo.reports.densities({"fedpop": {"known digits": [0.1, 0.2, 0.3], "other digits": [0.9, 1.0, 1.2]}})
    """
    full = bool(series) and all(kinds and all(map(len, kinds.values())) for kinds in series.values())
    must(full, "series", "scores for at least one name, and for every name and kind", "none")
    figure, places = make_panels(series, columns=2, margin=0.6, height=3.6, x=label, y="density", title=title)
    most = max(max(some) for kinds in series.values() for some in kinds.values()) or 1.0
    edges = [most * k / 30 for k in range(31)]
    for axes, kinds in places:
        for colour, (kind, some) in zip(COLOURS, kinds.items(), strict=False):
            axes.hist(list(some), edges, density=True, histtype="stepfilled", alpha=0.45, color=colour, label=kind)
        axes.legend(fontsize=10)
    return figure
