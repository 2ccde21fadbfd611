"""The accuracies of ``image_table`` as a page of Markdown and as JSON, the paper's numbers beside ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moiety.recipes.fedpop_images import FEDPOP, Plan
from moiety.recipes.partial_report import head

Row = dict[str, Any]


def report(
    name: str,
    asked: Mapping[str, Any],
    plan: Plan,
    found: Mapping[str, Sequence[Mapping[str, float]]],
    about: str,
    notes: Sequence[str],
    seconds: float,
    out: Path | None,
) -> tuple[str, str]:
    """The page and its closing sentence; with a folder the page and the numbers are written there."""
    from moiety.reports.tables import markdown

    rows, verdicts = table(plan, found), claims(plan, found)
    known = head(name, asked, [{"seconds": seconds}], about)
    size = f"{plan.rounds} rounds, {plan.cohort} clients a round, batches of {plan.batch_size}, {plan.seeds} seeds."
    parts = [known.pop("page"), size]
    for setting in plan.settings:
        some = [{**row, "row": row["method"]} for row in rows if row["setting"] == setting.name]
        parts.append(f"## {setting.shown}\n\nMean accuracy over clients, per cent.\n\n" + markdown(some))
    said = {"row": "claim", "ours": "difference (points)", "interval": "95% interval over seeds", "verdict": "verdict"}
    parts.append("## Claims\n\n" + markdown(verdicts, columns=said))
    parts.append("## Decided here\n\n" + "\n".join(f"- {note}" for note in notes))
    page = "\n\n".join(parts)
    if out is not None:
        from moiety.files import write_file

        whole = {**known, "notes": list(notes), "rows": [*rows, *verdicts]}
        write_file(out / "table.json", (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
        write_file(out / "table.md", (page + "\n").encode())
    return page, sentence(verdicts)


def table(plan: Plan, found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Row]:
    """A row for each setting and method."""
    from moiety.analysis.intervals import table_row

    made = []
    for setting in plan.settings:
        for method in setting.methods:
            values = [seed[method] for seed in found[setting.name]]
            row = table_row(f"{setting.shown}, {method}", values, paper=setting.paper.get(method), scale=100)
            made.append({"setting": setting.name, "method": method, **row})
    return made


def claims(plan: Plan, found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Row]:
    """That FedSOUL is more accurate than each of the others in every setting."""
    from moiety.analysis.intervals import claim, table_row

    made = []
    for setting in plan.settings:
        for other in (method for method in setting.methods if method != FEDPOP):
            ahead = [seed[FEDPOP] - seed[other] for seed in found[setting.name]]
            name = f"{setting.shown}: {FEDPOP} is more accurate than {other}"
            row = table_row(name, ahead, scale=100, verdict=claim(name, ahead).verdict)
            made.append({**row, "setting": setting.name, "against": other})
    return made


def sentence(verdicts: Sequence[Row]) -> str:
    """What the page shows, in one line."""
    count = {word: sum(row["verdict"] == word for row in verdicts) for word in ("holds", "does not hold")}
    return (
        f"FedSOUL is ahead in {count['holds']} of {len(verdicts)} comparisons and behind in {count['does not hold']}."
    )
