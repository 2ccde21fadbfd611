"""Asynchronous training on devices: the server steps at each real arrival (Mishchenko et al. 2023, Algorithm 3).

Which turn arrived when, and whether it was used, is written to ``arrivals.csv``. Time is counted in arrivals, so the
same order can be simulated: ``replay_clock`` makes a clock of the file, and a simulation with it gives the same server,
bit for bit. A turn that is not over before the deadline ends as one that was not used.
"""

from __future__ import annotations

import csv
import heapq
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moiety.clients.clock import Asynchronous, asynchronous, trace
from moiety.deploy.engine import NO_ANSWER
from moiety.deploy.letters import Letter
from moiety.deploy.loop import DeviceLoop
from moiety.deploy.mailbox import LONGEST
from moiety.errors import MoietyError, must, report_errors
from moiety.files import append_line, write_file
from moiety.loop.exchange import Arrival, Missing
from moiety.loop.in_transit import InTransit, Message
from moiety.loop.virtual_time import draw_idle, staleness_of
from moiety.types import RoundRecord

ARRIVALS, TRACE = "arrivals.csv", "trace.csv"
COLUMNS = ("client", "seconds", "round", "turn", "used")
NEVER = 1e12
"""Seconds for a turn that did not arrive before the run ended."""


class ArrivalLoop(DeviceLoop):
    """A round is an arrival."""

    clock: Asynchronous

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tickets: dict[str, Message] = {}
        """Turns under way whose letters this process has sent."""
        self.until: dict[int, float] = {}
        """Until when to wait for each client."""
        self.answers: list[tuple[Message, Letter | MoietyError]] = []
        """Answers that came together with another, in the order in which they came."""

    @property
    def in_transit(self) -> InTransit:
        """What is under way."""
        assert self.progress.in_transit is not None
        return self.progress.in_transit

    def run_round(self) -> RoundRecord:
        """Let devices begin until enough are active, then take the answer that arrives first (lines 3 and 4)."""
        self.admit()
        self.federation.wait_for(min(self.federation.plan.least, self.clock.active))
        self._start_clients()
        message, result = self._wait_for_one()
        transit, now = self.in_transit, self.progress
        with self.mark_inconsistent():
            transit.messages.remove(message)
            heapq.heapify(transit.messages)
            stale = transit.steps - message.version
            transit.time = float(now.round + 1)
            if isinstance(result, Arrival):
                transit.staleness.append(stale)
            received = self.open_round()
            self.exchange.receive(received, [message.client], [result], message.turn)
            record = self.close_round(received, time=transit.time, staleness=(stale,))
            self._record(message, record)
            transit.steps += not record.dropped
            transit.count_turn(message.client)
            turns = {each.turn for each in transit.messages}
            transit.versions = {turn: each for turn, each in transit.versions.items() if turn in turns}
        return record

    def _start_clients(self) -> None:
        """Clients that are not active get the newest parameters (lines 5 to 7); letters that are not sent are sent."""
        now, transit = self.progress, self.in_transit
        active = {each.client for each in transit.messages}
        clients = len(self.problem.data)
        count = min(self.clock.active, clients) - len(active)
        if count > 0:
            broadcast = self.broadcast()
            with self.mark_inconsistent():
                transit.versions[now.round] = broadcast
                for client in draw_idle(clients, active, count, seed=self.problem.seed, round=now.round):
                    transit.send(0.0, client, now.round, transit.steps, True, None, None)
        numbers = {each.number for each in self.tickets.values()}
        for message in sorted(transit.messages):
            if message.number not in numbers and message not in [each for each, _ in self.answers]:
                self._send(message)

    def _send(self, message: Message) -> None:
        """Send the letter of a turn, where its device can be reached."""
        client, turn = message.client, message.turn
        received = self.in_transit.versions[turn]
        self.until.setdefault(message.number, time.monotonic() + self.federation.plan.deadline)
        jobs = self.make_jobs([client], self.progress.store.get([client]), turn)
        letters = self.devices.write_letters(jobs, received, turn, {"rounds": self.rounds})
        if client in letters:
            letter, size = letters[client]
            node = self.federation.node_of(client)
            (ticket,) = self.federation.mailbox.send("train", [(node, letter)], str(turn), self.federation.plan.ttl)
            self.tickets[ticket] = message
            self.devices.down_sizes = {client: size}
            self.count(jobs, received)

    def _wait_for_one(self) -> tuple[Message, Arrival | Missing]:
        """The next turn that is over: its answer came, or its time has passed."""
        while True:
            if self.answers:
                message, answer = self.answers.pop(0)
                jobs = self.make_jobs([message.client], self.progress.store.get([message.client]), message.turn)
                return message, self.devices.read_answer(jobs[0], answer, message.turn)
            late = [m for m in sorted(self.in_transit.messages) if time.monotonic() > self.until.get(m.number, NEVER)]
            if late:
                self.tickets = {ticket: m for ticket, m in self.tickets.items() if m.number != late[0].number}
                return late[0], Missing(late[0].client, NO_ANSWER)
            for ticket, answer in self.federation.mailbox.pull(self.tickets):
                self.answers.append((self.tickets.pop(ticket), answer))
            if not self.answers:
                time.sleep(LONGEST / 4)
                self._start_clients()

    def _record(self, message: Message, record: RoundRecord) -> None:
        """Write down a turn that is over; in a simulation it takes as many seconds as there were rounds meanwhile."""
        assert self.federation.folder is not None
        t, used = record.round, int(not record.dropped)
        values = (self.name_client(message.client), t - message.turn, t, message.turn, used)
        append_line(self.federation.folder / ARRIVALS, ",".join(map(_quote, values)).encode())

    def history_fields(self) -> dict[str, Any]:
        """Staleness, and how many devices are at work."""
        return {**super().history_fields(), **staleness_of(self.in_transit)}


