"""A short page of what holds of a paper, from the tables of recipes that decide its claims. Nothing is trained."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import moiety as mo
from moiety.experiments import FAILS, HOLDS, Row, decide, write_summary
from moiety_recipes.claims import show_needed

CHANCE = (
    "If nothing were true, one verdict in a hundred would be chance, and up to one in twenty where differences are"
    " skewed (`tests/experiments/test_decide.py`)."
)
"""How often the rule is wrong at the edge of the null."""


def list_headlines(table: Row) -> Iterable[Row]:
    """The claims of a table that are marked as headlines."""
    return [{**row, "recipe": table["recipe"]} for row in table["rows"] if row.get("headline")]


def show_figures(titles: Mapping[str, str]) -> str:
    """The figures of a page whose claims link to them, by file name: a part that the reader opens."""
    return fold("The figures", "\n\n".join(f"![{title}]({file})" for file, title in titles.items()))


def fold(title: str, text: str) -> str:
    """A part of a page that the reader opens."""
    return f"<details markdown><summary>{title}</summary>\n\n{text}\n\n</details>"


@dataclass(frozen=True)
class Drawing:
    """A figure of the claims of one recipe whose whole text fits ``pattern``.

    Its groups label the claims. A claim that is alone is drawn setting by setting, or, if it has one setting only, seed
    by seed. ``line`` is where the claims begin to hold. ``claims`` is the pattern of the page's lines that link to it:
    those that fit ``pattern``, if it is not given.
    """

    recipe: str
    pattern: str
    title: str
    line: float = 0.0
    claims: str | None = None

    def list_rows(self, claims: Sequence[Row]) -> list[Row]:
        """The rows of ``reports.forest``, from the claims of all recipes."""
        fits = [(row, re.fullmatch(self.pattern, row["row"])) for row in claims if row["recipe"] == self.recipe]
        matches = [(row, ", ".join(fit.groups())) for row, fit in fits if fit]
        if len(matches) == 1:
            row = matches[0][0]
            parts, rest = row["each"], "all"
            if len(parts) == 1:
                (values,) = parts.values()
                parts, rest = {f"seed {s}": [v] for s, v in enumerate(values, row.get("first_seed", 0))}, "all seeds"
            rows = [_draw_row(name, decide(name, {name: each})) for name, each in parts.items()]
            return [*rows, _draw_row(rest, row, strong=True)]
        return [_draw_row(label, row) for row, label in matches]

    def draw(self, rows: Sequence[Row]) -> Any:
        """The figure of these rows."""
        unit = rows[-1]["unit"] or "difference"
        return mo.reports.forest(rows, x=f"{unit}, 99% interval", title=self.title, line=self.line)


def _draw_row(label: str, row: Row, *, strong: bool = False) -> Row:
    return {"row": label, "strong": strong, "unit": row.get("unit", "")} | {k: row[k] for k in ("mean", "low", "high")}


@dataclass(frozen=True, kw_only=True)
class Holds:
    """A paper whose claims are decided.

    ``titles`` says of each recipe what it is about, ``summarise`` which lines a table gives. Lines that fit the pattern
    ``fold_pattern`` stand in a part that the reader opens. ``drawings`` are the figures, by file name.
    """

    program: str
    about: str
    paper: str
    plan: str
    titles: Mapping[str, str]
    summarise: Callable[[Row], Iterable[Row]] = list_headlines
    fold_pattern: str = "nothing"
    drawings: Mapping[str, Drawing] = field(default_factory=dict)

    def make_page(self, tables: Sequence[Row]) -> tuple[str, list[Row], dict[str, tuple[Drawing, list[Row]]]]:
        """The page, its rows, and the rows of its figures by file name."""
        rows = [row for table in tables for row in self.summarise(table)]
        figures = self._draw(tables, rows)
        counts = Counter(row["verdict"] for row in rows)
        every = Counter(r["verdict"] for table in tables for r in table["rows"] if "headline" in r)
        open_ = len(rows) - counts[HOLDS] - counts[FAILS]
        rest = [row for row in rows if re.fullmatch(self.fold_pattern, row["row"])]
        first = [row for row in rows if row not in rest]
        recipes = {table["recipe"] for table in tables}
        absent = [f"{title} (`{recipe}`)" for recipe, title in self.titles.items() if recipe not in recipes]
        parts = [
            f"# What holds of {self.paper}",
            f"Claims, margins, seeds and the rule were committed before the runs ({self.plan}). A claim holds, or does"
            f" not, where the whole 99% interval over seeds says so. Of {len(rows)} headlines {counts[HOLDS]} hold,"
            f" {counts[FAILS]} do not, {open_} are not decided; of all {sum(every.values())} claims on the pages"
            f" {every[HOLDS]} hold, {every[FAILS]} do not. {CHANCE}",
            self._show_table(first),
            *([fold(f"{len(rest)} more headlines", self._show_table(rest))] if rest else []),
            *([f"Not on this page, since it was not run: {', '.join(absent)}."] if absent else []),
            "\n".join(f"- `{t['command']}`, {t['date']}, commit {t.get('commit', 'unknown')}" for t in tables),
            *([show_figures({file: each.title for file, (each, _) in figures.items()})] if figures else []),
        ]
        return "\n\n".join(parts) + "\n", rows, figures

    def _draw(self, tables: Sequence[Row], rows: Sequence[Row]) -> dict[str, tuple[Drawing, list[Row]]]:
        claims = [
            {**row, "recipe": table["recipe"], "first_seed": table.get("seed", 0)}
            for table in tables
            for row in table["rows"]
            if "headline" in row
        ]
        texts = {row["row"] for row in claims}
        claims += [row for row in rows if row["row"] not in texts]
        figures = {file: (drawing, drawing.list_rows(claims)) for file, drawing in self.drawings.items()}
        return {file: (drawing, own) for file, (drawing, own) in figures.items() if own}

    def _show_table(self, rows: Sequence[Row]) -> str:
        lines = [self.show(row) for row in rows]
        return mo.reports.markdown(lines, columns={key: key for key in lines[0]})

    def show(self, row: Row) -> Row:
        """A claim as a line of the page."""
        ends, unit = row["interval"], f" {row['unit']}" if row["unit"] else ""
        rule = f"within {row['within']:g}" if row.get("within") is not None else f"above {row.get('above', 0.0):g}"
        interval = "" if ends is None else f" [{ends[0]:+.3g}, {ends[1]:+.3g}]"
        return {
            "of": f"[{self.titles.get(row['recipe'], row['recipe'])}](../{row['recipe']}/README.md)",
            "claim": self._link(row),
            "paper": row["paper"] or "-",
            "ours": f"{row['ours']:+.3g}{interval}{unit}",
            "rule": rule,
            "verdict": f"**{row['verdict'].replace(' at this scale', '')}**",
            "seeds needed": show_needed(row),
        }

    def _link(self, row: Row) -> str:
        for file, drawing in self.drawings.items():
            pattern = drawing.pattern if drawing.claims is None else drawing.claims
            if drawing.recipe == row["recipe"] and re.fullmatch(pattern, row["row"]):
                return f"[{row['row']}]({file})"
        return str(row["row"])

    def main(self, words: Sequence[str] | None = None) -> int:
        """Read the tables and write the page."""
        parser = argparse.ArgumentParser(prog=f"python -m moiety_recipes.{self.program}", description=self.about)
        parser.add_argument("runs", nargs="+", type=Path, help="folders of runs that have ended")
        parser.add_argument("--out", required=True, type=Path, help="the folder of the page")
        options = parser.parse_args(words)
        tables = []
        for run in options.runs:
            try:
                tables.append(json.loads((run / "table.json").read_text()))
            except (OSError, ValueError) as error:
                print(f"`runs` must be folders with a table.json, got {run}. {error}", file=sys.stderr)
                return 2
            if not any(row.get("headline") for row in tables[-1].get("rows", ())):
                names = ", ".join(self.titles)
                print(f"`runs` must be of recipes with headlines, got {run}. Run one of {names}.", file=sys.stderr)
                return 2
        page, _, figures = self.make_page(tables)
        write_summary(options.out, page, figures={file: drawing.draw(own) for file, (drawing, own) in figures.items()})
        print(page)
        return 0
