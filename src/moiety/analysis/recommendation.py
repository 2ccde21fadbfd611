"""The answer of ``recommend``: a sentence, a table, a figure, costs, and the file that trains the winner."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.analysis.contrast import Contrast
from moiety.reports.tables import markdown
from moiety.reports.words import format_amount, format_count, format_gain, format_metric, is_percentage

if TYPE_CHECKING:
    from moiety.reports.figures import Figure
    from moiety.run.pipeline import Stage

PERSONAL, NO_DIFFERENCE, SHARED = "personal", "no difference", "one model"
ONE = "one model"
"""The name of the candidate that all others are compared with."""
POINT = 0.01
"""A client that loses more than this is counted in the sentence, where the metric is shown in per cent."""
COLUMNS = {
    "candidate": "candidate",
    "validation": "validation",
    "worst": "worst tenth",
    "hurt": "hurt",
    "personal": "personal parameters",
    "bytes": "bytes a turn",
    "memory": "device memory",
    "rate": "rate",
    "stage": "ended in",
}


@dataclass(frozen=True)
class Recommendation:
    """Which part should be personal, by which method, and whether it is worth it.

    ``verdict`` is ``personal``, ``no difference`` or ``one model``; ``best`` names the candidate to use, and ``rival``
    the one that was compared with one model for all on test rows. ``contrast`` is that comparison, and ``test`` has
    the two means. ``rows`` has a row
    for each candidate, the best on validation rows first. ``stages`` trains the winner: give it to ``mo.pipeline``;
    ``toml`` is the same as a file. ``evaluations`` are the gradient evaluations of the search, out of ``budget``;
    ``steps`` are the rivals of one model that were trained in each rung, and the seeds of the final comparison;
    ``seconds`` is what the trainings took, those before a stop included.
    """

    verdict: str
    best: str
    rival: str
    sentence: str
    contrast: Contrast
    test: Mapping[str, float]
    rows: list[dict[str, Any]]
    stages: Sequence[Stage]
    toml: str
    metric: str
    budget: int
    evaluations: int
    steps: tuple[int, ...]
    seconds: float
    notes: Sequence[str] = ()
    diagnosis: Mapping[str, float | None] = field(default_factory=dict)
    advice: str = ""
    folder: Path | None = None

    def markdown(self) -> str:
        """The table as Markdown."""
        return markdown([_show_row(row, self.metric) for row in self.rows], columns=COLUMNS)

    @property
    def page(self) -> str:
        """Sentence, table and notes as Markdown."""
        cost = f"{self.evaluations:,} of {self.budget:,} gradient evaluations, {self.seconds:.0f} s of training."
        notes = [f"- {note}" for note in (*self.notes, f"The search took {cost}")]
        table = "The table is of validation rows, with 95% intervals over clients. A client counts as hurt where it is"
        table += " worse off than with one model for all, by however little."
        return "\n\n".join(["# Recommendation", self.sentence, table, self.markdown(), "\n".join(notes)])

    def __str__(self) -> str:
        rows = [_show_row(row, self.metric) for row in self.rows]
        cells = [list(COLUMNS.values()), *([str(row[key]) for key in COLUMNS] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        notes = [textwrap.fill(note, 100) for note in self.notes]
        return "\n".join([textwrap.fill(self.sentence, 100), "", *lines, "", *notes])

    def plot(self) -> Figure:
        """Every candidate's mean on validation rows with its interval. It needs the extra ``report``."""
        from moiety.reports.lines import forest

        scale, unit = (100.0, " (%)") if is_percentage(self.metric) else (1.0, "")
        rows = [
            {
                "row": row["name"],
                "strong": row["name"] == self.best,
                **{
                    key: scale * row[name]
                    for key, name in (("mean", "mean"), ("low", "mean_low"), ("high", "mean_high"))
                },
            }
            for row in self.rows
            if row.get("mean") is not None
        ]
        line = next(row["mean"] for row in rows if row["row"] == ONE)
        title = f"Recommended: {self.best}. The line is one model for all."
        return forest(rows, x=f"{self.metric} on validation rows{unit}", title=title, line=line)


def _show_row(row: Mapping[str, Any], metric: str) -> dict[str, str]:
    def ends(name: str, share: bool = False) -> str:
        if row.get(name) is None:
            return "-"
        low, mean, high = (
            f"{100 * row[key]:.0f}%" if share else format_metric(row[key], metric)
            for key in (f"{name}_low", name, f"{name}_high")
        )
        return f"{mean} [{low.rstrip('%')}, {high.rstrip('%')}]"

    return {
        "candidate": row["name"],
        "validation": ends("mean"),
        "worst": ends("worst_decile"),
        "hurt": "-" if row.get("reference") else ends("share_hurt", share=True),
        "personal": f"{row['personal']:,}",
        "bytes": format_amount(row["bytes"], "B"),
        "memory": format_amount(row["memory"], "B"),
        "rate": "-" if row["rate"] is None else f"{row['rate']:g}",
        "stage": row["stage"],
    }


def decide(result: Contrast, *, ahead: bool) -> str:
    """The verdict: something personal only where it was ahead on validation rows and is beyond chance on test rows.

    Args:
        result: the rival against one model for all, on test rows.
        ahead: whether the rival was better than one model for all on validation rows.
    """
    if ahead and result.beyond_chance:
        return PERSONAL
    return SHARED if result.high < 0 else NO_DIFFERENCE


def word_answer(
    verdict: str, title: str, *, ours: float, shared: float, result: Contrast, metric: str, beyond: int | None
) -> str:
    """The answer in words.

    Args:
        verdict: as ``decide`` gives it.
        title: of the rival, as it begins a sentence.
        ours: the rival's mean on test rows.
        shared: that of one model for all.
        result: the difference.
        metric: its name.
        beyond: how many clients are worse off beyond noise, where that is known.
    """
    unit = " points" if is_percentage(metric) else ""
    low, high = (format_gain(end, metric) for end in (result.low, result.high))
    span = f"difference {format_gain(result.mean, metric)}{unit}, {result.level:.0%} interval {low} to {high}"
    mine, theirs = format_metric(ours, metric), format_metric(shared, metric)
    rival = title[0].lower() + title[1:] if not title.startswith("LoRA") else title
    if verdict == SHARED:
        return f"One model for all is best: {theirs} {metric} against {mine} for its best rival, {rival} ({span})."
    if verdict == NO_DIFFERENCE:
        first = f"There is no difference beyond chance: one model for all has {theirs} {metric}, its best rival,"
        return f"{first} {rival}, {mine} ({span}). Use one model for all: it is simpler, and keeps nothing on devices."
    limit = POINT if is_percentage(metric) else 0.0
    losers = sum(gain < -limit for gain in result.gains.values())
    by = " by more than a point" if limit else ""
    noise = "" if beyond is None else f" ({beyond} beyond noise)"
    worse = f"{losers} of {format_count(len(result.gains), 'client')} would be worse off{by}{noise}"
    second = f"One model for all is enough if you cannot keep state on devices and {theirs} will do."
    return f"{title} is best: {mine} {metric} against {theirs} for one model for all ({span}); {worse}. {second}"
