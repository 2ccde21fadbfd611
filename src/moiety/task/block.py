"""What makes a block of clients fast: the forward and backward pass under ``torch.func.vmap``.

Three things cost more than the arithmetic there, all measured: gradients that lie transposed to their weights, a
softmax over the last of three axes, and the second layer of dispatch of ``torch.func.grad``. This module avoids them;
the numbers are those of the plain way up to rounding.

It needs functions that torch keeps private, tried with torch 2.13. A torch without them takes the plain way, which is
slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from moiety.task.held import HeldParameters
from moiety.task.steps import Leaf, Steps, current_steps, name_gradients
from moiety.types import Objective, Params

PRIVATE = {
    "torch._C._functorch": (
        "_add_batch_dim",
        "get_unwrapped",
        "is_batchedtensor",
        "maybe_get_bdim",
        "maybe_get_level",
        "peek_interpreter_stack",
    ),
    "torch._functorch.pyfunctorch": (
        "VmapInterpreter",
        "retrieve_current_functorch_interpreter",
        "temporarily_pop_interpreter_stack",
    ),
}
"""The private names that are used here, by module."""


def find_private() -> SimpleNamespace | None:
    """The private functions of this torch; None where one is missing."""
    try:
        modules = {import_module(module): names for module, names in PRIVATE.items()}
        return SimpleNamespace(**{name: getattr(module, name) for module, names in modules.items() for name in names})
    except (ImportError, AttributeError):
        return None


functorch = find_private()


def in_block() -> bool:
    """Whether this runs for a block of clients at once; False where torch cannot tell."""
    return functorch is not None and functorch.peek_interpreter_stack() is not None


def leave_block() -> AbstractContextManager[None]:
    """A context in which code runs once, as it would outside of a block of clients."""
    if functorch is None or not in_block():
        return nullcontext()
    context: AbstractContextManager[None] = functorch.temporarily_pop_interpreter_stack()
    return context


class BlockAccess(NamedTuple):
    """``take`` turns a value within a block into the tensor of all clients, with an axis over clients in front.

    ``give`` turns it back. Outside of a block both return what they are given.
    """

    take: Callable[[Tensor], Tensor]
    give: Callable[[Tensor], Tensor]


def open_block() -> BlockAccess | None:
    """Access to the tensors of the block that this runs for; None in other transforms, or where torch cannot tell."""
    if functorch is None:
        return None
    if not in_block():
        return BlockAccess(lambda value: value, lambda value: value)
    block = _find_block()
    with leave_block():
        if block is None or in_block():
            return None
    level, count = block
    add = functorch._add_batch_dim
    return BlockAccess(lambda value: _spread(*_unwrap(value, level), count), lambda value: add(value, 0, level))


def fills_memory(value: Tensor) -> bool:
    """Whether nothing else lies in the memory of a tensor, but the same tensor of other clients of a block.

    False where torch cannot tell.
    """
    while functorch is not None and functorch.is_batchedtensor(value):
        value = functorch.get_unwrapped(value)
    try:
        size = value.untyped_storage().nbytes()
    except NotImplementedError:  # a block, without the private functions that look into it
        return False
    return value.is_contiguous() and size == value.numel() * value.element_size()


def for_blocks(module: nn.Module) -> nn.Module:
    """Let the linear layers of a module compute in the way that is fast for blocks of clients.

    With a weight for each client, autograd would give the weights' gradients in transposed memory, and their update
    alone would take as long as the products. ``(W x^T)^T`` gives them as the weights lie.
    """
    for part in module.modules():
        if type(part) is nn.Linear and "forward" not in vars(part):
            part.forward = partial(linear, part)  # type: ignore[method-assign]
    return module


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """What a linear layer computes, in the way that is fast where it runs."""
    steps = current_steps()
    if steps is not None and steps.can_take(x):
        weight = steps.find_leaf(layer.weight)
        if weight is not None:
            return _step_linear(steps, x, weight, layer.bias)
    if x.dim() != 2 or not in_block():
        return functional.linear(x, layer.weight, layer.bias)
    if layer.bias is None:
        return torch.mm(layer.weight, x.t()).t()
    return torch.addmm(layer.bias.unsqueeze(1), layer.weight, x.t()).t()


def _step_linear(steps: Steps, x: Tensor, weight: Leaf, bias: Tensor | None) -> Tensor:
    leaf = steps.find_leaf(bias)
    if functorch is None or steps.block is None:
        return steps.linear(x, weight, leaf or Leaf(None, bias))
    level, count = steps.block
    x, axis = _unwrap(x, level)
    fixed = None if bias is None or leaf is not None else _unwrap(bias, level)
    with functorch.temporarily_pop_interpreter_stack():
        leaf = leaf or Leaf(None, None if fixed is None else _spread(*fixed, count))
        y = steps.linear(_spread(x, axis, count), weight, leaf)
    return functorch._add_batch_dim(y, 0, level)  # type: ignore[no-any-return]


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each example, the classes along the first axis while the softmax is taken."""
    logs = functional.log_softmax(output.t().contiguous(), 0)
    return -logs.gather(0, y.unsqueeze(0)).squeeze(0)


