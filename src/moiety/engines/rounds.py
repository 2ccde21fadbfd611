"""The loop over rounds: sample, broadcast, local work, guard, aggregate, record."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from moiety import tree
from moiety.clients import MemoryStore, uniform_cohort
from moiety.engines.choose import ENGINES, Engine, fastest
from moiety.engines.costs import flops_per_example, job_flops, memory_on_device
from moiety.engines.problem import Problem
from moiety.transport import Ledger, check
from moiety.types import Algorithm, ClientUpdate, RoundRecord, Tree


@dataclass
class Progress:
    """What changes from round to round, and what a checkpoint holds."""

    server: Tree
    store: MemoryStore
    ledger: Ledger
    round: int = 0
    dropped: list[str] = field(default_factory=list)
    """Clients left out since the last evaluation, as ``round:client``."""


def begin(problem: Problem, algorithm: Algorithm) -> Progress:
    """Everything as it is before the first round."""
    server = algorithm.init_server(*problem.shared())
    store = MemoryStore(lambda: algorithm.init_client(problem.personal()))
    return Progress(server, store, Ledger(device_memory=memory_on_device(problem)))


@dataclass
class Rounds:
    """One run's loop. ``engine`` may be ``auto``: the first cohort decides."""

    problem: Problem
    algorithm: Algorithm
    progress: Progress
    rounds: int
    cohort: int
    engine: str
    reason: str = "as asked"
    flops: dict[str, float] = field(default_factory=dict)
    chosen: Engine | None = None

    def step(self) -> RoundRecord:
        """One round; the server and the states of its clients move, nothing else does."""
        problem, algorithm, now = self.problem, self.algorithm, self.progress
        t = now.round
        cohort = uniform_cohort(len(problem.data), self.cohort, seed=problem.seed, round=t)
        received = algorithm.broadcast(now.server)
        declared = {**problem.shared()[0], **problem.shared()[1]}
        check(received, declared, where=f"broadcast, round {t + 1}")
        jobs = problem.jobs(algorithm.phases, cohort, now.store.get(cohort), "train", t, part="train")
        scale = algorithm.schedule.factor(t, self.rounds)
        if not self.flops:
            self.flops = flops_per_example(problem, algorithm, received, now.store.first())
        if self.engine == "auto":
            self.chosen, self.reason = fastest(problem, algorithm.client_update, jobs, received, scale=scale)
            self.engine = self.chosen.name
        results = self.ready().map(problem, algorithm.client_update, jobs, received, scale=scale, round=t)

        now.ledger.down(received, len(jobs))
        kept: list[tuple[int, ClientUpdate, Tree]] = []
        dropped = []
        for job, (update, state) in zip(jobs, results, strict=True):
            name = str(problem.data.ids[job.client])
            check(update.upload, declared, where=f"client {name}, round {t + 1}")
            now.ledger.up(update.upload)
            now.ledger.flops += job_flops(self.flops, job)
            if tree.is_finite((update, state)):
                kept.append((job.client, update, state))
            else:
                dropped.append(name)
        if kept:
            now.server = algorithm.server_update(now.server, algorithm.aggregator([u for _, u, _ in kept]))
            if algorithm.stateful:
                now.store.put([c for c, _, _ in kept], [s for _, _, s in kept])
        now.round = t + 1
        now.ledger.rounds += 1
        now.dropped += [f"{t + 1}:{name}" for name in dropped]
        return RoundRecord(t + 1, tuple(int(c) for c in cohort), _train_loss(kept), tuple(dropped), None)

    def ready(self) -> Engine:
        """The engine, made when first needed; before the first round of ``auto`` the reference serves."""
        if self.chosen is None:
            self.chosen = ENGINES["sequential" if self.engine == "auto" else self.engine]()
        return self.chosen


def _train_loss(kept: list[tuple[int, ClientUpdate, Tree]]) -> float:
    """The cohort's mean training loss, weighted as the aggregate is; NaN where no client was kept."""
    if not kept:
        return math.nan
    weights = [float(u.weight) for _, u, _ in kept]
    return float(np.average([float(u.info["loss"]) for _, u, _ in kept], weights=weights))
