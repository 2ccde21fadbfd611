"""Rounds on a virtual clock (``moiety.clock`` says what each kind means): the engine computes, the clock delivers.

Nothing waits: a client's work is computed when it begins, and its upload is held until the clock says that it arrives.
So any engine serves, and what is under way is in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite, nan
from typing import Any, ClassVar

import numpy as np

from moiety import tree
from moiety.clients import uniform_cohort
from moiety.clients.clock import Asynchronous, Clock, Delayed, Synchronous, Travel
from moiety.engines.rows import Job
from moiety.loop.exchange import Arrival, Missing, Received, mean_loss
from moiety.loop.in_transit import InTransit, Message
from moiety.loop.round import Loop
from moiety.types import ClientUpdate, Params, RoundRecord, Tree

COLLUDING = ("inner_product_manipulation", "a_little_is_enough", "mimic")
"""Attacks that are made from the honest uploads of the same round; a single arrival has none."""

LOST = "lost on its way"


class ClockedLoop(Loop):
    """What the loops of all clocks have in common."""

    @property
    def in_transit(self) -> InTransit:
        """What is under way."""
        assert self.progress.in_transit is not None
        return self.progress.in_transit

    def turn_seconds(self, travel: Travel, client: int) -> float:
        """How long the next turn of a client takes."""
        turn = self.in_transit.turns.get(client, 0)
        return travel.seconds(self.problem.seed, client, self.name_client(client), turn)

    def compute(self, jobs: Sequence[Job], received: Params, t: int) -> Sequence[Tree]:
        """The local work of clients with the batches and the draws of round ``t``."""
        info = self.round_info(t)
        return self.prepare_engine(jobs, received, info).map("train", jobs, received, info)

    def staleness_fields(self) -> dict[str, Any]:
        """Mean and largest staleness of what arrived since the last row, and how much is under way."""
        return staleness_of(self.in_transit)


def staleness_of(transit: InTransit) -> dict[str, Any]:
    """Mean and largest staleness of what arrived since it was last asked for, and how much is under way."""
    stale, transit.staleness = transit.staleness, []
    mean, most = float(np.mean(stale)) if stale else None, max(stale, default=None)
    return {"staleness": mean, "staleness_max": most, "under_way": len(transit.messages)}


class SynchronousLoop(ClockedLoop):
    """Rounds as without a clock, each as long as the slowest client of its cohort."""

    clock: Synchronous

    def close_round(
        self, received: Received, *, time: float | None = None, staleness: tuple[int, ...] = ()
    ) -> RoundRecord:
        """The round is over when the last upload has arrived, whether it can be used or not."""
        transit = self.in_transit
        transit.time += max((self.turn_seconds(self.clock.travel, client) for client in received.clients), default=0.0)
        record = super().close_round(received, time=transit.time, staleness=staleness)
        for client in received.clients:
            transit.count_turn(client)
        return record

    def history_fields(self) -> dict[str, Any]:
        """The virtual time."""
        return {"time": self.in_transit.time}


class AsynchronousLoop(ClockedLoop):
    """Mishchenko et al. 2023, Algorithm 3: a round is an arrival."""

    clock: Asynchronous
    probe_clients: ClassVar[int | None] = 1

    def run_round(self) -> RoundRecord:
        """Let clients begin until enough are active, then take the upload that arrives first (lines 3 and 4)."""
        transit = self.in_transit
        self._start_clients()
        with self.mark_inconsistent():
            first = transit.receive_next()
            assert first.update is not None
            stale = transit.steps - first.version
            transit.time = float(first.due)
            received = self.open_round()
            if self.clock.travel.loses(self.name_client(first.client), transit.turns[first.client] - 1):
                received.leave_out(Missing(first.client, LOST))
            else:
                transit.staleness.append(stale)
                arrival = make_arrival(first, first.update, first.state)
                self.exchange.receive_each(received, [arrival], self.progress.round)
            record = self.close_round(received, time=transit.time, staleness=(stale,))
            transit.steps += not record.dropped
        return record

    def history_fields(self) -> dict[str, Any]:
        """Virtual time, staleness, and how many clients are at work."""
        return {"time": self.in_transit.time, **self.staleness_fields()}

    def _start_clients(self) -> None:
        """Lines 5 to 7 of the iteration before: clients that are not active get the newest parameters and work.

        At the start of a round and not at the end of the one before, so that no work is begun after the last round.
        """
        now, transit = self.progress, self.in_transit
        active = {each.client for each in transit.messages}
        count = self.clock.active - len(active)
        if not count:  # an interrupt came between the beginning and the arrival
            return
        clients = draw_idle(len(self.problem.data), active, count, seed=self.problem.seed, round=now.round)
        received = self.broadcast()
        jobs = self.make_jobs(clients, now.store.get(clients), now.round)
        results = self.compute(jobs, received, now.round)
        with self.mark_inconsistent():
            self.count(jobs, received)
            for job, (update, state, largest) in zip(jobs, results, strict=True):
                due = transit.time + self.turn_seconds(self.clock.travel, job.client)
                transit.count_turn(job.client)
                self.exchange.check_upload(update, job.client, now.round)
                new_state = state if self.keeps_states else None
                transit.send(due, job.client, now.round, transit.steps, isfinite(largest), update, new_state)


def draw_idle(clients: int, active: Iterable[int], count: int, *, seed: int, round: int) -> list[int]:
    """``count`` clients drawn uniformly from those not active; where none is active, the cohort of that round.

    >>> draw_idle(5, {1, 2}, 3, seed=0, round=0)
    [0, 3, 4]
    """
    busy = sorted(active)
    idle = []
    for place in uniform_cohort(clients - len(busy), count, seed=seed, round=round).tolist():
        for each in busy:  # the place among the idle becomes the place among all
            place += place >= each
        idle.append(place)
    return idle


class DelayedLoop(ClockedLoop):
    """Rounds with fixed delays: clients receive old broadcasts, and their uploads arrive some rounds later."""

    clock: Delayed

    def run_round(self) -> RoundRecord:
        """A round: clients work with what has reached them, the server steps with what has reached it."""
        now, transit, clock = self.progress, self.in_transit, self.clock
        t, late = now.round, clock.at == "arrival"
        transit.versions[t] = self.broadcast()
        cohort = self.sample_cohort()
        jobs = self.make_jobs(cohort, now.store.get(cohort), t)
        versions = [max(0, t - clock.of(job.client)[0]) for job in jobs]
        results = self._compute_by_version(jobs, versions, t)
        with self.mark_inconsistent():
            for version, places in group_places(versions):
                self.count([jobs[i] for i in places], transit.versions[version])
            for job, version, (update, _, largest) in zip(jobs, versions, results, strict=True):
                if not late:
                    self.exchange.check_upload(update, job.client, t)
                # What is computed on arrival needs the state as it was before this work.
                before = job.state if late and self.keeps_states else None
                upload = None if late else update
                transit.send(t + clock.of(job.client)[1], job.client, t, version, isfinite(largest), upload, before)
            # The loss is of this round's work, not of what arrives now.
            turns = [(job.client, *result) for job, result in zip(jobs, results, strict=True) if isfinite(result[2])]
            losses = [float(update.info["loss"]) for _, update, *_ in turns]
            weights = [float(update.weight) for _, update, *_ in turns]
            # What is computed on arrival may be written over these states.
            states = [(client, tree.clone(state) if late else state) for client, _, state, _ in turns]
            record = replace(self._receive_due(t), train_loss=mean_loss(losses, weights))
            self.store_states(states)
            oldest = t + 1 - clock.longest()[0]
            transit.versions = {version: each for version, each in transit.versions.items() if version >= oldest}
        return record

    def history_fields(self) -> dict[str, Any]:
        """Staleness, and how many uploads are under way: lost, if the run ends here."""
        return self.staleness_fields()

    def make_jobs(self, clients: Iterable[int], states: Iterable[Tree], t: int) -> Sequence[Job]:
        """Jobs of round ``t``, each with its client's round trip."""
        jobs = super().make_jobs(clients, states, t)
        return [job._replace(round_trip=sum(self.clock.of(job.client))) for job in jobs]

    def _compute_by_version(self, jobs: Sequence[Job], versions: list[int], t: int) -> list[Tree]:
        """The local work of round ``t``, each client with the broadcast of its version."""
        results: list[Tree] = [None] * len(jobs)
        for version, places in group_places(versions):
            group = self.compute([jobs[i] for i in places], self.in_transit.versions[version], t)
            # The next group may be written over this one.
            for i, result in zip(places, group if len(group) == len(jobs) else tree.clone(list(group)), strict=True):
                results[i] = result
        return results

    def _receive_due(self, t: int) -> RoundRecord:
        """Close round ``t`` with what is due in it."""
        transit = self.in_transit
        due: list[Message] = []
        while transit.messages and transit.messages[0].due <= t:
            due.append(transit.receive_next())
        arrivals: dict[int, Arrival] = {}
        if self.clock.at == "dispatch":
            arrivals = {i: make_arrival(m, m.update, None) for i, m in enumerate(due)}
        # Where uploads are computed on arrival, they are computed with the batches of the round they began in.
        for turn, places in group_places([m.turn for m in due] if self.clock.at == "arrival" else []):
            states = [due[i].state if self.keeps_states else self.progress.store.first() for i in places]
            jobs = self.make_jobs([due[i].client for i in places], states, turn)
            results = self.compute(jobs, transit.versions[t], turn)
            for i, (update, _, largest) in zip(places, results, strict=True):
                arrivals[i] = Arrival(due[i].client, tree.clone(update), None, float(largest))
            self.count_work(jobs)
        stale = tuple(t - m.version for m in due)
        transit.staleness += stale
        received = self.open_round()
        self.exchange.receive_each(received, [arrivals[i] for i in range(len(due))], t)
        return self.close_round(received, staleness=stale)


def make_arrival(message: Message, update: ClientUpdate | None, state: Tree) -> Arrival:
    """The arrival of an upload that was under way."""
    assert update is not None
    return Arrival(message.client, update, state, float(tree.largest(update.upload)) if message.finite else nan)


def group_places(keys: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Each key, ascending, with the places where it stands.

    >>> list(group_places([5, 3, 5]))
    [(3, [1]), (5, [0, 2])]
    """
    for key in sorted(set(keys)):
        yield key, [i for i, each in enumerate(keys) if each == key]


LOOPS: dict[type, type[Loop]] = {
    Asynchronous: AsynchronousLoop,
    Synchronous: SynchronousLoop,
    Delayed: DelayedLoop,
}


def choose_loop(clock: Clock | None) -> type[Loop]:
    """The kind of loop that a clock needs."""
    return Loop if clock is None else LOOPS[type(clock)]
