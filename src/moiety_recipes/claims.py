"""Claims as rows of a table: decided by the rule of scale ``night``, and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moiety.experiments import UNDECIDED, Row, Section, decide

DECIDED = {
    "row": "claim",
    "paper": "paper",
    "ours": "ours",
    "interval": "99% interval",
    "verdict": "verdict",
    "needed": "seeds for 80% power",
}
"""The columns of a table of claims."""


def decide_claim(
    text: str,
    differences: Mapping[str, Sequence[float]],
    *,
    above: float = 0.0,
    within: float | None = None,
    paper: str | float | None = None,
    scale: float = 1.0,
    unit: str = "",
    headline: bool = False,
) -> Row:
    """A claim with its verdict, from one difference a seed in each setting; ``scale=100`` makes points of shares.

    ``above`` and ``within`` are in the scaled unit. ``headline`` marks the claims that the short page of the paper
    shows.
    """
    values = {name: [scale * value for value in each] for name, each in differences.items()}
    row = decide(text, values, above=above, within=within)
    ends = None if row["low"] is None else [row["low"], row["high"]]
    head = {"row": text, "paper": paper, "ours": row["mean"], "interval": ends, "unit": unit, "headline": headline}
    return {**head, **row, "each": values}


def show_claims(title: str, rows: Sequence[Row], *, text: str = "", level: int = 2) -> Section:
    """The section of some claims, with numbers as they are read."""
    return Section(title=title, text=text, rows=[_show(row) for row in rows], columns=DECIDED, level=level)


def _show(row: Row) -> Row:
    ends, unit = row["interval"], f" {row['unit']}" if row["unit"] else ""
    interval = "-" if ends is None else f"{ends[0]:+.3g} to {ends[1]:+.3g}"
    return {**row, "ours": f"{row['ours']:+.3g}{unit}", "interval": interval, "needed": show_needed(row)}


def show_needed(row: Row, *, each: int = 1) -> str:
    """How many seeds an undecided claim would take, from a row of ``decide`` in which ``each`` seeds give a number."""
    if row["verdict"] != UNDECIDED:
        return "-"
    if row["low"] is None:
        return "the same in every seed" if row["seeds"] > 1 else "-"
    return "over 1,000" if row["needed"] is None else f"{each * row['needed']:,}"


RULE = (
    "A claim is judged by the mean of the differences over seeds, paired seed by seed, and over settings where it is"
    " pooled. It *holds* where the whole 99% interval (Student's t; Welch and Satterthwaite over settings) says so,"
    " *does not hold* where the whole interval says the contrary, and else is not decided; then the seeds that would"
    " decide it with a probability of 80% stand beside it. Seeds that all give the same number decide nothing. Claims,"
    " margins and seeds were fixed before the run."
)