def block_gradient(objective: Objective, at: Params, steps: Steps | None = None) -> tuple[Params, Tensor, Params]:
    """Gradients of all clients of a block by one pass of ordinary autograd.

    Each client's loss depends on its own parameters alone, so the gradient of the sum of the losses holds the gradient
    of every client. Inside a transform other than the block's own, and where torch lacks what this needs,
    ``torch.func`` takes the gradient. Where ``steps`` are given, some parameters may be stepped; these have no
    gradient.
    """
    block = _find_block()
    if functorch is None or block is None:
        gradients, (loss, buffers) = torch.func.grad_and_value(objective, has_aux=True)(at)
        return gradients, loss, buffers
    level, count = block
    pairs = {name: _unwrap(p, level) for name, p in at.items()}
    active = None if steps is None or steps.active is None else _unwrap(steps.active, level)
    with functorch.temporarily_pop_interpreter_stack():
        # A value that all clients have in common becomes one for each, without a copy.
        leaves = {n: _spread(p, axis, count).detach().requires_grad_() for n, (p, axis) in pairs.items()}
        if in_block():  # a block within a block
            steps = None
        if steps is not None and active is not None:
            steps.active = None if bool(active[0].all()) else _spread(*active, count)
    if steps is not None:
        steps.block = block
    params = {name: functorch._add_batch_dim(p, 0, level) for name, p in leaves.items()}
    with HeldParameters(), steps.watch(params, leaves) if steps is not None else nullcontext():
        with torch.enable_grad():
            loss, buffers = objective(params)
        total, axis = _unwrap(loss, level)
        with functorch.temporarily_pop_interpreter_stack():
            if axis is None or not total.requires_grad:  # no trained parameter reaches the loss
                slopes: Sequence[Tensor | None] = [None] * len(leaves)
            else:
                # The sum, since torch loads its symbolic shapes, for half a second, where slopes are handed to `grad`.
                with torch.enable_grad():
                    total = total.sum()
                if steps is not None:
                    steps.find_repeated_uses(total)
                slopes = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
            all_gradients = name_gradients(leaves, slopes, steps)
    gradients = {n: functorch._add_batch_dim(g, 0, level) for n, g in all_gradients.items()}
    if steps is not None:
        steps.new = {n: functorch._add_batch_dim(p, 0, level) for n, p in steps.new.items()}
    return gradients, loss.detach(), {name: b.detach() for name, b in buffers.items()}


def _find_block() -> tuple[int, int] | None:
    """The level of the block of clients that this runs for, and how many they are; None outside of one."""
    block = functorch.retrieve_current_functorch_interpreter() if functorch and in_block() else None
    if functorch is None or not isinstance(block, functorch.VmapInterpreter):
        return None
    return block.level(), block.batch_size()


def _spread(value: Tensor, axis: int | None, count: int) -> Tensor:
    """A block's value with its axis over clients first; a value that they have in common is repeated, not copied."""
    return value.unsqueeze(0).expand(count, *value.shape) if axis is None else value.movedim(axis, 0)


def _unwrap(value: Tensor, level: int) -> tuple[Tensor, int | None]:
    """The tensor that a block's value stands for, and its axis over clients; None where all have one in common."""
    assert functorch is not None
    if functorch.is_batchedtensor(value) and functorch.maybe_get_level(value) == level:
        return functorch.get_unwrapped(value), functorch.maybe_get_bdim(value)
    return value, None
