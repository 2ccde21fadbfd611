"""What crosses between server and clients: checked by the guard, sent through the codec, counted in the ledger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from moiety import tree
from moiety.engines.base import Results
from moiety.engines.problem import Problem
from moiety.engines.rows import Job
from moiety.loop.divergence import explain_drop
from moiety.loop.uploads import UploadOptions
from moiety.random import generator
from moiety.server.mean import RunningSum
from moiety.transport import Ledger, check, check_layout, check_message, check_numbers, fits, message_bytes
from moiety.types import Algorithm, ClientUpdate, Params, Tree


class Arrival(NamedTuple):
    """What the server gets from one client in a round.

    ``state`` is the client's new state, None where there is none to keep. ``largest`` is the largest number of the
    upload, NaN where the update or the state is not finite.
    """

    client: int
    update: ClientUpdate
    state: Tree
    largest: float


@dataclass
class Received:
    """What the server has got in one round: a list of ``clients``, and of those whose updates can be used the rest.

    Uploads are in ``running`` where they are summed as they arrive, else in ``updates``. ``dropped`` says why an update
    cannot be used. ``values`` and ``payload`` count bytes. States are kept where ``keeps_states``.
    """

    running: RunningSum | None = None
    keeps_states: bool = True
    values: int = 0
    payload: int = 0
    clients: list[int] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    usable: list[int] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    updates: list[ClientUpdate] = field(default_factory=list)
    states: list[tuple[int, Tree]] = field(default_factory=list)

    def count(self, values: int, payload: int) -> None:
        """Count bytes that went up."""
        self.values += values
        self.payload += payload


class Exchange:
    """The way between the server and the clients of one run."""

    def __init__(self, problem: Problem, algorithm: Algorithm, options: UploadOptions, ledger: Ledger) -> None:
        self.problem, self.options, self.ledger = problem, options, ledger
        self.traffic, self.plain = algorithm.wire.traffic, algorithm.wire.uncompressed
        self.down, self.up = declare_layouts(problem, algorithm)
        self.down_bytes, self.up_bytes = message_bytes(self.down), message_bytes(self.up)

    def check_upload(self, update: ClientUpdate, client: int, t: int) -> None:
        """Raise unless an upload holds exactly what the algorithm declares."""
        where = self._place(client, t)
        check(update.upload, self.up, where=where)
        check_numbers(update, where=where)

    def _place(self, client: int, t: int) -> str:
        """Client and round, for a message."""
        return f"client {self.problem.data.ids[client]}, round {t + 1}"

    def count_broadcast(self, received: Params, jobs: Sequence[Job]) -> None:
        """Enter a broadcast to the clients of these jobs into the ledger."""
        if self.traffic is None:
            # The guard has seen that it has the declared layout.
            self.ledger.down(*self.down_bytes, clients=len(jobs))
            return
        for job in jobs:
            self.ledger.down(*self.traffic.down(received, job.state))

    def receive(self, received: Received, clients: Sequence[int], results: Sequence[Tree], t: int) -> None:
        """Take what the turns of clients gave: for each an update, a state, and the largest number of the upload.

        Where these lie in one tree, and nothing has to be done for each client apart, it is looked at as a whole.
        """
        apart = self.options.codec or self.options.attack or self.traffic or received.running is None
        if isinstance(results, Results) and not apart:
            update, _, largest = results.stacked
            if fits(update, self.up, len(clients)) and math.isfinite(largest.sum().item()):
                self._receive_block(received, clients, results)
                return
        turns = zip(clients, results, strict=True)
        arrivals = [Arrival(client, update, state, float(largest)) for client, (update, state, largest) in turns]
        self.receive_each(received, arrivals, t)

    def _receive_block(self, received: Received, clients: Sequence[int], results: Results) -> None:
        update, _, largest = results.stacked
        weights = update.weight.tolist()
        received.count(*(len(clients) * size for size in self.up_bytes))
        received.clients += clients
        received.usable += clients
        received.largest += largest.tolist()
        received.weights += weights
        received.losses += update.info["loss"].tolist()
        if received.running is not None:
            received.running.add_stacked(update.upload, weights)
        if received.keeps_states:
            received.states += [(client, state) for client, (_, state, _) in zip(clients, results, strict=True)]

    def receive_each(self, received: Received, arrivals: Sequence[Arrival], t: int) -> None:
        """Take the arrivals as the server sees them: attackers' uploads forged, all checked, compressed and counted."""
        options = self.options
        updates = options.forge_updates(
            [a.update for a in arrivals], [a.client for a in arrivals], self.problem.seed, t
        )
        altered = options.attack is not None or options.codec is not None
        usable = []
        for arrival, forged in zip(arrivals, updates, strict=True):
            self.check_upload(forged, arrival.client, t)
            update = self._transmit(received, forged, arrival.client, t)
            largest = arrival.largest
            if altered and math.isfinite(largest):
                largest = float(tree.largest(update.upload) if tree.is_finite(update) else torch.nan)
            received.clients.append(arrival.client)
            if not math.isfinite(largest):
                received.dropped[arrival.client] = explain_drop(update, arrival.state)
                continue
            received.usable.append(arrival.client)
            received.largest.append(largest)
            received.weights.append(float(update.weight))
            received.losses.append(float(update.info["loss"]))
            usable.append(update)
            if received.keeps_states and arrival.state is not None:
                received.states.append((arrival.client, arrival.state))
        if received.running is None:
            received.updates += usable
        else:
            received.running.add(usable)

    def _transmit(self, received: Received, update: ClientUpdate, client: int, t: int) -> ClientUpdate:
        """Send one upload, through the codec where there is one, and count its bytes."""
        codec, traffic = self.options.codec, self.traffic
        if codec is None:
            # The guard has seen that every upload has the declared layout, so all cost the same.
            received.count(*(self.up_bytes if traffic is None else traffic.up(update)))
            return update
        plain = {name: p for name, p in update.upload.items() if self._uncompressed(name)}
        rest = {name: p for name, p in update.upload.items() if name not in plain}
        packed = codec.encode(rest, generator(self.problem.seed, "codec", t, client))
        check_message(packed, rest, codec.names, where=self._place(client, t))
        decoded = codec.decode(packed, rest)
        check(decoded, rest, where=self._place(client, t), what="upload after the codec")
        arrived = {**decoded, **plain}
        received.count(*message_bytes({**packed, **plain}))
        if traffic is not None:
            received.count(0, traffic.extra(update))
        return update._replace(upload={name: arrived[name] for name in update.upload})

    def _uncompressed(self, name: str) -> bool:
        """Whether a codec leaves a tensor as it is: where the algorithm says so, and running statistics."""
        return name in self.problem.first_shared()[1] or self.plain(name)


def mean_loss(losses: list[float], weights: list[float]) -> float:
    """The mean training loss of clients, weighted as the aggregate is; NaN where there are none."""
    if not losses:
        return math.nan
    each, by = np.array(losses), np.array(weights) if any(weights) else np.ones(len(losses))
    return float((each * by).sum() / by.sum())


def declare_layouts(problem: Problem, algorithm: Algorithm) -> tuple[Params, Params]:
    """What goes down and what goes up, as layouts: only names, shapes and types count; no name is a personal one."""
    shared, statistics = problem.first_shared()
    if algorithm.wire.layout is not None:
        down, up = algorithm.wire.layout({**shared, **statistics}, problem.first_personal())
        for way, declared in {"down": down, "up": up}.items():
            check_layout(declared, problem.split.personal, way)
        return down, up
    return {**shared, **statistics}, {} if algorithm.aggregator is None else {**shared, **statistics}
