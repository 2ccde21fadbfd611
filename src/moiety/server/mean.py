"""The weighted mean of uploads, and their weighted sum, added up as uploads arrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

from moiety.errors import must
from moiety.types import ClientUpdate, Params

CHUNK_BYTES = 1 << 22
"""About how many bytes of uploads one operation multiplies and adds."""

WIDE = (torch.float32, torch.float64)
"""Types that are summed in themselves."""


class RunningSum:
    """``sum_i a_i x_i``, in the order in which uploads are added. No upload is kept.

    Uploads are added in chunks, whose length follows from the size of an upload alone. So the same uploads in the same
    order give the same bits, however they were computed. Floating numbers are summed in their own precision, those of
    half precision in float32, whole numbers in float64.
    """

    def __init__(self) -> None:
        self.sums: Params = {}
        self.types: dict[str, torch.dtype] = {}
        self.weight = 0.0

    def add(self, updates: Sequence[ClientUpdate]) -> None:
        """Add uploads that came one by one."""
        step = count_rows(updates[0].upload) if updates else 1
        for at in range(0, len(updates), step):
            chunk = updates[at : at + step]
            stack = torch.stack if len(chunk) > 1 else (lambda tensors: tensors[0][None])
            uploads = {name: stack([update.upload[name] for update in chunk]) for name in chunk[0].upload}
            self._add_chunk(uploads, [float(update.weight) for update in chunk])

    def add_stacked(self, uploads: Params, weights: Sequence[float]) -> None:
        """Add uploads that came as one, with a leading axis over clients."""
        step = count_rows(uploads, len(weights))
        for at in range(0, len(weights), step):
            chunk = uploads if step >= len(weights) else {name: x[at : at + step] for name, x in uploads.items()}
            self._add_chunk(chunk, weights[at : at + step])

    def _add_chunk(self, uploads: Params, weights: Sequence[float]) -> None:
        self.weight += sum(weights)
        alike = len(weights) > 1 and weights.count(1.0) == len(weights)
        for name, x in uploads.items():
            self.types.setdefault(name, x.dtype)
            sums = self.sums.get(name)
            if alike and x.dtype in WIDE and x.is_contiguous():  # a product with 1 changes no bit
                total = x.sum(0)
                self.sums[name] = total if sums is None else sums.add_(total)
                continue
            if sums is None:
                wide = torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else torch.float64
                sums = self.sums[name] = torch.zeros(x.shape[1:], dtype=wide, device=x.device)
            if len(weights) == 1:
                sums.add_(x[0], alpha=weights[0])
            else:
                factors = torch.tensor(weights, dtype=torch.float64).to(sums)
                sums.add_((x * factors.view(-1, *[1] * (x.dim() - 1))).sum(0))

    def result(self) -> Params:
        """The sum, in the types of the uploads."""
        return {name: sums.to(self.types[name]) for name, sums in self.sums.items()}


class RunningMean(RunningSum):
    """``sum_i a_i x_i / sum_i a_i``, likewise."""

    unit: float | None = None
    """The first weight that is not 0. Weights count in it, so that the mean of one upload is that upload."""

    def _add_chunk(self, uploads: Params, weights: Sequence[float]) -> None:
        self.unit = self.unit or next((weight for weight in weights if weight), None)
        super()._add_chunk(uploads, [weight / (self.unit or 1.0) for weight in weights])

    def result(self) -> Params:
        """The mean, in the types of the uploads."""
        total = self.weight
        must(total > 0, "weight", "above 0 for some client of a round", f"a sum of {total:g}", "A mean divides by it.")
        means = {name: sums / total for name, sums in self.sums.items()}
        # Integer buffers (the batch counter of BatchNorm) stay integers.
        kinds = self.types
        return {n: (x if kinds[n].is_floating_point else x.round()).to(kinds[n]) for n, x in means.items()}


def count_rows(uploads: Params, together: int = 1) -> int:
    """How many uploads like these make a chunk, where so many of them are given ``together``."""
    size = sum(x.numel() * x.element_size() for x in uploads.values()) // max(together, 1)
    return max(1, CHUNK_BYTES // max(size, 1))


def weighted_mean(updates: Sequence[ClientUpdate]) -> Params:
    """``sum_i a_i x_i / sum_i a_i``, summed in the order given."""
    mean = RunningMean()
    mean.add(updates)
    return mean.result()


def weighted_sum(updates: Sequence[ClientUpdate]) -> Params:
    """``sum_i a_i x_i``, summed in the order given."""
    total = RunningSum()
    total.add(updates)
    return total.result()


RUNNING: Mapping[Callable[[Sequence[ClientUpdate]], Params], type[RunningSum]] = MappingProxyType(
    {weighted_mean: RunningMean, weighted_sum: RunningSum}
)
"""Aggregators that can add uploads as they arrive, and what does it."""
