"""The course of one run: its losses and its metric over rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moiety.reports.figures import BLUE, GREY, VERMILION, Rows, make_panels
from moiety.reports.words import is_percentage

if TYPE_CHECKING:
    from moiety.reports.figures import Figure


def draw_history(history: Rows, *, restored: int | None = None) -> Figure:
    """Losses in one panel and the metric in another, over rounds; a number that is not finite is left out.

    Args:
        history: rows of a run, with ``round``, ``part``, ``train_loss``, ``loss``, ``metric``, ``shared_metric`` and
            ``metric_name``.
        restored: a round to mark, whose models the run ended with.
    """
    metric, part = str(history[-1]["metric_name"]), str(history[-1]["part"])
    scale = 100.0 if is_percentage(metric) else 1.0
    lines = {
        "loss": {"train_loss": "while training", "loss": f"{part} rows, personal models"},
        metric: {"metric": "personal models", "shared_metric": "shared model alone"},
    }
    figure, places = make_panels(lines, columns=2, margin=0.6, height=3.6, x="round", y="")
    for axes, columns in places:
        factor = scale if "metric" in columns else 1.0
        for (key, label), colour, stroke in zip(columns.items(), (BLUE, VERMILION), ("-", "--"), strict=True):
            points = [(row["round"], factor * row[key]) for row in history if row.get(key) is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], stroke, color=colour, marker=".", label=label)
        if restored is not None:
            axes.axvline(restored, color=GREY, linestyle=":", label=f"round {restored}, the best")
        axes.set_ylabel(f"{metric} (%)" if factor == 100.0 else metric if "metric" in columns else "loss", fontsize=12)
        axes.legend(fontsize=10)
    return figure
