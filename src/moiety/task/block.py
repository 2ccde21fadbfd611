"""What makes a block of clients fast: the forward and backward pass under ``torch.func.vmap``.

Three things cost more than the arithmetic there, all measured: gradients that lie transposed to their weights, a
softmax over the last of three axes, and the second layer of dispatch of ``torch.func.grad``. This module avoids them;
the numbers are those of the plain way up to rounding.

It needs functions that torch keeps private, tried with torch 2.13. A torch without them takes the plain way, which is
slower.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional

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
    """Within it, code runs once, as if for no block of clients."""
    if functorch is None or not in_block():
        return nullcontext()
    left: AbstractContextManager[None] = functorch.temporarily_pop_interpreter_stack()
    return left


def for_blocks(module: nn.Module) -> nn.Module:
    """Let the linear layers of a module compute in the way that is fast for blocks of clients.

    With a weight for each client, autograd would give the weights' gradients in transposed memory, and their update
    alone would take as long as the products. ``(W x^T)^T`` gives them as the weights lie.
    """
    for part in module.modules():
        if type(part) is nn.Linear and "forward" not in vars(part):
            part.forward = partial(_linear, part)  # type: ignore[method-assign]
    return module


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    if x.dim() != 2 or not in_block():
        return functional.linear(x, layer.weight, layer.bias)
    if layer.bias is None:
        return torch.mm(layer.weight, x.t()).t()
    return torch.addmm(layer.bias.unsqueeze(1), layer.weight, x.t()).t()


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each example, the classes along the first axis while the softmax is taken."""
    logs = functional.log_softmax(output.t().contiguous(), 0)
    return -logs.gather(0, y.unsqueeze(0)).squeeze(0)


def block_gradient(objective: Objective, at: Params) -> tuple[Params, Tensor, Params]:
    """Gradients of all clients of a block by one pass of ordinary autograd.

    Each client's loss depends on its own parameters alone, so the gradient of the sum of the losses holds the gradient
    of every client. Inside a transform other than the block's own, and where torch lacks what this needs,
    ``torch.func`` takes the gradient.
    """
    block = functorch.retrieve_current_functorch_interpreter() if functorch and in_block() else None
    if functorch is None or not isinstance(block, functorch.VmapInterpreter):
        gradients, (loss, changed) = torch.func.grad_and_value(objective, has_aux=True)(at)
        return gradients, loss, changed
    level, count = block.level(), block.batch_size()
    unwrapped = {name: _unwrap(p, level) for name, p in at.items()}
    with functorch.temporarily_pop_interpreter_stack():
        # A value that all clients have in common becomes one for each, without a copy.
        spread = {
            n: p.unsqueeze(0).expand(count, *p.shape) if axis is None else p.movedim(axis, 0)
            for n, (p, axis) in unwrapped.items()
        }
        leaves = {name: p.detach().requires_grad_() for name, p in spread.items()}
    with torch.enable_grad():
        loss, changed = objective({name: functorch._add_batch_dim(p, 0, level) for name, p in leaves.items()})
    total, axis = _unwrap(loss, level)
    with functorch.temporarily_pop_interpreter_stack():
        if axis is None or not total.requires_grad:  # no trained parameter reaches the loss
            slopes = tuple(torch.zeros_like(p) for p in leaves.values())
        else:
            # The sum, since torch loads its symbolic shapes, for half a second, where slopes are handed to `grad`.
            with torch.enable_grad():
                total = total.sum()
            slopes = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    gradients = {n: functorch._add_batch_dim(g, 0, level) for n, g in zip(leaves, slopes, strict=True)}
    return gradients, loss.detach(), {name: b.detach() for name, b in changed.items()}


def _unwrap(value: Tensor, level: int) -> tuple[Tensor, int | None]:
    """The tensor that a block's value stands for, and its axis over clients; None where all have one in common."""
    assert functorch is not None
    if functorch.is_batchedtensor(value) and functorch.maybe_get_level(value) == level:
        return functorch.get_unwrapped(value), functorch.maybe_get_bdim(value)
    return value, None
