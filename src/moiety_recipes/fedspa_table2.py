"""Table 2 of FedSpa (Huang et al. 2022): rounds until a target accuracy.

``fedspa_tasks`` says what is trained at which scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from moiety.experiments import Experiment, Page, Results, Row, compare, score_row, show_interval
from moiety_recipes.fedspa_page import PAPER, VERDICTS, TaskResults, build_page, curve_figure, show_task
from moiety_recipes.fedspa_table1 import METHODS as TABLE_1
from moiety_recipes.fedspa_table1 import PAPER_PRUNE_RATE, TablePlan, cells, note_pruning
from moiety_recipes.fedspa_tasks import (
    DIGITS,
    DITTO,
    DST,
    FEDAVG,
    IID,
    LENET,
    LOCAL,
    NIGHT_SEEDS,
    RATES,
    RSM,
    SMALL,
    SUB,
    SUBSAMPLING,
    VGG,
    A,
    B,
)
from moiety_recipes.pages import Part

METHODS = tuple(method for method in TABLE_1 if method != LOCAL)
PRINTED_TARGETS = (70.0, 75.0, 80.0)
PRINTED: Mapping[str, Mapping[str, tuple[float | None, ...]]] = {
    IID: {
        DST: (134.0, 183.3, 312.3),
        RSM: (101.3, 141.3, 237.0),
        DITTO: (284.7, 370.3, 549.3),
        FEDAVG: (105.0, 140.3, 228.7),
        SUB: (197.7, None, None),
        SUBSAMPLING: (198.0, 268.3, 457.0),
    },
    A: {
        DST: (167.3, 210.3, 281.3),
        RSM: (195.3, 271.3, 471.7),
        DITTO: (242.3, 334.0, 466.3),
        FEDAVG: (198.3, 256.7, 474.7),
        SUB: (151.7, 235.0, None),
        SUBSAMPLING: (365.3, 523.0, None),
    },
    B: {
        DST: (164.3, 206.3, 270.0),
        RSM: (252.0, 339.0, 614.0),
        DITTO: (190.3, 278.0, 417.7),
        FEDAVG: (241.0, 327.3, 583.7),
        SUB: (137.3, 191.7, None),
        SUBSAMPLING: (466.3, 722.7, None),
    },
}
"""The paper's rounds to these targets, for CIFAR-10 with VGG-11; None where more than 1,000."""
FASTER = ((B, DST, FEDAVG), (B, DST, DITTO), (B, DST, RSM), (IID, FEDAVG, DST), (IID, RSM, DST))
"""Setting, the method that the paper's rounds say is faster, and the other."""


@dataclass(frozen=True, kw_only=True)
class TargetPlan(TablePlan):
    """Sizes of one scale, and the accuracies to be reached, in per cent."""

    targets: tuple[float, ...]


def plan(scale: str) -> TargetPlan:
    """The sizes of a scale."""
    if scale == "ci":
        return TargetPlan(tasks=(DIGITS,), seeds=1, prune_rate=PAPER_PRUNE_RATE, targets=(20.0, 40.0))
    if scale == "paper":
        task = replace(VGG, every=5)
        return TargetPlan(tasks=(task,), seeds=3, prune_rate=PAPER_PRUNE_RATE, targets=PRINTED_TARGETS)
    if scale == "night":
        task, sizes = replace(SMALL, every=5), {"seeds": NIGHT_SEEDS, "rates": RATES, "prune_rate": PAPER_PRUNE_RATE}
        return TargetPlan(tasks=(task,), targets=PRINTED_TARGETS, **sizes)  # type: ignore[arg-type]
    task = replace(LENET, rounds=30, every=3)
    return TargetPlan(tasks=(task,), seeds=3, prune_rate=0.2, targets=(50.0, 60.0, 70.0))


def first_round(course: Row, target: float) -> int | None:
    """The round of the first evaluation with at least that accuracy, in per cent; None where there is none."""
    pairs = zip(course["rounds"], course["scores"], strict=True)
    return next((t for t, score in pairs if score >= target / 100), None)


