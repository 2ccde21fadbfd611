"""The steps of the rules of ``moiety.online`` in place, for many linear models at once: see ``glocal_block``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

TINY = 1e-10
"""What Adagrad adds to the root of the sum of squares, as in ``moiety.fit``."""


class Update(Protocol):
    """``step`` moves the parameters that it was made for."""

    def step(self, gradient: Tensor, x: Tensor, past: Tensor, lr: Tensor) -> None:
        """Step once.

        Args:
            gradient: as the parameters, [..., features, outputs]; its memory may be used.
            x: the examples of this gradient, [..., examples, features].
            past: 1, or 0 before the first examples, [..., 1, 1].
            lr: the learning rate, [..., 1, 1].
        """
        ...


class Adagrad:
    """Each coordinate by the root of its sum of squared gradients."""

    def __init__(self, w: Tensor) -> None:
        self.w, self.sums = w, torch.zeros_like(w)

    def step(self, gradient: Tensor, x: Tensor, past: Tensor, lr: Tensor) -> None:
        """Step once; features play no part."""
        self.sums.addcmul_(gradient, gradient)
        self.w.sub_(gradient.div_(self.sums.sqrt().add_(TINY)).mul_(lr))


class Normalised:
    """The update of Vowpal Wabbit, with the letters of ``moiety.local.normalised``."""

    def __init__(self, w: Tensor) -> None:
        self.w, self.sums = w, torch.zeros_like(w)
        self.scale, self.inverse, self.worth = torch.zeros(3, *w.shape[:-1])  # s, 1 / s and 1 / s^2
        self.norm, self.count = torch.zeros(2, *w.shape[:-2], dtype=torch.float64)

    def step(self, gradient: Tensor, x: Tensor, past: Tensor, lr: Tensor) -> None:
        """Step once."""
        x = x if bool(past.all()) else x * past
        self.grow(x.abs().amax(-2))
        squares = x.square().sum(-2)
        self.norm += self.w.shape[-1] * torch.einsum("...d,...d->...", squares, self.worth)
        self.count += x.shape[-2] * past[..., 0, 0]
        self.sums.addcmul_(gradient, gradient)
        usual = _divide(self.count, self.norm).sqrt().float()[..., None, None]
        rates = self.sums.rsqrt().nan_to_num_(posinf=0.0).mul_(self.inverse[..., None])
        pull = 2 * lr * usual * torch.einsum("...dk,...d->...", rates, squares)[..., None, None]
        length = lr * torch.where(pull > 0, _divide(-torch.expm1(-pull), pull), 1.0)
        self.w.sub_(rates.mul_(gradient).mul_(length * usual))

    def grow(self, largest: Tensor) -> None:
        """Take up larger scales and shrink the parameters by as much. After some rounds scales no longer grow."""
        if bool((largest > self.scale).any()):
            new = torch.maximum(self.scale, largest)
            self.w.mul_(torch.where(self.scale > 0, _divide(self.scale, new), 1.0)[..., None])
            self.scale, self.inverse = new, _divide(torch.ones_like(new), new)
            self.worth = self.inverse.square()


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)


UPDATES: dict[str, Callable[[Tensor], Update]] = {"adagrad": Adagrad, "normalised": Normalised}
