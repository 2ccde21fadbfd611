"""What holds of Mishchenko et al. 2023: one short page from the tables of the pages that decide.

    python -m moiety_recipes.ffgg_holds RUN [RUN ...] --out FOLDER

A RUN is the folder of a recipe that has ended and whose ``table.json`` has claims marked as headlines, as those of
``ffgg_claims`` are. Nothing is trained here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

from moiety.experiments import FAILS, HOLDS, UNDECIDED, Row
from moiety_recipes.ffgg_splits import PAPER as PAPER_GAINS
from moiety_recipes.holds import Drawing, Holds, list_headlines

TITLES = {
    "ffgg-readings": "Figure 1",
    "ffgg-splits": "Table 1",
    "ffgg-theorem8": "Theorem 8, least squares",
    "ffgg-byzantine": "Theorem 8, learned",
    "ffgg-speeds": "Theorem 7",
    "ffgg-diagnosis": "diagnose_split (ours)",
}
FOLDED = (
    r".*equal computation|.*leave something to share.*|so does its slowest quarter.*|FFGG is less biased.*"
    r"|FFGG \(adapter\), FedAvg's values, gains.*|the best on validation rows, by SGD.*"
)
"""Headlines that say the same of another reading or measure."""
DRAWINGS = {
    "figure1.png": Drawing(
        "ffgg-readings",
        r"FFGG is ahead of all, ([^(]*?)(?: \(.*\))?",
        "Figure 1: FFGG's smallest lead over a rival, by reading",
        claims=r"FFGG is ahead of all, .*",
    ),
    "figure1-steps.png": Drawing(
        "ffgg-readings",
        r"(.*): \(a\) 10 CG steps reach an error of 1e-4 \(10,000 rows a client\)",
        "Figure 1 (a): below 1e-4 after 10 CG steps",
        claims=r"\(a\) 10 CG steps .*",
    ),
    "theorem8.png": Drawing(
        "ffgg-theorem8",
        r"sign flip: (.*) ends below the bound of Theorem 8",
        "Theorem 8 on least squares: below the bound, under sign flips",
        claims=r"the plain mean does not: .*",
    ),
    "theorem8-mixing.png": Drawing(
        "ffgg-theorem8",
        r"(.*): mixing, trimmed mean ends below the bound of Theorem 8",
        "Theorem 8 on least squares: below the bound, by attack",
        claims=r"with a robust aggregator .*",
    ),
    "theorem8-nothing.png": Drawing(
        "ffgg-theorem8",
        r"with nothing personal .*",
        "Theorem 8 on least squares: higher with nothing personal",
        line=3.0,
        claims=r"with nothing personal .*",
    ),
    "table1.png": Drawing(
        "ffgg-splits",
        r"FFGG \((.*)\), (.*), beats FedAvg with (equal .*)",
        "Table 1: FFGG minus FedAvg, six settings",
        claims=r".*, beats FedAvg with equal .*",
    ),
    **{
        file: Drawing(
            "ffgg-splits",
            rf"FFGG \(adapter\), {start}, gains at least one point on FedAvg",
            f"Table 1: FFGG with adapters ({start}) minus FedAvg, setting by setting",
            line=1.0,
            claims=rf"FFGG \(adapter\), {start}, gains .*",
        )
        for file, start in {"table1-adapter.png": "fresh start", "table1-adapter-values.png": "FedAvg's values"}.items()
    },
    "theorem7.png": Drawing(
        "ffgg-speeds",
        r"(\S+ speeds): (asynchronous FFGG ends as accurate|so does its slowest quarter).*",
        "Theorem 7: asynchronous minus synchronous FFGG",
        line=-2.0,
        claims=r"asynchronous FFGG ends .*|so does its slowest quarter .*",
    ),
    "theorem7-bias.png": Drawing(
        "ffgg-speeds",
        r"(\S+ speeds): (asynchronous FedAvg is biased|FFGG is less biased).*",
        "Theorem 7: how far asynchronous training favours the fastest clients",
        claims=r"asynchronous FedAvg is biased.*|FFGG is less biased .*",
    ),
    "theorem7-time.png": Drawing(
        "ffgg-speeds",
        r"(\S+ speeds): asynchronous (\S+) reaches 95% of the synchronous end sooner",
        "Theorem 7: sooner at 95% of the synchronous accuracy",
        claims=r"asynchronous FFGG reaches .*",
    ),
    "byzantine.png": Drawing(
        "ffgg-byzantine",
        r"(.*): honest clients lose less than 3 points under the worst attack",
        "Theorem 8 on clothes: what honest clients lose by the worst attack",
        line=-3.0,
        claims=r".*: honest clients lose .*",
    ),
    "diagnosis.png": Drawing(
        "ffgg-diagnosis",
        r"the best on validation rows, by L-BFGS, is within 1 point of the best split",
        "diagnose_split: the advised split minus the best",
        line=-1.0,
        claims=r"the best on validation rows, by L-BFGS, .*",
    ),
    "diagnosis-rules.png": Drawing(
        "ffgg-diagnosis",
        r"the best (.*), (by .*), is within 1 point of the best split",
        "diagnose_split: advised minus best, by rule and solver",
        line=-1.0,
        claims=r"the best .*",
    ),
}
"""The figures: for each headline claim one that it links to."""


class Short(Holds):
    """A page whose claims name their rule themselves, so that a line needs fewer columns."""

    def show(self, row: Row) -> Row:
        """A claim as a line of the page."""
        line = super().show(row)
        needed = f" ({line['seeds needed']} seeds)" if row["verdict"] == UNDECIDED else ""
        verdict = {"verdict (seeds needed)": line["verdict"] + needed}
        return {key: line[key] for key in ("of", "claim", "paper", "ours")} | verdict


def summarise(table: Row) -> Iterator[Row]:
    """The headlines of a table; of Figure 1 a line for each reading."""
    recipe = table["recipe"]
    headlines = list_headlines(table)
    if recipe == "ffgg-splits":
        yield from map(_add_paper, headlines)
        return
    if recipe != "ffgg-readings":
        yield from headlines
        return
    groups: dict[str, list[Row]] = {}
    for row in headlines:
        if "FFGG is ahead of" in row["row"]:
            groups.setdefault(row["row"].partition(": ")[0], []).append(row)
    for reading, own in groups.items():
        methods: dict[str, list[Row]] = {}
        for row in own:
            methods.setdefault(row["row"].split("ahead of ")[1].split(",")[0], []).append(row)
        verdicts = {method: _join("", rows)["verdict"] for method, rows in methods.items()}
        rest = "; ".join(f"{method} {verdict}" for method, verdict in verdicts.items() if verdict != HOLDS)
        yield _join(f"FFGG is ahead of all, {reading}{rest and f' ({rest})'}", own)
    others = [row for row in headlines if "FFGG is ahead of" not in row["row"]]
    if others:
        yield _join(f"{others[0]['row'].partition(': ')[2]}, in every reading", others)


def _add_paper(row: Row) -> Row:
    """The paper compares with FedAvg as it is: its numbers stand beside our controls too."""
    split = re.match(r"FFGG \((\w+)\)", row["row"])
    return row if row["paper"] or split is None else {**row, "paper": f"{PAPER_GAINS[split[1]]} (FedAvg)"}


def _join(text: str, rows: Sequence[Row]) -> Row:
    """One line for claims that must all hold: the weakest of them; it fails where one of them does."""
    verdicts = {row["verdict"] for row in rows}
    shared = FAILS if FAILS in verdicts else HOLDS if verdicts == {HOLDS} else UNDECIDED
    return {**min(rows, key=lambda row: row["ours"]), "row": text, "verdict": shared}


PAPER = Short(
    program="ffgg_holds",
    about=__doc__,
    paper="Mishchenko et al. 2023",
    plan="docs/ffgg-plan.md",
    titles=TITLES,
    summarise=summarise,
    fold_pattern=FOLDED,
    drawings=DRAWINGS,
)
make_page, main = PAPER.make_page, PAPER.main

if __name__ == "__main__":
    sys.exit(main())
