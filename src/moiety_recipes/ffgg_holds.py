"""What holds of Mishchenko et al. 2023: one short page from the tables of the pages that decide.

    python -m moiety_recipes.ffgg_holds RUN [RUN ...] --out FOLDER

A RUN is the folder of a recipe that has ended and whose ``table.json`` has claims marked as headlines, as those of
``ffgg_claims`` are. Nothing is trained here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from moiety.experiments import FAILS, HOLDS, UNDECIDED, Row
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
    r"|FFGG \(adapter\), FedAvg's values, gains.*"
)
"""Headlines that say the same of another reading or measure."""
DRAWINGS = {
    "figure1.png": Drawing(
        "ffgg-readings",
        r"FFGG is ahead of all, (.*) \(.*\)",
        "Figure 1: FFGG's smallest lead over a rival, by reading",
    ),
    "theorem8.png": Drawing(
        "ffgg-theorem8",
        r"sign flip: (.*) ends below the bound of Theorem 8",
        "Theorem 8 on least squares: below the bound, under sign flips",
    ),
    "table1.png": Drawing(
        "ffgg-splits",
        r"FFGG \((.*)\), (.*), beats FedAvg with equal communication",
        "Table 1: FFGG minus FedAvg with equal communication, six settings",
    ),
    "table1-adapter.png": Drawing(
        "ffgg-splits",
        r"FFGG \(adapter\), fresh start, gains at least one point on FedAvg",
        "Table 1: FFGG with adapters minus FedAvg, setting by setting",
        line=1.0,
    ),
    "theorem7.png": Drawing(
        "ffgg-speeds",
        r"(\S+ speeds): asynchronous FFGG ends as accurate as synchronous, within 2",
        "Theorem 7: asynchronous minus synchronous FFGG, within 2 is claimed",
    ),
    "theorem7-time.png": Drawing(
        "ffgg-speeds",
        r"(\S+ speeds): asynchronous (\S+) reaches 95% of the synchronous end sooner",
        "Theorem 7: sooner at 95% of the synchronous accuracy",
    ),
    "byzantine.png": Drawing(
        "ffgg-byzantine",
        r"(.*): honest clients lose less than 3 points under the worst attack",
        "Theorem 8 on clothes: what honest clients lose by the worst attack",
        line=-3.0,
    ),
    "diagnosis.png": Drawing(
        "ffgg-diagnosis",
        r"the best on validation rows, by L-BFGS, is within 1 point of the best split",
        "diagnose_split: the advised split minus the best",
        line=-1.0,
    ),
}


def summarise(table: Row) -> Iterator[Row]:
    """The headlines of a table; of Figure 1 a line for each reading."""
    recipe = table["recipe"]
    headlines = list_headlines(table)
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


PAPER = Holds(
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
