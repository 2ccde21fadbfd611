"""Models, one a file, each with its output layer named ``head``."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from moiety.models.cnn import cnn
from moiety.models.lenet5 import lenet5
from moiety.models.linear import linear
from moiety.models.mlp import mlp
from moiety.models.resnet18_gn import resnet18_gn
from moiety.models.speech_transformer import speech_frames, speech_transformer
from moiety.models.transformer_lm import transformer_lm
from moiety.models.vgg11_gn import vgg11_gn

MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn": cnn,
    "lenet5": lenet5,
    "linear": linear,
    "mlp": mlp,
    "resnet18_gn": resnet18_gn,
    "speech_transformer": speech_transformer,
    "transformer_lm": transformer_lm,
    "vgg11_gn": vgg11_gn,
}
"""The builders by the names that a configuration file gives them."""

__all__ = [
    "MODELS",
    "cnn",
    "lenet5",
    "linear",
    "mlp",
    "resnet18_gn",
    "speech_frames",
    "speech_transformer",
    "transformer_lm",
    "vgg11_gn",
]
