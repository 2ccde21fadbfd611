"""Tables, claims and pages of the recipes of FedSpa."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moiety.recipes.fedspa_runs import SETTINGS, Course, Courses, Found, Task
from moiety.recipes.partial_report import head
from moiety.reports.words import amount

Row = dict[str, Any]
Numbers = Mapping[str, Mapping[str, float | None]]
"""The paper's, by setting and method."""
PAPER = 'Huang et al. 2022, "Achieving Personalized Federated Learning with Sparse Local Models"'
VERDICTS = (
    "A claim *holds* where the whole 95% interval of the difference (seed by seed, Student's t) says so, *does not"
    " hold* where the whole interval says the opposite, and else is *not decided at this scale*. Each claim is judged"
    " by itself: of twenty that are not so, one may come out by chance."
)


@dataclass(frozen=True)
class Says:
    """A claim of the paper: one method is ahead of another in a setting, or ``within`` so many points of it.

    ``method`` and ``other`` are names of methods, or of methods with ``global `` before them: their shared model.
    """

    setting: str
    method: str
    other: str
    within: float | None = None

    def __str__(self) -> str:
        how = "is ahead of" if self.within is None else f"is within {self.within:g} points of"
        return f"{self.setting}: {self.method} {how} {self.other}"


def final(course: Course, shared: bool = False) -> float:
    """The accuracy in the end, in per cent."""
    return 100 * (course.shared if shared else course.scores)[-1]


def scores(courses: Courses, setting: str, method: str) -> list[float]:
    """The accuracy in the end for every seed; of the shared model where the name begins with ``global``."""
    return [final(course, shared=method != plain(method)) for course in courses[setting, plain(method)]]


def plain(method: str) -> str:
    """The method whose runs a row is of."""
    return method.removeprefix("global ")


def judged(task: Task, courses: Courses, claims: Sequence[Says]) -> list[Row]:
    """What the seeds say of each claim, in percentage points."""
    from moiety.analysis.intervals import claim

    made = []
    for says in claims:
        ours, others = (scores(courses, says.setting, method) for method in (says.method, says.other))
        differences = [one - other for one, other in zip(ours, others, strict=True)]
        found = claim(str(says), differences, within=says.within)
        made.append(claim_row(task, found, differences))
    return made


def claim_row(task: Task, found: Any, each: Sequence[float]) -> Row:
    """A claim with its verdict as a row of JSON."""
    known = {"task": task.name, "row": found.name, "paper": None, "ours": found.interval.mean}
    low, high = found.interval.low, found.interval.high
    return {**known, "interval": None if low is None else [low, high], "each": list(each), "verdict": found.verdict}


def accuracy_rows(task: Task, courses: Courses, paper: Numbers, methods: Sequence[str] | None = None) -> list[Row]:
    """A row for each setting and method: accuracy, and the bill of a run, which is the mean over seeds."""
    from moiety.analysis.intervals import interval

    rows = []
    for setting in SETTINGS:
        for method in methods or task.methods:
            each = scores(courses, setting, method)
            found = asdict(interval(each))
            bills = [course.ledger for course in courses[setting, plain(method)]]
            bill = {key: sum(b.get(key, 0) for b in bills) / len(bills) for key in BILL}
            rows.append(
                {
                    "task": task.name,
                    "setting": setting,
                    "row": method,
                    "paper": paper.get(setting, {}).get(method),
                    "ours": found["mean"],
                    "interval": None if found["low"] is None else [found["low"], found["high"]],
                    "each": each,
                    "verdict": None,
                    **bill,
                }
            )
    return rows


BILL = ("down_values", "up_values", "down_payload", "up_payload", "flops", "search_flops")


def accuracy_table(rows: Sequence[Row], bill: bool = True) -> str:
    """The rows of one setting as Markdown."""
    from moiety.reports.tables import markdown

    lines = []
    for row in rows:
        line = {"row": row["row"], "paper": row["paper"], "ours": row["ours"], "interval": between(row["interval"])}
        if bill:
            line["values"] = amount(row["down_values"] + row["up_values"], "B")
            line["payload"] = amount(row["down_payload"] + row["up_payload"], "B")
            line["flops"] = amount(row["flops"], "FLOP")
            line["search"] = amount(row["search_flops"], "FLOP") if row["search_flops"] else None
        lines.append(line)
    headings = {"row": "", "interval": "95% interval", "values": "bytes, values", "payload": "bytes, packed"}
    headings |= {"search": "of which search"}
    return markdown(lines, columns={key: headings.get(key, key) for key in lines[0]}, digits=1)


