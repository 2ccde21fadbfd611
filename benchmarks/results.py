"""What was found: rows of a table, the check of the losses, ``results.json`` and the tables of docs/benchmarks.md."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.bounds import beyond_torch, bounds
from benchmarks.variants import BASE, BEFORE, CORES, MOIETY, REFERENCE, WITHOUT, base_of
from benchmarks.work import ALL

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- tables: written by make bench -->", "<!-- end of tables -->"
TOLERANCE = {"mlp": 1e-4, "linear": 1e-4, "cnn": 5e-3, "words": 1e-4}
"""Relative, of final losses. Runs differ by rounding only: the order of sums depends on threads and on the batching of
clients. The convnet's kinks (ReLU, max-pooling) let rounding grow: the bare loop itself ends 8e-4 apart at one and at
two threads, while leaving out one round of ten would change the loss by some 20 per cent."""
TOLERANCE_OF_WORK = {"g": 3e-2}
"""Since the earlier commit FedSpa lets weights that were just pruned compete to come back, so its losses differ."""

Row = dict[str, Any]

TARGETS = [
    ("a", MOIETY, BASE, 2.6),
    ("a", MOIETY, "pfl", 3.2),
    ("a", MOIETY, f"pfl, {CORES} processes", 2.2),
    ("a", MOIETY, "fluke", 3.5),
    ("a", MOIETY, "Flower", 20.0),
    ("b", MOIETY, BASE, 1.9),
    ("b", MOIETY, f"pfl, {CORES} processes", 1.1),
    ("c", MOIETY, BASE, 7.0),
    ("c", REFERENCE, WITHOUT, 3.0),
    ("d", MOIETY, BASE, 18.0),
    ("e", MOIETY, BASE, 9.0),
    ("e", REFERENCE, WITHOUT, 3.5),
    ("g", MOIETY, BEFORE, 2.0),
    ("1e4", REFERENCE, BASE, 0.95),
    ("1e5", REFERENCE, BASE, 0.95),
    ("1e6", REFERENCE, BASE, 0.95),
    ("1e7", REFERENCE, BASE, 0.95),
]
"""Work, who, against whom, how many times as fast. What partial evaluation gains is measured on one engine."""


def brief(one: Row) -> str:
    """One run in a line."""
    if "error" in one:
        return f"failed: {' '.join(one['error'])}"
    engine = f"  [{one['engine']}]" if "engine" in one else ""
    shown = f"{1e3 * median(one['seconds']):9.1f} ms a round, {one['memory_mb']:6.0f} MB, loss {one['loss']:.6f}"
    return shown + (f", personal {one['personal_loss']:.6f}" if one["personal_loss"] is not None else "") + engine


def table(work: str, found: Mapping[str, Sequence[Row]], order: Iterable[str]) -> list[Row]:
    """A row for each runner. Ratios are of medians of the same turn; the median over turns counts."""
    times = {name: [median(r["seconds"]) if "seconds" in r else None for r in runs] for name, runs in found.items()}
    base = next((r for r in found[base_of(work)] if "seconds" in r), None)
    rows = []
    for name in order:
        runs = [r for r in found.get(name, []) if "seconds" in r]
        if name not in found:
            continue
        row: Row = {"name": name, "problem": None, "times": times[name]}
        rows.append(row)
        if not runs:
            row["problem"] = " ".join(found[name][0]["error"])
            continue
        row |= {
            "version": runs[0].get("version"),
            "engine": "/".join(sorted({r["engine"] for r in runs if "engine" in r})) or None,
            "seconds": median(t for t in times[name] if t),
            "fastest": min(min(r["seconds"]) for r in runs),
            "against_base": _ratios(times[base_of(work)], times[name]),
            "moiety": _ratios(times[name], times.get(MOIETY, [])),
            "memory_mb": max(r["memory_mb"] for r in runs),
            "first_round": median(r["first_round"] for r in runs) if "first_round" in runs[0] else None,
            "loss": runs[0]["loss"],
            "personal_loss": runs[0]["personal_loss"],
        }
        row["problem"] = _problem(found[name], runs, base, TOLERANCE_OF_WORK.get(work, TOLERANCE[ALL[work].model]))
    return rows


def _problem(all_runs: Sequence[Row], runs: Sequence[Row], base: Row | None, allowed: float) -> str | None:
    """What is wrong with a row: turns that failed, or a loss that is not the bare loop's."""
    failed = [" ".join(r["error"]) for r in all_runs if "error" in r]
    if failed:
        return f"{len(failed)} of {len(all_runs)} turns failed: {failed[0]}"
    if base is None:
        return "nothing to compare the loss with"
    for key in ("loss", "personal_loss"):
        for mine, its in ((r[key], base[key]) for r in runs if r[key] is not None and base[key] is not None):
            if not abs(mine - its) <= allowed * abs(its):  # NaN is apart from everything
                return f"{key} {mine:.6f} where it must be {its:.6f}"
    return None


