"""Adam and AdamW as values: what a client does to one part of its model, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from moiety.errors import is_real, must, number
from moiety.local.sgd import Moments, Optimiser
from moiety.spec import recorded, spec_from_fields


@dataclass(frozen=True, kw_only=True)
class Adam(Optimiser):
    """Local Adam with checked options; ``moiety.adam`` makes it and says what they mean."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        pair = isinstance(self.betas, list | tuple) and len(self.betas) == 2
        fine = pair and all(is_real(beta) and 0 <= beta < 1 for beta in self.betas)
        must(fine, "betas", "two numbers >= 0 and < 1", self.betas, "As in betas=(0.9, 0.999).")
        object.__setattr__(self, "betas", tuple(float(beta) for beta in self.betas))
        number("eps", self.eps, "> 0 and <= 1", lambda e: 0 < e <= 1)
        object.__setattr__(self, "spec", spec_from_fields(type(self).__name__.lower(), self))

    @property
    def orders(self) -> int:
        """Two: means and squares."""
        return 2

    @property
    def counts_steps(self) -> bool:
        """Always: how biased moments are depends on it."""
        return True

    def direction(self, g: Tensor, moments: Moments, step: int | Tensor) -> tuple[Tensor, Moments]:
        """The mean gradient over the root of the mean square, both without the bias of their start at 0."""
        one, two = self.betas
        mean, square = moments or (torch.zeros_like(g), torch.zeros_like(g))
        mean, square = mean.lerp(g, 1 - one), square.mul(two).addcmul(g, g, value=1 - two)
        unbiased = mean / _bias(one, step, g), square / _bias(two, step, g)
        return unbiased[0] / unbiased[1].sqrt().add(self.eps), (mean, square)


def _bias(beta: float, step: int | Tensor, like: Tensor) -> float | Tensor:
    """1 - beta^step, how much of a moment there is after so many steps from 0."""
    if isinstance(step, Tensor):
        return (1 - beta**step).to(like.dtype)
    return float(1 - beta**step)


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Local AdamW with checked options; ``moiety.adamw`` makes it and says what they mean."""

    weight_decay: float = 0.01
    decoupled: ClassVar[bool] = True


@recorded
def adam(
    lr: float,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | str | None = None,
    shuffle: bool = True,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    pull: float = 0.0,
    clip: float | None = None,
    accumulate: int = 1,
    lr_decay: str = "constant",
    keep_state: bool = False,
) -> Adam:
    """Local Adam, as ``torch.optim.Adam`` (Kingma and Ba 2015).

    Its moments start at 0 in every phase, unless they are kept. At step t, with ``g`` the gradient plus
    ``weight_decay p + pull (p - c)``: ``m <- b1 m + (1 - b1) g``, ``v <- b2 v + (1 - b2) g^2``,
    ``p <- p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)``.

    Args:
        lr: the learning rate; the algorithm's schedule multiplies it.
        epochs: as in ``moiety.sgd``.
        steps: as in ``moiety.sgd``.
        batch_size: as in ``moiety.sgd``.
        shuffle: as in ``moiety.sgd``.
        betas: b1 and b2.
        eps: added to the root.
        weight_decay: the penalty (weight_decay / 2) ||p||^2.
        pull: the penalty (pull / 2) ||p - c||^2; the algorithm says what c is.
        clip: as in ``moiety.sgd``.
        accumulate: as in ``moiety.sgd``.
        lr_decay: as in ``moiety.sgd``.
        keep_state: keep moments and the count of steps with the client's state from round to round, for a personal
            part.
    """
    return Adam(
        lr,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        shuffle=shuffle,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        pull=pull,
        clip=clip,
        accumulate=accumulate,
        lr_decay=lr_decay,
        keep_state=keep_state,
    )


@recorded
def adamw(
    lr: float,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | str | None = None,
    shuffle: bool = True,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    pull: float = 0.0,
    clip: float | None = None,
    accumulate: int = 1,
    lr_decay: str = "constant",
    keep_state: bool = False,
) -> AdamW:
    """Local AdamW, as ``torch.optim.AdamW`` (Loshchilov and Hutter 2019): Adam whose weight decay is no penalty.

    The decay takes ``lr weight_decay p`` from p in each step, beside the step of Adam. ``pull`` stays a penalty: it
    goes through the moments.

    Args:
        lr: the learning rate; the algorithm's schedule multiplies it.
        epochs: as in ``moiety.sgd``.
        steps: as in ``moiety.sgd``.
        batch_size: as in ``moiety.sgd``.
        shuffle: as in ``moiety.sgd``.
        betas: as in ``moiety.adam``.
        eps: as in ``moiety.adam``.
        weight_decay: the share of p, times lr, that each step takes away.
        pull: the penalty (pull / 2) ||p - c||^2; the algorithm says what c is.
        clip: as in ``moiety.sgd``.
        accumulate: as in ``moiety.sgd``.
        lr_decay: as in ``moiety.sgd``.
        keep_state: keep moments and the count of steps with the client's state from round to round, for a personal
            part.
    """
    return AdamW(
        lr,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        shuffle=shuffle,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        pull=pull,
        clip=clip,
        accumulate=accumulate,
        lr_decay=lr_decay,
        keep_state=keep_state,
    )
