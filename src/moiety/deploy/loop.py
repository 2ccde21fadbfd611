"""The loop over rounds where clients are devices: the same as in a simulation, but for who computes and evaluates."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from moiety import tree
from moiety.clients import DiskStore
from moiety.clients.clock import Clock
from moiety.deploy.choice import read_summary
from moiety.deploy.engine import Devices
from moiety.deploy.federation import Federation
from moiety.deploy.letters import Letter
from moiety.deploy.roster import MOST
from moiety.deploy.scores import as_row, check_scores, count_steps, match_columns
from moiety.engines.base import Engine, RoundInfo
from moiety.engines.jobs import with_states
from moiety.engines.problem import Problem, to_tensors
from moiety.engines.rows import Job
from moiety.errors import MoietyError, tell_error
from moiety.evaluation.safeguard import estimate_population
from moiety.loop.divergence import loss_limit
from moiety.loop.evaluate import Evaluation
from moiety.loop.exchange import Received
from moiety.loop.round import Loop, Progress, begin_progress
from moiety.run.privacy import count_clients
from moiety.run.safeguard import count_turns
from moiety.transport import value_bytes
from moiety.types import Algorithm, Params, RoundRecord, Tree

LARGEST_FILE = 1 << 40
"""The largest file that the server makes of what it knows of devices; it takes no room before it is written."""
MANY = 10
"""If so many devices are refused before an answer is used, the run is to blame, however many others there are."""
UNKNOWN = ("loss", "metric", "shared_loss", "shared_metric", "gain")
"""What a row of the history has no number for, where devices do not share theirs."""


def begin_on_devices(
    problem: Problem,
    algorithm: Algorithm,
    federation: Federation,
    clock: Clock | None,
    *,
    resumed: bool,
) -> Progress:
    """Everything as it is before the first round.

    In the place of clients' states the server keeps what it knows of them: the last turn that was used, and what the
    packing of messages needs.
    """
    assert federation.folder is not None
    progress = begin_progress(problem, algorithm, None, clock, federation.run)
    state = problem.first_state(algorithm)

    def first() -> Tree:
        return {"used": torch.tensor(-1), "wire": federation.wiring.first_known(state)}

    most = count_room(value_bytes(tree.leaves(first())))
    privacy = federation.plan.settings.privacy
    federation.roster.most = most if privacy is None else min(most, count_clients(privacy.delta))
    progress.store = DiskStore(first, federation.folder / "clients", most, federation.run, resumed=resumed)
    return progress


def count_room(size: int) -> int:
    """For how many devices there is room in a sparse file, where the server knows ``size`` bytes of each.

    >>> count_room(8), count_room(50_000_000)
    (1048576, 10995)
    """
    return max(1, min(MOST, LARGEST_FILE // (2 * max(size, 1))))


class DeviceLoop(Loop):
    """Rounds on devices. ``connect`` must be called before the first."""

    federation: Federation
    payload = 0
    """Bytes that went down and up for evaluation, which the ledger does not count."""
    counts: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.on_devices, self.keeps_states, self.reason, self.counts = True, True, "on every device", {}
        self.refused: set[int] = set()
        """Devices whose answers were refused since an answer was last used."""
        self.losses: dict[int, float] = {}
        """The last training loss of each device, where devices share it."""

    def connect(self, federation: Federation) -> None:
        """Let devices do the work."""
        self.federation = federation
        self.engine = Devices(self.problem, self.functions, federation)
        self._set_cohort()

    def _set_cohort(self) -> None:
        """Where the user names no cohort, all devices are asked, newcomers too; privacy is counted for a fixed one."""
        if self.federation.plan.cohort is None and self.clock is None and self.uploads.privacy is None:
            self.cohort = len(self.problem.data)

    @property
    def devices(self) -> Devices:
        """The engine."""
        assert isinstance(self.engine, Devices)
        return self.engine

    def run_round(self) -> RoundRecord:
        """Let newcomers join, wait until enough devices are there, and run one round."""
        self.admit()
        self.federation.wait_for(min(self.federation.plan.least, self.cohort))
        return super().run_round()

    def admit(self) -> None:
        """Let devices join that have come since the last round: they are clients from now on."""
        if self.federation.admit_newcomers():
            data = self.federation.roster.as_data()
            columns = to_tensors(data.columns, self.problem.task, self.problem.device)
            self.problem = replace(self.problem, data=data, columns=columns)
            wiring = self.federation.wiring
            for each in (self.exchange, self.devices, wiring, wiring.exchange):
                each.problem = self.problem
            self.cohorts = {}  # those that were drawn ahead are of fewer clients
            self._set_cohort()

    def prepare_engine(self, jobs: Sequence[Job], received: Params, info: RoundInfo) -> Engine:
        """Send the broadcast to all clients of the round."""
        privacy, state = self.uploads.privacy, self.progress.privacy
        more: dict[str, Any] = {"rounds": self.rounds}
        if privacy is not None and privacy.local and state is not None:
            more |= {"noise": state.noise}
        self.devices.begin(jobs, received, info, more)
        if jobs:
            self.on_engine(self.devices)
        return self.devices

    def close_round(
        self, received: Received, *, time: float | None = None, staleness: tuple[int, ...] = ()
    ) -> RoundRecord:
        """End a round as in a simulation, and note what shows whether the run or a single device is to blame."""
        self.losses |= dict(zip(received.usable, received.losses, strict=True))
        record = super().close_round(received, time=time, staleness=staleness)
        if received.usable:
            self.refused = set()
        return record

    def _is_barren(self, clients: list[int]) -> bool:
        """Whether the run is to blame for refused answers: more than half of the devices were refused, or ``MANY``.

        A few devices may be broken, or lie. A small cohort may consist of these alone, several times in a row.
        """
        self.refused |= set(clients)
        joined = self.federation.list_joined()
        return bool(clients) and len(self.refused) > min(len(joined) // 2, MANY - 1)

    def has_large_loss(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the training loss is too large for most devices too: that of one may be a lie."""
        if not super().has_large_loss(history) or not self.losses:
            return False
        return float(np.median([*self.losses.values()])) > loss_limit(history)

    def count_needed(self, dropped: int) -> int:
        """The fewest uploads that a round needs."""
        return max(super().count_needed(dropped), min(self.federation.plan.least, self.cohort))

    def count(self, jobs: Sequence[Job], received: Params) -> None:
        """Enter what was really sent, and the work of those who were asked, into the ledger."""
        sizes = self.devices.down_sizes
        for size in sizes.values():
            self.progress.ledger.down(*size)
        turns = [job for job in jobs if job.client in sizes]
        if turns:
            first = self.problem.first_state(self.algorithm)
            has_packing = self.federation.wiring.packing is not None  # then densities are known too
            self.count_work(with_states(turns, [job.state["wire"] if has_packing else first for job in turns]))

    def evaluate(self, part: str, clients: np.ndarray) -> Evaluation:
        """Let devices score their own models; they send as much of it as the plan allows."""
        federation, plan, now = self.federation, self.federation.plan, self.progress
        self.counts = {}
        if plan.share_metrics == "none":
            return Evaluation([], {})
        received = self.broadcast()
        answers = self.ask("evaluate", clients, received, {"part": part})
        scores: dict[int, dict[str, Any]] = {}
        train_sizes, part_sizes = self.problem.data.sizes("train"), self.problem.data.sizes(part)
        for client, answer in answers.items():
            try:
                if isinstance(answer, MoietyError):
                    raise answer
                rows = int(train_sizes[client]), int(part_sizes[client])
                scores[client] = check_scores(answer.head.get("scores"), plan.share_metrics, rows)
            except Exception as error:  # whatever a device sends, the others go on
                why = f"not evaluated: {tell_error(error)}"
                now.dropped.append([f"{now.round}:{federation.roster.members[client].name}", why])
        if plan.share_metrics == "histogram":
            self.counts = count_steps(list(scores.values()), plan.floor)
            return Evaluation([], {})
        tables = match_columns(scores)
        return Evaluation([as_row(self.name_client(client), tables[client]) for client in sorted(tables)], {})

    def ask(
        self, kind: str, clients: Sequence[int] | np.ndarray, received: Params, more: dict[str, Any]
    ) -> dict[int, Letter | MoietyError]:
        """Send the shared model to clients besides training, and collect their answers."""
        federation, t = self.federation, self.progress.round
        states = self.progress.store.get(clients)
        online, letters = federation.mailbox.online(), {}
        for client, state in zip(map(int, clients), states, strict=True):
            if federation.node_of(client) in online:
                parcel = federation.wiring.pack_down(received, client, state["wire"])
                letters[client] = Letter({**federation.head(client, t, int(state["used"])), **more}, parcel.body)
                self.payload += len(parcel.body)
        nodes = [(federation.node_of(client), letter) for client, letter in letters.items()]
        tickets = federation.mailbox.send(kind, nodes, f"{kind} {t}", federation.plan.ttl)
        owners = dict(zip(tickets, letters, strict=True))
        until = time.monotonic() + federation.plan.deadline
        return {owners[ticket]: answer for ticket, answer in federation.mailbox.collect(owners, until)}

    def say_goodbye(self) -> None:
        """Leave every device with the shared model as it ended, and let it choose where the plan says so."""
        everyone, received = np.arange(len(self.problem.data)), self.broadcast()
        more = self._describe_devices(everyone, received) if self.federation.plan.safeguard else {}
        answers = self.ask("end", everyone, received, more)
        for client, answer in answers.items():
            if isinstance(answer, MoietyError):
                self.problem.warn_once([f"{self.name_client(client)} did not take the last model: {answer}"])

    def _describe_devices(self, everyone: np.ndarray, received: Params) -> dict[str, Any]:
        """What devices need to choose as a simulation's clients do; nothing of them where they share nothing."""
        more: dict[str, Any] = {"turns": count_turns(self)}
        if self.federation.plan.share_metrics != "per_client":
            return {**more, "population": None}
        summaries = []
        for client, answer in sorted(self.ask("weigh", everyone, received, more).items()):
            try:
                if isinstance(answer, MoietyError):
                    raise answer
                summaries.append(read_summary(answer.head.get("evidence"), self.problem.task))
            except Exception as error:  # whatever a device sends, the others go on
                self.problem.warn_once([f"{self.name_client(client)} gave no evidence: {tell_error(error)}"])
        population = estimate_population([each for each in summaries if each is not None])
        return {**more, "population": None if population is None else population.as_dict()}

    def history_fields(self) -> dict[str, Any]:
        """What evaluation cost, and counts where devices share no more than these."""
        shared = self.federation.plan.share_metrics == "per_client"
        return {**({} if shared else dict.fromkeys(UNKNOWN)), **self.counts, "evaluation_payload": self.payload}