def page(plan: TargetPlan, seeds: Sequence[int], results: Results) -> Page:
    """The rounds of all methods to all targets."""
    body = build_page(plan, seeds, results, about=ABOUT, part=partial(show_results, plan))
    return replace(body, more={"targets": plan.targets})


def show_results(plan: TargetPlan, results: TaskResults) -> Part:
    """Rounds and claims of one task."""
    rows = {
        s: [round_row(results, s, method, t) for method in METHODS for t in plan.targets] for s in results.task.settings
    }
    claims = list(judge_rounds(results, plan.targets[len(plan.targets) // 2]))
    columns = {"row": "", **{f"{t:g}": f"to {t:g}%" for t in plan.targets}}
    if results.task.network == "vgg11":
        columns |= {f"paper {t:g}": f"paper, to {t:g}%" for t in plan.targets}
    notes = [*note_pruning(plan), *([TARGET_NOTE] if results.task.network == "lenet5" else [])]
    tables = {setting: show_rounds(own) for setting, own in rows.items()}
    sections = show_task(results, tables, claims, columns=columns, verdicts=f"{VERDICTS} {CENSORED}", notes=notes)
    every = [row for own in rows.values() for row in own]
    return Part([*every, *claims], sections, curve_figure(results, METHODS))


def round_row(results: TaskResults, setting: str, method: str, target: float) -> Row:
    """The rounds of every seed; their mean and interval where all reach the target."""
    each = [first_round(course, target) for course in results.courses(setting, method)]
    rounds = [t for t in each if t is not None]
    paper = dict(zip(PRINTED_TARGETS, PRINTED[setting][method], strict=True)) if results.task.network == "vgg11" else {}
    complete = len(rounds) == len(each)
    mean = score_row(method, rounds) if complete else {"row": method, "ours": None, "interval": None}
    return {
        "task": results.task.name,
        "setting": setting,
        "target": target,
        **mean,
        "paper": paper.get(target),
        "each": each,
        "more_than": None if complete else results.task.rounds,
        "verdict": None,
    }


def judge_rounds(results: TaskResults, target: float) -> Iterator[Row]:
    """Whether one method needs fewer rounds than another, as in the paper; the difference is of rounds saved."""
    for setting, method, other in FASTER:
        ours, theirs = (
            [first_round(course, target) or results.task.rounds for course in results.courses(setting, name)]
            for name in (method, other)
        )
        row = f"{setting}: {method} needs fewer rounds to {target:g}% than {other}"
        yield {**results.claim(row, compare(theirs, ours)), "claim": True}


def show_rounds(rows: Sequence[Row]) -> list[Row]:
    """A line for each method, a column for each target."""
    lines: dict[str, Row] = {}
    for row in rows:
        target, rounds = f"{row['target']:g}", [t for t in row["each"] if t is not None]
        some = f" ({len(rounds)} of {len(row['each'])} seeds: {rounds})" if rounds else ""
        cell = f"> {row['more_than']}{some}" if row["more_than"] else show_interval(row, digits=1)
        lines.setdefault(row["row"], {"row": row["row"]}).update({target: cell, f"paper {target}": row["paper"]})
    return list(lines.values())


ABOUT = (
    f"{PAPER}: Table 2. The first evaluation at which the mean accuracy of personal models is at least the target, in"
    " rounds; what happens between evaluations is not seen. A run that never reaches the target has more than all its"
    " rounds."
)
CENSORED = "In a difference, a run that never reaches the target counts as if it did in its last round."
TARGET_NOTE = "The targets were set after accuracies of 30 rounds had been seen: within reach of most."

fedspa_table2 = Experiment(
    name="fedspa-table2",
    summary="Rounds until a target accuracy, FedSpa against five others (Table 2 of Huang et al. 2022).",
    plan=plan,
    cells=partial(cells, without=(LOCAL,)),
    page=page,
    night=True,
)
