"""Losses with options: ``moiety.loss.huber(delta=0.5)``, in a file ``loss = { name = "huber", delta = 0.5 }``.

A loss is a function of the model's output and the batch that gives one number per example. It carries what it wants of
the labels, and the metric that goes with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from moiety.errors import choice, must, number, proper_fraction
from moiety.spec import Spec, build, recorded
from moiety.task import scores
from moiety.types import Batch, Metric, Recorded


@dataclass(frozen=True)
class LabelLoss(Recorded):
    """A loss that looks at the output and at ``y`` alone.

    ``targets`` says what y must be: ``classes`` (whole numbers), ``binary`` (0 and 1), ``numbers`` or ``counts``.
    """

    name: str
    per_example: Callable[[Tensor, Batch], Tensor]
    targets: str
    metric: Metric

    def __call__(self, output: Tensor, batch: Batch) -> Tensor:
        """The loss of each example."""
        return self.per_example(output, batch)


def _subtract_output(output: Tensor, batch: Batch) -> Tensor:
    """Label minus output, [examples, outputs]."""
    y = batch["y"]
    return (y - output.reshape(y.shape)).reshape(len(y), -1)


@recorded
def cross_entropy(weight: Sequence[float] | None = None) -> LabelLoss:
    """Cross-entropy, each example's multiplied by the weight of its class.

    Args:
        weight: one for each class. ``moiety.data.class_weights(fed)`` gives those that let all classes count alike.
    """
    if weight is None:
        return LabelLoss("cross_entropy", scores.cross_entropy, "classes", scores.METRICS["accuracy"])
    weights = check_weights(weight)

    def weigh(output: Tensor, batch: Batch) -> Tensor:
        factors = weights.to(output)
        y = batch["y"]
        if y.dim() == 1:
            return scores.cross_entropy(output, batch) * factors[y]
        real = y != scores.IGNORED
        each = functional.cross_entropy(
            output.flatten(0, -2), y.flatten(), reduction="none", ignore_index=scores.IGNORED
        )
        each = each.reshape(y.shape) * torch.where(real, factors[y.clamp(min=0)], 0)
        return each.reshape(len(y), -1).sum(1) / real.reshape(len(y), -1).sum(1).clamp(min=1)

    return LabelLoss("cross_entropy", weigh, "classes", scores.METRICS["accuracy"])


@recorded
def binary_cross_entropy(pos_weight: float = 1.0) -> LabelLoss:
    """Cross-entropy of one output, the logit of label 1 against label 0; several outputs are several such labels.

    Args:
        pos_weight: how much a label 1 counts, where a label 0 counts 1.

    >>> import torch, moiety as mo
    >>> loss = mo.loss.binary_cross_entropy(pos_weight=3.0)
    >>> loss(torch.zeros(2, 1), {"y": torch.tensor([1, 0])})  # 3 log 2, log 2
    tensor([2.0794, 0.6931])
    """
    number("pos_weight", pos_weight, "> 0 and finite", lambda w: 0 < w < math.inf)

    def compute(output: Tensor, batch: Batch) -> Tensor:
        y = batch["y"]
        logits, labels = output.reshape(y.shape), y.to(output.dtype)
        # log(1 + exp(-z)) and log(1 + exp(z)), each with its weight
        losses = pos_weight * labels * functional.softplus(-logits) + (1 - labels) * functional.softplus(logits)
        return losses.reshape(len(y), -1).mean(1)

    return LabelLoss("binary_cross_entropy", compute, "binary", scores.METRICS["binary_accuracy"])


@recorded
def huber(delta: float = 1.0) -> LabelLoss:
    """Half the squared error up to ``delta``, linear beyond: outliers count for less. The mean over outputs.

    >>> import torch, moiety as mo
    >>> mo.loss.huber(delta=1.0)(torch.zeros(2, 1), {"y": torch.tensor([1.0, 3.0])})  # 1 / 2, 3 - 1 / 2
    tensor([0.5000, 2.5000])
    """
    number("delta", delta, "> 0 and finite", lambda d: 0 < d < math.inf)

    def compute(output: Tensor, batch: Batch) -> Tensor:
        size = _subtract_output(output, batch).abs()
        return torch.where(size <= delta, size.square() / 2, delta * (size - delta / 2)).mean(1)

    return LabelLoss("huber", compute, "numbers", scores.METRICS["mae"])


@recorded
def quantile(level: float = 0.5) -> LabelLoss:
    """The pinball loss, whose best output is that quantile of y: 0.5 is the median. The mean over outputs.

    >>> import torch, moiety as mo
    >>> mo.loss.quantile(level=0.75)(torch.zeros(2, 1), {"y": torch.tensor([2.0, -2.0])})  # 0.75 x 2, 0.25 x 2
    tensor([1.5000, 0.5000])
    """
    proper_fraction("level", level)

    def compute(output: Tensor, batch: Batch) -> Tensor:
        errors = _subtract_output(output, batch)
        return torch.maximum(level * errors, (level - 1) * errors).mean(1)

    return LabelLoss("quantile", compute, "numbers", Metric("quantile", False, compute))


@recorded
def poisson() -> LabelLoss:
    """Minus the log-likelihood of counts whose log rate is the output, but for what depends on y alone.

    >>> import torch, moiety as mo
    >>> mo.loss.poisson()(torch.ones(1, 1), {"y": torch.tensor([2.0])})  # e - 2
    tensor([0.7183])
    """

    def compute(output: Tensor, batch: Batch) -> Tensor:
        y = batch["y"]
        log_rate = output.reshape(y.shape)
        return (log_rate.exp() - y * log_rate).reshape(len(y), -1).mean(1)

    return LabelLoss("poisson", compute, "counts", Metric("poisson", False, compute))


def check_weights(weight: Sequence[float]) -> Tensor:
    """The weights of classes as a tensor; each must be >= 0, and one above 0."""
    must(
        isinstance(weight, Sequence) and not isinstance(weight, str), "weight", "a list with a number per class", weight
    )
    for each in weight:
        number("weight", each, ">= 0 and finite", lambda w: 0 <= w < math.inf)
    must(any(weight), "weight", "above 0 for some class", list(weight))
    return torch.tensor([float(each) for each in weight], dtype=torch.float64)


WITH_OPTIONS: dict[str, Callable[..., LabelLoss]] = {
    "binary_cross_entropy": binary_cross_entropy,
    "cross_entropy": cross_entropy,
    "huber": huber,
    "poisson": poisson,
    "quantile": quantile,
}
"""The losses that have options, by the names that files use."""


EVERY_LOSS: dict[str, Callable[..., object]] = {**scores.LOSSES, **WITH_OPTIONS}
"""All losses by name."""


def loss_from(spec: Spec | str) -> str | LabelLoss:
    """The loss that a file names; one without options stays a name."""
    return spec if isinstance(spec, str) else build("loss", WITH_OPTIONS, spec)


def is_regression(loss: object) -> bool:
    """Whether a loss of moiety, by name or as a value, wants numbers in the place of classes."""
    value = WITH_OPTIONS[loss]() if isinstance(loss, str) and loss in WITH_OPTIONS else loss
    return loss == "mse" or (isinstance(value, LabelLoss) and value.targets != "classes")


def find_loss(loss: str | Callable[[Tensor, Batch], Tensor]) -> Callable[[Tensor, Batch], Tensor]:
    """The loss of that name, with its options at their defaults, or the function that was given."""
    if not isinstance(loss, str):
        return loss
    choice("loss", loss, EVERY_LOSS)
    return scores.LOSSES[loss] if loss in scores.LOSSES else WITH_OPTIONS[loss]()
