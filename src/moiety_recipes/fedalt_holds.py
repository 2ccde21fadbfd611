"""What holds of Pillutla et al. 2022, over all settings: one page from the tables of the settings' pages.

    python -m moiety_recipes.fedalt_holds RUN [RUN ...] --out FOLDER

A RUN is the folder of a recipe of ``fedalt_settings`` that has ended. Nothing is trained here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import moiety as mo
from moiety.experiments import FAILS, HOLDS, Row, write_summary
from moiety_recipes.fedalt_night_page import PLAN, show_rule
from moiety_recipes.fedalt_questions import OWN_SPLIT, QUESTIONS, Each, Question, average_labels
from moiety_recipes.holds import CHANCE, fold, show_figures
from moiety_recipes.pages import show_mean

OWN = "own-split"
HEADLINES = {
    "alt-sim-before": "FedAlt minus FedSim, before finetuning",
    "alt-sim-after": "FedAlt minus FedSim, after finetuning",
    "partial-full": "best split minus Finetune, each trained as long",
    "beats-longer": "best split minus FedAvg trained as long",
    OWN: "own best split minus the best overall",
    "sim-ft": "FedSim minus FT (part.)",
    "state-alt": "FedAlt with state minus without",
    "hurt-small": "share hurt, clients with few rows minus many",
    "partial-full-small": "best split of at most 15% minus Finetune, each trained as long",
    "regulariser-hurt": "share hurt with the best regulariser minus without",
}
"""The questions that have a figure, with what it shows."""


def pool(settings: Sequence[Row]) -> dict[str, Row]:
    """The verdict of every question over the settings that can answer it, with each setting's own."""
    rows = {}
    for name, question in {**QUESTIONS, OWN: OWN_SPLIT}.items():
        each = compare_own_split(settings) if name == OWN else collect(settings, name)
        if each:
            verdicts = {setting: question.decide({"": some}) for setting, some in each.items()}
            rows[name] = {**question.decide(each), "alone": verdicts, "each": each}
    return rows


def collect(settings: Sequence[Row], question: str) -> Each:
    """One number a seed for each setting that has the question, averaged over its labels."""
    return {
        setting["setting"]: average_labels(row["each"])
        for setting in settings
        for row in setting["claims"]
        if row["question"] == question
    }


def compare_own_split(settings: Sequence[Row]) -> Each:
    """What the split chosen on a setting's validation rows has above the one that is best over all of them."""
    common = set.intersection(*(set(setting["validation"]) for setting in settings))
    overall = max(sorted(common), key=lambda split: sum(s["sign"] * s["validation"][split] for s in settings))
    return {
        s["setting"]: [s["sign"] * (a - b) for a, b in zip(s["finals"][s["best"]], s["finals"][overall], strict=True)]
        for s in settings
    }


def make_page(tables: Sequence[Row]) -> tuple[str, dict[str, Row], dict[str, tuple[str, list[Row]]]]:
    """The page, all verdicts, and the rows of its figures by file name."""
    settings = [setting for table in tables for setting in table["settings"]]
    names = [setting["setting"] for setting in settings]
    if len(set(names)) < len(names):
        raise mo.MoietyError(f"`runs` must be of different settings, got {', '.join(names)}. Give each once.")
    rows = pool(settings)
    figures = {
        f"{name}.png": (title, list(_draw_rows(rows[name]))) for name, title in HEADLINES.items() if name in rows
    }
    counts = Counter(row["verdict"] for row in rows.values())
    tally = Counter(one["verdict"] for row in rows.values() for one in row["alone"].values())
    flat = [setting["setting"] for setting in settings if not setting["converged"]["yes"]]
    parts = [
        "# What holds of Pillutla et al. 2022",
        f"Over {len(settings)} settings: {', '.join(names)}. Questions, margins, seeds and the rule were committed"
        f" before the runs ({PLAN}). A verdict is of the mean over the settings that can answer the question: the whole"
        f" 99% interval must say so. {counts[HOLDS]} claims hold, {counts[FAILS]} do not,"
        f" {sum(counts.values()) - counts[HOLDS] - counts[FAILS]} are not decided; taken setting by setting"
        f" {tally[HOLDS]} hold, {tally[FAILS]} do not,"
        f" {sum(tally.values()) - tally[HOLDS] - tally[FAILS]} are not decided. {CHANCE} Numbers"
        " are points; for clients hurt, clients in a hundred.",
        _show_table({name: row for name, row in rows.items() if name in HEADLINES}),
        fold("The other claims", _show_table({name: row for name, row in rows.items() if name not in HEADLINES})),
        "\n".join(f"- {note}" for note in _write_notes(settings, flat)),
        "\n".join(
            f"- `{table['command']}`, {table['date']}, commit {table.get('commit', 'unknown')}" for table in tables
        ),
        show_figures({file: title for file, (title, _) in figures.items()}),
    ]
    return "\n\n".join(parts) + "\n", rows, figures


