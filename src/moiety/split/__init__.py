"""Which parameters are shared, which are personal, which are frozen."""

from __future__ import annotations

from collections.abc import Callable

from moiety.split.adapters import adapters
from moiety.split.additive import additive
from moiety.split.base import Split
from moiety.split.blocks import first_block, last_block, last_feed_forward
from moiety.split.full import full
from moiety.split.horizontal import horizontal
from moiety.split.layers import fedbn, input_layer, norms, output_layer, representation
from moiety.split.lora import lora
from moiety.split.names import by_name, everything, nothing

SPLITS: dict[str, Callable[..., Split]] = {
    "adapters": adapters,
    "additive": additive,
    "by_name": by_name,
    "everything": everything,
    "fedbn": fedbn,
    "first_block": first_block,
    "full": full,
    "horizontal": horizontal,
    "input_layer": input_layer,
    "last_block": last_block,
    "last_feed_forward": last_feed_forward,
    "lora": lora,
    "norms": norms,
    "nothing": nothing,
    "output_layer": output_layer,
    "representation": representation,
}
"""The builders by the names that a configuration file gives them."""

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
    "representation",
]
