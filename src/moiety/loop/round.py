"""The loop over rounds: sample a cohort, broadcast, let clients work, join their uploads, record."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from moiety import tree
from moiety.clients import DiskStore, Store, bernoulli_cohort, uniform_cohort
from moiety.clients.clock import Clock
from moiety.engines.auto import OPEN, make_engine, pick_fastest
from moiety.engines.base import Engine, RoundInfo
from moiety.engines.problem import Problem
from moiety.engines.processes import TIMEOUT
from moiety.engines.rows import Job
from moiety.loop.costs import Flops, flops_per_example, job_flops, memory_on_device
from moiety.loop.evaluate import client_functions
from moiety.loop.exchange import Arrival, Exchange
from moiety.loop.in_transit import InTransit
from moiety.loop.uploads import UploadOptions
from moiety.transport import Ledger, check
from moiety.types import Algorithm, Params, RoundRecord, Tree

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
    consistent: bool = True
    """False while a round is being closed: an interrupt at that moment must not be written as a checkpoint."""
    dropped: list[str] = field(default_factory=list)
    """Clients left out since the last evaluation, as ``round:client``."""
    in_transit: InTransit | None = None
    """Uploads under way, where the run has a clock."""
    run: str = ""
    """The id that all files of the run carry, where it has a folder."""


def begin_progress(
    problem: Problem,
    algorithm: Algorithm,
    folder: Path | None,
    clock: Clock | None = None,
    run: str = "",
    *,
    resumed: bool = False,
) -> Progress:
    """Everything as it is before the first round; with the folder of a run of that id, personal states live there.

    They must be there already where the run is ``resumed`` from a checkpoint.
    """

    def first() -> Tree:
        return problem.first_state(algorithm)

    on_disk = algorithm.stateful and bool(tree.leaves(first()))
    store = Store(first)
    if folder is not None and on_disk:
        store = DiskStore(first, folder / "clients", len(problem.data), run, resumed=resumed)
    ledger = Ledger(device_memory=memory_on_device(problem, first()))
    transit = None if clock is None else InTransit()
    return Progress(problem.first_server(algorithm), store, ledger, in_transit=transit, run=run)


@dataclass
class Loop:
    """The rounds of one run. ``engine_name`` may be ``auto``: the first cohort decides."""

    problem: Problem
    algorithm: Algorithm
    progress: Progress
    rounds: int
    cohort: int
    engine_name: str
    workers: int | None = None
    timeout: float = TIMEOUT
    uploads: UploadOptions = field(default_factory=UploadOptions)
    clock: Clock | None = None
    reason: str = "as asked"

    probe_clients: ClassVar[int | None] = None
    """With how many clients engines are compared where the choice is open; None for all of the first cohort."""

    def __post_init__(self) -> None:
        self.functions = client_functions(self.algorithm)
        self.keeps_states = self.algorithm.stateful and bool(tree.leaves(self.progress.store.first()))
        self.exchange = Exchange(self.problem, self.algorithm, self.uploads, self.progress.ledger)
        self.engine: Engine | None = None
        self.flops: dict[str, Flops] = {}

    def run_round(self) -> RoundRecord:
        """Run one round. It moves the server and the states of its clients, nothing else."""
        now = self.progress
        cohort, received, info = self.sample_cohort(), self.broadcast(), self.round_info(now.round)
        jobs = self.make_jobs(cohort, now.store.get(cohort), now.round)
        results = self.prepare_engine(jobs, received, info).map("train", jobs, received, info)
        with self.mark_inconsistent():
            self.count(jobs, received)
            return self.close_round([Arrival(job.client, *result) for job, result in zip(jobs, results, strict=True)])

    def sample_cohort(self) -> np.ndarray:
        """Draw the clients of this round."""
        draw = bernoulli_cohort if self.uploads.bernoulli else uniform_cohort
        return draw(len(self.problem.data), self.cohort, seed=self.problem.seed, round=self.progress.round)

    def broadcast(self) -> Params:
        """What the server sends now, checked by the guard."""
        received = self.algorithm.broadcast(self.progress.server)
        check(received, self.exchange.down, where=f"round {self.progress.round + 1}", what="broadcast")
        return received

    def round_info(self, t: int) -> RoundInfo:
        """What all clients of round ``t`` have in common."""
        return RoundInfo(t, self.algorithm.schedule.factor(t, self.rounds), t / max(self.rounds - 1, 1))

    def make_jobs(self, clients: Iterable[int], states: Iterable[Tree], t: int) -> list[Job]:
        """Jobs of ``clients`` with the batches and the draws of round ``t``."""
        return self.problem.make_jobs(self.algorithm.phases, clients, states, "train", t, part="train")

    def prepare_engine(self, jobs: list[Job], received: Params, info: RoundInfo) -> Engine:
        """The engine for local work. The first call counts FLOPs, and measures engines where the choice is open."""
        if not self.flops:
            self.flops = flops_per_example(self.problem, self.algorithm, received, self.progress.store.first())
        if jobs and self.engine_name in OPEN:
            sample = jobs[: self.probe_clients]
            self.engine, self.reason = pick_fastest(
                self.engine_name,
                self.problem,
                self.functions,
                sample,
                received,
                info,
                workers=self.workers,
                timeout=self.timeout,
            )
            self.engine_name = self.engine.name
        return self.get_engine()

    def get_engine(self) -> Engine:
        """The engine, made when first needed. While the choice is open, the sequential engine stands in."""
        if self.engine is None:
            name = "sequential" if self.engine_name in OPEN else self.engine_name
            self.engine = make_engine(name, self.problem, self.functions, self.workers, self.timeout)
        return self.engine

    @contextlib.contextmanager
    def mark_inconsistent(self) -> Iterator[None]:
        """Mark the progress as inconsistent in between; an error or an interrupt leaves the mark."""
        self.progress.consistent = False
        yield
        self.progress.consistent = True

    def count(self, jobs: list[Job], received: Params) -> None:
        """Enter a broadcast to clients and their local work into the ledger."""
        self.exchange.count_broadcast(received, jobs)
        self.count_work(jobs)

    def count_work(self, jobs: list[Job]) -> None:
        """Enter the local work of clients into the ledger."""
        for job in jobs:
            self.progress.ledger.work(*job_flops(self.flops, job))

    def close_round(
        self, arrivals: list[Arrival], *, time: float | None = None, staleness: tuple[int, ...] = ()
    ) -> RoundRecord:
        """Join the uploads that can be used, move the server, keep the new states; the round is over."""
        problem, algorithm, now = self.problem, self.algorithm, self.progress
        t, received = now.round, self.exchange.receive(arrivals, now.round)
        usable = [a for a in received if a.finite]
        if usable and len(usable) < self.uploads.least:
            problem.warn_once([self.uploads.explain_too_few()])
            usable = []
        elif arrivals and not usable:
            problem.warn_once([NOTHING_FINITE])
        if usable:
            aggregate = self.uploads.join(algorithm, [a.update for a in usable], problem.seed, t)
            if algorithm.aggregator is not None:
                now.server = algorithm.server_update(now.server, aggregate, len(usable) / len(problem.data))
            self.store_states([(a.client, a.state) for a in usable if a.state is not None])
        dropped = tuple(str(problem.data.ids[a.client]) for a in received if not (usable and a.finite))
        now.round = t + 1
        now.ledger.rounds += 1
        now.dropped += [f"{t + 1}:{name}" for name in dropped]
        problem.data.release()
        cohort = tuple(a.client for a in arrivals)
        return RoundRecord(t + 1, cohort, mean_train_loss(usable), dropped, None, time, staleness)

    def store_states(self, states: list[tuple[int, Tree]]) -> None:
        """Keep new states of clients, where the algorithm has any."""
        if self.keeps_states and states:
            self.progress.store.put([client for client, _ in states], [state for _, state in states])

    def history_fields(self) -> dict[str, Any]:
        """What a row of the history says besides scores and costs."""
        return {}

    def close(self) -> None:
        """End the engine; the next call makes a new one."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None


def mean_train_loss(arrivals: list[Arrival]) -> float:
    """The mean training loss of these clients, weighted as the aggregate is; NaN where there are none."""
    if not arrivals:
        return math.nan
    weights = [float(a.update.weight) for a in arrivals]
    return float(np.average([float(a.update.info["loss"]) for a in arrivals], weights=weights))
