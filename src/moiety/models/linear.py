"""A linear model."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from moiety.models.checks import positive, seeded
from moiety.spec import recorded


@recorded
def linear(inputs: int, outputs: int, *, bias: bool = True, seed: int = 0) -> nn.Module:
    """One linear layer on the flattened input: linear or logistic regression.

    Args:
        inputs: numbers per example.
        outputs: numbers predicted; the number of classes for logistic regression.
        bias: whether to add a constant.
        seed: of the first weights.

    Returns:
        A module whose one layer is ``head``.

    >>> [name for name, _ in linear(64, 10).named_parameters()]
    ['head.weight', 'head.bias']
    """
    positive("inputs", inputs)
    positive("outputs", outputs)
    with seeded(seed):
        return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=nn.Linear(inputs, outputs, bias=bias)))
