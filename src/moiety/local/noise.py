"""From a loss to a likelihood; the noise of a regression, learned from residuals.

log p(y | x) = -w loss with a weight w, 1 for cross-entropy. With the loss ``mse``, the mean of k squared errors, and
noise of deviation s, log p(y | x) = -k / (2 s^2) loss - k log s. Given draws of the personal parameters, the s under
which the residuals are most likely is their root mean square.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moiety.errors import choice, must, number, positive
from moiety.local.verbs import count_rows, mean_loss, reuse_rows
from moiety.types import Batch, Params, Work

LEARNED = "learned"
NOISE, SQUARES, ERRORS = "noise:log_scale", "noise:squares", "noise:count"
"""What crosses where the noise is learned: log s down; the sum of squared errors over s^2, and their number, up."""


@dataclass(frozen=True)
class Likelihood:
    """What turns losses into log-likelihoods: a weight, or the noise of squared errors, given or ``learned``."""

    weight: float | None
    noise: float | str | None

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.weight is not None:
            number("loss_weight", self.weight, "> 0 and finite", lambda x: 0 < x < math.inf)
            must(self.noise is None, "noise", "left out where loss_weight is given", self.noise)
        if isinstance(self.noise, str):
            choice("noise", self.noise, (LEARNED,))
        elif self.noise is not None:
            positive("noise", self.noise)

    @property
    def learns(self) -> bool:
        """Whether the noise is learned."""
        return self.noise == LEARNED

    def log_noise(self, received: Params) -> Tensor | None:
        """log s; None where the loss has a fixed weight instead."""
        if isinstance(self.noise, int | float):
            return torch.tensor(math.log(self.noise), dtype=torch.float64)
        return received[NOISE] if self.learns else None

    def deviation(self, received: Params) -> float | None:
        """s, the deviation of observations; None where the loss has a fixed weight instead."""
        log_noise = self.log_noise(received)
        return None if log_noise is None else float(log_noise.exp())

    def weigh(self, work: Work, received: Params, phase: str) -> Tensor | float:
        """What turns a client's mean loss into minus a log-likelihood; it looks at a batch of ``phase``."""
        log_noise = self.log_noise(received)
        if log_noise is not None:  # k / (2 s^2)
            return count_targets(next(iter(work.batches(phase)))) / 2 * (-2 * log_noise).exp()
        return 1.0 if self.weight is None else self.weight


def count_targets(batch: Batch) -> int:
    """How many numbers a row of ``y`` has: k."""
    return max(1, batch["y"].shape[1:].numel())


def sum_squares(work: Work, model: Params, points: Sequence[Params], phase: str) -> tuple[Tensor, Tensor]:
    """The sum of a client's squared errors, averaged over draws of its personal part, and how many errors there are."""
    loss_of, batches = reuse_rows(work, model, work.personal, work.batches(phase))
    squares = count = torch.zeros_like(work.examples)
    for batch in batches:
        targets, rows = count_targets(batch), count_rows(batch)
        for point in points:
            loss = mean_loss(loss_of({**model, **point}, batch)[0], batch).double()
            squares = squares + loss * rows * targets / len(points)
        count = count + rows * targets
    return squares, count


def describe_errors(
    work: Work, model: Params, points: Sequence[Params], phase: str, log_noise: Tensor
) -> dict[str, Tensor]:
    """What a client sends for the noise to be learned: its squared errors over the present s^2, and their number."""
    squares, count = sum_squares(work, model, points, phase)
    return {SQUARES: (squares * (-2 * log_noise).exp()).to(log_noise), ERRORS: count.to(log_noise)}


def advance_noise(log_noise: Tensor, squares: Tensor, count: Tensor, gain: Tensor) -> Tensor:
    """Move s^2 towards the mean square of residuals, by a share ``gain`` of the way; log s is held.

    ``squares`` are divided by the present s^2. Without residuals s stays. Where all residuals are 0, as for an outcome
    that is constant, s falls in every round; it stops where 1 / s^2 would leave the numbers of its precision.
    """
    ratio = torch.where(count > 0, squares / count, 1.0)
    moved = log_noise + torch.log1p((gain * (ratio - 1)).clamp(min=-0.99)).to(log_noise.dtype) / 2
    return moved.clamp(min=math.log(torch.finfo(log_noise.dtype).tiny) / 4)
