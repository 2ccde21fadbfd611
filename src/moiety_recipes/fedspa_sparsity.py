"""Table 3 and Figure 4 of FedSpa (Huang et al. 2022): how sparse is best.

``fedspa_tasks`` says what is trained at which scale.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import moiety as mo
from moiety.experiments import Experiment, compare
from moiety_recipes.fedspa_page import (
    CIFAR100_PAPER,
    FIGURE_1,
    PAPER,
    RESNET_18,
    Numbers,
    Statement,
    TaskResults,
    build_page,
    draw_bytes,
    show_accuracies,
)
from moiety_recipes.fedspa_tasks import IID, A, B, Task, build_fedavg, build_fedspa, plan_resnet, run_cells
from moiety_recipes.pages import Part

SPARSITIES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.8)
"""Sparsity 0 is FedAvg."""


def row_name(sparsity: float) -> str:
    """The row of a sparsity."""
    return f"sparsity {sparsity:g}"


METHODS = tuple(row_name(sparsity) for sparsity in SPARSITIES)
CIFAR100: Numbers = {
    IID: dict(zip(METHODS, (55.7, 51.5, 45.5, 41.5, 38.4, 32.0), strict=True)),
    A: dict(zip(METHODS, (49.3, 62.9, 61.4, 59.0, 57.3, 49.2), strict=True)),
    B: dict(zip(METHODS, (45.0, 65.5, 67.2, 66.9, 65.2, 56.7), strict=True)),
}
"""The paper's, CIFAR-100 with ResNet-18: Table 3, and FedAvg from Table 1."""
STATEMENTS = (
    Statement(B, row_name(0.5), row_name(0)),
    Statement(B, row_name(0.5), row_name(0.8)),
    Statement(IID, row_name(0), row_name(0.5)),
    Statement(IID, row_name(0.2), row_name(0.8)),
)


def build_sparsities(task: Task) -> dict[str, mo.Algorithm]:
    """FedSpa at every sparsity, and FedAvg."""
    return {
        row_name(sparsity): build_fedspa(task, density=round(1 - sparsity, 6)) if sparsity else build_fedavg(task)
        for sparsity in SPARSITIES
    }


def show_results(results: TaskResults) -> Part:
    """Accuracy and claims of one task, and whether the best sparsity moves."""
    moves = results.claim(
        MOVES, compare(best_sparsities(results, B), best_sparsities(results, IID)), unit="", paper=BEST
    )
    numbers: Any = {"paper": CIFAR100, "source": CIFAR100_PAPER, "sources": {RESNET_18: CIFAR100}}
    part = show_accuracies(results, METHODS, STATEMENTS, **numbers, more_claims=[moves])
    lines = {"FedSpa (DST), sparsity 0.8 to 0.2": METHODS[:0:-1], "FedAvg": METHODS[:1]}
    file = f"{results.task.name}-figure1.png"
    return part._replace(figures={**part.figures, file: (FIGURE_1, partial(draw_bytes, results, lines))})


def best_sparsities(results: TaskResults, setting: str) -> list[float]:
    """The sparsity with the highest accuracy, for every seed; the smaller one where two are equal."""
    scores = {sparsity: results.scores(setting, row_name(sparsity)) for sparsity in SPARSITIES}
    return [max(SPARSITIES, key=lambda s: scores[s][seed]) for seed in range(len(results.seeds))]


ABOUT = (
    f"{PAPER}: Table 3 and Figure 4. FedSpa (DST) at five sparsities, the share of parameters that a client does not"
    " have. Sparsity 0 is FedAvg, which the paper does not put here. Accuracy is the mean over clients of that of their"
    " personal models, in per cent."
)
BEST = f"+0.4 ({RESNET_18})"
"""The best of Table 3 and FedAvg: 0 in IID, 0.4 in B."""
MOVES = "the best sparsity is larger in B than in IID (difference of sparsities)"

fedspa_sparsity = Experiment(
    name="fedspa-sparsity",
    summary="FedSpa at several sparsities, alike and unlike labels (Table 3 and Figure 4 of Huang et al. 2022).",
    plan=plan_resnet,
    cells=partial(run_cells, build=build_sparsities),
    page=partial(build_page, about=ABOUT, part=show_results),
    night=True,
)
