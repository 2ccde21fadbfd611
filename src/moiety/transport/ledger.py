"""The ledger: what a run really cost in bytes, arithmetic and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from moiety.transport.wire import value_bytes
from moiety.types import Params


@dataclass
class Ledger:
    """Sums over a run. Bytes are counted for every client asked, dropped ones included: they did send.

    ``*_values`` are the parameters' own bytes, as papers count, of active values only where tensors are sparse;
    ``*_payload`` is what goes over the wire, header and masks included. ``flops`` is the local work of all clients
    asked, sparse layers at their density; ``search_flops`` is the part of it that goes into the search for masks.
    ``device_memory`` is the estimate of Pillutla et al. 2022, B.4, for one device: 3 size(u) + 2 size(v) +
    size(backprop at batch size 1); of a client with masks, active values and one bit a number for the mask.
    """

    rounds: int = 0
    client_updates: int = 0
    down_values: int = 0
    down_payload: int = 0
    up_values: int = 0
    up_payload: int = 0
    flops: float = 0.0
    search_flops: float = 0.0
    device_memory: int = 0

    def down(self, values: int, payload: int, clients: int = 1) -> None:
        """Count a broadcast to clients that are asked, alike to each."""
        self.client_updates += clients
        self.down_values += clients * values
        self.down_payload += clients * payload

    def up(self, values: int, payload: int, clients: int = 1) -> None:
        """Count bytes to the server, from each of the clients."""
        self.up_values += clients * values
        self.up_payload += clients * payload

    def work(self, flops: float, search: float) -> None:
        """Count arithmetic, and the part of it that searches for masks."""
        self.flops += flops
        self.search_flops += search

    def as_dict(self) -> dict[str, Any]:
        """The sums by name."""
        return asdict(self)


def device_memory(shared: Params, personal: Params, backprop: int, densities: Mapping[str, float] | None = None) -> int:
    """Bytes on one device while training: 3 size(u) + 2 size(v) + size(backprop).

    With ``densities``, the shared tensors of these names are sparse, as Huang et al. (2022) mean it: the device holds
    their active values alone, and a mask of one bit a number.
    """
    shares = densities or {}
    size = sum(round(shares.get(name, 1.0) * value_bytes({name: p})) for name, p in shared.items())
    masks = sum(-(-shared[name].numel() // 8) for name in shares)
    return 3 * size + masks + 2 * value_bytes(personal) + backprop
