"""What holds of Mishchenko et al. 2023: one short page from the tables of the pages that decide.

    python -m moiety_recipes.ffgg_holds RUN [RUN ...] --out FOLDER

A RUN is the folder of a recipe that has ended and whose ``table.json`` has claims marked as headlines, as those of
``ffgg_claims`` are. Nothing is trained here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import moiety as mo
from moiety.experiments import FAILS, HOLDS, UNDECIDED, Row

PLAN = "docs/ffgg-plan.md"
TITLES = {
    "ffgg-readings": "Figure 1",
    "ffgg-splits": "Table 1",
    "ffgg-theorem8": "Theorem 8, least squares",
    "ffgg-byzantine": "Theorem 8, learned",
    "ffgg-speeds": "Theorem 7",
    "ffgg-diagnosis": "diagnose_split (ours)",
}


def make_page(tables: Sequence[Row]) -> tuple[str, list[Row]]:
    """The page and its rows."""
    rows = [row for table in tables for row in summarise(table)]
    counts = Counter(row["verdict"] for row in rows)
    every = Counter(r["verdict"] for table in tables for r in table["rows"] if "headline" in r)
    open_ = len(rows) - counts[HOLDS] - counts[FAILS]
    parts = [
        "# What holds of Mishchenko et al. 2023",
        f"Claims, margins, seeds and the rule were committed before the runs ({PLAN}). A claim holds, or does not,"
        f" where the whole 99% interval over seeds says so. Of the headlines below {counts[HOLDS]} hold,"
        f" {counts[FAILS]} do not, {open_} are not decided; of all {sum(every.values())} claims on the pages"
        f" {every[HOLDS]} hold, {every[FAILS]} do not. About one verdict in a hundred would be chance if nothing were"
        " true.",
        mo.reports.markdown([_show(row) for row in rows], columns={key: key for key in _show(rows[0])}),
        "\n".join(f"- `{t['command']}`, {t['date']}, commit {t.get('commit', 'unknown')}" for t in tables),
    ]
    return "\n\n".join(parts) + "\n", rows


def summarise(table: Row) -> Iterator[Row]:
    """The headlines of a table; of Figure 1 a line for each reading."""
    recipe = table["recipe"]
    headlines = [{**row, "recipe": recipe} for row in table["rows"] if row.get("headline")]
    if recipe != "ffgg-readings":
        yield from headlines
        return
    ahead: dict[str, list[Row]] = {}
    for row in headlines:
        if "FFGG is ahead of" in row["row"]:
            ahead.setdefault(row["row"].partition(": ")[0], []).append(row)
    for reading, own in ahead.items():
        methods: dict[str, list[Row]] = {}
        for row in own:
            methods.setdefault(row["row"].split("ahead of ")[1].split(",")[0], []).append(row)
        each = "; ".join(f"{method} {_join('', rows)['verdict']}" for method, rows in methods.items())
        yield _join(f"FFGG is ahead of all, {reading} ({each})", own)
    rest = [row for row in headlines if "FFGG is ahead of" not in row["row"]]
    if rest:
        yield _join(f"{rest[0]['row'].partition(': ')[2]}, in every reading", rest)


def _join(text: str, rows: Sequence[Row]) -> Row:
    """One line for claims that must all hold: the weakest of them; it fails where one of them does."""
    verdicts = {row["verdict"] for row in rows}
    shared = FAILS if FAILS in verdicts else HOLDS if verdicts == {HOLDS} else UNDECIDED
    return {**min(rows, key=lambda row: row["ours"]), "row": text, "verdict": shared}


def _show(row: Row) -> Row:
    ends, unit = row["interval"], f" {row['unit']}" if row["unit"] else ""
    rule = f"within {row['within']:g}" if row.get("within") is not None else f"above {row.get('above', 0.0):g}"
    interval = "" if ends is None else f" [{ends[0]:+.3g}, {ends[1]:+.3g}]"
    open_ = HOLDS not in row["verdict"] and FAILS not in row["verdict"]
    return {
        "of": f"[{TITLES.get(row['recipe'], row['recipe'])}](../{row['recipe']}/README.md)",
        "claim": row["row"],
        "paper": row["paper"] or "-",
        "ours": f"{row['ours']:+.3g}{interval}{unit}",
        "rule": rule,
        "verdict": f"**{row['verdict'].replace(' at this scale', '')}**",
        "seeds needed": (row["needed"] or "over 1,000") if open_ else "-",
    }


def main(words: Sequence[str] | None = None) -> int:
    """Read the tables and write the page."""
    parser = argparse.ArgumentParser(prog="python -m moiety_recipes.ffgg_holds", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs that have ended")
    parser.add_argument("--out", required=True, type=Path, help="the folder of the page")
    asked = parser.parse_args(words)
    tables = []
    for run in asked.runs:
        try:
            tables.append(json.loads((run / "table.json").read_text()))
        except (OSError, ValueError) as error:
            print(f"`runs` must be folders with a table.json, got {run}. {error}", file=sys.stderr)
            return 2
        if not any(row.get("headline") for row in tables[-1].get("rows", ())):
            print(
                f"`runs` must be of recipes with headlines, got {run}. Run one of {', '.join(TITLES)}.", file=sys.stderr
            )
            return 2
    page, _ = make_page(tables)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "README.md").write_text(page)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
