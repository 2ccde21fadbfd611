"""Which parameters are shared, which are personal, which are frozen."""

from __future__ import annotations

from collections.abc import Callable

from moiety.split.adapters import adapters, lora
from moiety.split.base import Split
from moiety.split.layers import (
    fedbn,
    first_block,
    input_layer,
    last_block,
    last_feed_forward,
    norms,
    output_layer,
    representation,
)
from moiety.split.names import by_name, everything, nothing
from moiety.split.peft import peft
from moiety.split.two_parts import additive, full, horizontal

__all__ = [
    "SPLITS",
    "Split",
    "adapters",
    "additive",
    "by_name",
    "everything",
    "fedbn",
    "first_block",
    "full",
    "horizontal",
    "input_layer",
    "last_block",
    "last_feed_forward",
    "lora",
    "norms",
    "nothing",
    "output_layer",
    "peft",
    "representation",
]

_BUILDERS: tuple[Callable[..., Split], ...] = (
    adapters,
    additive,
    by_name,
    everything,
    fedbn,
    first_block,
    full,
    horizontal,
    input_layer,
    last_block,
    last_feed_forward,
    lora,
    norms,
    nothing,
    output_layer,
    peft,
    representation,
)
SPLITS = {builder.__name__: builder for builder in _BUILDERS}
"""The builders by the names that a configuration file gives them."""
