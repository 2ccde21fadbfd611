"""The server's side of algorithms that descend along the sum of the clients' gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moiety.local.online import Online
from moiety.server.averaging import Server, assemble
from moiety.server.mean import weighted_sum
from moiety.types import Algorithm, ClientUpdate, Params, ServerOptimiser, Work


def assemble_descent(
    descent: Online,
    *,
    client_update: Callable[[Work, Params, Any], tuple[ClientUpdate, Any]],
    **differences: Any,
) -> Algorithm:
    """An online algorithm whose clients send gradients and whose server steps along their sum."""

    def server_update(server: Server, total: Params, share: float) -> Server:
        gradient = {n: total[n] for n in server.shared}
        shared, squares = descent.step(server.shared, gradient, server.optimiser)
        return server._replace(shared=shared, optimiser=squares)

    return assemble(
        phases={"online": descent.phase},
        server=ServerOptimiser(descent.init, descent.step),
        client_update=client_update,
        aggregator=weighted_sum,
        server_update=server_update,
        **differences,
    )