def _quote(value: object) -> str:
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text


def begin_arrivals(folder: Path, last: int) -> None:
    """Begin the file of arrivals, or cut off what came after round ``last``, which will come again."""
    rows = [row for row in read_arrivals(folder) if int(row["round"]) <= last] if (folder / ARRIVALS).exists() else []
    lines = [",".join(COLUMNS), *(",".join(_quote(row[key]) for key in COLUMNS) for row in rows)]
    write_file(folder / ARRIVALS, ("\n".join(lines) + "\n").encode())


def read_arrivals(folder: Path) -> list[dict[str, str]]:
    """The arrivals of a run on devices, in their order."""
    path = folder / ARRIVALS
    with report_errors(ARRIVALS, "one that can be read", (OSError, csv.Error, ValueError), f" at {path}"):
        rows = list(csv.DictReader(path.read_text().splitlines()))
    # A kill may have cut the last line short.
    return [row for row in rows if all(row.get(key) for key in COLUMNS) and row["used"] in ("0", "1")]


def replay_clock(folder: str | Path, active: int, names: Iterable[str]) -> Asynchronous:
    r"""The clock with which a simulation goes through the arrivals of a run on devices.

    Args:
        folder: the server's, which gets a file of times.
        active: as the run had it.
        names: of all clients.

    >>> import tempfile
    >>> arrivals = "client,seconds,round,turn,used\nann,1,1,0,1\nbob,2,2,0,1\n"  # the server writes this file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(f"{folder}/arrivals.csv").write_text(arrivals)
    ...     clock = replay_clock(folder, active=2, names=["ann", "bob"])  # then Settings(clock=clock)
    >>> [clock.travel.seconds(seed=0, client=at, name=name, turn=0) for at, name in enumerate(("ann", "bob"))]
    [1.0, 2.0]
    """
    path = Path(folder)
    rows = read_arrivals(path)
    must(bool(rows), "folder", "that of an asynchronous run on devices", path)
    lines = [f"{_quote(row['client'])},{row['seconds']},{1 - int(row['used'])}" for row in rows]
    lines = ["client,seconds,lost", *lines, *(f"{_quote(name)},{NEVER},0" for name in names)]
    write_file(path / TRACE, ("\n".join(lines) + "\n").encode())
    return asynchronous(active=active, compute=trace(str(path / TRACE), lost="lost"))
