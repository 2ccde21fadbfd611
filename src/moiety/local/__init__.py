"""The verbs and values of local work: what a client does in its turn."""

from moiety.local.verbs import (
    SgdOptions,
    autograd_gradient,
    clipped,
    cut,
    difference,
    either,
    flat,
    gradient_over_samples,
    mean_loss,
    phase,
    positive_lr,
    rates,
    sgd,
)

__all__ = [
    "SgdOptions",
    "autograd_gradient",
    "clipped",
    "cut",
    "difference",
    "either",
    "flat",
    "gradient_over_samples",
    "mean_loss",
    "phase",
    "positive_lr",
    "rates",
    "sgd",
]
