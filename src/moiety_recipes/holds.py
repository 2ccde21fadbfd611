"""A short page of what holds of a paper, from the tables of recipes that decide its claims. Nothing is trained."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import moiety as mo
from moiety.experiments import FAILS, HOLDS, Row
from moiety_recipes.claims import show_needed


def list_headlines(table: Row) -> Iterable[Row]:
    """The claims of a table that are marked as headlines."""
    return [{**row, "recipe": table["recipe"]} for row in table["rows"] if row.get("headline")]


@dataclass(frozen=True, kw_only=True)
class Holds:
    """A paper whose claims are decided.

    ``titles`` says of each recipe what it is about, ``summarise`` which lines a table gives.
    """

    program: str
    about: str
    paper: str
    plan: str
    titles: Mapping[str, str]
    summarise: Callable[[Row], Iterable[Row]] = list_headlines

    def make_page(self, tables: Sequence[Row]) -> tuple[str, list[Row]]:
        """The page and its rows."""
        rows = [row for table in tables for row in self.summarise(table)]
        counts = Counter(row["verdict"] for row in rows)
        every = Counter(r["verdict"] for table in tables for r in table["rows"] if "headline" in r)
        open_ = len(rows) - counts[HOLDS] - counts[FAILS]
        shown = [self.show(row) for row in rows]
        done = {table["recipe"] for table in tables}
        absent = [f"{title} (`{recipe}`)" for recipe, title in self.titles.items() if recipe not in done]
        parts = [
            f"# What holds of {self.paper}",
            f"Claims, margins, seeds and the rule were committed before the runs ({self.plan}). A claim holds, or does"
            f" not, where the whole 99% interval over seeds says so. Of the headlines below {counts[HOLDS]} hold,"
            f" {counts[FAILS]} do not, {open_} are not decided; of all {sum(every.values())} claims on the pages"
            f" {every[HOLDS]} hold, {every[FAILS]} do not. About one verdict in a hundred would be chance if nothing"
            " were true.",
            mo.reports.markdown(shown, columns={key: key for key in shown[0]}),
            *([f"Not on this page, since it was not run: {', '.join(absent)}."] if absent else []),
            "\n".join(f"- `{t['command']}`, {t['date']}, commit {t.get('commit', 'unknown')}" for t in tables),
        ]
        return "\n\n".join(parts) + "\n", rows

    def show(self, row: Row) -> Row:
        """A claim as a line of the page."""
        ends, unit = row["interval"], f" {row['unit']}" if row["unit"] else ""
        rule = f"within {row['within']:g}" if row.get("within") is not None else f"above {row.get('above', 0.0):g}"
        interval = "" if ends is None else f" [{ends[0]:+.3g}, {ends[1]:+.3g}]"
        return {
            "of": f"[{self.titles.get(row['recipe'], row['recipe'])}](../{row['recipe']}/README.md)",
            "claim": row["row"],
            "paper": row["paper"] or "-",
            "ours": f"{row['ours']:+.3g}{interval}{unit}",
            "rule": rule,
            "verdict": f"**{row['verdict'].replace(' at this scale', '')}**",
            "seeds needed": show_needed(row),
        }

    def main(self, words: Sequence[str] | None = None) -> int:
        """Read the tables and write the page."""
        parser = argparse.ArgumentParser(prog=f"python -m moiety_recipes.{self.program}", description=self.about)
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
                known = ", ".join(self.titles)
                print(f"`runs` must be of recipes with headlines, got {run}. Run one of {known}.", file=sys.stderr)
                return 2
        page, _ = self.make_page(tables)
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "README.md").write_text(page)
        print(page)
        return 0
