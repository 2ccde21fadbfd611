"""What crosses between server and clients: checked by the guard, sent through the codec, counted in the ledger."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from moiety import tree
from moiety.engines.base import Results
from moiety.engines.problem import Problem
from moiety.engines.rows import Job
from moiety.errors import must
from moiety.loop.divergence import explain_drop
from moiety.loop.uploads import UploadOptions
from moiety.random import generator
from moiety.server.mean import RunningSum
from moiety.transport import Ledger, check, check_layout, check_message, check_numbers, fits, message_bytes
from moiety.transport.privacy import PrivacyState, check_uniform, privatise_update
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
    size: tuple[int, int] | None = None
    """Bytes of the values and of the message that really came; None where nothing crossed a wire."""


class Missing(NamedTuple):
    """Why there is no update of a client in a round; ``sent`` is true where it sent something that cannot be used."""

    client: int
    why: str
    sent: bool = False


@dataclass
class Received:
    """What the server has got in one round from ``clients``; ``weights`` and other lists are of the ``usable`` ones.

    Uploads are in ``running`` where they are summed as they arrive, else in ``updates``. ``dropped`` says why an update
    cannot be used, ``absent`` why there is none. ``values`` and ``payload`` count bytes. States are kept where
    ``keeps_states``.
    """

    running: RunningSum | None = None
    keeps_states: bool = True
    values: int = 0
    payload: int = 0
    clients: list[int] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    absent: dict[int, str] = field(default_factory=dict)
    usable: list[int] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    updates: list[ClientUpdate] = field(default_factory=list)
    states: list[tuple[int, Tree]] = field(default_factory=list)
    private: PrivacyState | None = None
    """Names the noise that clients add to their uploads, where they do it here."""

    def leave_out(self, missing: Missing) -> None:
        """Note that a client has no update."""
        if missing.sent:
            self.clients.append(missing.client)
            self.dropped[missing.client] = missing.why
        else:
            self.absent[missing.client] = missing.why

    def count(self, values: int, payload: int) -> None:
        """Count bytes that went up."""
        self.values += values
        self.payload += payload


class Exchange:
    """The way between the server and the clients of one run."""

    def __init__(self, problem: Problem, algorithm: Algorithm, options: UploadOptions, ledger: Ledger) -> None:
        self.problem, self.options, self.ledger = problem, options, ledger
        self.traffic, self.plain = algorithm.wire.traffic, algorithm.wire.uncompressed
        if options.privacy is not None and options.privacy.local:
            self.traffic = None  # noise is on every number, and a mask that crossed would tell about data
        self.down, self.up = declare_layouts(problem, algorithm)
        self.down_bytes, self.up_bytes = message_bytes(self.down), message_bytes(self.up)

    def check_upload(self, update: ClientUpdate, client: int, t: int) -> None:
        """Raise unless an upload holds exactly what the algorithm declares."""
        where = self._place(client, t)
        check(update.upload, self.up, where=where)
        check_numbers(update, where=where)
        if self.options.privacy is not None:
            check_uniform(update, where=where)

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

        Where these lie in one tree, and no client needs separate treatment, they are handled as one block.
        """
        options = self.options
        separate = options.codec or options.attack or options.privacy or self.traffic or received.running is None
        if isinstance(results, Results) and not separate and self._receive_block(received, clients, results):
            return
        arrivals = []
        for client, result in zip(clients, results, strict=True):
            if isinstance(result, Missing):
                received.leave_out(result)
            elif isinstance(result, Arrival):
                arrivals.append(result)
            else:
                update, state, largest = result
                arrivals.append(Arrival(client, update, state, float(largest)))
        self.receive_each(received, arrivals, t)

    def _receive_block(self, received: Received, clients: Sequence[int], results: Results) -> bool:
        """Take what lies in one tree. Where a client needs a closer look, take nothing and return False."""
        update, _, largest_of_each = results.stacked
        if not fits(update, self.up, len(clients)):
            return False
        weights, largest = update.weight.tolist(), largest_of_each.tolist()
        if not math.isfinite(sum(largest)) or min(weights, default=0) < 0:
            return False
        received.count(*(len(clients) * size for size in self.up_bytes))
        received.clients += clients
        received.usable += clients
        received.largest += largest
        received.weights += weights
        received.losses += update.info["loss"].tolist()
        if received.running is not None:
            received.running.add_stacked(update.upload, weights)
        if received.keeps_states:
            received.states += [(client, state) for client, (_, state, _) in zip(clients, results, strict=True)]
        return True

    def receive_each(self, received: Received, arrivals: Sequence[Arrival], t: int) -> None:
        """Take the arrivals as the server sees them: attackers' uploads forged, all checked, compressed and counted."""
        options = self.options
        updates = options.forge_updates(
            [self._leave_device(a, received.private) for a in arrivals],
            [a.client for a in arrivals],
            self.problem.seed,
            t,
        )
        altered = options.attack is not None or options.codec is not None
        usable = []
        for arrival, upload in zip(arrivals, updates, strict=True):
            self.check_upload(upload, arrival.client, t)
            if arrival.size is None:
                update = self._transmit(received, upload, arrival.client, t)
            else:
                update = upload
                received.count(*arrival.size)
            largest = arrival.largest
            if altered and arrival.size is None and math.isfinite(largest):  # else it was measured after the codec
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

    def _leave_device(self, arrival: Arrival, private: PrivacyState | None) -> ClientUpdate:
        """What leaves the device: with local privacy, the upload clipped and with noise."""
        privacy, is_simulated = self.options.privacy, arrival.size is None  # else the device has done it
        finite = math.isfinite(arrival.largest)
        if privacy is None or private is None or not privacy.local or not finite or not is_simulated:
            return arrival.update
        return privatise_update(privacy, private, arrival.update, private.sums, arrival.client)

    def _transmit(self, received: Received, update: ClientUpdate, client: int, t: int) -> ClientUpdate:
        """Send one upload, through the codec where there is one, and count its bytes."""
        codec, traffic = self.options.codec, self.traffic
        if codec is None:
            # The guard has seen that every upload has the declared layout, so all cost the same.
            received.count(*(self.up_bytes if traffic is None else traffic.up(update)))
            return update
        packed = self.encode(update.upload, client, t)
        received.count(*message_bytes(packed))
        if traffic is not None:
            received.count(0, traffic.extra(update))
        return update._replace(upload=self.decode(packed, update.upload, client, t))

    def encode(self, upload: Params, client: int, t: int) -> Params:
        """The tensors to pack of an upload: by the codec where there is one, but for what it leaves alone."""
        codec = self.options.codec
        if codec is None:
            return upload
        plain, rest = self._part(upload)
        packed = codec.encode(rest, generator(self.problem.seed, "codec", t, client))
        check_message(packed, rest, codec.names, where=self._place(client, t))
        return {**packed, **plain}

    def decode(self, packed: Params, like: Params, client: int, t: int) -> Params:
        """The upload that ``encode`` packed, laid out as ``like``."""
        codec, where = self.options.codec, self._place(client, t)
        if codec is None:
            check(packed, like, where=where)
            return {name: packed[name] for name in like}
        plain, rest = self._part(like)
        must(packed.keys() >= plain.keys(), "upload", "whole", f"one without {', '.join(plain)} ({where})")
        content = codec.decode({name: p for name, p in packed.items() if name not in plain}, rest)
        check(content, rest, where=where, what="upload after the codec")
        return {name: packed[name] if name in plain else content[name] for name in like}

    def _part(self, upload: Params) -> tuple[Params, Params]:
        """What the codec leaves as it is, and the rest."""
        plain = {name: p for name, p in upload.items() if self._is_plain(name)}
        return plain, {name: p for name, p in upload.items() if name not in plain}

    def _is_plain(self, name: str) -> bool:
        """Whether a codec leaves a tensor as it is: where the algorithm says so, and running statistics."""
        return name in self.problem.first_shared()[1] or self.plain(name)


def mean_loss(losses: list[float], weights: list[float]) -> float:
    """The mean training loss of clients, weighted as the aggregate is; NaN where there are none."""
    if not losses:
        return math.nan
    total = sum(weights)
    return sum(map(operator.mul, losses, weights)) / total if total else sum(losses) / len(losses)


def declare_layouts(problem: Problem, algorithm: Algorithm) -> tuple[Params, Params]:
    """What goes down and what goes up, as layouts: only names, shapes and types count; no name is a personal one."""
    shared, statistics = problem.first_shared()
    if algorithm.wire.layout is not None:
        down, up = algorithm.wire.layout({**shared, **statistics}, problem.first_personal())
        for way, layout in {"down": down, "up": up}.items():
            check_layout(layout, problem.split.personal, way)
        return down, up
    return {**shared, **statistics}, {} if algorithm.aggregator is None else {**shared, **statistics}
