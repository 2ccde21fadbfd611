"""A figure of what clients have: rows, labels, and how far they are from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moiety.errors import kind
from moiety.reports.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, make_panels

if TYPE_CHECKING:
    from moiety.data.describe import Description
    from moiety.reports.figures import Figure

PANELS = {
    "train": ("training rows", BLUE),
    "test": ("test rows", GREY),
    "label_drift": ("label drift (total variation)", VERMILION),
    "feature_drift": ("feature drift (standard deviations)", ORANGE),
}
UNITS = {BLUE: "rows", GREY: "rows", VERMILION: "distance", ORANGE: "distance", GREEN: "share", PURPLE: "share"}
"""What the vertical axis of the panel in this colour counts."""
LABELS = 20
"""How many labels or columns a panel shows at most, the commonest first."""


def draw_clients(description: Description, *, title: str = "") -> Figure:
    """What ``FederatedData.describe`` says: a panel for each number of clients, in ascending order, and label shares.

    Args:
        description: what ``describe`` gave.
        title: above all panels.
    """
    from moiety.data.describe import Description  # here: it loads NumPy

    kind("description", description, Description, "what FederatedData.describe gives")
    values = {
        words: (sorted(row[key] for row in description.rows if row.get(key) is not None), colour)
        for key, (words, colour) in PANELS.items()
    }
    series = {words: content for words, content in values.items() if any(content[0])}
    if description.labels:
        shares = sorted(description.labels.items(), key=lambda item: -item[1])[:LABELS]
        series["label shares (training rows)"] = (shares, GREEN)
    if any(description.missing.values()):
        absent = sorted(description.missing.items(), key=lambda item: -item[1])[:LABELS]
        series["missing values (training rows)"] = (absent, PURPLE)
    clients = f"{len(description.rows)} clients, in ascending order"
    figure, places = make_panels(series, columns=2, margin=0.6, height=3.0, x="", y="", title=title)
    for axes, (content, colour) in places:
        if content and isinstance(content[0], tuple):
            axes.bar([str(name) for name, _ in content], [share for _, share in content], color=colour)
            axes.tick_params(axis="x", labelrotation=45 if len(content) > 6 else 0)
        else:
            axes.fill_between(range(len(content)), content, step="mid", color=colour, alpha=0.6)
            axes.set_xlabel(clients, fontsize=11)
            axes.set_ylim(bottom=0)
        axes.set_ylabel(UNITS[colour], fontsize=11)
    return figure
