"""The server's side of algorithms that average what clients send, and the assembly of an algorithm around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from moiety.errors import choice
from moiety.local import Personal
from moiety.local.schedules import schedule_or_constant
from moiety.server.mean import weighted_mean
from moiety.server.optimisers import server_or_mean
from moiety.types import Algorithm, ClientUpdate, Params, Phase, Schedule, ServerOptimiser, Tree, Work

WEIGHTINGS = ("examples", "batches", "uniform")


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


def client_weights(weighting: str, batch_size: int) -> Callable[[Work], Tensor]:
    """A client's weight in the mean: its examples N, its batches in an epoch ceil(N / B), or 1."""
    choice("weighting", weighting, WEIGHTINGS)

    def weigh(work: Work) -> Tensor:
        if weighting == "examples":
            return work.examples
        return (work.examples / float(batch_size)).ceil() if weighting == "batches" else torch.ones_like(work.examples)

    return weigh


def assemble(
    *,
    phases: Mapping[str, Phase],
    client_update: Callable[[Work, Params, Any], tuple[ClientUpdate, Any]],
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
    aggregator: Callable[[Sequence[ClientUpdate]], Params] | None = weighted_mean,
    **differences: Any,
) -> Algorithm:
    """An algorithm whose clients send changes of the shared part and whose server averages them.

    Most algorithms differ from this in their local work alone. Clients keep their personal part (``Personal``), and
    newcomers train as clients do.

    Args:
        phases: the batches that local work asks for.
        client_update: the local work of one client.
        server: how the mean change moves the server; plain averaging by default.
        schedule: of the client learning rates across rounds; constant by default.
        aggregator: joins the uploads; None where clients send nothing.
        **differences: other fields of ``Algorithm``.
    """
    optimiser = server_or_mean(server)
    usual: dict[str, Any] = {
        "init_server": lambda shared, statistics, personal: init_server(optimiser, shared, statistics),
        "init_client": lambda shared, personal: Personal(personal),
        "broadcast": broadcast,
        "server_update": lambda state, change, share: server_update(optimiser, state, change),
        "personal_model": lambda received, state: (received, state.personal),
        "adapt": lambda work, received, state: client_update(work, received, state)[1],
    }
    return Algorithm(
        phases=phases,
        client_update=client_update,
        aggregator=aggregator,
        schedule=schedule_or_constant(schedule),
        **usual | differences,
    )


def adapt_statistics(
    client_update: Callable[[Work, Params, Any], tuple[ClientUpdate, Any]],
) -> Callable[[Work, Params, Any], Any]:
    """The rule for newcomers where only running statistics can be a client's own: without them there is none."""

    def adapt(work: Work, received: Params, state: Any) -> Any:
        return client_update(work, received, state)[1] if state.personal else state

    return adapt
