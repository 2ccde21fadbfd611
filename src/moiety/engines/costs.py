"""What a unit of local work costs: arithmetic per example and phase, and memory on one device."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from moiety import tree
from moiety.engines.plan import Job, Rows
from moiety.engines.problem import Problem, Served
from moiety.engines.sequential import Sequential
from moiety.rng import torch_seed
from moiety.task import backprop_bytes
from moiety.transport import device_memory
from moiety.types import Algorithm, Params, Tree


class Flops(NamedTuple):
    """Operations for a row in one phase: ``once`` for each distinct row, ``each`` for every time it is used."""

    once: float
    each: float


def flops_per_example(problem: Problem, algorithm: Algorithm, received: Params, state: Tree) -> dict[str, Flops]:
    """Arithmetic operations of training, by phase, as ``FlopCounterMode`` counts them.

    The algorithm's own ``client_update`` is run on two rows in one phase and none in the others, over them once and
    then twice: F1 = once + each and F2 = once + 2 each, where partial evaluation computes ``once`` only once.
    """
    two = np.arange(2) % problem.data.total
    none = Rows(two[:0], np.zeros(0, dtype=np.int64))
    engine = Sequential(
        replace(problem, quiet=True, said=set()), {"train": Served(algorithm.client_update, tuple(algorithm.phases))}
    )

    def count(phase: str, passes: int) -> float:
        some = Rows(np.tile(two, passes), np.full(passes, 2))
        rows = {name: some if name == phase else none for name in algorithm.phases}
        with FlopCounterMode(display=False) as counter:
            engine.map("train", [Job(0, rows, 2, state)], received, scale=1.0, round=0)
        return float(counter.get_total_flops()) / 2

    found = {}
    for phase, length in algorithm.phases.items():
        if length.epochs == 1:  # no row comes round twice
            found[phase] = Flops(once=0.0, each=count(phase, 1))
            continue
        count(phase, 2)  # the first time, partial evaluation tries its cut on a few rows, which is not training
        one, two_passes = count(phase, 1), count(phase, 2)
        found[phase] = Flops(once=2 * one - two_passes, each=two_passes - one)
    return found


def job_flops(per_example: dict[str, Flops], job: Job) -> float:
    """Operations of one client's turn."""
    total = 0.0
    for phase, rows in job.rows.items():
        cost, used = per_example[phase], len(rows.order)
        total += cost.once * min(used, job.examples) + cost.each * used
    return total


def memory_on_device(problem: Problem, state: Tree) -> int:
    """The estimate of Pillutla et al. 2022, B.4, in bytes; v is what a client keeps, which may be a whole model."""
    shared, statistics = problem.shared()
    start, stop = problem.data.rows(0, "train")
    # BatchNorm cannot train on a batch of one row: the cost of one is half of that of two.
    rows = 2 if problem.task.mixes_examples else 1
    index = torch.from_numpy(np.resize(np.arange(start, stop), rows))
    batch = {name: column.index_select(0, index) for name, column in problem.columns.items()}
    trained = (*problem.split.trained_shared, *problem.split.trained_personal)
    with torch_seed(problem.seed, "memory"):
        backprop = backprop_bytes(problem.task, batch, trained) // rows
    return device_memory(shared | statistics, tree.leaves(state), backprop)
