"""The server's side of algorithms that descend along the sum of the clients' gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from moiety.local.normalised import LARGEST, SQUARES, WEIGHT
from moiety.local.online import Online
from moiety.server.averaging import Server, assemble
from moiety.server.mean import weighted_sum
from moiety.types import Algorithm, ClientUpdate, Params, ServerOptimiser, Wire, Work


def assemble_descent(
    descent: Online,
    *,
    client_update: Callable[[Work, Params, Any], tuple[ClientUpdate, Any]],
    **differences: Any,
) -> Algorithm:
    """An online algorithm whose clients send gradients and whose server steps along their sum."""

    def server_update(server: Server, total: Params, share: float) -> Server:
        shared, squares = descent.step(server.shared, total, server.optimiser)
        return server._replace(shared=shared, optimiser=squares)

    def layout(shared: Params, personal: Params) -> tuple[Params, Params]:
        return shared, descent.declare(shared)

    normalised = descent.rule == "normalised"
    return assemble(
        phases={"online": descent.phase},
        server=ServerOptimiser(descent.init, descent.step),
        client_update=client_update,
        aggregator=sum_features if normalised else weighted_sum,
        server_update=server_update,
        wire=Wire(layout, uncompressed=lambda name: name.startswith((WEIGHT, SQUARES, LARGEST)))
        if normalised
        else Wire(),
        **differences,
    )


def sum_features(updates: Sequence[ClientUpdate]) -> Params:
    """``sum_i a_i x_i``, but for the largest features, of which the largest is taken."""
    sums = weighted_sum(updates)
    for name in sums:
        if name.startswith(LARGEST):
            sums[name] = torch.stack([update.upload[name] for update in updates]).amax(0)
    return sums
