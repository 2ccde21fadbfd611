"""Table 2 of FedSpa (Huang et al. 2022): rounds until a target accuracy. What is trained stands in ``fedspa_tasks``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.recipes.base import Outcome, Watch, unwatched
from moiety.recipes.fedspa_report import PAPER, VERDICTS, Row, claim_row, claims_table, counted, curves, write
from moiety.recipes.fedspa_runs import IID, SETTINGS, B, Courses, Found, Task, experiment
from moiety.recipes.fedspa_tasks import (
    DITTO,
    DST,
    FEDAVG,
    LOCAL,
    PRUNED_FASTER,
    RSM,
    SUB,
    SUBSAMPLING,
    ci,
    cifar10,
    laptop,
)
from moiety.recipes.fedspa_tasks import rows_of_table_1 as table_1

if TYPE_CHECKING:
    from moiety.types import Algorithm

NAME = "fedspa-table2"
ABOUT = (
    f"{PAPER}: Table 2. The first evaluation at which the mean accuracy of personal models is at least the target, in"
    " rounds. A run that never gets there has more than all its rounds."
)
TARGETS = {"ci": (20.0, 40.0), "laptop": (50.0, 60.0, 70.0), "paper": (70.0, 75.0, 80.0)}
PRINTED: Mapping[str, Mapping[str, tuple[float | None, ...]]] = {
    "IID": {
        DST: (134.0, 183.3, 312.3),
        RSM: (101.3, 141.3, 237.0),
        DITTO: (284.7, 370.3, 549.3),
        FEDAVG: (105.0, 140.3, 228.7),
        SUB: (197.7, None, None),
        SUBSAMPLING: (198.0, 268.3, 457.0),
    },
    "A": {
        DST: (167.3, 210.3, 281.3),
        RSM: (195.3, 271.3, 471.7),
        DITTO: (242.3, 334.0, 466.3),
        FEDAVG: (198.3, 256.7, 474.7),
        SUB: (151.7, 235.0, None),
        SUBSAMPLING: (365.3, 523.0, None),
    },
    "B": {
        DST: (164.3, 206.3, 270.0),
        RSM: (252.0, 339.0, 614.0),
        DITTO: (190.3, 278.0, 417.7),
        FEDAVG: (241.0, 327.3, 583.7),
        SUB: (137.3, 191.7, None),
        SUBSAMPLING: (466.3, 722.7, None),
    },
}
"""The paper's rounds for CIFAR-10 with VGG-11 to 70, 75 and 80 per cent; None where more than 1,000."""
FASTER = ((B, DST, FEDAVG), (B, DST, DITTO), (B, DST, RSM), (IID, FEDAVG, DST), (IID, RSM, DST))
"""Setting, the method that the paper's rounds say is faster, and the other."""


def fedspa_table2(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """Rounds until a target accuracy, FedSpa against five others (Table 2 of Huang et al. 2022).

    The arguments are those of ``experiment``.
    """
    options: dict[str, Any] = {"scale": scale, "out": out, "rounds": rounds, "seed": seed, "engine": engine}
    return experiment(NAME, tasks, report, **options, resume=resume, watch=watch)


def tasks(scale: str) -> list[Task]:
    """What is trained at a scale: the methods of Table 1 but for local training."""
    prune_rate = 0.2 if scale == "laptop" else 0.05

    def methods(how: Mapping[str, Any]) -> dict[str, Algorithm]:
        return {name: made for name, made in table_1(how, prune_rate=prune_rate).items() if name != LOCAL}

    if scale == "ci":
        return ci(methods)
    if scale == "paper":
        return cifar10(methods, every=5, models=("vgg11",))
    notes = (PRUNED_FASTER, "The targets were set after accuracies of 30 rounds had been seen: within reach of most.")
    return [laptop("fashion_mnist", methods, rounds=30, seeds=3, every=3, notes=notes)]


def report(asked: dict[str, Any], found: Found, out: Path | None) -> tuple[str, str]:
    """The page and its closing sentence."""
    targets = TARGETS[asked["scale"]]

    def parts(task: Task, courses: Courses) -> tuple[list[str], list[Row]]:
        rows = [
            _row(task, courses, setting, method, at, target)
            for setting in SETTINGS
            for method in task.methods
            for at, target in enumerate(targets)
        ]
        claims = judged(task, courses, targets[len(targets) // 2])
        page = [f"## {task.name}", task.title]
        seen = f"evaluated every {task.every} rounds: what happens in between is not seen"
        page.append(f"{task.rounds} rounds, {task.seeds} seeds, {seen}.")
        for setting in SETTINGS:
            page += [f"### {task.panel(setting)}", _table([row for row in rows if row["setting"] == setting], targets)]
        page += ["### What the paper says", f"{VERDICTS} {_CENSORED}", claims_table(claims)]
        page += curves(task, courses, list(task.methods), f"{task.name}.png", out)
        return [*page, "\n".join(f"- {note}" for note in task.notes)], [*rows, *claims]

    text, rows = write(NAME, ABOUT, asked, found, parts, out, {"targets": targets})
    return text, counted([row for row in rows if "claim" in row])


_CENSORED = "In a difference, a run that never gets to the target counts as if it did in its last round."


def judged(task: Task, courses: Courses, target: float) -> list[Row]:
    """Whether one method needs fewer rounds than another, as in the paper; the difference is of rounds saved."""
    from moiety.analysis.intervals import claim

    made = []
    for setting, method, other in FASTER:
        ours, theirs = (
            [course.reached(target / 100) or task.rounds for course in courses[setting, name]]
            for name in (method, other)
        )
        saved = [float(b - a) for a, b in zip(ours, theirs, strict=True)]
        found = claim(f"{setting}: {method} needs fewer rounds to {target:g}% than {other}", saved)
        made.append({**claim_row(task, found, saved), "claim": True})
    return made


def _row(task: Task, courses: Courses, setting: str, method: str, at: int, target: float) -> Row:
    """The rounds of every seed; their mean and interval where all got there."""
    from moiety.analysis.intervals import interval

    each = [course.reached(target / 100) for course in courses[setting, method]]
    got = [float(t) for t in each if t is not None]
    known = interval(got) if len(got) == len(each) else None
    printed = PRINTED[setting][method][at] if task.name == "cifar10-vgg11" else None
    return {
        "task": task.name,
        "setting": setting,
        "row": method,
        "target": target,
        "paper": printed,
        "ours": None if known is None else known.mean,
        "interval": None if known is None or known.low is None else [known.low, known.high],
        "each": each,
        "more_than": None if known else task.rounds,
        "verdict": None,
    }


def _table(rows: list[Row], targets: tuple[float, ...]) -> str:
    from moiety.reports.tables import markdown

    def shown(row: Row) -> str:
        if row["more_than"]:
            got = [t for t in row["each"] if t is not None]
            return f"> {row['more_than']}" + (f" ({len(got)} of {len(row['each'])} seeds: {got})" if got else "")
        low_high = row["interval"]
        return f"{row['ours']:.1f}" + (f" [{low_high[0]:.1f}, {low_high[1]:.1f}]" if low_high else "")

    lines: dict[str, Row] = {}
    for row in rows:
        line = lines.setdefault(row["row"], {"row": row["row"]})
        line[f"{row['target']:g}"] = shown(row)
        line[f"paper {row['target']:g}"] = row["paper"]
    columns = {"row": "", **{f"{t:g}": f"to {t:g}%" for t in targets}}
    if any(row["paper"] is not None for row in rows):
        columns |= {f"paper {t:g}": f"paper, to {t:g}%" for t in targets}
    return markdown(list(lines.values()), columns=columns, digits=1)
