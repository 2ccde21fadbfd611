"""The loop over rounds: sample a cohort, broadcast, let clients work, join their uploads, record."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from moiety import tree
from moiety.clients import DiskStore, Store, bernoulli_cohort, uniform_cohort
from moiety.clients.clock import Clock
from moiety.engines.auto import OPEN, make_engine, pick_engine
from moiety.engines.base import Engine, Results, RoundInfo
from moiety.engines.jobs import Jobs, clients_of
from moiety.engines.problem import Problem
from moiety.engines.processes import SLOTS, TIMEOUT, count_slots
from moiety.engines.rows import Job
from moiety.loop.costs import Flops, flops_per_example, job_flops, memory_on_device
from moiety.loop.divergence import BARREN_ROUNDS, DivergenceError, explain_barren, explain_server, is_too_large
from moiety.loop.evaluate import Evaluation, client_functions, evaluate
from moiety.loop.exchange import Exchange, Received, mean_loss
from moiety.loop.in_transit import InTransit
from moiety.loop.private_sum import PrivateSum
from moiety.loop.uploads import UploadOptions
from moiety.server.mean import count_rows, weighted_mean
from moiety.transport import Ledger, check
from moiety.transport.privacy import PrivacyState, draw_cohort
from moiety.types import Algorithm, Params, RoundRecord, Tree

DRAWN_AHEAD = 2048
"""About how many clients are drawn at a time, for the rounds to come."""


@dataclass
class Progress:
    """What changes from round to round, and what a checkpoint holds."""

    server: Tree
    store: Store
    ledger: Ledger
    round: int = 0
    consistent: bool = True
    """False while a round is being closed: an interrupt at that moment must not be written as a checkpoint."""
    dropped: list[list[str]] = field(default_factory=list)
    """Clients left out since the last evaluation: ``round:client``, and why."""
    barren: int = 0
    """How many rounds in a row had no client whose update was finite. No checkpoint is written meanwhile."""
    in_transit: InTransit | None = None
    """Uploads under way, where the run has a clock."""
    run: str = ""
    """The id that all files of the run carry, where it has a folder."""
    privacy: PrivacyState | None = None
    """Noise, clip and the number of noisy sums, where the run has privacy."""


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
    state = problem.first_state(algorithm)
    has_state = bool(tree.leaves(state))

    def first() -> Tree:
        return problem.first_state(algorithm) if has_state else state

    on_disk = algorithm.stateful and has_state
    store = Store(first)
    if folder is not None and on_disk:
        store = DiskStore(first, folder / "clients", len(problem.data), run, resumed=resumed)
    ledger = Ledger(device_memory=memory_on_device(problem, algorithm, first()))
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
    on_divergence: str = "stop"
    reason: str = "as asked"
    on_engine: Callable[[Engine], None] = lambda engine: None
    """Called with the engine before it does local work, so that a choice made by measuring is written down."""
    on_devices: bool = False
    """Whether the states of clients are on their devices, where nobody else can read them."""
    on_noise: Callable[[PrivacyState], None] = lambda state: None
    """Called before noise is drawn, with the state that counts the draw: the count must outlive a kill."""

    probe_clients: ClassVar[int | None] = None
    """With how many clients engines are compared where the choice is open; None for all of the first cohort."""

    def __post_init__(self) -> None:
        self.functions = client_functions(self.problem, self.algorithm)
        self.keeps_states = self.algorithm.stateful and bool(tree.leaves(self.progress.store.first()))
        self.exchange = Exchange(self.problem, self.algorithm, self.uploads, self.progress.ledger)
        self.together = count_slots((self.exchange.up, self.progress.store.first()), SLOTS)
        self.engine: Engine | None = None
        self.flops: dict[str, Flops] = {}
        self.cohorts: dict[int, np.ndarray] = {}

    def run_round(self) -> RoundRecord:
        """Run one round. It moves the server and the states of its clients, nothing else.

        Where uploads are summed as they arrive, clients are served a few at a time, so that few uploads are in memory.
        """
        now = self.progress
        cohort, broadcast, info = self.sample_cohort(), self.broadcast(), self.round_info(now.round)
        jobs = self.make_jobs(cohort, now.store.get(cohort), now.round)
        engine = self.prepare_engine(jobs, broadcast, info)
        received = self.open_round()
        at_once = received.running is None or self.uploads.attack is not None
        step = len(jobs) if at_once else self.count_together(len(jobs))
        for at in range(0, len(jobs), max(step, 1)):
            piece, before = jobs[at : at + step] if step < len(jobs) else jobs, len(received.states)
            results = engine.map("train", piece, broadcast, info)
            if not at:
                received.private = self.count_local_noise()
            self.exchange.receive(received, clients_of(piece), results, now.round)
            if step < len(jobs) and isinstance(results, Results):  # the next results may be written over these
                received.states[before:] = [(client, tree.clone(state)) for client, state in received.states[before:]]
            del results  # before the next are computed
        with self.mark_inconsistent():
            self.count(jobs, broadcast)
            return self.close_round(received)

    def open_round(self) -> Received:
        """An empty record of what a round receives."""
        privacy, state = self.uploads.privacy, self.progress.privacy
        running = self.uploads.running_sum(self.algorithm)
        if privacy is not None and state is not None and not privacy.local:
            mean = self.algorithm.aggregator is weighted_mean
            running = PrivateSum(privacy, state, self.exchange.up, expected=self.cohort, mean=mean)
        return Received(running, keeps_states=self.keeps_states)

    def count_noise(self) -> PrivacyState:
        """Count a draw of noise, before it is made."""
        assert self.progress.privacy is not None
        self.progress.privacy = self.progress.privacy.count_sum(self.sampling_rate)
        self.on_noise(self.progress.privacy)
        return self.progress.privacy

    def count_local_noise(self) -> PrivacyState | None:
        """Count the noise that clients add to their uploads of a round, and name it; None where they add none here."""
        local = self.uploads.privacy is not None and self.uploads.privacy.local
        return self.count_noise() if local else None

    @property
    def sampling_rate(self) -> float:
        """The probability with which a client takes part, where chance amplifies privacy; else 1."""
        privacy, uploads = self.uploads.privacy, self.uploads
        assert privacy is not None
        return privacy.sampling_rate(self.cohort, len(self.problem.data), independent=uploads.bernoulli)

    def count_together(self, cohort: int) -> int:
        """How many clients of a cohort are served together, where their uploads are not kept.

        It depends on sizes alone: not on the engine, nor on its workers. So does the order in which uploads are summed.
        """
        most = self.together
        if most < cohort:
            rows = count_rows(self.exchange.up)
            most -= most % rows if most >= rows else 0
        return min(most, cohort)

    def sample_cohort(self) -> np.ndarray:
        """The clients of this round.

        Those of several rounds are drawn in one go, which is several times as quick as drawing each between two rounds.
        """
        t, privacy, state = self.progress.round, self.uploads.privacy, self.progress.privacy
        if privacy is not None and state is not None and self.sampling_rate < 1:  # the run's seed is no secret
            return draw_cohort(privacy, state, len(self.problem.data), self.cohort)
        if t not in self.cohorts:
            draw = bernoulli_cohort if self.uploads.bernoulli else uniform_cohort
            clients, ahead = len(self.problem.data), max(1, DRAWN_AHEAD // self.cohort)
            rounds = range(t, max(t + 1, min(t + ahead, self.rounds)))
            self.cohorts = {r: draw(clients, self.cohort, seed=self.problem.seed, round=r) for r in rounds}
        return self.cohorts.pop(t)

    def broadcast(self) -> Params:
        """What the server sends now, copied, and checked by the guard."""
        received = self.problem.broadcast(self.algorithm, self.progress.server)
        check(received, self.exchange.down, where=f"round {self.progress.round + 1}", what="broadcast")
        return received

    def round_info(self, t: int) -> RoundInfo:
        """What all clients of round ``t`` have in common."""
        return RoundInfo(t, self.algorithm.schedule.factor(t, self.rounds), t / max(self.rounds - 1, 1))

    def make_jobs(self, clients: Iterable[int], states: Iterable[Tree], t: int) -> Sequence[Job]:
        """Jobs of ``clients`` with the batches and the draws of round ``t``."""
        return self.problem.make_jobs(self.algorithm.phases, clients, states, "train", t, part="train")

    def prepare_engine(self, jobs: Sequence[Job], received: Params, info: RoundInfo) -> Engine:
        """The engine for local work. The first call chooses one where the choice is open."""
        if jobs and self.engine_name in OPEN:
            sample = jobs[: self.probe_clients]
            self.engine, self.reason = pick_engine(
                self.engine_name,
                self.problem,
                self.functions,
                sample,
                received,
                info,
                flops=[self.job_flops(job)[0] for job in sample],
                rounds=self.rounds - self.progress.round,
                workers=self.workers,
                timeout=self.timeout,
            )
            self.engine_name = self.engine.name
        engine = self.get_engine()
        if jobs:
            self.on_engine(engine)
        return engine

    def get_engine(self) -> Engine:
        """The engine, made when first needed. While the choice is open, the sequential engine stands in."""
        if self.engine is None:
            name = "sequential" if self.engine_name in OPEN else self.engine_name
            self.engine = make_engine(name, self.problem, self.functions, self.workers, self.timeout)
        return self.engine

    @contextlib.contextmanager
    def mark_inconsistent(self) -> Iterator[None]:
        """Mark the progress as inconsistent within the block; an error or an interrupt leaves the mark.

        A run that diverged goes back to where it was before.
        """
        now = self.progress
        now.consistent = False
        ledger, transit = replace(now.ledger), now.in_transit and now.in_transit.copy()
        try:
            yield
        except DivergenceError:
            now.ledger = self.exchange.ledger = ledger
            now.in_transit, now.consistent = transit, True
            raise
        now.consistent = True

    def count(self, jobs: Sequence[Job], received: Params) -> None:
        """Enter a broadcast to clients and their local work into the ledger."""
        self.exchange.count_broadcast(received, jobs)
        self.count_work(jobs)

    def count_work(self, jobs: Sequence[Job]) -> None:
        """Enter the local work of clients into the ledger."""
        # Turns of one length cost the same, unless something is sparse.
        if not self.algorithm.sparsity and (isinstance(jobs, Jobs) or len({_length_of(job) for job in jobs}) == 1):
            flops, search = self.job_flops(jobs[0])
            self.progress.ledger.work(len(jobs) * flops, len(jobs) * search)
            return
        for job in jobs:
            self.progress.ledger.work(*self.job_flops(job))

    def job_flops(self, job: Job) -> tuple[float, float]:
        """Operations of one client's turn, and those that search for masks; counted when first asked for."""
        if not self.flops:
            first = self.problem.first_state(self.algorithm)
            self.flops = flops_per_example(self.problem, self.algorithm, self.broadcast(), first)
        return job_flops(self.flops, job)

    def close_round(
        self, received: Received, *, time: float | None = None, staleness: tuple[int, ...] = ()
    ) -> RoundRecord:
        """Join the uploads that can be used, move the server, keep the new states; the round is over."""
        problem, algorithm, now = self.problem, self.algorithm, self.progress
        t, usable = now.round, len(received.usable)
        now.ledger.up(received.values, received.payload)
        dropped = {self.name_client(client): why for client, why in received.dropped.items()}
        absent = {self.name_client(client): why for client, why in received.absent.items()}
        least = self.count_needed(len(dropped))
        private = isinstance(received.running, PrivateSum)  # a sum with noise is made of however many there are
        left_out = 0 < usable < least and not private
        if left_out:
            self.warn_first("too few", f"Round {t + 1} is left out: {usable} finite uploads, {least} are needed.")
            usable = 0
        barren = now.barren + self._is_barren(received.clients) if not (usable or left_out) else 0
        if barren > now.barren:
            self.report_divergence("barren", explain_barren(dropped, t + 1, barren), stop=barren >= BARREN_ROUNDS)
        share = usable / len(problem.data)
        if usable or private:
            if isinstance(
                received.running, PrivateSum
            ):  # also where nobody sent anything: noise must not tell who was there
                aggregate, now.privacy = received.running.release(self.count_noise())
                share = self.cohort / len(problem.data)
            elif received.running is not None:
                aggregate = received.running.result()
            else:
                aggregate = self.uploads.join(algorithm, received.updates, problem.seed, t, len(dropped))
            if algorithm.aggregator is not None:
                server = algorithm.server_update(now.server, aggregate, share)
                if not tree.all_finite((aggregate, server)):
                    largest = dict(zip(map(self.name_client, received.usable), received.largest, strict=True))
                    self.report_divergence("server", explain_server(aggregate, server, largest, t + 1))
                now.server = server
            self.store_states(received.states)
        now.round, now.barren = t + 1, barren
        now.ledger.rounds += 1
        missing = dropped | absent
        now.dropped += [[f"{t + 1}:{name}", why] for name, why in missing.items()]
        problem.data.release()
        cohort, why = (*received.clients, *received.absent), tuple(missing.values())
        return RoundRecord(
            t + 1,
            cohort,
            mean_loss(received.losses, received.weights) if usable else math.nan,
            tuple(missing),
            None,
            time,
            staleness,
            reasons=why,
            left_out=left_out,
        )

    def count_needed(self, dropped: int) -> int:
        """The fewest uploads that a round needs where so many others were dropped."""
        return self.uploads.count_needed(dropped)

    def evaluate(self, part: str, clients: np.ndarray) -> Evaluation:
        """Scores of these clients' models, and of the shared model, on a part of their rows."""
        now, problem = self.progress, self.problem
        received = problem.broadcast(self.algorithm, now.server)
        engine = self.get_engine()
        return evaluate(
            problem, self.algorithm, engine, received, now.store, part=part, round=now.round, clients=clients
        )

    def name_client(self, client: int) -> str:
        """The name of the client at a position."""
        return str(self.problem.data.ids[client])

    def _is_barren(self, clients: list[int]) -> bool:
        """Whether an honest client is among them: an attack that is not finite is no sign of a diverging run."""
        return any(client not in self.uploads.attackers for client in clients)

    def has_large_loss(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the last training loss in a history is larger than that of a run that can be right."""
        return is_too_large(history)

    def report_divergence(self, kind: str, text: str, *, stop: bool = True) -> None:
        """Stop the run where it is to ``stop`` and the settings say so; else warn, the first time of each kind."""
        if stop and self.on_divergence == "stop":
            raise DivergenceError(text)
        self.warn_first(kind, text)

    def warn_first(self, kind: str, text: str) -> None:
        """Show the first warning of each kind."""
        if kind not in self.problem.warned:
            self.problem.warned.add(kind)
            self.problem.warn_once([text])

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


def _length_of(job: Job) -> tuple[int, ...]:
    """A client's examples, and the rows of each phase of its turn."""
    return job.examples, *[len(rows.order) for rows in job.rows.values()]
