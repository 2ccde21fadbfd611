"""Table 2 of FedSpa (Huang et al. 2022): rounds until a target accuracy.

``fedspa_tasks`` says what is trained at which scale. At scale ``night`` the page of ``fedspa-table1`` has this table,
from the same runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from moiety.experiments import Experiment, Page, Results
from moiety_recipes.fedspa_page import PAPER, VERDICTS, TaskResults, build_page, curve_figure, show_task
from moiety_recipes.fedspa_rounds import (
    CENSORED,
    METHODS,
    PRINTED_TARGETS,
    judge_rounds,
    list_columns,
    list_rounds,
    show_rounds,
)
from moiety_recipes.fedspa_table1 import PAPER_PRUNE_RATE, TablePlan, cells, note_pruning
from moiety_recipes.fedspa_tasks import DIGITS, LENET, LOCAL, VGG
from moiety_recipes.pages import Part


def plan(scale: str) -> TablePlan:
    """The sizes of a scale."""
    if scale == "ci":
        return TablePlan(tasks=(DIGITS,), seeds=1, prune_rate=PAPER_PRUNE_RATE, targets=(20.0, 40.0))
    if scale == "paper":
        task = replace(VGG, every=5)
        return TablePlan(tasks=(task,), seeds=3, prune_rate=PAPER_PRUNE_RATE, targets=PRINTED_TARGETS)
    task = replace(LENET, rounds=30, every=3)
    return TablePlan(tasks=(task,), seeds=3, prune_rate=0.2, targets=(50.0, 60.0, 70.0))


def page(plan: TablePlan, seeds: Sequence[int], results: Results) -> Page:
    """The rounds of all methods to all targets."""
    body = build_page(plan, seeds, results, about=ABOUT, part=partial(show_results, plan))
    return replace(body, more={"targets": plan.targets})


def show_results(plan: TablePlan, results: TaskResults) -> Part:
    """Rounds and claims of one task."""
    rows = list_rounds(results, plan.targets)
    claims = list(judge_rounds(results, plan.targets))
    notes = [*note_pruning(plan), *([TARGET_NOTE] if results.task.network == "lenet5" else [])]
    tables = {setting: show_rounds(own) for setting, own in rows.items()}
    columns = list_columns(results, plan.targets)
    sections = show_task(results, tables, claims, columns=columns, verdicts=f"{VERDICTS} {CENSORED}", notes=notes)
    every = [row for own in rows.values() for row in own]
    return Part([*every, *claims], sections, curve_figure(results, METHODS))


ABOUT = (
    f"{PAPER}: Table 2. The first evaluation at which the mean accuracy of personal models is at least the target, in"
    " rounds; what happens between evaluations is not seen. A run that never reaches the target has more than all its"
    " rounds."
)
TARGET_NOTE = "The targets were set after accuracies of 30 rounds had been seen: within reach of most."

fedspa_table2 = Experiment(
    name="fedspa-table2",
    summary="Rounds until a target accuracy, FedSpa against five others (Table 2 of Huang et al. 2022).",
    plan=plan,
    cells=partial(cells, without=(LOCAL,)),
    page=page,
)
