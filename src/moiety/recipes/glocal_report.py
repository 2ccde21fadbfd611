"""The pages of the recipes of the Glocal paper: tables, claims with verdicts, figures, and all numbers as JSON."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moiety.analysis.intervals import HOLDS, Claim, claim, interval
from moiety.recipes.glocal_trials import METHODS, Result
from moiety.recipes.partial_report import head

Row = dict[str, Any]
Cells = Mapping[str, Result]

GAINS = {"central-gain": "Central over Indep", "glocal-gain": "Glocal over Indep"}
MARGIN = 2.0
"""Percentage points within which accuracy under delay counts as that without."""


def table1(
    name: str,
    asked: Mapping[str, Any],
    cells: Cells,
    paper: Mapping[str, tuple[float, ...]],
    about: str,
    notes: Sequence[str],
    out: Path | None,
) -> tuple[str, str]:
    """The page and its closing sentence."""
    rows, lines, claims = [], [], []
    for source, found in cells.items():
        theirs = dict(zip(METHODS, paper[source], strict=True)) if source in paper else {}
        line: Row = {"row": source}
        for method, label in METHODS.items():
            row = _scored(f"{source}: {label}", found["methods"][method], theirs.get(method))
            rows.append(row)
            line |= {method: _shown(row), f"{method}-paper": row["paper"], f"{method}-lr": row["lr"]}
        lines.append(line)
        for other in ("independent", "central"):
            gains = _differences(found["methods"]["glocal"]["each"], found["methods"][other]["each"])
            said = theirs["glocal"] - theirs[other] if theirs else None
            claims.append(_claim(f"{source}: Glocal beats {METHODS[other]}", gains, paper=said))
    heads = {"row": ""}
    for method, label in METHODS.items():
        heads |= {method: label, f"{method}-paper": "paper"}
    rates = {"row": "", **{f"{method}-lr": label for method, label in METHODS.items()}}
    parts = ["## Test accuracy in per cent", _table(lines, heads), _said(claims)]
    parts += ["## Learning rates", "Chosen on validation rows.", _table(lines, rates, digits=3)]
    won = sum(c["verdict"] == HOLDS for c in claims)
    lost = sum(c["ours"] < 0 for c in claims)
    sentence = (
        f"Glocal beats a baseline for certain in {won} of {len(claims)} comparisons on {len(cells)} data sets, and has"
        f" the lower mean in {lost}."
    )
    return _page(name, asked, cells, about, notes, parts, rows + claims, out), sentence


def against_clients(
    name: str, asked: Mapping[str, Any], cells: Cells, about: str, notes: Sequence[str], out: Path | None
) -> tuple[str, str]:
    """The page and its closing sentence."""
    rows, parts, claims = [], [], []
    shown: dict[str, dict[str, list[Row]]] = {}
    gained: dict[str, dict[str, list[Row]]] = {}
    for source, found in cells.items():
        lines: dict[str, list[Row]] = {label: [] for label in METHODS.values()}
        over: dict[str, list[Row]] = {label: [] for label in METHODS.values()}
        table = []
        for point in found["points"]:
            line = {"row": str(point["clients"])}
            for method, label in METHODS.items():
                row = _scored(f"{source}, {point['clients']} clients: {label}", point["methods"][method], None)
                rows.append(row)
                lines[label].append(_at(point["clients"], row))
                line[method] = _shown(row)
            over[METHODS["independent"]].append({"x": point["clients"], "mean": 0.0})
            for method in ("central", "glocal"):
                each = [gain / 100 for gain in _gains(point, method)]
                row = _scored(
                    f"{source}, {point['clients']} clients: {METHODS[method]} over Indep", {"each": each}, None
                )
                rows.append(row)
                over[METHODS[method]].append(_at(point["clients"], row))
                line[f"{method}-gain"] = _shown(row, "+")
            table.append(line)
        shown[source], gained[source] = lines, over
        parts += [f"## {source}", _table(table, {"row": "clients", **METHODS, **GAINS})]
        first, last = found["points"][0], found["points"][-1]
        for method in ("central", "glocal"):
            more = [a - b for a, b in zip(_gains(last, method), _gains(first, method), strict=True)]
            text = f"{source}: {METHODS[method]} gains more on Indep with {last['clients']} clients than with"
            claims.append(_claim(f"{text} {first['clients']}", more))
        for other in ("independent", "central"):
            gains = _differences(last["methods"]["glocal"]["each"], last["methods"][other]["each"])
            claims.append(_claim(f"{source}, {last['clients']} clients: Glocal beats {METHODS[other]}", gains))
    parts = [_said(claims), *parts]
    grown = [c for c in claims if "Glocal gains" in c["row"]]
    held = sum(c["verdict"] == HOLDS for c in grown)
    best = [c for c in claims if "Glocal beats" in c["row"]]
    sentence = (
        f"More clients help Glocal for certain on {held} of {len(grown)} data sets; with the most of them it beats a"
        f" baseline for certain in {sum(c['verdict'] == HOLDS for c in best)} of {len(best)} comparisons."
    )
    figure = {
        "clients.png": (shown, "clients", "test accuracy (%)"),
        "gains.png": (gained, "clients", "points over Indep"),
    }
    return _page(name, asked, cells, about, notes, parts, rows + claims, out, figure), sentence


def _gains(point: Result, method: str) -> list[float]:
    """By trial, in points over Independent, which has the same tasks and knows of no other client."""
    return _differences(point["methods"][method]["each"], point["methods"]["independent"]["each"])


def against_delay(
    name: str, asked: Mapping[str, Any], cells: Cells, about: str, notes: Sequence[str], out: Path | None
) -> tuple[str, str]:
    """The page and its closing sentence."""
    rows, parts, claims = [], [], []
    shown: dict[str, dict[str, list[Row]]] = {}
    for source, found in cells.items():
        lines: dict[str, list[Row]] = {rule: [] for rule in found["rules"]}
        for rule, points in found["rules"].items():
            for point in points:
                row = _scored(f"{source}, tau {point['delay']}: {rule}", point, None)
                rows.append(row)
                lines[rule].append(_at(point["delay"], row))
        shown[f"{source}, {found['clients']} clients"] = lines
        table = [
            {"row": str(point["delay"]), **{rule: _shown(_scored("", found["rules"][rule][k], None)) for rule in lines}}
            for k, point in enumerate(found["rules"]["aligned"])
        ]
        parts += [f"## {source}", _table(table, {"row": "tau", **{rule: rule for rule in lines}})]
        plain = found["rules"]["aligned"][0]["each"]
        for point in found["rules"]["aligned"][1:]:
            text = f"{source}: Glocal with tau = {point['delay']} is as without delay"
            claims.append(_claim(text, _differences(point["each"], plain), within=MARGIN))
        for rule in ("asymmetric", "misaligned"):
            last = found["rules"][rule][-1]
            gains = _differences(found["rules"]["aligned"][-1]["each"], last["each"])
            claims.append(_claim(f"{source}: aligned beats {rule} at tau = {last['delay']}", gains))
    parts = [_said(claims), *parts]
    robust: dict[int, list[bool]] = {}
    for c in claims:
        if "tau = " in c["row"] and "as without" in c["row"]:
            tau = int(c["row"].split("tau = ")[1].split()[0])
            robust.setdefault(tau, []).append(c["verdict"] == HOLDS)
    counts = ", ".join(f"{sum(held)} of {len(held)} at {tau}" for tau, held in robust.items())
    sentence = f"Accuracy is within {MARGIN:g} points of that without delay, by delay and data sets: {counts}."
    figure = {"delay.png": (shown, "delay tau, each way (rounds)", "test accuracy (%)")}
    return _page(name, asked, cells, about, notes, parts, rows + claims, out, figure), sentence


def _scored(text: str, found: Mapping[str, Any], paper: float | None) -> Row:
    """A row in per cent with its interval over trials."""
    each = [100 * value for value in found["each"]]
    ours = interval(each)
    span = None if ours.low is None else [ours.low, ours.high]
    return {"row": text, "paper": paper, "ours": ours.mean, "interval": span, "each": each, "lr": found.get("lr")}


def _at(x: float, row: Row) -> Row:
    low, high = row["interval"] or (None, None)
    return {"x": x, "mean": row["ours"], "low": low, "high": high}


def _differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [100 * (a - b) for a, b in zip(ours, theirs, strict=True)]


def _claim(text: str, differences: Sequence[float], *, paper: float | None = None, within: float | None = None) -> Row:
    found: Claim = claim(text, differences, within=within)
    low, high = found.interval.low, found.interval.high
    span = None if low is None else [low, high]
    asked = "> 0" if within is None else f"within ±{within:g}"
    return {
        "row": text,
        "verdict": found.verdict,
        "ours": found.interval.mean,
        "interval": span,
        "claimed": asked,
        "paper": paper,
    }


def _shown(row: Row, sign: str = "") -> str:
    span = row["interval"]
    inside = "" if span is None else f" [{span[0]:{sign}.2f}, {span[1]:{sign}.2f}]"
    return f"{row['ours']:{sign}.2f}{inside}"


def _table(rows: Sequence[Row], columns: Mapping[str, str], digits: int = 2) -> str:
    from moiety.reports.tables import markdown

    return markdown(rows, columns=columns, digits=digits)


def _said(claims: Sequence[Row]) -> str:
    """The claims with their verdicts."""
    lines = [
        {**c, "verdict": f"**{c['verdict']}**", "shown": _shown(c, "+"), "theirs": _signed(c["paper"])} for c in claims
    ]
    columns = {"row": "claim", "verdict": "verdict", "shown": "difference in points", "claimed": "claimed"}
    if any(c["paper"] is not None for c in claims):
        columns["theirs"] = "paper"
    return "## Claims\n\n" + _table(lines, columns)


def _signed(number: float | None) -> str:
    return "-" if number is None else f"{number:+.2f}"


def _page(
    name: str,
    asked: Mapping[str, Any],
    cells: Cells,
    about: str,
    notes: Sequence[str],
    parts: Sequence[str],
    rows: Sequence[Row],
    out: Path | None,
    figures: Mapping[str, tuple[Mapping[str, Mapping[str, Sequence[Row]]], str, str]] | None = None,
) -> str:
    """The whole page; with a folder it is written there, with the numbers and the figures."""
    spans = "In brackets is the 95% interval of the mean over trials (Student's t), and of differences trial by trial."
    known = head(name, asked, [{"seconds": sum(c["seconds"] for c in cells.values())}], f"{about} {spans}")
    page = "\n\n".join([known.pop("page"), *parts, "\n".join(["## Notes", "", *(f"- {note}" for note in notes)])])
    if out is not None:
        from moiety.files import write_file

        page += _drawn(figures or {}, out)
        whole = {**known, "about": about, "notes": list(notes), "rows": list(rows), "cells": dict(cells)}
        write_file(out / "table.json", (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
        write_file(out / "table.md", (page + "\n").encode())
    return page


def _drawn(figures: Mapping[str, tuple[Any, str, str]], out: Path) -> str:
    """Draw the figures; the part of the page that shows them."""
    if not figures:
        return ""
    if importlib.util.find_spec("matplotlib") is None:
        return "\n\nThere are no figures: they need `pip install 'moiety[report]'`."
    from moiety.reports.figures import save
    from moiety.reports.lines import bands

    lines = ["\n\n## Figures", ""]
    for file, (shown, x, y) in figures.items():
        save(bands(shown, x=x, y=y), out / file)
        lines.append(f"![{y} against {x}]({file})")
    return "\n".join(lines)
