"""What a unit of local work costs: arithmetic per example and phase, and memory on one device."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from moiety import tree
from moiety.engines.base import ClientFunction, RoundInfo
from moiety.engines.problem import Problem
from moiety.engines.rows import Job, Rows
from moiety.engines.sequential import Sequential
from moiety.random import torch_seed
from moiety.transport import device_memory
from moiety.types import Algorithm, Batch, Names, Params, Tree, Work

T = TypeVar("T")


class Flops(NamedTuple):
    """Operations for a row in one phase: ``once`` for each distinct row, ``each`` for every time it is used.

    Where layers are sparse, ``layers`` holds the operations of each masked weight's layer, which are part of ``each``,
    and ``densities`` gives, from a client's state, the share of them that remains. ``search`` marks a phase that
    searches for masks. ``repeats`` gives, from a turn, how often the phase goes through its rows.
    """

    once: float
    each: float
    layers: Mapping[str, float] = MappingProxyType({})
    densities: Callable[[Tree], dict[str, float]] | None = None
    search: bool = False
    repeats: Callable[[int], int] = lambda turn: 1


def flops_per_example(problem: Problem, algorithm: Algorithm, received: Params, state: Tree) -> dict[str, Flops]:
    """Arithmetic operations of training, by phase, by the formulas of PyTorch's ``FlopCounterMode``.

    The algorithm's own ``client_update`` is run for a client with two rows. Where rows come round, it goes over them
    twice and then three times in every phase: F2 = once + 2 each and F3 = once + 3 each, where partial evaluation
    computes ``once`` only once. Rows that are used a single time are not computed beforehand, so one pass is counted
    only for phases of one epoch. Operations belong to the phase whose batches were asked for last. Sparse layers are
    counted apart. A search for masks uses the whole model. Where a phase goes through its rows several times, the count
    is divided by that number.
    """
    densities = algorithm.sparsity.densities if algorithm.sparsity else None
    owners = _find_owners(problem, tuple(densities(state))) if densities else {}
    both = np.arange(2) % problem.data.total

    def count(passes: int) -> dict[str, tuple[float, dict[str, float]]]:
        """Operations of every phase for one of the rows, in all and by masked weight."""
        rows = Rows(np.tile(both, passes), np.full(passes, 2))
        job = Job(0, dict.fromkeys(algorithm.phases, rows), 2, state)
        marks: list[tuple[str, float, dict[nn.Module, float]]] = []
        with count_by_module() as (modules, counter):

            def mark(phase: str) -> None:
                marks.append((phase, float(counter.total), dict(modules)))

            def train(work: Work, received: Params, state: Tree) -> Tree:
                def batches(phase: str) -> Iterable[Batch]:
                    mark(phase)
                    return work.batches(phase)

                return algorithm.client_update(replace(work, batches=batches), received, state)

            functions = {"train": ClientFunction(train, tuple(algorithm.phases))}
            # The first time, partial evaluation tries its cut on a few rows, which is not training.
            task = replace(problem.task, partial=counter.leave_out(problem.task.partial))
            engine = Sequential(replace(problem, task=task, quiet=True, warned=set()), functions)
            engine.map("train", [job], received, RoundInfo())
            mark("")
        flops = {phase: (0.0, dict.fromkeys(owners, 0.0)) for phase in algorithm.phases}
        for (phase, start, before), (_, end, after) in itertools.pairwise(marks):
            uses = 2 * algorithm.phases[phase].repeats(job.turn)
            layers = {
                name: sum(after.get(m, 0.0) - before.get(m, 0.0) for m in some) / uses for name, some in owners.items()
            }
            total, earlier = flops[phase]
            flops[phase] = total + (end - start) / uses, {name: earlier[name] + f for name, f in layers.items()}
        return flops

    epochs = [length.epochs for length in algorithm.phases.values()]
    twice = thrice = {}
    if any(number != 1 for number in epochs):
        twice, thrice = count(2), count(3)
    one = count(1) if 1 in epochs else {}
    flops = {}
    for phase, length in algorithm.phases.items():
        sparse = None if length.search else densities
        if length.epochs == 1:  # no row comes round twice
            flops[phase] = Flops(0.0, *one[phase], sparse, length.search, length.repeats)
        else:
            (two, layers), (three, again) = twice[phase], thrice[phase]
            each = {name: again[name] - layers[name] for name in layers}
            flops[phase] = Flops(3 * two - 2 * three, three - two, each, sparse, length.search, length.repeats)
    return flops


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Add up the operations of all that is computed meanwhile, by PyTorch's formulas."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self.idle = False

    def leave_out(self, function: Callable[..., T]) -> Callable[..., T]:
        """The same function, whose operations are not counted."""

        def call(*args: Any) -> T:
            before, self.idle = self.idle, True
            try:
                return function(*args)
            finally:
                self.idle = before

        return call


def _count_operation(self: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    kwargs = kwargs or {}
    if self.idle:
        return function(*args, **kwargs)
    formula = flop_registry.get(function._overloadpacket)
    if formula is None and function not in INDIVISIBLE:
        with self:
            parts = function.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        INDIVISIBLE.add(function)
    out = function(*args, **kwargs)
    if formula is not None:
        self.total += formula(*args, **kwargs, out_val=out)
    return out


INDIVISIBLE: set[Any] = set()
"""Operations that PyTorch does not compose of others, remembered: to ask takes longer than a small operation."""


# Given to the class only here: a method of this name in the body of the class loads PyTorch's compiler when it is
# first called, as FlopCounterMode does, and that takes longer than to import the rest of PyTorch.
OperationCounter.__torch_dispatch__ = _count_operation  # type: ignore[method-assign]


@contextlib.contextmanager
def count_by_module() -> Iterator[tuple[dict[nn.Module, float], OperationCounter]]:
    """Count the operations of each module that is called, without those of its children, and the total.

    The backward pass counts as part of the call: as many operations again for a weight that is trained, and as many for
    an input that has a gradient. (The counter's own table by module misplaces backward passes of models with branches.)
    """
    modules: dict[nn.Module, float] = {}
    open_calls: list[list[float]] = []  # of each: operations before it, and those of modules within it

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        open_calls.append([counter.total, 0.0])

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        start, within = open_calls.pop()
        total = counter.total - start
        if open_calls:
            open_calls[-1][1] += total
        weights = [p for p in module._parameters.values() if p is not None and p.dim() > 1]
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        backward = sum(any(t.requires_grad for t in some) for some in (weights, tensors)) * torch.is_grad_enabled()
        modules[module] = modules.get(module, 0.0) + (total - within) * (1 + backward)

    with (
        register_module_forward_pre_hook(before),
        register_module_forward_hook(after),
        OperationCounter() as counter,
    ):
        yield modules, counter


def _find_owners(problem: Problem, names: Names) -> dict[str, set[nn.Module]]:
    """The layers that compute with each of the given weights: one in training, maybe another in evaluation.

    Left out, and so counted as dense, is what cannot be told apart: layers with several of the weights, and layers that
    compute for one within them that is never called (the projection at the end of ``nn.MultiheadAttention``).
    """
    params = {name: p.detach() for name, p in problem.task.init.items()}
    rows = {name: column[:1].repeat(2, *[1] * (column.dim() - 1)) for name, column in problem.columns.items()}
    owners: dict[str, set[nn.Module]] = {}

    def note_owner(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        weights = {id(p) for p in module._parameters.values()}
        for name in names:
            if id(params[name]) in weights:
                owners.setdefault(name, set()).add(module)

    with register_module_forward_pre_hook(note_owner), torch.no_grad(), torch_seed(problem.seed, "flops"):
        problem.task.loss(params, rows)
        problem.task.scores(params, rows)
    several = {module for module, many in Counter(m for some in owners.values() for m in some).items() if many > 1}
    for idle in (name for name in names if name not in owners):
        above = [n for n in owners if idle.startswith(n.removesuffix(n.rpartition(".")[2]))]
        several |= {module for name in above for module in owners[name]}
    return {name: some for name, some in owners.items() if not some & several}


def job_flops(per_example: dict[str, Flops], job: Job) -> tuple[float, float]:
    """Operations of one client's turn, and those of them that go into the search for masks."""
    phases = {phase: _count_phase_flops(per_example[phase], len(rows.order), job) for phase, rows in job.rows.items()}
    return sum(phases.values()), sum(flops for phase, flops in phases.items() if per_example[phase].search)


def _count_phase_flops(cost: Flops, rows: int, job: Job) -> float:
    each = cost.each
    if cost.densities is not None:
        densities = cost.densities(job.state)
        each -= sum((1 - densities[name]) * flops for name, flops in cost.layers.items())
    return cost.once * min(rows, job.examples) + each * rows * cost.repeats(job.turn)


def memory_on_device(problem: Problem, algorithm: Algorithm, state: Tree) -> int:
    """The estimate of Pillutla et al. 2022, B.4, in bytes; v is what a client keeps, which may be a whole model."""
    shared, statistics = problem.first_shared()
    start, stop = problem.data.rows(0, "train")
    # BatchNorm cannot train on a batch of one row: the cost of one is half of that of two.
    rows = 2 if problem.task.mixes_examples else 1
    backprop = problem.backprop_bytes(np.resize(np.arange(start, stop), rows)) // rows
    if algorithm.sparsity is None:
        return device_memory(shared | statistics, tree.leaves(state), backprop)
    _, personal = algorithm.personal_model(shared | statistics, state)
    return device_memory(shared | statistics, personal, backprop, algorithm.sparsity.densities(state))