def _get_question(name: str) -> Question:
    return OWN_SPLIT if name == OWN else QUESTIONS[name]


def _show_table(rows: Mapping[str, Row]) -> str:
    lines = list(_show(rows))
    return mo.reports.markdown(lines, columns={key: key for key in lines[0]} if lines else None)


def _show(rows: Mapping[str, Row]) -> Iterator[Row]:
    for name, row in rows.items():
        question = _get_question(name)
        verdicts = Counter(one["verdict"] for one in row["alone"].values())
        yield {
            "claim": (f"[{question.text}]({name}.png)" if name in HEADLINES else question.text)
            + (" *" if question.ours else ""),
            "paper": question.paper,
            "ours": show_mean(row, scale=100, sign="+"),
            "rule": show_rule(question.above, question.within),
            "verdict": f"**{row['verdict'].replace(' at this scale', '')}**",
            "settings: hold / not / undecided": f"{verdicts[HOLDS]} / {verdicts[FAILS]} / "
            f"{len(row['alone']) - verdicts[HOLDS] - verdicts[FAILS]}",
            "seeds needed": question.show_needed(row),
        }


def _write_notes(settings: Sequence[Row], flat: Sequence[str]) -> Iterator[str]:
    yield "*: a control or a question that the paper does not have."
    answers = [(s["theory"][split]["better"], split, s) for s in settings for split in s["theory"]]
    preferences = [(side, split, s) for side, split, s in answers if side in ("fedalt", "fedsim")]
    agree = 0
    for side, split, s in preferences:
        (row,) = [row for row in s["claims"] if row["question"] == "alt-sim-before"]
        agree += (sum(row["each"][split]) > 0) == (side == "fedalt")
    yield f"The theory prefers one method in {len(preferences)} of {len(answers)} splits; the sign agrees in {agree}."
    best = ", ".join(f"{s['setting']} {s['best']} ({s['parts'][s['best']]:.0%})" for s in settings)
    yield f"The best split on validation rows, and its share of the parameters: {best}."
    if flat:
        yield f"FedAvg had not converged by the stated test in {', '.join(flat)}."


def _draw_rows(row: Row) -> Iterator[Row]:
    for name, one in row["alone"].items():
        yield {"row": name, **_scale_to_points(one)}
    yield {"row": "all settings", "strong": True, **_scale_to_points(row)}


def draw(name: str, title: str, rows: Sequence[Row]) -> Any:
    """The figure of a question, with a line where the claim begins to hold."""
    question = _get_question(name)
    unit = "clients in a hundred" if question.unit == "share" else "points"
    return mo.reports.forest(rows, x=f"{unit}, 99% interval", title=title, line=100 * question.above)


def _scale_to_points(row: Row) -> dict[str, Any]:
    return {key: None if row[key] is None else 100 * row[key] for key in ("mean", "low", "high")}


def main(words: Sequence[str] | None = None) -> int:
    """Read the tables, write the page and its figures."""
    parser = argparse.ArgumentParser(prog="python -m moiety_recipes.fedalt_holds", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs that have ended")
    parser.add_argument("--out", required=True, type=Path, help="the folder of the page")
    options = parser.parse_args(words)
    try:
        tables = [_read(run / "table.json") for run in options.runs]
        page, rows, figures = make_page(tables)
    except mo.MoietyError as error:
        print(error, file=sys.stderr)
        return 2
    drawings = {file: draw(file.removesuffix(".png"), title, some) for file, (title, some) in figures.items()}
    write_summary(options.out, page, figures=drawings, table={"questions": rows})
    print(page)
    return 0


def _read(file: Path) -> Row:
    try:
        table: Row = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise mo.MoietyError(f"`runs` must be folders with a table.json, got {file}. {error}") from error
    valid = table.get("settings") and all("finals" in setting for setting in table["settings"])
    if not valid:
        raise mo.MoietyError(f"`runs` must be of fedalt-people and the like, got {file}. Run one of them first.")
    return table


if __name__ == "__main__":
    sys.exit(main())
