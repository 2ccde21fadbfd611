"""The weighted mean of uploads, and their weighted sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moiety.types import ClientUpdate, Params


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
