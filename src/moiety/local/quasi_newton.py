"""L-BFGS as a pure function of vectors: where to look next, from the value and the gradient where one looked last.

Points are taken or refused by ``torch.where``, never by asking a tensor's value, so that it runs for one client and,
under ``torch.func.vmap``, for a block of clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DOWN = 1e-4
"""The share of the slope by which a value must go down."""


@dataclass(frozen=True)
class Search:
    """The last point taken, the step to try next, and the pairs (move, change of gradient), the latest last."""

    point: Tensor
    value: Tensor
    gradient: Tensor
    direction: Tensor
    length: Tensor
    moves: Tensor
    bends: Tensor

    @property
    def trial(self) -> Tensor:
        """Where to look next."""
        return self.point + self.length * self.direction

    def next(self, value: Tensor, gradient: Tensor) -> Search:
        """After the value and the gradient at ``trial``.

        The point is taken where the value went down enough (Armijo) or, where rounding hides that, where it went not up
        and the slope says so (Hager and Zhang 2005, the approximate Wolfe conditions). Otherwise the step is halved.
        """
        slope, after = self.gradient @ self.direction, gradient @ self.direction
        eps = torch.finfo(gradient.dtype).eps
        down = value <= self.value + DOWN * self.length * slope
        level = (value <= self.value + 4 * eps * self.value.abs()) & (after <= (2 * DOWN - 1) * slope)
        good = down | level
        move, bend = self.length * self.direction, gradient - self.gradient
        useful = good & (move @ bend > eps * (bend @ bend))  # the curvature along the step is positive
        moves = torch.where(useful, torch.cat([self.moves[1:], move[None]]), self.moves)
        bends = torch.where(useful, torch.cat([self.bends[1:], bend[None]]), self.bends)
        return Search(
            torch.where(good, self.trial, self.point),
            torch.where(good, value, self.value),
            torch.where(good, gradient, self.gradient),
            torch.where(good, -_apply_inverse_hessian(gradient, moves, bends), self.direction),
            torch.where(good, torch.ones_like(self.length), self.length / 2),
            moves,
            bends,
        )


def begin(point: Tensor, value: Tensor, gradient: Tensor, memory: int) -> Search:
    """Begin a search with room for ``memory`` pairs. The first step has no scale yet, so it is at most 1 long."""
    none = torch.zeros_like(gradient).expand(memory, -1)
    length = 1 / gradient.abs().sum().clamp(min=1)
    return Search(point, value, gradient, -gradient, length, none, none)


def _apply_inverse_hessian(gradient: Tensor, moves: Tensor, bends: Tensor) -> Tensor:
    """The inverse Hessian of L-BFGS times the gradient, in two loops; pairs that are all 0 are not there yet."""
    products = (moves * bends).sum(1)
    present = products > 0
    rho = torch.where(present, 1 / torch.where(present, products, 1), 0)
    q, weights = gradient, []
    for k in reversed(range(len(moves))):
        weights.append(rho[k] * (moves[k] @ q))
        q = q - weights[-1] * bends[k]
    square = bends[-1] @ bends[-1]
    q = q * torch.where(present[-1], products[-1] / torch.where(present[-1], square, 1), 1)
    for k, weight in enumerate(reversed(weights)):
        q = q + (weight - rho[k] * (bends[k] @ q)) * moves[k]
    return q
