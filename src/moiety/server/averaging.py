"""The server's side of every algorithm that averages what clients send."""

from __future__ import annotations

from typing import NamedTuple

from moiety.types import Params, ServerOptimiser, Tree


class Server(NamedTuple):
    """Shared parameters, shared running statistics, and the state of the server's optimiser."""

    shared: Params
    statistics: Params
    optimiser: Tree


def init_server(optimiser: ServerOptimiser, shared: Params, statistics: Params) -> Server:
    """The server before the first round."""
    return Server(dict(shared), dict(statistics), optimiser.init(shared))


def broadcast(server: Server) -> Params:
    """What goes down: the shared parameters and the shared running statistics."""
    return {**server.shared, **server.statistics}


def server_update(optimiser: ServerOptimiser, server: Server, change: Params) -> Server:
    """Move the parameters by the optimiser and the statistics, which are no gradients, by the plain mean change."""
    shared, state = optimiser.step(server.shared, {n: change[n] for n in server.shared}, server.optimiser)
    return Server(shared, {n: s + change[n] for n, s in server.statistics.items()}, state)