def _ratios(above: Sequence[float | None], below: Sequence[float | None]) -> list[float]:
    """Median, smallest and largest ratio within a turn; nothing where none can be had."""
    each = [a / b for a, b in zip(above, below, strict=False) if a and b]
    return [median(each), min(each), max(each)] if each else []


def text(work: str, rows: Sequence[Row]) -> str:
    """The table of one work as Markdown."""
    personal = any(row.get("personal_loss") is not None for row in rows)
    head = [
        "",
        "ms a round",
        "fastest",
        f"times the {'bare loop' if base_of(work) == BASE else 'earlier'}",
        "moiety is times as fast",
        "peak MB",
        "loss",
    ]
    lines = [head + (["personal loss"] if personal else [])]
    for row in rows:
        if "seconds" not in row:
            lines.append([row["name"], "failed"] + [""] * (len(lines[0]) - 2))
            continue
        note = (
            f" {row['version']}" if row["version"] and "moiety" not in row["name"] and "bare" not in row["name"] else ""
        )
        chosen = f" ({row['engine']})" if row["name"] == MOIETY else ""
        line = [f"{row['name']}{note}{chosen}", _ms(row["seconds"]), _ms(row["fastest"])]
        line += [_spread(row["against_base"]), _spread(row["moiety"]), f"{row['memory_mb']:.0f}", f"{row['loss']:.5f}"]
        shown = "" if row["personal_loss"] is None else f"{row['personal_loss']:.5f}"
        lines.append(line + ([shown] if personal else []))
    problems = [f"\n\n{row['name']}: {row['problem']}." for row in rows if row["problem"]]
    return f"### ({work}) {ALL[work].title}\n\n{_markdown(lines)}{''.join(problems)}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def _range(each: Sequence[float]) -> str:
    return _spread([median(each), min(each), max(each)])


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return ""
    middle, low, high = ratios
    return f"{middle:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"**{middle:.2f}** ({low:.2f} to {high:.2f})"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]

    def shown(line: Sequence[str]) -> str:
        cells = [c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True))]
        return f"| {' | '.join(cells)} |"

    rule = "|".join("-" * (w + 2) if k == 0 else "-" * (w + 1) + ":" for k, w in enumerate(widths))
    return "\n".join([shown(lines[0]), f"|{rule}|", *map(shown, lines[1:])])


def update(kind: str, found: Mapping[str, Any], minutes: float) -> None:
    """Put new results beside the old ones of other works, each with its date and commit; write the page again.

    ``minutes`` is how long it took to find them.
    """
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, rows in found.items():
        stored.setdefault(kind, {})[name] = {**stamp(), "minutes": minutes / len(found), "rows": rows}
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    write_page(stored)


