"""The weighted mean of uploads, and their weighted sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moiety.errors import must
from moiety.types import ClientUpdate, Params


def weighted_mean(updates: Sequence[ClientUpdate]) -> Params:
    """``sum_i a_i x_i / sum_i a_i``, summed in the order given, in the uploads' own precision."""
    weights = [float(u.weight) for u in updates]
    total = sum(weights)
    must(total > 0, "weight", "above 0 for some client of a round", f"a sum of {total:g}", "A mean divides by it.")
    mean: Params = {}
    for name, first in updates[0].upload.items():
        sums = torch.zeros_like(first, dtype=first.dtype if first.is_floating_point() else torch.float64)
        for update, weight in zip(updates, weights, strict=True):
            sums.add_(update.upload[name], alpha=weight / total)
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
