"""Small models, one a file, each with its output layer named ``head``."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from moiety.models.cnn import cnn
from moiety.models.lenet5 import lenet5
from moiety.models.linear import linear
from moiety.models.mlp import mlp

MODELS: dict[str, Callable[..., nn.Module]] = {"cnn": cnn, "lenet5": lenet5, "linear": linear, "mlp": mlp}
"""The builders by the names that a configuration file gives them."""

__all__ = ["MODELS", "cnn", "lenet5", "linear", "mlp"]
