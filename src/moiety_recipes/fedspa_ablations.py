"""Table 4 and Figures 5 to 8 of FedSpa (Huang et al. 2022): what each of its parts is good for.

``fedspa_tasks`` says what is trained at which scale. Table 5, the time of a mask search, is ``benchmarks/sparse.py``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import moiety as mo
from moiety.experiments import Experiment
from moiety_recipes.fedspa_page import (
    CIFAR100_PAPER,
    GLOBAL,
    PAPER,
    RESNET_18,
    Numbers,
    Statement,
    TaskResults,
    build_page,
    curve_figure,
    show_accuracies,
)
from moiety_recipes.fedspa_tasks import (
    DST,
    FEDAVG,
    IID,
    RSM,
    SETTINGS,
    A,
    B,
    Task,
    build_fedavg,
    build_fedspa,
    plan_resnet,
    run_cells,
)
from moiety_recipes.pages import Part

UNIFORM, DIFFERENT, RANDOM = "DST, uniform densities", "DST, different masks", "DST, random regrowth"
RSM_DIFFERENT = "RSM, different masks"
GLOBAL_DST, GLOBAL_FEDAVG = f"{GLOBAL}{DST}", f"{GLOBAL}{FEDAVG}"
METHODS = (DST, UNIFORM, DIFFERENT, RSM, RSM_DIFFERENT, RANDOM, FEDAVG, GLOBAL_DST)
FIGURES = {
    5: (DST, UNIFORM),
    6: (DST, DIFFERENT, RSM, RSM_DIFFERENT),
    7: (DST, RANDOM),
    8: (DST, GLOBAL_DST, GLOBAL_FEDAVG),
}
"""The methods of each figure."""
CIFAR100: Numbers = {
    IID: {DST: 41.5, UNIFORM: 33.0, RSM: 54.6, FEDAVG: 55.7},
    A: {DST: 59.0, UNIFORM: 49.3, RSM: 48.7, FEDAVG: 49.3},
    B: {DST: 66.9, UNIFORM: 56.3, RSM: 44.6, FEDAVG: 45.0},
}
"""The paper's, CIFAR-100 with ResNet-18: Table 4, and RSM and FedAvg from Table 1. Figures 6 to 8 have no numbers."""
STATEMENTS = (
    *(Statement(setting, DST, UNIFORM) for setting in SETTINGS),
    Statement(IID, DIFFERENT, DST),
    Statement(A, DIFFERENT, DST),
    Statement(IID, RSM, RSM_DIFFERENT),
    Statement(B, RSM_DIFFERENT, RSM),
    Statement(B, DST, RSM_DIFFERENT),
    *(Statement(setting, DST, RANDOM) for setting in SETTINGS),
    Statement(IID, GLOBAL_FEDAVG, GLOBAL_DST),
    Statement(IID, GLOBAL_DST, DST, within=2.0),
    Statement(B, DST, GLOBAL_DST),
)


def build_variants(task: Task) -> dict[str, mo.Algorithm]:
    """FedSpa, and FedSpa with one thing changed; FedAvg for its global model."""
    return {
        DST: build_fedspa(task),
        UNIFORM: build_fedspa(task, densities="uniform"),
        DIFFERENT: build_fedspa(task, masks="different"),
        RSM: build_fedspa(task, search="rsm"),
        RSM_DIFFERENT: build_fedspa(task, search="rsm", masks="different"),
        RANDOM: build_fedspa(task, regrow="random"),
        FEDAVG: build_fedavg(task),
    }


def show_results(results: TaskResults) -> Part:
    """Accuracy, claims and figures of one task."""
    numbers: Any = {"paper": CIFAR100, "source": CIFAR100_PAPER, "sources": {RESNET_18: CIFAR100}}
    part = show_accuracies(results, METHODS, STATEMENTS, **numbers)
    figures: dict[str, Any] = {}
    for number, methods in FIGURES.items():
        figures |= curve_figure(results, methods, f"figure{number}", f"Figure {number}: accuracy")
    return part._replace(figures=figures)


ABOUT = (
    f"{PAPER}: Table 4 and Figures 5 to 8. *global* is the shared model, dense, on the same test rows; all"
    " other rows are personal models. Accuracy is the mean over clients, in per cent."
)
fedspa_ablations = Experiment(
    name="fedspa-ablations",
    summary="FedSpa with each of its parts changed (Table 4 and Figures 5 to 8 of Huang et al. 2022).",
    plan=plan_resnet,
    cells=partial(run_cells, build=build_variants),
    page=partial(build_page, about=ABOUT, part=show_results),
    night=True,
)
