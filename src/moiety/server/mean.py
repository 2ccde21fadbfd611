"""The weighted mean of uploads, and their weighted sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from moiety.errors import choice
from moiety.types import ClientUpdate, Params, Work

WEIGHTINGS = ("examples", "batches", "uniform")


def client_weights(weighting: str, batch_size: int) -> Callable[[Work], Tensor]:
    """A client's weight in the mean: its examples N, its batches in an epoch ceil(N / B), or 1."""
    choice("weighting", weighting, WEIGHTINGS)

    def weigh(work: Work) -> Tensor:
        if weighting == "examples":
            return work.examples
        return (work.examples / float(batch_size)).ceil() if weighting == "batches" else torch.ones_like(work.examples)

    return weigh


def weighted_mean(updates: Sequence[ClientUpdate]) -> Params:
    """``sum_i a_i x_i / sum_i a_i``, summed in the order given, in the uploads' own precision."""
    total = sum(float(u.weight) for u in updates)
    mean: Params = {}
    for name, first in updates[0].upload.items():
        sums = torch.zeros_like(first, dtype=first.dtype if first.is_floating_point() else torch.float64)
        for update in updates:
            sums.add_(update.upload[name], alpha=float(update.weight) / total)
        # Integer buffers (the batch counter of BatchNorm) stay integers.
        mean[name] = sums if first.is_floating_point() else sums.round().to(first.dtype)
    return mean


def weighted_sum(updates: Sequence[ClientUpdate]) -> Params:
    """``sum_i a_i x_i``, summed in the order given, in the uploads' own precision."""
    total: Params = {}
    for name, first in updates[0].upload.items():
        total[name] = torch.zeros_like(first)
        for update in updates:
            total[name].add_(update.upload[name], alpha=float(update.weight))
    return total
