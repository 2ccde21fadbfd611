"""The matrix of ``ffgg_byzantine`` as a page of Markdown, as JSON and as a heat map, with a verdict for every cell."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moiety.recipes.ffgg_byzantine import NAME, NONE, Cell, Trial
from moiety.recipes.partial_report import head

Row = dict[str, Any]

MARKS = {"holds": "holds", "does not hold": "fails", "not decided at this scale": "open"}
FIGURE = "matrix.png"
REFERENCE = ("not finite", "mean")
"""The cell that all are compared with: what attackers send is dropped, so it is the mean of the honest alone."""


def report(asked: Mapping[str, Any], made: Trial, cells: Sequence[Cell], out: Path | None) -> tuple[str, str]:
    """The page and its closing sentence; with a folder the page, the numbers and the figure are written there."""
    rows = judged(made, cells)
    seconds = sum(cell.seconds for cell in cells)
    known = head(NAME, asked, [{"seconds": seconds}], about=_about(made, honest=len(cells[0].rows[0])))
    page = "\n\n".join([known.pop("page"), made.title, *_parts(made, rows)])
    if out is not None:
        from moiety.files import write_file

        page += "\n\n" + _figure(made, rows, out)
        whole = {**known, "title": made.title, "margin": made.margin, "notes": list(made.notes), "rows": rows}
        write_file(out / "table.json", (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
        write_file(out / "table.md", (page + "\n").encode())
    return page, sentence(made, rows)


def judged(made: Trial, cells: Sequence[Cell]) -> list[Row]:
    """A row for each cell, in per cent: what honest clients score, what they lose, and whether that is too much.

    The loss is against the mean of the honest alone, which a robust aggregator is to come near (equation 17), in the
    same seed and on the same clients.
    """
    from moiety.analysis.intervals import claim, interval

    scores = {(cell.attack, cell.aggregator): cell.scores() for cell in cells}
    plain = scores[REFERENCE]
    rows = []
    for (attack, aggregator), each in scores.items():
        ours = asdict(interval([100 * score for score in each]))
        losses = [100 * (score - best) for score, best in zip(each, plain, strict=True)]
        found = claim(f"{aggregator} holds under {attack}", losses, above=-100 * made.margin)
        rows.append(
            {
                "row": f"{attack}: {aggregator}",
                "attack": attack,
                "aggregator": aggregator,
                "paper": None,
                "ours": ours["mean"],
                "interval": None if ours["low"] is None else [ours["low"], ours["high"]],
                "each": [100 * score for score in each],
                "change": asdict(found.interval),
                "verdict": found.verdict,
            }
        )
    return rows


def summary(made: Trial, rows: Sequence[Row]) -> dict[str, dict[str, list[str]]]:
    """For each aggregator the attacks under which it holds, fails, or is open."""
    found: dict[str, dict[str, list[str]]] = {}
    for aggregator in made.aggregators:
        own = [row for row in rows if row["aggregator"] == aggregator and row["attack"] != NONE]
        marks = MARKS.values()
        found[aggregator] = {mark: [r["attack"] for r in own if MARKS[r["verdict"]] == mark] for mark in marks}
    return found


def sentence(made: Trial, rows: Sequence[Row]) -> str:
    """Which aggregators hold under all attacks, in one line."""
    found = summary(made, rows)
    attacks = len(made.attacks) - 1
    whole = [name for name, marks in found.items() if len(marks["holds"]) == attacks]
    failed = sum(bool(marks["fails"]) for marks in found.values())
    names = "; ".join(whole) or "no aggregator"
    hold = "hold" if len(whole) > 1 else "holds"
    return f"{names} {hold} under all {attacks} attacks; {failed} of {len(found)} aggregators fail under one or more."


def _about(made: Trial, honest: int) -> str:
    return (
        'Mishchenko et al. 2023, "Partially Personalized Federated Learning: Breaking the Curse of Data Heterogeneity",'
        " Algorithm 5; the paper has a theorem on it (Theorem 8) and no experiment, so no number of its own stands"
        f" here. The output layer is personal; FFGG, all clients in every of {made.rounds} rounds. A share of"
        f" {made.share:.0%} of the clients, drawn for each seed, attacks in every round. A score is the mean test"
        f" accuracy of the {honest} honest clients' personal models in per cent, over {made.seeds} seeds; in brackets"
        " is the 95% interval of that mean (Student's t)."
    )


def _parts(made: Trial, rows: Sequence[Row]) -> list[str]:
    verdicts = (
        "An aggregator *holds* under an attack where honest clients certainly lose less than"
        f" {100 * made.margin:g} points against the mean of the honest alone (the whole interval of the difference,"
        " seed by seed, says so), *fails* where they certainly lose more, and else is *open*. The mean of the honest"
        " alone, which no server knows, is the plain mean under *not finite*: what is not finite is dropped. The row"
        " *none* has no attack, so that there all clients help: an aggregator that loses there pays for its caution."
    )
    parts = ["## Accuracy of honest clients", verdicts, _matrix(made, rows)]
    parts += ["## Which aggregators hold", _summary(made, rows)]
    parts += ["## Every cell", _cells(rows)]
    return [*parts, "\n".join(["## Notes", "", *(f"- {note}" for note in made.notes)])] if made.notes else parts


def _matrix(made: Trial, rows: Sequence[Row]) -> str:
    from moiety.reports.tables import markdown

    lines = []
    for attack in made.attacks:
        own = {row["aggregator"]: row for row in rows if row["attack"] == attack}
        shown = {name: f"{row['ours']:.1f} {MARKS[row['verdict']]}" for name, row in own.items()}
        lines.append({"row": attack, **shown})
    return markdown(lines, columns={"row": "attack", **{name: name for name in made.aggregators}})


def _summary(made: Trial, rows: Sequence[Row]) -> str:
    from moiety.reports.tables import markdown

    lines = [
        {"row": name, **{mark: ", ".join(attacks) or "-" for mark, attacks in marks.items()}}
        for name, marks in summary(made, rows).items()
    ]
    return markdown(lines, columns={"row": "aggregator", **{mark: mark for mark in MARKS.values()}})


def _cells(rows: Sequence[Row]) -> str:
    from moiety.reports.tables import markdown

    def between(low: float | None, high: float | None) -> str:
        return "" if low is None else f" [{low:.2f}, {high:.2f}]"

    lines = [
        {
            "attack": row["attack"],
            "aggregator": row["aggregator"],
            "ours": f"{row['ours']:.2f}{between(*(row['interval'] or (None, None)))}",
            "change": f"{row['change']['mean']:+.2f}{between(row['change']['low'], row['change']['high'])}",
            "verdict": row["verdict"],
        }
        for row in rows
    ]
    headings = {"ours": "accuracy", "change": "against the mean of the honest"}
    return markdown(lines, columns={key: headings.get(key, key) for key in lines[0]})


def _figure(made: Trial, rows: Sequence[Row], out: Path) -> str:
    if importlib.util.find_spec("matplotlib") is None:
        return "No figure was drawn: it needs the extra `report`, as in `pip install moiety[report]`."
    from moiety.reports.figures import save
    from moiety.reports.lines import heat_map

    by = {attack: [row for row in rows if row["attack"] == attack] for attack in made.attacks}
    figure = heat_map(
        {attack: [row["ours"] for row in own] for attack, own in by.items()},
        list(made.aggregators),
        label="accuracy of honest clients (%)",
        marks={attack: [MARKS[row["verdict"]] for row in own] for attack, own in by.items()},
    )
    save(figure, out / FIGURE)
    return f"![Accuracy of honest clients under each attack with each aggregator]({FIGURE})"
