"""The loop over rounds: sample, broadcast, local work, guard, aggregate, record."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from moiety import tree
from moiety.clients import DiskStore, MemoryStore, Store, bernoulli_cohort, uniform_cohort
from moiety.clients.clock import Clock
from moiety.engines.auto import OPEN, Engine, fastest, make
from moiety.engines.problem import Problem
from moiety.engines.rows import Job
from moiety.loop.costs import Flops, flops_per_example, job_flops, job_search_flops, memory_on_device
from moiety.loop.evaluate import served
from moiety.loop.flight import Flight
from moiety.loop.uploads import Ways, finite, sent
from moiety.random import generator
from moiety.transport import Ledger, check
from moiety.types import Algorithm, ClientUpdate, Params, RoundRecord, Tree

NOTHING_FINITE = (
    "In some round no client's update was finite: all were left out, and nothing moved. Smaller steps may help."
)


@dataclass
class Progress:
    """What changes from round to round, and what a checkpoint holds."""

    server: Tree
    store: Store
    ledger: Ledger
    round: int = 0
    whole: bool = True
    """False while a round is being booked: an interrupt at that moment must not be written as a checkpoint."""
    dropped: list[str] = field(default_factory=list)
    """Clients left out since the last evaluation, as ``round:client``."""
    flight: Flight | None = None
    """What is under way, where the run has a clock."""


class Arrival(NamedTuple):
    """What the server gets of one client in a round; ``state`` is its new one, None where none is to be kept now."""

    client: int
    update: ClientUpdate
    state: Tree
    fine: bool


def begin(problem: Problem, algorithm: Algorithm, folder: Path | None, clock: Clock | None = None) -> Progress:
    """Everything as it is before the first round; with a folder, personal states live there."""
    server = problem.server(algorithm)

    def first() -> Tree:
        return problem.first(algorithm)

    kept = folder is not None and algorithm.stateful and bool(tree.leaves(first()))
    store = DiskStore(first, Path(str(folder)) / "clients", len(problem.data)) if kept else MemoryStore(first)
    ledger = Ledger(device_memory=memory_on_device(problem, first()))
    return Progress(server, store, ledger, flight=None if clock is None else Flight())


@dataclass
class Rounds:
    """One run's loop. ``engine`` may be ``auto``: the first cohort decides."""

    problem: Problem
    algorithm: Algorithm
    progress: Progress
    rounds: int
    cohort: int
    engine: str
    workers: int | None = None
    ways: Ways = field(default_factory=Ways)
    reason: str = "as asked"
    flops: dict[str, Flops] = field(default_factory=dict)
    chosen: Engine | None = None
    clock: Clock | None = None

    measured: ClassVar[int | None] = None
    """With how many clients engines are compared where the choice is open; None for all of the first cohort."""

    def __post_init__(self) -> None:
        self.functions = served(self.algorithm)
        self.keeps = self.algorithm.stateful and bool(tree.leaves(self.progress.store.first()))
        self.down, self.up = crossing(self.problem, self.algorithm)

    def step(self) -> RoundRecord:
        """One round; the server and the states of its clients move, nothing else does."""
        problem, now = self.problem, self.progress
        cohort = self.asked()
        received = self.broadcast()
        jobs = self.jobs(cohort, now.store.get(cohort), now.round)
        results = self.work(jobs, received, now.round)
        now.whole = False
        self.count(jobs, received)
        record = self.book([Arrival(job.client, *result) for job, result in zip(jobs, results, strict=True)])
        now.whole = True
        problem.data.release()
        return record

    def asked(self) -> np.ndarray:
        """The clients that take part in this round."""
        draw = bernoulli_cohort if self.ways.bernoulli else uniform_cohort
        return draw(len(self.problem.data), self.cohort, seed=self.problem.seed, round=self.progress.round)

    def moment(self) -> dict[str, Any]:
        """What a row of the history says beside scores and costs."""
        return {}

    def broadcast(self) -> Params:
        """What goes down now, seen by the guard."""
        received = self.algorithm.broadcast(self.progress.server)
        check(received, self.down, where=f"round {self.progress.round + 1}", what="broadcast")
        return received

    def jobs(self, clients: Iterable[int], states: Iterable[Tree], t: int) -> list[Job]:
        """Turns of ``clients`` with the batches and the chance of round ``t``."""
        return self.problem.jobs(self.algorithm.phases, clients, states, "train", t, part="train")

    def work(self, jobs: list[Job], received: Params, t: int) -> list[Tree]:
        """The local work of clients in round ``t``, by the engine; the first call decides which, where that is open."""
        problem, algorithm = self.problem, self.algorithm
        scale = algorithm.schedule.factor(t, self.rounds)
        if not self.flops:
            self.flops = flops_per_example(problem, algorithm, received, self.progress.store.first())
        if not jobs:
            return []
        if self.engine in OPEN:
            some = jobs[: self.measured]
            self.chosen, self.reason = fastest(
                self.engine, problem, self.functions, some, received, scale=scale, workers=self.workers
            )
            self.engine = self.chosen.name
        return self.ready().map("train", jobs, received, scale=scale, round=t, elapsed=t / max(self.rounds - 1, 1))

    def count(self, jobs: list[Job], received: Params) -> None:
        """Enter a broadcast to clients and their local work into the ledger."""
        ledger, traffic = self.progress.ledger, self.algorithm.wire.traffic
        if traffic is None:
            ledger.broadcast(received, len(jobs))
        for job in jobs:
            ledger.flops += job_flops(self.flops, job)
            ledger.search_flops += job_search_flops(self.flops, job)
            if traffic is not None:
                ledger.down(*traffic.down(received, job.state))

    def book(
        self, arrived: list[Arrival], *, time: float | None = None, staleness: tuple[int, ...] = ()
    ) -> RoundRecord:
        """Check what came back, aggregate it, keep the new states, and count the cost; the round is over."""
        problem, algorithm, now, ways = self.problem, self.algorithm, self.progress, self.ways
        t = now.round
        kept: list[Arrival] = []
        dropped = []
        updates = ways.forged([a.update for a in arrived], [a.client for a in arrived], problem.seed, t)
        for arrival, forged in zip(arrived, updates, strict=True):
            name = str(problem.data.ids[arrival.client])
            check(forged.upload, self.up, where=f"client {name}, round {t + 1}")
            update = forged
            if ways.codec is not None:
                rng = generator(problem.seed, "codec", t, arrival.client)
                update, packed = sent(ways.codec, forged, rng, self.uncompressed)
                now.ledger.upload(packed)
                if algorithm.wire.traffic is not None:
                    now.ledger.up(0, algorithm.wire.traffic.beside(forged))
            elif algorithm.wire.traffic is not None:
                now.ledger.up(*algorithm.wire.traffic.up(forged))
            touched = ways.attack is not None or ways.codec is not None
            if arrival.fine and (not touched or finite(update)):
                kept.append(arrival._replace(update=update))
            else:
                dropped.append(name)
        # The guard sees that every upload is laid out as expected, so without a codec all cost the same.
        if ways.codec is None and algorithm.wire.traffic is None:
            now.ledger.upload(self.up, len(arrived))
        if kept and not ways.enough(len(kept)):  # such a round is left out: nothing moves
            problem.say([ways.too_few()])
            kept, dropped = [], [str(problem.data.ids[a.client]) for a in arrived]
        elif arrived and not kept:
            problem.say([NOTHING_FINITE])
        if kept:
            aggregate = ways.join(algorithm, [a.update for a in kept], problem.seed, t)
            if algorithm.aggregator is not None:
                now.server = algorithm.server_update(now.server, aggregate, len(kept) / len(problem.data))
            self.keep([(a.client, a.state) for a in kept if a.state is not None])
        now.round = t + 1
        now.ledger.rounds += 1
        now.dropped += [f"{t + 1}:{name}" for name in dropped]
        cohort = tuple(a.client for a in arrived)
        return RoundRecord(t + 1, cohort, train_loss(kept), tuple(dropped), None, time, staleness)

    def uncompressed(self, name: str) -> bool:
        """Whether a codec leaves a tensor alone: what the algorithm says, and statistics, which must stay sane."""
        return name in self.problem.shared()[1] or self.algorithm.wire.uncompressed(name)

    def keep(self, states: list[tuple[int, Tree]]) -> None:
        """Keep new states of clients, where there is anything to keep."""
        if self.keeps and states:
            self.progress.store.put([client for client, _ in states], [state for _, state in states])

    def ready(self) -> Engine:
        """The engine, made when first needed; where the choice is still open the reference serves."""
        if self.chosen is None:
            name = "sequential" if self.engine in OPEN else self.engine
            self.chosen = make(name, self.problem, self.functions, self.workers)
        return self.chosen

    def close(self) -> None:
        """End the engine; the next call makes a new one."""
        if self.chosen is not None:
            self.chosen.close()
            self.chosen = None


def crossing(problem: Problem, algorithm: Algorithm) -> tuple[Params, Params]:
    """What goes down and what goes up, as layouts."""
    shared = {**problem.shared()[0], **problem.shared()[1]}
    if algorithm.wire.layout is not None:
        return algorithm.wire.layout(shared, problem.personal())
    return shared, {} if algorithm.aggregator is None else shared


def train_loss(kept: list[Arrival]) -> float:
    """The cohort's mean training loss, weighted as the aggregate is; NaN where no client was kept."""
    if not kept:
        return math.nan
    weights = [float(a.update.weight) for a in kept]
    return float(np.average([float(a.update.info["loss"]) for a in kept], weights=weights))
