"""SGD's step inside the backward pass: the gradient of a linear layer's weight is never made.

``W <- (1 - lr decay) W - lr G^T x`` is one matrix product with the weight as its target, where x is the layer's input
and G the gradient of its output. A gradient would be written to memory and read again, which costs as much as the
arithmetic in small batches.

The step is taken only where nothing else can see the difference: the weight is used once in the whole forward pass, by
an ``nn.Linear``. The graph that autograd made tells. All other weights get ordinary gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from moiety.types import Params

LEAST = 1 << 18
"""A single client takes such steps only where some weight has this many numbers: else they cost more than gradients."""


class Rate(NamedTuple):
    """The step of one parameter: ``p <- (1 - lr decay) p - lr g``."""

    lr: float
    decay: float


class Leaf(NamedTuple):
    """A layer's parameter as autograd knows it. A bias without a name is not trained; one without a value is none."""

    name: Any
    value: Any


class Steps:
    """The steps that one backward pass may take, and those that it took.

    Args:
        rates: by the names of the parameters that may be stepped.
        in_place: whether the parameters' own memory may be written to.
        active: whether the batch holds any real row, where some batches are padding. A batch without one changes
            nothing.
    """

    def __init__(self, rates: Mapping[str, Rate], *, in_place: bool, active: Tensor | None = None) -> None:
        self.rates, self.in_place, self.active = rates, in_place, active
        self.new: Params = {}
        """The parameters that were stepped."""
        self.block: tuple[int, int] | None = None
        """Within a block of clients: vmap's level, and how many they are."""
        self._leaves: dict[int, Leaf] = {}
        self._used = False
        self._several: set[int] = set()

    @contextmanager
    def watch(self, params: Params, leaves: Params) -> Iterator[None]:
        """Within it, linear layers look here for their weights.

        Args:
            params: the parameters as the model sees them.
            leaves: the same parameters as autograd sees them. For a block of clients they have an axis more.
        """
        self._leaves = {
            id(p): Leaf(name, leaves[name])
            for name, p in params.items()
            if name in self.rates and p.is_floating_point()
        }
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def find_leaf(self, tensor: Tensor | None) -> Leaf | None:
        """The leaf of a parameter that may be stepped."""
        return self._leaves.get(id(tensor))

    def can_take(self, x: Tensor) -> bool:
        """Whether layers with such an input may step. For blocks of sequences it was measured to gain nothing."""
        return (x.dim() == 2 if self.block else x.dim() > 1) and not torch.is_autocast_enabled(x.device.type)

    def linear(self, x: Tensor, weight: Leaf, bias: Leaf) -> Tensor:
        """``x W^T + b``, or the same for each client of a block; the backward pass steps what it may."""
        self._used = True
        rows = x if self.block or x.dim() == 2 else x.flatten(0, -2)
        y: Tensor = _Linear.apply(rows, weight.value, bias.value, self, weight, bias)  # type: ignore[no-untyped-call]
        return y if rows is x else y.view(*x.shape[:-1], -1)

    def find_repeated_uses(self, total: Tensor) -> None:
        """Note which parameters are used more than once in the forward pass that led to ``total``.

        Call it before the backward pass.
        """
        nodes: list[Any] = [total.grad_fn] if self._used and total.grad_fn is not None else []
        graph: set[Any] = set()
        for node in nodes:
            for after, _ in node.next_functions:
                if after in graph:
                    self._several.add(id(getattr(after, "variable", None)))
                elif after is not None:
                    graph.add(after)
                    nodes.append(after)

    def may_step(self, leaf: Leaf, *by: Tensor) -> bool:
        """Whether the backward pass of a layer may step its parameter, by numbers of the same type."""
        p: Tensor = leaf.value
        return id(p) not in self._several and not p._backward_hooks and all(p.dtype == x.dtype for x in by)

    def shrink(self, name: str, p: Tensor) -> tuple[Tensor, float]:
        """``(1 - lr decay) p``, as a tensor and a factor that is still to be applied."""
        lr, decay = self.rates[name]
        if self.active is None or not decay:
            return p, 1 - lr * decay
        factor = 1 - lr * decay * self.active.to(p.dtype)
        return p * factor.view(-1, *[1] * (p.dim() - 1)), 1.0

    def step_bias(self, leaf: Leaf, g: Tensor) -> None:
        """``b <- (1 - lr decay) b - lr g``."""
        name, bias = leaf
        rest, factor = self.shrink(name, bias)
        rest = rest if factor == 1 else rest * factor
        target = bias if self.in_place else None
        self.new[name] = torch.sub(rest, g, alpha=self.rates[name].lr, out=target).detach()

    def step_weight(self, leaf: Leaf, g: Tensor, x: Tensor) -> None:
        """``W <- (1 - lr decay) W - lr G^T x``."""
        name, weight = leaf
        rest, factor = self.shrink(name, weight)
        product = torch.addmm if weight.dim() == 2 else torch.baddbmm
        lr, target = self.rates[name].lr, weight if self.in_place else None
        # Written to `out`, not by the method in place, whose operations PyTorch does not count.
        self.new[name] = product(rest, g.mT, x, beta=factor, alpha=-lr, out=target).detach()


_current: ContextVar[Steps | None] = ContextVar("steps", default=None)
current_steps = _current.get


def name_gradients(leaves: Params, slopes: Sequence[Tensor | None], steps: Steps | None) -> Params:
    """The gradients by name, of all leaves that were not stepped; 0 for a leaf that does not reach the loss."""
    params = steps.new if steps is not None else ()
    return {
        name: torch.zeros_like(leaf) if g is None else g
        for (name, leaf), g in zip(leaves.items(), slopes, strict=True)
        if name not in params
    }


class _Linear(torch.autograd.Function):
    """A linear layer on matrices, or on a stack of them, one for each client of a block.

    For a block, outputs and the gradients of inputs lie with the rows along the last axis in memory: the fastest way
    for the loss that follows, and all layers agree.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, steps: Steps, weight_leaf: Leaf, bias_leaf: Leaf
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.steps, ctx.leaves = steps, (weight_leaf, bias_leaf)
        if weight.dim() == 2:
            return functional.linear(x, weight, bias)
        # Written to `out`: PyTorch refuses to edit a view that a function returns, as ReLU in place would.
        count, rows, width = len(x), x.shape[1], weight.shape[1]
        y = x.new_empty_strided((count, rows, width), (rows * width, 1, rows))
        if bias is None:
            torch.bmm(weight, x.mT, out=y.mT)
        else:
            torch.baddbmm(bias.unsqueeze(2), weight, x.mT, out=y.mT)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        steps: Steps = ctx.steps
        weight_leaf, bias_leaf = ctx.leaves
        for_x = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_x = g @ weight if g.dim() == 2 else torch.bmm(weight.mT, g.mT).mT
        if steps.active is not None:  # what a client computes from padding alone may not be finite
            some = steps.active.view(-1, 1, 1)
            g, x = torch.where(some, g, 0), torch.where(some, x, 0)
        if bias_leaf.name is not None:
            for_bias = g.sum(-2)
            if steps.may_step(bias_leaf, g):
                steps.step_bias(bias_leaf, for_bias)
                for_bias = None
        if steps.may_step(weight_leaf, g, x):
            steps.step_weight(weight_leaf, g, x)
        else:
            for_weight = g.mT @ x
        return for_x, for_weight, for_bias, None, None, None
