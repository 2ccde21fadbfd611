"""The noise of a regression: its deviation s, which turns squared errors into a likelihood, learned from residuals.

With the loss ``mse``, the mean of k squared errors, log p(y | x) = -k / (2 s^2) loss - k log s. Given draws of the
personal parameters, the s under which the residuals are most likely is their root mean square.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moiety.local.verbs import count_rows, mean_loss, reuse_rows
from moiety.types import Batch, Params, Work


def count_targets(batch: Batch) -> int:
    """How many numbers a row of ``y`` has: k."""
    return max(1, batch["y"].shape[1:].numel())


def gaussian_weight(batch: Batch, log_noise: Tensor | float) -> Tensor:
    """What turns the mean of k squared errors into minus a log-likelihood: k / (2 s^2)."""
    s = torch.as_tensor(log_noise)
    return count_targets(batch) / 2 * (-2 * s).exp()


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


def advance_noise(log_noise: Tensor, squares: Tensor, count: Tensor, gain: Tensor) -> Tensor:
    """Move s^2 towards the mean square of residuals, by a share ``gain`` of the way; log s is held.

    ``squares`` are divided by the present s^2. Without residuals s stays.
    """
    ratio = torch.where(count > 0, squares / count, 1.0)
    return log_noise + torch.log1p((gain * (ratio - 1)).clamp(min=-0.99)).to(log_noise.dtype) / 2
