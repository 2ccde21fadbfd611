"""Table 3 and Figure 4 of FedSpa (Huang et al. 2022): how sparse is best.

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
    claim_row,
    counted,
    curves,
    scores,
    task_parts,
    write,
)
from moiety.recipes.fedspa_report import judged as judged_claims
from moiety.recipes.fedspa_runs import IID, A, B, Courses, Found, Task, experiment
from moiety.recipes.fedspa_tasks import CIFAR100_PAPER, ci, cifar10, laptop

if TYPE_CHECKING:
    from moiety.types import Algorithm

NAME = "fedspa-sparsity"
ABOUT = (
    f"{PAPER}: Table 3 and Figure 4. FedSpa (DST) at five sparsities, the share of parameters that a client does not"
    " have. Sparsity 0 is FedAvg, which the paper does not put here. Accuracy is the mean over clients of that of their"
    " personal models, in per cent."
)
SPARSITIES = (0.2, 0.4, 0.5, 0.6, 0.8)
DENSE = "sparsity 0"


def named(sparsity: float) -> str:
    """The row of a sparsity."""
    return f"sparsity {sparsity:g}"


_ROWS = (DENSE, *(named(s) for s in SPARSITIES))
CIFAR100: Numbers = {
    IID: dict(zip(_ROWS, (55.7, 51.5, 45.5, 41.5, 38.4, 32.0), strict=True)),
    A: dict(zip(_ROWS, (49.3, 62.9, 61.4, 59.0, 57.3, 49.2), strict=True)),
    B: dict(zip(_ROWS, (45.0, 65.5, 67.2, 66.9, 65.2, 56.7), strict=True)),
}
"""The paper's, CIFAR-100 with ResNet-18: Table 3, and FedAvg from Table 1."""
CLAIMS = (
    Says(B, named(0.5), DENSE),
    Says(B, named(0.5), named(0.8)),
    Says(IID, DENSE, named(0.5)),
    Says(IID, named(0.2), named(0.8)),
)


def fedspa_sparsity(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """FedSpa at several sparsities, alike and unlike labels (Table 3 and Figure 4 of Huang et al. 2022).

    The arguments are those of ``experiment``.
    """
    options: dict[str, Any] = {"scale": scale, "out": out, "rounds": rounds, "seed": seed, "engine": engine}
    return experiment(NAME, tasks, report, **options, resume=resume, watch=watch)


def tasks(scale: str) -> list[Task]:
    """What is trained at a scale."""

    def methods(how: Mapping[str, Any]) -> dict[str, Algorithm]:
        sparse = {named(s): mo.fedspa(density=round(1 - s, 6), **how) for s in SPARSITIES}
        return {DENSE: mo.fedavg(weighting="uniform", **how), **sparse}

    if scale == "ci":
        return ci(methods)
    if scale == "paper":
        return cifar10(methods, every=20, models=("resnet18",), paper=CIFAR100_PAPER)
    return [laptop("fashion_mnist", methods, rounds=25, seeds=3, every=5, paper=CIFAR100_PAPER)]


def report(asked: dict[str, Any], found: Found, out: Path | None) -> tuple[str, str]:
    """The page and its closing sentence."""

    def parts(task: Task, courses: Courses) -> tuple[list[str], list[Row]]:
        paper = {} if task.name == "digits" else CIFAR100
        rows = accuracy_rows(task, courses, paper)
        claims = [*judged_claims(task, courses, CLAIMS), _moves(task, courses)]
        figure = curves(task, courses, list(task.methods), f"{task.name}.png", out)
        return [*task_parts(task, rows, claims), *figure], [*rows, *claims]

    text, rows = write(NAME, ABOUT, asked, found, parts, out)
    return text, counted(rows)


def best(courses: Courses, setting: str) -> list[float]:
    """The sparsity with the highest accuracy, for every seed; the smaller one where two are equal."""
    each = {sparsity: scores(courses, setting, named(sparsity)) for sparsity in (0.0, *SPARSITIES)}
    seeds = range(len(each[0.0]))
    return [max(each, key=lambda sparsity: (each[sparsity][seed], -sparsity)) for seed in seeds]


def _moves(task: Task, courses: Courses) -> Row:
    from moiety.analysis.intervals import claim

    differences = [b - iid for b, iid in zip(best(courses, B), best(courses, IID), strict=True)]
    found = claim("the best sparsity is larger in B than in IID (difference of sparsities)", differences)
    return claim_row(task, found, differences)
