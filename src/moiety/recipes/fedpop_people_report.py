"""What ``fedpop_people`` found as a figure, a page of Markdown and JSON, with a verdict for each claim."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moiety.recipes.fedpop_people import GROUPS, LABELLED, METHODS, NAME, Plan
from moiety.recipes.partial_report import head

Row = dict[str, Any]

FIGURE = "reliability.png"
MEASURES = {
    "accuracy": "accuracy (%)",
    "worst": "worst person (%)",
    "ece": "calibration error (%)",
    "nll": "negative log-likelihood",
    "brier": "Brier score",
    "covered": "90% sets hold (%)",
    "mass": "mass of these sets (%)",
    "gap": "sets are off by (%)",
    "size": "classes in a set",
}
SHARES = ("accuracy", "worst", "ece", "covered", "mass", "gap")
ABOUT = (
    "Human activities by people with phones (UCI HAR). The method is that of Kotelevskii et al. 2022, who do not have"
    " this experiment: there is no number of a paper beside ours. In brackets is the 95% interval of the mean over"
    " seeds (Student's t); a claim is judged by the differences of the same seed."
)
CLAIMS = {
    "accuracy": (1, "is more accurate"),
    "nll": (-1, "has less log-loss"),
    "ece": (-1, "is better calibrated"),
    "gap": (-1, "has sets that hold nearer to their mass"),
}


def report(
    asked: Mapping[str, Any], plan: Plan, found: Mapping[int, Row], seconds: float, out: Path | None
) -> tuple[str, str]:
    """The page and its closing sentence; with a folder the page, the numbers and the figure are written there."""
    from moiety.reports.tables import markdown

    rows, verdicts = table(found), claims(found)
    known = head(NAME, asked, [{"seconds": seconds}], ABOUT)
    said = {"row": "claim", "ours": "difference", "interval": "95% interval over seeds", "verdict": "verdict"}
    parts = [known.pop("page")]
    for group, text in GROUPS.items():
        shown = {"method": "", **MEASURES}
        parts.append(f"## {text.capitalize()}\n\n" + markdown(_wide(rows, group), columns=shown))
    parts.append("## Claims\n\n" + markdown(verdicts, columns=said, digits=3))
    parts.append("## Decided here\n\n" + "\n".join(f"- {note}" for note in notes(plan)))
    page = "\n\n".join(parts)
    if out is not None:
        from moiety.files import write_file

        page += "\n\n" + _figure(found, out)
        whole = {**known, "notes": notes(plan), "rows": [*rows, *verdicts]}
        write_file(out / "table.json", (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
        write_file(out / "table.md", (page + "\n").encode())
    return page, sentence(verdicts)


def notes(plan: Plan) -> list[str]:
    """What the reader should know."""
    return [
        f"Each seed draws anew who is held out ({plan.held_out} people), which {LABELLED} windows of a person are"
        f" labelled, and up to {plan.test} others to test on. Windows of one person overlap in time: test windows are"
        " not independent of the labelled ones.",
        f"The network has one hidden layer of {plan.hidden} units; its last layer is personal, for FedAvg nothing is."
        f" {plan.rounds} rounds, all people in each. Columns are standardised by the labelled windows of the"
        " federation.",
        "FedPop: 40 Langevin steps of 0.01 a round, 20 of them kept; Adam of 0.01 at the server for the shared layer"
        " and the prior. New people: a chain from the learned prior, five rounds' steps of burn-in.",
        "FedRep: ten epochs on the head and one on the rest, at 0.05; new people train a head for 50 epochs."
        " Finetuning: the head of FedAvg's model for 50 epochs. Alone: 100 epochs from the same first model. Rates"
        " were not tuned.",
        "Calibration is over all windows of a group, seed by seed; the figure has those of all seeds together, whose"
        " errors are smaller. A 90% set has the fewest classes that hold at least 90% of the"
        " probability, which is more than 90% since classes are not divided: its mass. Sets should hold the label in as"
        " many of the windows as their mass says on average, not in 90%, and have few classes; they are off by the"
        " distance of the two, seed by seed.",
    ]


def table(found: Mapping[int, Row]) -> list[Row]:
    """A row for each group, method and measure."""
    from moiety.analysis.intervals import table_row

    made = []
    for group, text in GROUPS.items():
        for method in METHODS:
            for measure, name in MEASURES.items():
                values = [_value(seed[method][group], measure) for seed in found.values()]
                row = table_row(f"{text}, {method}, {name}", values, scale=100 if measure in SHARES else 1)
                made.append({"group": group, "method": method, "measure": measure, **row})
    return made


def claims(found: Mapping[int, Row]) -> list[Row]:
    """That FedPop is better than each of the others, by accuracy, log-loss, calibration and sets, for both groups."""
    from moiety.analysis.intervals import claim, table_row

    made = []
    for group, text in GROUPS.items():
        for other in METHODS[1:]:
            for measure, (sign, words) in CLAIMS.items():
                ahead = [
                    sign * (_value(seed["FedPop"][group], measure) - _value(seed[other][group], measure))
                    for seed in found.values()
                ]
                name = f"{text}: FedPop {words} than {other}"
                row = table_row(name, ahead, verdict=claim(name, ahead).verdict)
                made.append({**row, "group": group, "against": other, "measure": measure})
    return made


def _value(found: Row, measure: str) -> float:
    """A score of a seed; the gap is how far the share of labels that sets hold is from their mass."""
    scores = found["scores"]
    return float(abs(scores["covered"] - scores["mass"]) if measure == "gap" else scores[measure])


def sentence(verdicts: Sequence[Row]) -> str:
    """What the page shows, in one line."""
    new = [row for row in verdicts if row["group"] == "new"]
    count = {word: sum(row["verdict"] == word for row in new) for word in ("holds", "does not hold")}
    return (
        f"For new people, FedPop is ahead in {count['holds']} of {len(new)} comparisons and behind in"
        f" {count['does not hold']}."
    )


def _wide(rows: Sequence[Row], group: str) -> list[Row]:
    """One line for each method, a column for each measure."""
    lines: dict[str, Row] = {}
    for row in rows:
        if row["group"] == group:
            digits = 1 if row["measure"] in SHARES else 2
            bracket = "" if row["low"] is None else f" ({row['low']:.{digits}f} to {row['high']:.{digits}f})"
            line = lines.setdefault(row["method"], {"method": row["method"]})
            line[row["measure"]] = f"{row['ours']:.{digits}f}{bracket}"
    return list(lines.values())


def _figure(found: Mapping[int, Row], out: Path) -> str:
    if importlib.util.find_spec("matplotlib") is None:
        return "The figure needs matplotlib: pip install 'moiety[report]'."
    from moiety.reports.figures import save
    from moiety.reports.reliability import reliability_diagram

    shown = {method: together([seed[method]["new"]["bins"] for seed in found.values()]) for method in METHODS}
    save(reliability_diagram(shown, title="New people, all seeds together"), out / FIGURE)
    return f"![reliability]({FIGURE})"


def together(seeds: Sequence[Sequence[Row]]) -> list[Row]:
    """The bins of several seeds as those of one heap."""
    bins: dict[float, list[Row]] = {}
    for rows in seeds:
        for row in rows:
            bins.setdefault(row["low"], []).append(row)
    made = []
    for low, some in sorted(bins.items()):
        n = sum(row["n"] for row in some)
        means = {key: sum(row["n"] * row[key] for row in some) / n for key in ("confidence", "accuracy")}
        made.append({"low": low, "high": some[0]["high"], "n": n, **means})
    return made
