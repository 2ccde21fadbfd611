"""Which parameters are shared, which are personal, which are frozen."""

from __future__ import annotations

from collections.abc import Callable

from moiety.split.base import Split
from moiety.split.layers import input_layer, norms, output_layer
from moiety.split.names import by_name, everything, nothing

SPLITS: dict[str, Callable[..., Split]] = {
    "by_name": by_name,
    "everything": everything,
    "input_layer": input_layer,
    "norms": norms,
    "nothing": nothing,
    "output_layer": output_layer,
}
"""The builders by the names that a configuration file gives them."""

__all__ = [
    "SPLITS",
    "Split",
    "by_name",
    "everything",
    "input_layer",
    "norms",
    "nothing",
    "output_layer",
]
