"""Models for examples that are rows of numbers: a linear model and a multilayer perceptron."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from moiety.errors import must
from moiety.models.common import check_sizes, use_seed
from moiety.spec import recorded


@recorded
def linear(inputs: int, outputs: int, *, bias: bool = True, seed: int = 0) -> nn.Module:
    """One linear layer on the flattened input: linear or logistic regression.

    Args:
        inputs: numbers per example.
        outputs: numbers predicted; the number of classes for logistic regression.
        bias: whether to add a constant.
        seed: seed of the first weights.

    Returns:
        A module whose one layer is ``head``.

    >>> [name for name, _ in linear(64, 10).named_parameters()]
    ['head.weight', 'head.bias']
    """
    check_sizes(inputs=inputs, outputs=outputs)
    with use_seed(seed):
        return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=nn.Linear(inputs, outputs, bias=bias)))


@recorded
def mlp(inputs: int, outputs: int, hidden: Sequence[int] = (128,), *, seed: int = 0) -> nn.Module:
    """Fully connected layers with ReLU on the flattened input.

    Two hidden layers of 200 on 28 x 28 images and 10 classes are the 2NN of McMahan et al. (2017).

    Args:
        inputs: numbers per example.
        outputs: numbers predicted.
        hidden: the width of each hidden layer, from the input on; none gives a linear model.
        seed: seed of the first weights.

    Returns:
        A module with the layers ``hidden1``, ``hidden2``, ... and ``head``.

    >>> [name for name, _ in mlp(64, 10, hidden=(32,)).named_parameters()]
    ['hidden1.weight', 'hidden1.bias', 'head.weight', 'head.bias']
    """
    check_sizes(inputs=inputs, outputs=outputs)
    must(isinstance(hidden, list | tuple), "hidden", "a list of widths", repr(hidden), "One layer is hidden=[128].")
    for width in hidden:
        check_sizes(hidden=width)
    widths = [inputs, *hidden]
    steps: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    with use_seed(seed):
        for place, (before, after) in enumerate(pairwise(widths), start=1):
            steps[f"hidden{place}"] = nn.Linear(before, after)
            steps[f"relu{place}"] = nn.ReLU()
        steps["head"] = nn.Linear(widths[-1], outputs)
    return nn.Sequential(steps)
