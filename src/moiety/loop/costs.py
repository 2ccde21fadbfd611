"""What a unit of local work costs: arithmetic per example and phase, and memory on one device."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from moiety import tree
from moiety.engines.problem import Problem, Served
from moiety.engines.rows import Job, Rows
from moiety.engines.sequential import Sequential
from moiety.random import torch_seed
from moiety.task import backprop_bytes
from moiety.transport import device_memory
from moiety.types import Algorithm, Names, Params, Tree


class Flops(NamedTuple):
    """Operations for a row in one phase: ``once`` for each distinct row, ``each`` for every time it is used.

    Where layers are sparse, ``layers`` has those of each masked weight's layer, part of ``each``, and ``densities``
    says from a client's state how much of them is left. ``search`` marks a phase that searches for masks. ``repeats``
    says for a turn how often its rows are gone through.
    """

    once: float
    each: float
    layers: Mapping[str, float] = MappingProxyType({})
    densities: Callable[[Tree], dict[str, float]] | None = None
    search: bool = False
    repeats: Callable[[int], int] = lambda turn: 1


def flops_per_example(problem: Problem, algorithm: Algorithm, received: Params, state: Tree) -> dict[str, Flops]:
    """Arithmetic operations of training, by phase, as ``FlopCounterMode`` counts them.

    The algorithm's own ``client_update`` is run on two rows in one phase and none in the others, over them once and
    then twice: F1 = once + each and F2 = once + 2 each, where partial evaluation computes ``once`` only once.
    Where layers are sparse they are counted apart; a search for masks is by the whole model. Where the algorithm says
    that it goes through a phase's rows several times, what is counted is divided by that.
    """
    two = np.arange(2) % problem.data.total
    none = Rows(two[:0], np.zeros(0, dtype=np.int64))
    engine = Sequential(
        replace(problem, quiet=True, said=set()), {"train": Served(algorithm.client_update, tuple(algorithm.phases))}
    )

    owners = _owners(problem, tuple(algorithm.sparsity.densities(state))) if algorithm.sparsity else {}

    def repeats(phase: str, turn: int) -> int:
        times = algorithm.phases[phase].repeats
        return 1 if times is None else times(turn)

    def count(phase: str, passes: int) -> tuple[float, dict[str, float]]:
        some = Rows(np.tile(two, passes), np.full(passes, 2))
        job = Job(0, {name: some if name == phase else none for name in algorithm.phases}, 2, state)
        with layers_at_work() as (layers, counter):
            engine.map("train", [job], received, scale=1.0, round=0)
        used = 2 * repeats(phase, job.turn)
        own = {name: sum(layers.get(each, 0.0) for each in some) / used for name, some in owners.items()}
        return float(counter.get_total_flops()) / used, own

    found = {}
    for phase, length in algorithm.phases.items():
        searched = length.search
        densities = algorithm.sparsity.densities if algorithm.sparsity and not searched else None
        times = partial(repeats, phase)
        if length.epochs == 1:  # no row comes round twice
            found[phase] = Flops(0.0, *count(phase, 1), densities, searched, times)
            continue
        count(phase, 2)  # the first time, partial evaluation tries its cut on a few rows, which is not training
        (one, layers), (twice, again) = count(phase, 1), count(phase, 2)
        each = {name: again[name] - layers[name] for name in layers}
        found[phase] = Flops(2 * one - twice, twice - one, each, densities, searched, times)
    return found


@contextlib.contextmanager
def layers_at_work() -> Iterator[tuple[dict[nn.Module, float], FlopCounterMode]]:
    """Operations of every module that is called meanwhile, without those of modules within it; and those of all.

    A backward pass counts with the call: as much again for a weight that is trained, and for an input that has a
    gradient. (The counter's own account by module misplaces backward passes where a model has branches.)
    """
    found: dict[nn.Module, float] = {}
    open_calls: list[list[float]] = []  # of each: operations before it, and those of modules within it

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        open_calls.append([counter.get_total_flops(), 0.0])

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        began, within = open_calls.pop()
        total = counter.get_total_flops() - began
        if open_calls:
            open_calls[-1][1] += total
        weights = [p for p in module._parameters.values() if p is not None and p.dim() > 1]
        inside = [x for x in inputs if isinstance(x, Tensor)]
        backward = sum(any(t.requires_grad for t in some) for some in (weights, inside)) * torch.is_grad_enabled()
        found[module] = found.get(module, 0.0) + (total - within) * (1 + backward)

    hooks = [register_module_forward_pre_hook(before), register_module_forward_hook(after)]
    try:
        with FlopCounterMode(display=False) as counter:
            yield found, counter
    finally:
        for hook in hooks:
            hook.remove()


def _owners(problem: Problem, names: Names) -> dict[str, set[nn.Module]]:
    """The layers that compute with each of the given weights: one in training, maybe another in evaluation.

    Left out, and so counted as dense, is what cannot be told apart: layers with several of the weights, and layers that
    compute for one within them that is never called (the projection at the end of ``nn.MultiheadAttention``).
    """
    params = {name: p.detach() for name, p in problem.task.init.items()}
    rows = {name: column[:1].repeat(2, *[1] * (column.dim() - 1)) for name, column in problem.columns.items()}
    owned: dict[str, set[nn.Module]] = {}

    def own(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        held = {id(p) for p in module._parameters.values()}
        for name in names:
            if id(params[name]) in held:
                owned.setdefault(name, set()).add(module)

    hook = register_module_forward_pre_hook(own)
    try:
        with torch.no_grad(), torch_seed(problem.seed, "flops"):
            problem.task.loss(params, rows)
            problem.task.scores(params, rows)
    finally:
        hook.remove()
    several = {module for module, many in Counter(m for some in owned.values() for m in some).items() if many > 1}
    for idle in (name for name in names if name not in owned):
        above = [n for n in owned if idle.startswith(n.removesuffix(n.rpartition(".")[2]))]
        several |= {module for name in above for module in owned[name]}
    return {name: some for name, some in owned.items() if not some & several}


def job_flops(per_example: dict[str, Flops], job: Job) -> float:
    """Operations of one client's turn."""
    return sum(_phase_flops(per_example[phase], len(rows.order), job) for phase, rows in job.rows.items())


def job_search_flops(per_example: dict[str, Flops], job: Job) -> float:
    """Those of them that go into the search for masks."""
    phases = {phase: rows for phase, rows in job.rows.items() if per_example[phase].search}
    return sum(_phase_flops(per_example[phase], len(rows.order), job) for phase, rows in phases.items())


def _phase_flops(cost: Flops, used: int, job: Job) -> float:
    each = cost.each
    if cost.densities is not None:
        left = cost.densities(job.state)
        each -= sum((1 - left[name]) * flops for name, flops in cost.layers.items())
    return cost.once * min(used, job.examples) + each * used * cost.repeats(job.turn)


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
