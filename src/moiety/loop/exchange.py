"""What crosses between server and clients: checked by the guard, sent through the codec, counted in the ledger."""

from __future__ import annotations

from typing import NamedTuple

from moiety import tree
from moiety.engines.problem import Problem
from moiety.engines.rows import Job
from moiety.loop.uploads import UploadOptions
from moiety.random import generator
from moiety.transport import Ledger, check, message_bytes
from moiety.types import Algorithm, ClientUpdate, Params, Tree


class Arrival(NamedTuple):
    """What the server gets from one client in a round.

    ``state`` is the client's new state, None where there is none to keep. ``finite`` says whether the update and the
    state hold finite numbers only.
    """

    client: int
    update: ClientUpdate
    state: Tree
    finite: bool


class Exchange:
    """The way between the server and the clients of one run."""

    def __init__(self, problem: Problem, algorithm: Algorithm, options: UploadOptions, ledger: Ledger) -> None:
        self.problem, self.options, self.ledger = problem, options, ledger
        self.traffic, self.plain = algorithm.wire.traffic, algorithm.wire.uncompressed
        self.down, self.up = declare_layouts(problem, algorithm)
        self.up_bytes = message_bytes(self.up)

    def check_upload(self, update: ClientUpdate, client: int, t: int) -> None:
        """Raise unless an upload holds exactly what the algorithm declares."""
        check(update.upload, self.up, where=f"client {self.problem.data.ids[client]}, round {t + 1}")

    def count_broadcast(self, received: Params, jobs: list[Job]) -> None:
        """Enter a broadcast to the clients of these jobs into the ledger."""
        alike = message_bytes(received)
        for job in jobs:
            self.ledger.down(*(alike if self.traffic is None else self.traffic.down(received, job.state)))

    def receive(self, arrivals: list[Arrival], t: int) -> list[Arrival]:
        """The arrivals as the server sees them: attackers' uploads forged, all checked, compressed and counted."""
        options = self.options
        updates = options.forge_updates(
            [a.update for a in arrivals], [a.client for a in arrivals], self.problem.seed, t
        )
        altered = options.attack is not None or options.codec is not None
        received = []
        for arrival, forged in zip(arrivals, updates, strict=True):
            self.check_upload(forged, arrival.client, t)
            update = self._transmit(forged, arrival.client, t)
            finite = bool(arrival.finite) and (not altered or bool(tree.is_finite(update)))
            received.append(arrival._replace(update=update, finite=finite))
        return received

    def _transmit(self, update: ClientUpdate, client: int, t: int) -> ClientUpdate:
        """Send one upload, through the codec where there is one, and count its bytes."""
        codec, traffic, ledger = self.options.codec, self.traffic, self.ledger
        if codec is None:
            # The guard has seen that every upload has the declared layout, so all cost the same.
            ledger.up(*(self.up_bytes if traffic is None else traffic.up(update)))
            return update
        plain = {name: p for name, p in update.upload.items() if self._uncompressed(name)}
        rest = {name: p for name, p in update.upload.items() if name not in plain}
        packed = codec.encode(rest, generator(self.problem.seed, "codec", t, client))
        arrived = {**codec.decode(packed, rest), **plain}
        ledger.up(*message_bytes({**packed, **plain}))
        if traffic is not None:
            ledger.up(0, traffic.extra(update))
        return update._replace(upload={name: arrived[name] for name in update.upload})

    def _uncompressed(self, name: str) -> bool:
        """Whether a codec leaves a tensor as it is: where the algorithm says so, and running statistics."""
        return name in self.problem.first_shared()[1] or self.plain(name)


def declare_layouts(problem: Problem, algorithm: Algorithm) -> tuple[Params, Params]:
    """What goes down and what goes up, as layouts: only names, shapes and types count."""
    shared, statistics = problem.first_shared()
    if algorithm.wire.layout is not None:
        return algorithm.wire.layout({**shared, **statistics}, problem.first_personal())
    return {**shared, **statistics}, {} if algorithm.aggregator is None else {**shared, **statistics}
