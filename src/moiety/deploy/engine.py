"""Devices as an engine: where others compute, this one sends letters and waits for the answers."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from moiety import tree
from moiety.algorithms import ALGORITHMS
from moiety.deploy.letters import LARGEST, Letter, clean_text, is_small
from moiety.engines.base import Engine, Functions, RoundInfo
from moiety.engines.problem import Problem
from moiety.engines.rows import Job
from moiety.errors import MoietyError, is_real, must, tell_error
from moiety.loop.exchange import Arrival, Missing
from moiety.run.privacy import find_weighting
from moiety.types import Algorithm, ClientUpdate, Params, Tree

if TYPE_CHECKING:
    from moiety.deploy.federation import Federation

NO_ANSWER = "no answer before the deadline"
LEAST_WEIGHT = 1e-6
"""The smallest weight: a mean divides by the sum of weights, and by the first of them."""
LARGEST_WEIGHT = 1e12
"""The largest weight where the algorithm is the user's own, whose weights may be anything."""


class Devices(Engine):
    """Lets devices do the local work of their clients. Their states stay with them.

    The state that the server has of a client says which of its turns was the last that was used, and what the packing
    of messages needs to know.
    """

    name = "sequential"
    pools = False

    def __init__(self, problem: Problem, functions: Functions, federation: Federation) -> None:
        super().__init__(problem, functions)
        self.federation = federation
        self.down_sizes: dict[int, tuple[int, int]] = {}
        """Bytes of the broadcast to each client of the round, values and all."""
        self.tickets: dict[int, str] = {}
        self.until = 0.0

    def begin(self, jobs: Sequence[Job], received: Params, info: RoundInfo, more: Mapping[str, Any]) -> None:
        """Send the broadcast of a round, and what its letters say ``more``, to all its clients that can be reached."""
        mailbox, plan = self.federation.mailbox, self.federation.plan
        letters = self.write_letters(jobs, received, info.round, more)
        self.down_sizes = {client: size for client, (_, size) in letters.items()}
        nodes = [(self.federation.node_of(client), letter) for client, (letter, _) in letters.items()]
        tickets = mailbox.send("train", nodes, str(info.round), plan.ttl)
        self.tickets = dict(zip(letters, tickets, strict=True))
        self.until = time.monotonic() + plan.deadline

    def write_letters(
        self, jobs: Sequence[Job], received: Params, t: int, more: Mapping[str, Any]
    ) -> dict[int, tuple[Letter, tuple[int, int]]]:
        """The letters of a round to clients that can be reached, and their bytes."""
        federation, letters = self.federation, {}
        same = None if federation.wiring.packing else federation.wiring.pack_down(received, 0, {})
        online = federation.mailbox.online()
        for job in jobs:
            if federation.node_of(job.client) in online:
                parcel = same or federation.wiring.pack_down(received, job.client, job.state["wire"])
                head = {**federation.head(job.client, t, int(job.state["used"])), **more}
                letters[job.client] = Letter(head, parcel.body), parcel.size
        return letters

    def map(self, function: str, jobs: Sequence[Job], received: Params, info: RoundInfo) -> list[Tree]:
        """The arrivals of a round that was begun, in the order of the jobs; why there is none where there is none."""
        must(function == "train", "engine", "one that computes here", "devices, which answer for training alone")
        by_ticket = {self.tickets[job.client]: job for job in jobs if job.client in self.tickets}
        results: dict[int, Arrival | Missing] = {}
        for ticket, answer in self.federation.mailbox.collect(by_ticket, self.until):
            job = by_ticket[ticket]
            results[job.client] = self.read_answer(job, answer, info.round)
        self.federation.note_answers({job.client: job.client in results for job in by_ticket.values()})
        return [results.get(job.client) or Missing(job.client, self._explain(job.client)) for job in jobs]

    def _explain(self, client: int) -> str:
        return NO_ANSWER if client in self.tickets else "not connected"

    def read_answer(self, job: Job, answer: Letter | MoietyError, t: int) -> Arrival | Missing:
        """What a client sent, or why it cannot be used."""
        if isinstance(answer, MoietyError):
            return Missing(job.client, f"{answer}"[:300])
        try:
            return self._open(job, answer, t)
        except Exception as error:  # whatever a device sends, the others go on
            return Missing(job.client, f"refused: {tell_error(error)}", sent=True)

    def _open(self, job: Job, answer: Letter, t: int) -> Arrival | Missing:
        head, wiring = answer.head, self.federation.wiring
        must(head.get("round") == t, "round", f"{t} in the answer", repr(head.get("round"))[:40])
        if "why" in head:
            return Missing(job.client, clean_text(head["why"], 200), sent=True)
        weight = self._read_weight(head.get("weight"), job.examples)
        upload, facts, size = wiring.unpack_up(answer.body, job.client, t, job.state["wire"])
        update = ClientUpdate(upload, torch.tensor(weight, dtype=torch.float64), _read_numbers(head.get("info")))
        wiring.exchange.check_upload(update, job.client, t)  # here, where one that is refused stops nobody else
        largest = float(tree.largest(upload))
        if not math.isfinite(largest):
            return Missing(job.client, "not finite: upload", sent=True)
        must(largest <= LARGEST, "upload", f"of numbers up to {LARGEST:g}", f"{largest:g}")
        state = {"used": torch.tensor(t), "wire": facts}
        return Arrival(job.client, update, state, largest, size)

    def _read_weight(self, weight: Any, rows: int) -> float:
        """A client's weight, at most what a client can have that joined with so many training rows."""
        most = largest_weight(self.federation.plan.algorithm, rows)
        fits = is_real(weight) and LEAST_WEIGHT <= weight <= most
        must(fits, "weight", f"from {LEAST_WEIGHT:g} to {most:g}", f"{weight!r:.40}")
        return float(weight)


def largest_weight(algorithm: Algorithm, rows: int) -> float:
    """The largest weight of a client with so many training rows."""
    if algorithm.name not in ALGORITHMS or algorithm.spec.get("weight_column") is not None:
        return LARGEST_WEIGHT
    return 1.0 if find_weighting(algorithm) == "uniform" else float(max(rows, 1))


def _read_numbers(info: Any) -> dict[str, torch.Tensor]:
    """What a device says for the record; a loss that is not shared is NaN."""
    fits = isinstance(info, dict) and len(info) <= 64 and all(is_small(value) for value in info.values())
    must(fits, "info", f"at most 64 numbers up to {LARGEST:g} by name", f"{info!r:.60}")
    numbers = {"loss": math.nan, **info}
    return {name: torch.tensor(float(value), dtype=torch.float64) for name, value in numbers.items()}