def stamp() -> dict[str, str]:
    """When, what and where."""
    commit = _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "src") else "")
    model = next((x.split(":")[1].strip() for x in _cpu_info() if x.startswith("model name")), platform.processor())
    memory = round(psutil.virtual_memory().total / 2**30)
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    machine = f"{model}, {CORES} cores, {memory} GB; Python {platform.python_version()}, torch {pins['torch']}"
    return {"date": datetime.date.today().isoformat(), "commit": commit, "machine": machine}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def _cpu_info() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def write_page(stored: Mapping[str, Any]) -> None:
    """Replace what stands between the two marks of docs/benchmarks.md; the words around them stay."""
    works, limits = stored.get("works", {}), stored.get("limits", {})
    tables = {**works, **stored.get("sizes", {}), **stored.get("cohorts", {})}
    parts = [BEGIN]
    if tables:
        parts += ["## Ratios aimed for", targets(tables), "## Bounds aimed for", bounds_text(stored)]
        hours = sum(one.get("minutes", 0.0) for kind in stored.values() for one in kind.values()) / 60
        parts += [f"All that is below took {hours:.1f} hours to measure."] if hours else []
    if works:
        parts.append("## Works")
        for name in sorted(works):
            limit = f"\n\n{limit_text(works[name]['rows'], limits[name])}" if name in limits else ""
            turns = len(works[name]["rows"][0]["times"])
            said = f"{turns} {'turn' if turns == 1 else 'turns'}; {_where(works[name])}"
            parts.append(f"{text(name, works[name]['rows'])}{limit}\n\n{said}")
    for title, group in (("Sizes of a model", "sizes"), ("Sizes of a cohort", "cohorts")):
        if stored.get(group):
            parts += [f"## {title}", sizes_text(stored[group]), _where(next(iter(stored[group].values())))]
    for title, kind, show in (
        ("Whole runs", "whole", whole_text),
        ("Start-up", "start_up", start_up_text),
        ("The leading process", "leader", leader_text),
        ("Scale", "scale", scale_text),
        ("A hundred uploads of 1e7 parameters", "uploads", uploads_text),
        ("What `auto` chooses", "choice", choice_text),
    ):
        if stored.get(kind):
            parts += [f"## {title}", show(stored[kind]), _where(next(iter(stored[kind].values())))]
    shown = "\n\n".join([*parts, END])
    page = PAGE.read_text() if PAGE.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{shown}{rest.partition(END)[2]}")


def _where(stored: Mapping[str, str]) -> str:
    return f"{stored['date']}, commit {stored['commit']}; {stored['machine']}."


def targets(works: Mapping[str, Any]) -> str:
    """What is aimed for beside what was measured."""
    lines = [["work", "who", "times as fast as", "aim", "measured", "reached"]]
    for work, who, other, wanted in TARGETS:
        times = {row["name"]: row["times"] for row in works.get(work, {"rows": []})["rows"]}
        ratios = _ratios(times.get(other, []), times.get(who, []))
        reached = "" if not ratios else "yes" if ratios[0] >= wanted else "no"
        lines.append([f"({work})", who, other, f"{wanted:g}", _spread(ratios), reached])
    return _markdown(lines)


def limit_text(rows: Sequence[Row], limit: Mapping[str, Any]) -> str:
    """How far moiety is from products and convolutions alone, on all cores at the rate of one."""
    seconds = limit["rows"]["seconds"]
    mine = next((row["seconds"] for row in rows if row["name"] == MOIETY and "seconds" in row), None)
    said = f"Products and convolutions alone take {_ms(seconds)} ms a round at the rate of one thread on {CORES} cores"
    return f"{said}; moiety takes {mine / seconds:.2f} times that." if mine else f"{said}."


def sizes_text(group: Mapping[str, Any]) -> str:
    """One line for each work of a group: the bare loop and moiety beside it."""
    lines = [["", "bare loop, ms a round", "moiety, ms a round", "times the bare loop", "engine", "peak MB"]]
    for name, stored in group.items():
        base, mine = stored["rows"][0], stored["rows"][-1]
        line = [ALL[name].title, _ms(base["seconds"]), _ms(mine["seconds"]), _spread(mine["against_base"])]
        lines.append([*line, mine["engine"], f"{mine['memory_mb']:.0f}"])
    return _markdown(lines)


def whole_text(whole: Mapping[str, Any]) -> str:
    """One line for each whole run: from the start of the process to its end."""
    lines = [["work", "rounds", "who", "first round after s", "whole run s", "times the bare loop"]]
    for stored in whole.values():
        row = stored["rows"]
        base = row["runs"].get(BASE)
        for who, runs in row["runs"].items():
            ratio = _ratios([r["whole"] for r in base], [r["whole"] for r in runs]) if base else []
            line = [f"({row['work']})", f"{row['rounds']:,}", who]
            line += [f"{median(r[k] for r in runs):.1f}" for k in ("first_round", "whole")]
            lines.append([*line, _spread(ratio)])
    return _markdown(lines)


