"""One check of FedSpa (Huang et al. 2022) with the paper's own small network, Caffe's LeNet-5, for 400 rounds.

One seed and one setting: it shows whether what the small network says is far from what the paper's says. It has one
local epoch where the paper has five, so that it ends within the hour.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import moiety as mo
from moiety.experiments import Experiment
from moiety_recipes.fedspa_page import PAPER, Statement, TaskResults, build_page, show_accuracies
from moiety_recipes.fedspa_tasks import DIGITS, DST, FEDAVG, LENET, RSM, B, Plan, Task, build_methods, run_cells
from moiety_recipes.pages import Part

METHODS = (DST, RSM, FEDAVG)
CHECK = replace(LENET, network="caffe_lenet5", rows=96, batch_size=32, rounds=400, every=20, epochs=1, settings=(B,))
STATEMENTS = (Statement(B, DST, FEDAVG), Statement(B, DST, RSM))


def plan(scale: str) -> Plan:
    """The sizes of a scale."""
    task = replace(DIGITS, settings=(B,)) if scale == "ci" else CHECK
    return Plan(tasks=(replace(task, rounds=20) if scale == "laptop" else task,), seeds=1)


def build(task: Task) -> dict[str, mo.Algorithm]:
    """The three methods."""
    every = build_methods(task, prune_rate=0.05)
    return {method: every[method] for method in METHODS}


def show_results(results: TaskResults) -> Part:
    """Accuracy, bytes and claims. The paper's numbers are of another data set."""
    return show_accuracies(results, METHODS, STATEMENTS, paper={}, source="")


ABOUT = (
    f"{PAPER}: a check with Caffe's LeNet-5 on Fashion-MNIST, one seed, setting B, one local epoch. A single seed"
    " decides nothing; its numbers stand beside those of the small network."
)

fedspa_lenet = Experiment(
    name="fedspa-lenet",
    summary="FedSpa with Caffe's LeNet-5 for 400 rounds, one seed (Huang et al. 2022).",
    plan=plan,
    cells=partial(run_cells, build=build),
    page=partial(build_page, about=ABOUT, part=show_results),
    night=True,
)
