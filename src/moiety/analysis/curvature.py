"""What a loss looks like at a point: the size of its Hessian's blocks, and the spread of its examples' gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from moiety.local.verbs import autograd_gradient
from moiety.types import Batch, LossFunction, Names, Params

ITERATIONS = 100
"""An estimate that has not settled by then is taken as it is: it is a lower bound at every step."""


class Blocks(NamedTuple):
    """The operator norms of the three blocks of a Hessian in two groups of variables."""

    u: float
    v: float
    uv: float


def block_norms(
    loss: LossFunction, model: Params, batch: Batch, u: Names, v: Names, *, tolerance: float, start: np.random.Generator
) -> Blocks:
    """The norms of the blocks of the Hessian of the mean loss over ``batch``, by power iteration.

    For a block B the iteration goes x <- B'Bx / |B'Bx|, and |Bx| for a unit x grows towards the norm of B from below.
    It stops where a step adds less than the share ``tolerance``. B'B and not B, because a symmetric block may have
    eigenvalues of both signs. Products with the Hessian come from a second backward pass, never from a matrix.
    """
    leaves = {name: model[name].detach().requires_grad_() for name in (*u, *v)}
    inner = {"u": [leaves[name] for name in u], "v": [leaves[name] for name in v]}
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        losses, _ = loss({**model, **leaves}, batch)
        first = {part: _gradient(losses.mean(), inner[part], keep=True) for part in ("u", "v")}

    def product(row: str, column: str) -> Callable[[Tensor], Tensor]:
        """The block of the Hessian with these rows and columns, as a function of a vector."""
        return lambda x: _gradient(first[column] @ x, inner[row], keep=False)

    def norm(row: str, column: str) -> float:
        size = len(first[column])
        x = torch.from_numpy(start.standard_normal(size)).to(first[column])
        return _power(product(row, column), product(column, row), x, tolerance)

    return Blocks(norm("u", "u"), norm("v", "v"), norm("u", "v"))


def _gradient(value: Tensor, leaves: Sequence[Tensor], *, keep: bool) -> Tensor:
    """The gradient as one vector; zero where no leaf reaches the value."""
    if not value.requires_grad:
        return torch.cat([torch.zeros_like(leaf).flatten() for leaf in leaves])
    found = torch.autograd.grad(
        value, leaves, create_graph=keep, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.cat([g.flatten() for g in found])


def _power(apply: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], x: Tensor, tolerance: float) -> float:
    """The norm of a linear map, from below."""
    best = 0.0
    for _ in range(ITERATIONS):
        x = x / x.norm()
        y = apply(x)
        norm = float(y.norm())
        settled = norm <= best * (1 + tolerance)
        best = max(best, norm)
        if settled:
            break
        x = back(y)
    return best


class Spread(NamedTuple):
    """The mean gradient of a client's rows in both blocks, and the variance of one row's (with n - 1 below)."""

    mean_u: Tensor
    mean_v: Tensor
    variance_u: float
    variance_v: float
    loss: float


def gradient_spread(loss: LossFunction, model: Params, batch: Batch, u: Names, v: Names) -> Spread:
    """Gradients row by row, summed in double precision."""
    rows = len(next(iter(batch.values())))
    sums = {part: torch.zeros(sum(model[n].numel() for n in names), dtype=torch.float64) for part, names in _both(u, v)}
    squares = {"u": 0.0, "v": 0.0}
    total = 0.0
    for i in range(rows):
        row = {name: column[i : i + 1] for name, column in batch.items()}

        def objective(block: Params, row: Batch = row) -> tuple[Tensor, Params]:
            losses, changed = loss({**model, **block}, row)
            return losses.sum(), changed

        gradients, value, _ = autograd_gradient(objective, {n: model[n] for n in (*u, *v)})
        total += float(value)
        for part, names in _both(u, v):
            g = torch.cat([gradients[n].flatten().double().cpu() for n in names])
            sums[part] += g
            squares[part] += float(g @ g)
    means = {part: total / rows for part, total in sums.items()}
    left = {part: squares[part] - rows * float(means[part] @ means[part]) for part in means}
    variance = {part: max(0.0, left[part]) / max(1, rows - 1) for part in means}
    return Spread(means["u"], means["v"], variance["u"], variance["v"], total / rows)


def _both(u: Names, v: Names) -> tuple[tuple[str, Names], tuple[str, Names]]:
    return ("u", u), ("v", v)