def start_up_text(start_up: Mapping[str, Any]) -> str:
    """One line for each command: the median of its seconds, and the range."""
    lines = [["", "seconds", "beyond importing torch", "CPU seconds"]]
    for name, stored in start_up.items():
        each, cpu = ([one[key] for one in stored["rows"]] for key in ("whole", "cpu"))
        beyond = beyond_torch(start_up, name)
        shown = f"{beyond:.2f}" if beyond > 0 else ""
        lines.append([name, _range(each), shown, _range(cpu)])
    return _markdown(lines)


def leader_text(leader: Mapping[str, Any]) -> str:
    """What the leading process does in a round of (d), and the clients' work beside it."""
    (stored,) = leader.values()
    lines = [["CPU microseconds of a round of (d)", "median", "fastest round"]]
    columns = {key: [one[key] for one in stored["rows"]] for key in ("leader", "least", "engine")}
    lines.append(["the leading process", f"{median(columns['leader']):.0f}", f"{min(columns['least']):.0f}"])
    lines.append(["100 clients, five steps each", f"{median(columns['engine']):.0f}", ""])
    return _markdown(lines)


def bounds_text(stored: Mapping[str, Any]) -> str:
    """What must not be more than a bound, beside what was measured."""
    lines = [["what", "at most", "measured", "reached"]]
    for what, most, unit, measured in bounds(stored):
        shown = "" if measured is None else f"{measured:.3g} {unit}".strip()
        reached = "" if measured is None else "yes" if measured <= most else "no"
        lines.append([what, f"{most:g} {unit}".strip(), shown, reached])
    return _markdown(lines)


def scale_text(scale: Mapping[str, Any]) -> str:
    """The table of populations, and how flat it is."""
    rows = [scale[n]["rows"] for n in sorted(scale, key=int)]
    head = ["clients", "start-up s", "ms a round", "fastest", "resident MB", "of it mapped files", "peak MB"]
    lines = [[*head, "last evaluation and checkpoint s"]]
    for row in rows:
        line = [f"{row['clients']:,}", f"{row['start_up']:.1f}", _ms(row["seconds"]), _ms(row["fastest"])]
        line += [f"{row[k]:.0f}" for k in ("resident_mb", "mapped_mb", "memory_mb")]
        lines.append([*line, f"{row['end']:.1f}"])
    first, last = rows[0], rows[-1]
    flat = {k: last[k] / first[k] for k in ("seconds", "resident_mb")}
    own = (last["resident_mb"] - last["mapped_mb"]) / (first["resident_mb"] - first["mapped_mb"])
    said = f"From {first['clients']:,} to {last['clients']:,} clients: time a round {flat['seconds']:.2f}x, resident "
    peak = (
        "Pages of the data file, with those that the system maps around them, count as resident until they are"
        " released, which happens after every block of clients."
    )
    return f"{_markdown(lines)}\n\n{said}memory {flat['resident_mb']:.2f}x, without mapped files {own:.2f}x. {peak}"


def uploads_text(uploads: Mapping[str, Any]) -> str:
    """The peak of each engine."""
    lines = [["engine", "peak MB"]]
    lines += [[name, f"{max(one['memory_mb'] for one in stored['rows']):.0f}"] for name, stored in uploads.items()]
    return _markdown(lines)


def choice_text(choice: Mapping[str, Any]) -> str:
    """How often the engine that ``auto`` took was within 15% of the fastest of the same try."""
    lines = [["work", "rounds it is told of", "right", "engines", "choosing, share of the run"]]
    for name in sorted(choice):
        for row in choice[name]["rows"]:
            engines, share = ", ".join(row["engines"]), f"{100 * row['share']:.1f}%"
            lines.append([f"({name})", f"{row['rounds']:,}", f"{row['right']} of {row['tries']}", engines, share])
    return _markdown(lines)
