"""Model builders; each model's output layer is named ``head``."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from moiety.models.convolutional import caffe_lenet5, cnn, lenet5, resnet18_gn, vgg11_gn
from moiety.models.dense import linear, mlp
from moiety.models.transformers import speech_frames, speech_transformer, transformer_lm

__all__ = [
    "MODELS",
    "caffe_lenet5",
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

_BUILDERS = (caffe_lenet5, cnn, lenet5, linear, mlp, resnet18_gn, speech_transformer, transformer_lm, vgg11_gn)
MODELS: dict[str, Callable[..., nn.Module]] = {builder.__name__: builder for builder in _BUILDERS}
"""The builders by the names that a configuration file gives them."""
