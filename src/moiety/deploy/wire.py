"""From a broadcast or an upload to the bytes that cross, and back: the same code on both sides."""

from __future__ import annotations

from typing import NamedTuple

import torch

from moiety import tree
from moiety.engines.problem import Problem
from moiety.errors import must
from moiety.loop.exchange import Exchange
from moiety.transport import PrivacyError, check, pack, payload_bytes, unpack, value_bytes
from moiety.types import Algorithm, Params, Tree

TIMES, SPARE = 4, 1 << 20
"""A message has at most so many times the bytes of its layout, for positions beside values, and so many more."""


class Parcel(NamedTuple):
    """The bytes of a message, and how many of them are values."""

    body: bytes
    values: int

    @property
    def size(self) -> tuple[int, int]:
        """Bytes of the values and of the message, as the ledger counts them."""
        return self.values, len(self.body)


def count_most(layout: Params) -> int:
    """The most bytes of a message with that layout."""
    return SPARE + TIMES * payload_bytes(layout)


def open_body(body: bytes, layout: Params) -> Params:
    """The tensors of a message; one that is far too large for its layout is refused before it is unpacked."""
    most = count_most(layout)
    must(len(body) <= most, "message", f"of at most {most} bytes for this model", len(body))
    return unpack(body) if body else {}


class Wiring:
    """How the messages of one algorithm on one problem are packed.

    What both sides know of a client besides (its mask) is a tree that ``Packing`` defines, empty for most algorithms.
    """

    def __init__(self, problem: Problem, algorithm: Algorithm, exchange: Exchange) -> None:
        self.problem, self.exchange = problem, exchange
        self.down, self.up = exchange.down, exchange.up
        # Where noise is on every number, nothing is sparse, and traffic is counted as dense too.
        self.packing = algorithm.wire.packing if exchange.traffic is not None else None
        codec = exchange.options.codec
        if self.packing is not None:
            constraint = f"left out for {algorithm.name} on devices, whose messages are sparse already"
            must(codec is None, "codec", constraint, "one")

    def first_known(self, state: Tree) -> Tree:
        """What both sides know of a client with that state."""
        return {} if self.packing is None else self.packing.facts(state)

    def pack_down(self, received: Params, client: int, facts: Tree) -> Parcel:
        """A broadcast to one client."""
        tensors = received if self.packing is None else self.packing.pack_down(self._key(client), received, facts)
        return self._pack(tensors, self.down)

    def unpack_down(self, body: bytes, client: int, facts: Tree) -> Params:
        """What a device received: laid out as declared, and finite."""
        tensors = open_body(body, self.down)
        if self.packing is not None:
            tensors = self.packing.unpack_down(self._key(client), tensors, self.down, facts)
        check(tensors, self.down, where="from the server", what="broadcast")
        must(tree.all_finite(tensors), "broadcast", "finite", "a NaN or an infinity")
        return self._place(tensors, self.down)

    def pack_up(self, upload: Params, client: int, t: int, facts: Tree, after: Tree) -> Parcel:
        """An upload of a device; the bytes that leave are opened again and checked as the server does it."""
        if self.packing is None:
            tensors = self.exchange.encode(upload, client, t)
        else:
            tensors = self.packing.pack_up(self._key(client), upload, facts, after)
        parcel = self._pack(tensors, self.up)
        self.check_leaving(parcel.body, client, t, facts)
        return parcel

    def check_leaving(self, body: bytes, client: int, t: int, facts: Tree) -> None:
        """Refuse bytes that hold the name of a personal tensor, or that the server could not open."""
        personal = sorted(set(self.problem.split.personal) & set(unpack(body) if body else {}))
        if personal:
            raise PrivacyError(f"`upload` must be without names of the personal part, got {personal[0]}.")
        self.unpack_up(body, client, t, facts)

    def unpack_up(self, body: bytes, client: int, t: int, facts: Tree) -> tuple[Params, Tree, tuple[int, int]]:
        """The upload that a client sent, laid out as declared; what is known of it from now on; and its bytes."""
        tensors = open_body(body, self.up)
        size = self._count_values(tensors, self.up), len(body)
        if self.packing is None:
            return self._place(self.exchange.decode(tensors, self.up, client, t), self.up), facts, size
        upload, after = self.packing.unpack_up(self._key(client), tensors, self.up, facts)
        check(upload, self.up, where=f"client {client}, round {t + 1}")
        return self._place(upload, self.up), after, size

    def _key(self, client: int) -> torch.Tensor:
        return torch.tensor(self.problem.client_key(client), device=self.problem.device)

    def _pack(self, tensors: Params, layout: Params) -> Parcel:
        return Parcel(pack(tensors) if tensors else b"", self._count_values(tensors, layout))

    def _count_values(self, tensors: Params, layout: Params) -> int:
        """Bytes of values, without those of masks."""
        return value_bytes({name: p for name, p in tensors.items() if name in layout} if self.packing else tensors)

    def _place(self, params: Params, layout: Params) -> Params:
        """In the declared order, which may decide the order of sums, and on the device that computes."""
        return {name: params[name].to(self.problem.device) for name in layout}
