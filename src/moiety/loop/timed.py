"""Rounds on a virtual clock (``moiety.clock`` says what each kind means): the engine computes, the clock delivers.

Nothing waits: a client's work is computed when it begins, and its upload is held until the clock says that it arrives.
So any engine serves, and what is under way is in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from moiety import tree
from moiety.clients import uniform_cohort
from moiety.clients.clock import Asynchronous, Clock, Delayed, Synchronous, Travel
from moiety.engines.rows import Job
from moiety.loop.costs import job_flops, job_search_flops
from moiety.loop.flight import Flight, Parcel
from moiety.loop.round import Arrival, Rounds, train_loss
from moiety.transport import check
from moiety.types import ClientUpdate, RoundRecord, Tree

COLLUDING = ("inner_product_manipulation", "a_little_is_enough", "mimic")
"""Attacks that are made of the honest uploads of the same round, of which an arrival alone has none."""


class Clocked(Rounds):
    """What the rounds of all clocks have in common."""

    @property
    def flight(self) -> Flight:
        """What is under way."""
        assert self.progress.flight is not None
        return self.progress.flight

    def seconds(self, travel: Travel, client: int) -> float:
        """How long the next turn of a client takes."""
        problem = self.problem
        return travel.seconds(problem.seed, client, str(problem.data.ids[client]), self.flight.turn(client))

    def guarded(self, client: int, update: ClientUpdate) -> ClientUpdate:
        """The update, seen by the guard before it leaves its client."""
        check(update.upload, self.up, where=f"client {self.problem.data.ids[client]}, round {self.progress.round + 1}")
        return update

    def aged(self) -> dict[str, Any]:
        """Mean and largest staleness of what arrived since the last row, and how much is under way."""
        stale, flight = self.flight.staleness, self.flight
        row = {"staleness": float(np.mean(stale)) if stale else None, "staleness_max": max(stale, default=None)}
        flight.staleness = []
        return {**row, "under_way": len(flight.parcels)}


class SynchronousRounds(Clocked):
    """Rounds as ever, each as long as the slowest client of its cohort."""

    def book(
        self, arrived: list[Arrival], *, time: float | None = None, staleness: tuple[int, ...] = ()
    ) -> RoundRecord:
        """The round is over when the last upload has arrived, whether it can be used or not."""
        assert isinstance(self.clock, Synchronous)
        self.flight.time += max((self.seconds(self.clock.travel, a.client) for a in arrived), default=0.0)
        return super().book(arrived, time=self.flight.time, staleness=staleness)

    def moment(self) -> dict[str, Any]:
        """The virtual time."""
        return {"time": self.flight.time}


class AsynchronousRounds(Clocked):
    """Mishchenko et al. 2023, Algorithm 3: a round is an arrival."""

    measured: ClassVar[int | None] = 1

    def step(self) -> RoundRecord:
        """Let clients begin until enough are active, then take the upload that arrives first (lines 3 and 4)."""
        now, flight = self.progress, self.flight
        self._begin()
        now.whole = False
        parcel = flight.next()
        assert parcel.update is not None
        stale = flight.steps - parcel.version
        flight.time = float(parcel.due)
        flight.staleness.append(stale)
        arrival = Arrival(parcel.client, parcel.update, parcel.state, parcel.fine)
        record = self.book([arrival], time=flight.time, staleness=(stale,))
        flight.steps += not record.dropped
        now.whole = True
        self.problem.data.release()
        return record

    def moment(self) -> dict[str, Any]:
        """Virtual time, staleness, and how many clients are at work."""
        return {"time": self.flight.time, **self.aged()}

    def _begin(self) -> None:
        """Lines 5 to 7 of the iteration before: clients that are not active get the newest parameters and work.

        At the start of a round and not at the end of the one before, so that no work is begun after the last round.
        """
        assert isinstance(self.clock, Asynchronous)
        problem, now, flight = self.problem, self.progress, self.flight
        active = {parcel.client for parcel in flight.parcels}
        wanted = self.clock.active - len(active)
        if not wanted:  # an interrupt came between the beginning and the arrival
            return
        clients = idle(len(problem.data), active, wanted, seed=problem.seed, round=now.round)
        received = self.broadcast()
        jobs = self.jobs(clients, now.store.get(clients), now.round)
        results = self.work(jobs, received, now.round)
        now.whole = False
        self.count(jobs, received)
        for job, (update, state, fine) in zip(jobs, results, strict=True):
            due = flight.time + self.seconds(self.clock.travel, job.client)
            kept = state if self.keeps else None
            flight.send(due, job.client, now.round, flight.steps, bool(fine), self.guarded(job.client, update), kept)
        now.whole = True


def idle(clients: int, active: Iterable[int], wanted: int, *, seed: int, round: int) -> list[int]:
    """``wanted`` clients drawn uniformly from those not active; where none is active, the cohort of that round.

    >>> idle(5, {1, 2}, 3, seed=0, round=0)
    [0, 3, 4]
    """
    busy = sorted(active)
    found = []
    for place in uniform_cohort(clients - len(busy), wanted, seed=seed, round=round).tolist():
        for each in busy:  # the place among the idle becomes the place among all
            place += place >= each
        found.append(place)
    return found


class DelayedRounds(Clocked):
    """Broadcasts that are some rounds old, uploads that arrive some rounds later."""

    def step(self) -> RoundRecord:
        """A round: clients work with what has reached them, the server steps with what has reached it."""
        problem, now, flight = self.problem, self.progress, self.flight
        assert isinstance(self.clock, Delayed)
        t, late = now.round, self.clock.at == "arrival"
        flight.versions[t] = self.broadcast()
        cohort = self.asked()
        jobs = self._jobs(cohort, now.store.get(cohort), t)
        versions = [max(0, t - self.clock.of(job.client)[0]) for job in jobs]
        results = self._work(jobs, versions, t)
        now.whole = False
        for version in sorted(set(versions)):
            some = [job for job, each in zip(jobs, versions, strict=True) if each == version]
            self.count(some, flight.versions[version])
        for job, version, (update, _, fine) in zip(jobs, versions, results, strict=True):
            due = t + self.clock.of(job.client)[1]
            # What is computed on arrival needs the state as it was before this work.
            before = job.state if late and self.keeps else None
            upload = None if late else self.guarded(job.client, update)
            flight.send(due, job.client, t, version, bool(fine), upload, before)
        self.keep([(job.client, state) for job, (_, state, fine) in zip(jobs, results, strict=True) if fine])
        # The loss is that of this round's work, at the parameters that predicted, and not of what arrives now.
        worked = [Arrival(job.client, *result) for job, result in zip(jobs, results, strict=True) if result[2]]
        loss = train_loss(worked)
        record = replace(self._arrive(t), train_loss=loss)
        oldest = t + 1 - self.clock.longest()[0]
        flight.versions = {version: each for version, each in flight.versions.items() if version >= oldest}
        now.whole = True
        problem.data.release()
        return record

    def moment(self) -> dict[str, Any]:
        """Staleness, and how many uploads are under way: lost, if the run ends here."""
        return self.aged()

    def _jobs(self, clients: Iterable[int], states: Iterable[Tree], t: int) -> list[Job]:
        """Turns of round ``t``, each with its client's round trip."""
        assert isinstance(self.clock, Delayed)
        return [j._replace(round_trip=sum(self.clock.of(j.client))) for j in self.jobs(clients, states, t)]

    def _work(self, jobs: list[Job], versions: list[int], t: int) -> list[Tree]:
        """What comes of the jobs of round ``t``, each with the broadcast of its version."""
        if len(set(versions)) == 1:
            return self.work(jobs, self.flight.versions[versions[0]], t)
        results: list[Tree] = [None] * len(jobs)
        for version in sorted(set(versions)):
            places = [i for i, each in enumerate(versions) if each == version]
            found = self.work([jobs[i] for i in places], self.flight.versions[version], t)
            for i, result in zip(places, found, strict=True):
                results[i] = tree.map_leaves(torch.clone, result)  # the engine may write there again
        return results

    def _arrive(self, t: int) -> RoundRecord:
        """Aggregate what is due in round ``t``."""
        flight = self.flight
        due: list[Parcel] = []
        while flight.parcels and flight.parcels[0].due <= t:
            due.append(flight.next())
        arrived = {p.number: Arrival(p.client, p.update, None, p.fine) for p in due if p.update is not None}
        # Those that are computed now, by the round whose batches they take.
        waiting = [p for p in due if p.update is None]
        for turn in sorted({p.turn for p in waiting}):
            some = [p for p in waiting if p.turn == turn]
            states = [p.state if self.keeps else self.progress.store.first() for p in some]
            jobs = self._jobs([p.client for p in some], states, turn)
            results = self._work(jobs, [t] * len(jobs), turn)
            for parcel, job, (update, _, fine) in zip(some, jobs, results, strict=True):
                kept = tree.map_leaves(torch.clone, update)
                arrived[parcel.number] = Arrival(parcel.client, kept, None, bool(fine))
                self.progress.ledger.flops += job_flops(self.flops, job)
                self.progress.ledger.search_flops += job_search_flops(self.flops, job)
        stale = tuple(t - p.version for p in due)
        flight.staleness += stale
        return self.book([arrived[p.number] for p in due], staleness=stale)


KINDS: dict[type, type[Rounds]] = {
    Asynchronous: AsynchronousRounds,
    Synchronous: SynchronousRounds,
    Delayed: DelayedRounds,
}


def loop_for(clock: Clock | None) -> type[Rounds]:
    """The kind of rounds that a clock asks for."""
    return Rounds if clock is None else KINDS[type(clock)]
