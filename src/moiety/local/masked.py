"""The state of a client that has a mask of its own over the shared weights."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from moiety.errors import must
from moiety.local.verbs import apply_masks, spread_masks
from moiety.types import Objective, Params, Work


class OwnMask(NamedTuple):
    """The client's mask, and whether it was ever asked.

    ``personal`` is empty, or the running statistics of BatchNorm where they are the client's own.
    """

    personal: Params
    mask: Params
    asked: Tensor


def begin_own_mask(shared: Params, personal: Params, mask: Params) -> OwnMask:
    """The state of a client before it is asked."""
    return OwnMask(personal, mask, next(iter(shared.values())).new_zeros((), dtype=torch.bool))


def masks_differ(state: OwnMask, one: Params, other: Params) -> Tensor:
    """Whether two sets of masks differ anywhere, as a tensor without axes."""
    differs = torch.zeros_like(state.asked)
    for name, mask in one.items():
        differs = differs | (mask != other[name]).any()
    return differs


def masked_model(received: Params, state: OwnMask) -> tuple[Params, Params]:
    """The two parts that a client predicts with: m_k * w, and what it has of its own."""
    return apply_masks(received, state.mask), state.personal


def masked_work(work: Work, mask: Params) -> Work:
    """The same work, with gradients set to 0 where the mask is 0."""
    loose = sorted(set(mask) - set(work.shared))
    hint = "A buffer of two or more axes cannot be masked: make it personal or frozen."
    must(not loose, "split", "one whose shared matrices are all trained", ", ".join(loose), hint)

    bits: Params = {}

    def gradient(objective: Objective, at: Params) -> tuple[Params, Tensor, Params]:
        gradients, loss, buffers = work.gradient(objective, at)
        if not bits:  # made once for all steps
            bits.update(spread_masks(gradients, mask))
        return apply_masks(gradients, bits), loss, buffers

    return replace(work, gradient=gradient)


def mask_densities(state: OwnMask) -> dict[str, float]:
    """The share of active weights by name."""
    return {name: float(m.sum()) / m.numel() for name, m in state.mask.items()}
