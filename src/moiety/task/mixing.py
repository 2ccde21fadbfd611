"""Mixtures of two models: of what they predict, or of their parameters."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from moiety.task.forward import find_output
from moiety.types import Params

OF_CLASSES = ("cross_entropy", "next_token", "ctc")
"""Losses of logits: probabilities are mixed, and the logits of the mixture are their logarithms."""
OF_ONE_LOGIT = ("binary_cross_entropy",)
"""Losses of one logit for each label: the probabilities of 1 are mixed."""


def mix_outputs(loss: str | None, shared: Tensor, personal: Tensor, weight: float) -> Tensor:
    """The outputs of a mixture with the ``weight`` on the personal model; ``loss`` says what outputs mean.

    Of probabilities, the log-likelihood of a label is at most -log(1 - weight) lower than with the shared model alone.
    Other outputs are averaged: with a convex loss, that is never worse than the worse of both models.
    """
    if weight in (0, 1):
        return personal if weight else shared
    if loss in OF_CLASSES and shared.shape[-1] > 1:
        pair = [functional.log_softmax(each.double(), -1) for each in (shared, personal)]
        return torch.logaddexp(pair[0] + math.log1p(-weight), pair[1] + math.log(weight)).to(shared.dtype)
    if loss in OF_ONE_LOGIT:
        one, none = (
            torch.logaddexp(
                functional.logsigmoid(sign * shared.double()) + math.log1p(-weight),
                functional.logsigmoid(sign * personal.double()) + math.log(weight),
            )
            for sign in (1, -1)
        )
        return (one - none).to(shared.dtype)
    return torch.lerp(shared, personal, weight)


def mix_parameters(shared: Params, personal: Params, weight: float) -> Params:
    """The parameters between two models; what holds no floating numbers is the personal model's."""
    return {
        name: torch.lerp(shared[name], p, weight) if p.is_floating_point() and weight != 1 else p
        for name, p in personal.items()
    }


class MixedModel(nn.Module):
    """A mixture of what two models predict, as ``mix_outputs`` makes it."""

    def __init__(self, shared: nn.Module, personal: nn.Module, weight: float, loss: str | None):
        super().__init__()
        self.shared, self.personal, self.weight, self.loss = shared, personal, weight, loss

    def forward(self, *inputs: Any, **keywords: Any) -> Tensor:
        """The output of the mixture."""
        pair = [find_output(model(*inputs, **keywords)) for model in (self.shared, self.personal)]
        return mix_outputs(self.loss, pair[0], pair[1], self.weight)
