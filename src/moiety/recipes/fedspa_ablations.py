"""Table 4 and Figures 5 to 8 of FedSpa (Huang et al. 2022): what each of its parts is good for.

What is trained at which scale stands in ``fedspa_tasks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.recipes.base import Outcome, Watch, unwatched
from moiety.recipes.fedspa_report import (
    PAPER,
    Numbers,
    Row,
    Says,
    accuracy_rows,
    counted,
    curves,
    judged,
    task_parts,
    write,
)
from moiety.recipes.fedspa_runs import IID, SETTINGS, A, B, Courses, Found, Task, experiment
from moiety.recipes.fedspa_tasks import CIFAR100_PAPER, DST, FEDAVG, RSM, ci, cifar10, laptop

if TYPE_CHECKING:
    from moiety.types import Algorithm

NAME = "fedspa-ablations"
ABOUT = (
    f"{PAPER}: Table 4 and Figures 5 to 8, and Table 5. *global* is the shared model, dense, on the same test rows; all"
    " other rows are personal models. Accuracy is the mean over clients, in per cent."
)
UNIFORM, DIFFERENT, RANDOM = "DST, uniform densities", "DST, different masks", "DST, random regrowth"
RSM_DIFFERENT = "RSM, different masks"
GLOBAL, GLOBAL_FEDAVG = f"global {DST}", f"global {FEDAVG}"
FIGURES = {
    "figure5": (DST, UNIFORM),
    "figure6": (DST, DIFFERENT, RSM, RSM_DIFFERENT),
    "figure7": (DST, RANDOM),
    "figure8": (DST, GLOBAL, GLOBAL_FEDAVG),
}
CIFAR100: Numbers = {
    IID: {DST: 41.5, UNIFORM: 33.0, RSM: 54.6, FEDAVG: 55.7},
    A: {DST: 59.0, UNIFORM: 49.3, RSM: 48.7, FEDAVG: 49.3},
    B: {DST: 66.9, UNIFORM: 56.3, RSM: 44.6, FEDAVG: 45.0},
}
"""The paper's, CIFAR-100 with ResNet-18: Table 4, and RSM and FedAvg from Table 1. Figures 6 to 8 have no numbers."""
CLAIMS = (
    *(Says(setting, DST, UNIFORM) for setting in SETTINGS),
    Says(IID, DIFFERENT, DST),
    Says(A, DIFFERENT, DST),
    Says(IID, RSM, RSM_DIFFERENT),
    Says(B, RSM_DIFFERENT, RSM),
    Says(B, DST, RSM_DIFFERENT),
    *(Says(setting, DST, RANDOM) for setting in SETTINGS),
    Says(IID, GLOBAL_FEDAVG, GLOBAL),
    Says(IID, GLOBAL, DST, within=2.0),
    Says(B, DST, GLOBAL),
)


def fedspa_ablations(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """FedSpa with each of its parts changed (Table 4 and Figures 5 to 8 of Huang et al. 2022).

    The arguments are those of ``experiment``.
    """
    options: dict[str, Any] = {"scale": scale, "out": out, "rounds": rounds, "seed": seed, "engine": engine}
    return experiment(NAME, tasks, report, **options, resume=resume, watch=watch)


def methods(how: Mapping[str, Any]) -> dict[str, Algorithm]:
    """FedSpa, and FedSpa with one thing changed; FedAvg for its global model."""
    return {
        DST: mo.fedspa(**how),
        UNIFORM: mo.fedspa(densities="uniform", **how),
        DIFFERENT: mo.fedspa(masks="different", **how),
        RSM: mo.fedspa(search="rsm", **how),
        RSM_DIFFERENT: mo.fedspa(search="rsm", masks="different", **how),
        RANDOM: mo.fedspa(regrow="random", **how),
        FEDAVG: mo.fedavg(weighting="uniform", **how),
    }


def tasks(scale: str) -> list[Task]:
    """What is trained at a scale."""
    if scale == "ci":
        return ci(methods)
    if scale == "paper":
        return cifar10(methods, every=20, models=("resnet18",), paper=CIFAR100_PAPER)
    return [laptop("fashion_mnist", methods, rounds=25, seeds=3, every=5, paper=CIFAR100_PAPER)]


def report(asked: dict[str, Any], found: Found, out: Path | None) -> tuple[str, str]:
    """The page and its closing sentence."""

    def parts(task: Task, courses: Courses) -> tuple[list[str], list[Row]]:
        paper = {} if task.name == "digits" else CIFAR100
        rows = accuracy_rows(task, courses, paper, [*task.methods, GLOBAL])
        claims = judged(task, courses, CLAIMS)
        page = task_parts(task, rows, claims)
        for figure, shown in FIGURES.items():
            drawn = curves(task, courses, shown, f"{task.name}-{figure}.png", out)
            page += [f"### {figure.replace('figure', 'Figure ')}", *drawn] if drawn else []
        share = search_share(task, asked["seed"])
        page += ["### Table 5", f"{_SEARCH} {100 * share:.1f}%. It differs by some points from try to try."]
        known = {"task": task.name, "row": "time of mask search, per cent of training", "paper": None}
        rows.append({**known, "ours": 100 * share, "interval": None, "verdict": None})
        return page, [*rows, *claims]

    text, rows = write(NAME, ABOUT, asked, found, parts, out)
    return text, counted(rows)


_SEARCH = (
    "Time of a mask search as a share of the time of local training, on the machine at hand (the paper: 5 to 20%, for"
    " LeNet 8.9% on a CPU):"
)


def search_share(task: Task, seed: int) -> float:
    """Of the first clients of setting B."""
    from moiety.analysis.costs import search_share as timed

    options = {key: value for key, value in task.methods[DST].spec.items() if key in ("lr", "epochs", "batch_size")}
    return timed(task.model(seed), task.data(B, seed), **options)