def claims_table(rows: Sequence[Row]) -> str:
    """Claims as Markdown."""
    from moiety.reports.tables import markdown

    lines = [{**row, "interval": between(row["interval"], sign="+")} for row in rows]
    columns = {"row": "claim", "ours": "difference", "interval": "95% interval", "verdict": "verdict"}
    return markdown(lines, columns=columns, digits=2)


def between(interval: Sequence[float] | None, sign: str = "") -> str | None:
    """An interval in words."""
    return None if interval is None else f"{interval[0]:{sign}.1f} to {interval[1]:{sign}.1f}"


def task_parts(task: Task, rows: Sequence[Row], claims: Sequence[Row], bill: bool = True) -> list[str]:
    """A task's tables, claims and notes."""
    turns = task.rounds * task.cohort
    size = (
        f"{task.rounds} rounds, {task.cohort} clients a round, {task.seeds} seeds, each with a deal of the data, first"
        f" weights and cohorts of its own; {turns} turns of clients in a run. {task.paper}"
    )
    parts = [f"## {task.name}", task.title, size.strip()]
    for setting in SETTINGS:
        own = [row for row in rows if row["setting"] == setting]
        parts += [f"### {task.panel(setting)}", accuracy_table(own, bill)]
    if claims:
        parts += ["### What the paper says", VERDICTS, claims_table(claims)]
    return [*parts, "\n".join(f"- {note}" for note in task.notes)] if task.notes else parts


def curves(task: Task, courses: Courses, methods: Sequence[str], file: str, out: Path | None) -> list[str]:
    """Accuracy along the rounds, drawn into ``out``; the line of Markdown that shows it."""
    if out is None:
        return []
    if importlib.util.find_spec("matplotlib") is None:
        return ["No figure was drawn: it needs the extra `report`, as in `pip install moiety[report]`."]
    from moiety.reports.bands import bands
    from moiety.reports.figures import save

    shown = {
        task.panel(setting): {method: _line(courses[setting, plain(method)], method) for method in methods}
        for setting in SETTINGS
    }
    save(bands(shown, x="round", y="mean test accuracy (%)"), out / file)
    return [f"![Accuracy along the rounds]({file})"]


def _line(seeds: Sequence[Course], method: str) -> list[Row]:
    """The mean over seeds and its interval at each evaluation."""
    from moiety.analysis.intervals import interval

    each = [course.scores if method == plain(method) else course.shared for course in seeds]
    points = []
    for at, values in zip(seeds[0].rounds, zip(*each, strict=True), strict=True):
        found = interval([100 * value for value in values])
        points.append({"x": at, "mean": found.mean, "low": found.low, "high": found.high})
    return points


def write(
    recipe: str,
    about: str,
    asked: dict[str, Any],
    found: Found,
    parts: Callable[[Task, Courses], tuple[list[str], list[Row]]],
    out: Path | None,
    more: Mapping[str, Any] | None = None,
    first: Sequence[str] = (),
) -> tuple[str, list[Row]]:
    """The page of all tasks and its rows; with a folder both are written there.

    ``parts(task, courses)`` gives the paragraphs and the rows of one task; ``first`` stands before all of them and
    ``more`` is put into the JSON.
    """
    seconds = sum(course.seconds for _, courses in found for seeds in courses.values() for course in seeds)
    known = head(recipe, asked, [{"seconds": seconds}], about)
    engines = sorted({course.engine for _, courses in found for seeds in courses.values() for course in seeds})
    said = f"Engine: {' and '.join(engines)}. Engines round differently: with another one numbers differ a little."
    page: list[str] = [known.pop("page"), said, *first]
    rows: list[Row] = []
    for task, courses in found:
        paragraphs, own = parts(task, courses)
        page, rows = page + paragraphs, rows + own
    text = "\n\n".join(page)
    if out is not None:
        from moiety.engines.checkpoint import write_file

        whole = {**known, "seconds": seconds, "engines": engines, **(more or {}), "rows": rows}
        write_file(out / "table.json", (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
        write_file(out / "table.md", (text + "\n").encode())
    return text, rows


def counted(claims: Sequence[Row]) -> str:
    """How many claims hold, in one sentence."""
    verdicts = [row["verdict"] for row in claims if row["verdict"]]
    hold, fail = verdicts.count("holds"), verdicts.count("does not hold")
    return f"{hold} of {len(verdicts)} claims hold, {fail} do not, {len(verdicts) - hold - fail} are not decided."
