"""What makes a block of clients fast: the forward and backward pass under ``torch.func.vmap``.

Three things cost more than the arithmetic there, all measured: gradients that lie transposed to their weights, a
softmax over the last of three axes, and the second layer of dispatch of ``torch.func.grad``. This module goes round
them; the numbers are those of the plain way up to rounding.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch._functorch.pyfunctorch import (
    VmapInterpreter,
    retrieve_current_functorch_interpreter,
    temporarily_pop_interpreter_stack,
)
from torch.nn import functional

from moiety.types import Objective, Params


def in_block() -> bool:
    """Whether this runs for a block of clients at once."""
    return _functorch.peek_interpreter_stack() is not None


def for_blocks(module: nn.Module) -> nn.Module:
    """The module, its linear layers such that blocks of clients run fast; everything else is as it was.

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
    of every client. Where this is called inside a transform other than the block's own, ``torch.func`` does it.
    """
    interpreter = retrieve_current_functorch_interpreter() if in_block() else None
    if not isinstance(interpreter, VmapInterpreter):
        gradients, (loss, changed) = torch.func.grad_and_value(objective, has_aux=True)(at)
        return gradients, loss, changed
    level, count = interpreter.level(), interpreter.batch_size()
    held = {name: _held(p, level) for name, p in at.items()}
    with temporarily_pop_interpreter_stack():
        # A value that all clients have in common becomes one for each, without a copy.
        spread = {
            n: p.unsqueeze(0).expand(count, *p.shape) if axis is None else p.movedim(axis, 0)
            for n, (p, axis) in held.items()
        }
        leaves = {name: p.detach().requires_grad_() for name, p in spread.items()}
    with torch.enable_grad():
        loss, changed = objective({name: _functorch._add_batch_dim(p, 0, level) for name, p in leaves.items()})
    total, axis = _held(loss, level)
    with temporarily_pop_interpreter_stack():
        if axis is None or not total.requires_grad:  # no trained parameter reaches the loss
            found = tuple(torch.zeros_like(p) for p in leaves.values())
        else:
            found = torch.autograd.grad(
                total, list(leaves.values()), torch.ones_like(total), allow_unused=True, materialize_grads=True
            )
    gradients = {n: _functorch._add_batch_dim(g, 0, level) for n, g in zip(leaves, found, strict=True)}
    return gradients, loss.detach(), {name: b.detach() for name, b in changed.items()}


def _held(value: Tensor, level: int) -> tuple[Tensor, int | None]:
    """The tensor that a block's value stands for, and its axis over clients; None where all have one in common."""
    if _functorch.is_batchedtensor(value) and _functorch.maybe_get_level(value) == level:
        return _functorch.get_unwrapped(value), _functorch.maybe_get_bdim(value)
    return value, None
