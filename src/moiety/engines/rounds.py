"""The loop over rounds: sample, broadcast, local work, guard, aggregate, record."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from moiety import tree
from moiety.clients import DiskStore, MemoryStore, Store, uniform_cohort
from moiety.engines.choose import OPEN, Engine, fastest, make
from moiety.engines.costs import Flops, flops_per_example, job_flops, memory_on_device
from moiety.engines.evaluate import served
from moiety.engines.plan import Job
from moiety.engines.problem import Problem
from moiety.engines.ways import Ways, finite, sent
from moiety.rng import generator
from moiety.transport import Ledger, check
from moiety.types import Algorithm, ClientUpdate, Params, RoundRecord, Tree


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


def begin(problem: Problem, algorithm: Algorithm, folder: Path | None) -> Progress:
    """Everything as it is before the first round; with a folder, personal states live there."""
    server = algorithm.init_server(*problem.shared())

    def first() -> Tree:
        return problem.first(algorithm)

    kept = folder is not None and algorithm.stateful and bool(tree.leaves(first()))
    store = DiskStore(first, Path(str(folder)) / "clients", len(problem.data)) if kept else MemoryStore(first)
    return Progress(server, store, Ledger(device_memory=memory_on_device(problem, first())))


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

    def __post_init__(self) -> None:
        self.functions = served(self.algorithm)
        self.keeps = self.algorithm.stateful and bool(tree.leaves(self.progress.store.first()))

    def step(self) -> RoundRecord:
        """One round; the server and the states of its clients move, nothing else does."""
        problem, algorithm, now = self.problem, self.algorithm, self.progress
        t = now.round
        cohort = uniform_cohort(len(problem.data), self.cohort, seed=problem.seed, round=t)
        received = algorithm.broadcast(now.server)
        down, up = crossing(problem, algorithm)
        check(received, down, where=f"broadcast, round {t + 1}")
        jobs = problem.jobs(algorithm.phases, cohort, now.store.get(cohort), "train", t, part="train")
        scale = algorithm.schedule.factor(t, self.rounds)
        if not self.flops:
            self.flops = flops_per_example(problem, algorithm, received, now.store.first())
        if self.engine in OPEN:
            self.chosen, self.reason = fastest(
                self.engine, problem, self.functions, jobs, received, scale=scale, workers=self.workers
            )
            self.engine = self.chosen.name
        results = self.ready().map("train", jobs, received, scale=scale, round=t, elapsed=t / self.rounds)
        now.whole = False
        record = self._book(jobs, results, received, up)
        now.whole = True
        problem.data.release()
        return record

    def _book(self, jobs: list[Job], results: list[Tree], received: Params, expected: Params) -> RoundRecord:
        """Check what came back, aggregate it, keep the new states, and count the cost."""
        problem, algorithm, now, ways = self.problem, self.algorithm, self.progress, self.ways
        t = now.round
        kept: list[tuple[int, ClientUpdate, Tree]] = []
        dropped = []
        updates = ways.forged([update for update, _, _ in results], [job.client for job in jobs], problem.seed, t)
        # The guard sees that every upload is laid out as expected, so without a codec all cost the same.
        now.ledger.broadcast(received, len(jobs))
        for job, forged, (_, state, fine) in zip(jobs, updates, results, strict=True):
            name = str(problem.data.ids[job.client])
            check(forged.upload, expected, where=f"client {name}, round {t + 1}")
            now.ledger.flops += job_flops(self.flops, job)
            update = forged
            if ways.codec is not None:
                update, packed = sent(ways.codec, forged, generator(problem.seed, "codec", t, job.client))
                now.ledger.upload(packed)
            if fine and (ways.attack is None or finite(update)):
                kept.append((job.client, update, state))
            else:
                dropped.append(name)
        if ways.codec is None:
            now.ledger.upload(expected, len(jobs))
        if kept:
            aggregate = ways.join(algorithm, [u for _, u, _ in kept], problem.seed, t)
            now.server = algorithm.server_update(now.server, aggregate)
            if self.keeps:
                now.store.put([c for c, _, _ in kept], [s for _, _, s in kept])
        now.round = t + 1
        now.ledger.rounds += 1
        now.dropped += [f"{t + 1}:{name}" for name in dropped]
        return RoundRecord(t + 1, tuple(job.client for job in jobs), _train_loss(kept), tuple(dropped), None)

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
    if algorithm.crosses is not None:
        return algorithm.crosses(shared, problem.personal())
    return shared, shared if algorithm.uploads else {}


def _train_loss(kept: list[tuple[int, ClientUpdate, Tree]]) -> float:
    """The cohort's mean training loss, weighted as the aggregate is; NaN where no client was kept."""
    if not kept:
        return math.nan
    weights = [float(u.weight) for _, u, _ in kept]
    return float(np.average([float(u.info["loss"]) for _, u, _ in kept], weights=weights))
