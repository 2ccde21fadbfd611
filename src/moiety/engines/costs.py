"""What a unit of local work costs: arithmetic per example and phase, and memory on one device."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from moiety.engines.plan import Job, Rows
from moiety.engines.problem import Problem
from moiety.engines.sequential import Sequential
from moiety.task import backprop_bytes
from moiety.transport import device_memory
from moiety.types import Algorithm, Params, Tree


def flops_per_example(problem: Problem, algorithm: Algorithm, received: Params, state: Tree) -> dict[str, float]:
    """Arithmetic operations of training on one example once, by phase, as ``FlopCounterMode`` counts them.

    The algorithm's own ``client_update`` is run with one batch of two rows in one phase and none in the others.
    """
    start, stop = problem.data.rows(0, "train")
    two = np.resize(np.arange(start, stop), 2)
    none = Rows(two[:0], np.zeros(0, dtype=np.int64))
    found = {}
    for phase in algorithm.phases:
        rows = {name: Rows(two, np.array([2])) if name == phase else none for name in algorithm.phases}
        with FlopCounterMode(display=False) as counter:
            Sequential().map(problem, algorithm.client_update, [Job(0, rows, 2, state)], received, scale=1.0, round=0)
        found[phase] = counter.get_total_flops() / 2
    return found


def job_flops(per_example: dict[str, float], job: Job) -> float:
    """Operations of one client's turn."""
    return sum(per_example[phase] * len(rows.order) for phase, rows in job.rows.items())


def memory_on_device(problem: Problem) -> int:
    """The estimate of Pillutla et al. 2022, B.4, in bytes."""
    shared, statistics = problem.shared()
    start, stop = problem.data.rows(0, "train")
    # BatchNorm cannot train on a batch of one row: the cost of one is half of that of two.
    rows = 2 if problem.task.mixes_examples else 1
    index = torch.from_numpy(np.resize(np.arange(start, stop), rows))
    batch = {name: column.index_select(0, index) for name, column in problem.columns.items()}
    return device_memory(shared | statistics, problem.personal(), backprop_bytes(problem.task, batch) // rows)
