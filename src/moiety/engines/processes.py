"""A process with one thread on every core, each with its share of the clients: this one, and forked workers.

Workers are forked once, so they have the problem and the data without a copy; what a round sends and returns (shared
parameters, personal states, results) lies in memory that all of them map. A worker that dies, or that does nothing for
a stated time, is replaced and its clients are served again: seeds belong to clients, so the result is the same.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import torch

from moiety import tree
from moiety.engines.arena import Arena
from moiety.engines.base import Engine, Functions, Results, RoundInfo
from moiety.engines.jobs import Jobs, states_of, take_jobs, with_states
from moiety.engines.messages import Share, pack_answer, pack_order, unpack_answer, unpack_order
from moiety.engines.problem import Problem
from moiety.engines.rows import Job, Rows
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import must
from moiety.files import release_locks
from moiety.types import Params, Tree

ARENA_BYTES = 1 << 28
"""Memory for the states or results of one batch of clients; a larger cohort is served in several batches."""
SLOTS = 1024
"""How many clients such a batch has at most."""
SPIN_SECONDS = 0.02
"""How long a worker stays awake for its next share."""
TIMEOUT = 60.0
"""After how many seconds a worker that does not answer, and does nothing, is replaced."""


class _Worker(NamedTuple):
    process: Any
    pipe: Connection


class Processes(Engine):
    """Serves clients on ``workers`` processes, each with an engine of its own.

    This process is one of them. If it only waited for the others, to wake it would cost a quarter of a millisecond in
    every round. With ``workers=1`` a single worker is forked, and this process waits.
    """

    def __init__(
        self,
        problem: Problem,
        functions: Functions,
        *,
        inner: type[Sequential | Vectorised],
        workers: int | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__(problem, functions)
        self.name = f"processes:{inner.name}"
        self.refuse_device()
        hint = "Use engine sequential, vectorised or auto."
        must(can_fork(), "engine", f"one that needs no forked process on {sys.platform}", "processes", hint)
        self.timeout = timeout
        self.inner = inner
        self.count = workers or count_cores()
        self.own = inner(problem, functions)
        self.workers: list[_Worker] = []
        self.received: Arena
        self.states: Arena
        self.results: dict[str, Arena] = {}

    def map(self, function: str, jobs: Sequence[Job], received: Params, info: RoundInfo) -> Sequence[Tree]:
        """Run the function for each job on one of the workers."""
        if not jobs:
            return []
        if not self.workers:
            self._start(jobs[0], received)
        self.received.write(0, received)
        slots = min(self.states.slots, self.results[function].slots)
        if len(jobs) <= slots:
            return self._serve(function, jobs, info)
        results: list[Tree] = []
        for at in range(0, len(jobs), slots):
            # Copied: the next batch is written over this one.
            results += tree.clone(list(self._serve(function, jobs[at : at + slots], info)))
        return results

    def close(self) -> None:
        """End the workers."""
        for w in range(len(self.workers)):
            self._end(w)
        self.workers = []

    def _end(self, w: int) -> None:
        self.workers[w].pipe.close()
        self.workers[w].process.kill()
        self.workers[w].process.join()

    def _start(self, job: Job, received: Params) -> None:
        """Lay out the shared memory by trying every function on two rows, then fork the workers."""
        start, _ = job.rows[next(iter(job.rows))].span()
        self.received = Arena(received, 1)
        # The first call may be for a few clients only, as when engines are tried out. What is served together must not
        # depend on it: workers that vectorise would round differently.
        most = min(len(self.problem.data), SLOTS)
        self.states = Arena(job.state, count_slots(job.state, most))
        quiet = Sequential(replace(self.problem, quiet=True, warned=set()), self.functions)
        for name, function in self.functions.items():
            rows = {phase: Rows(np.array([start, start]), np.array([2])) for phase in function.phases}
            (result,) = quiet.map(name, [Job(job.client, rows, 2, job.state)], received, RoundInfo())
            self.results[name] = Arena(result, count_slots(result, most))
        self.workers = [self._fork() for _ in range(max(1, self.count - 1))]

    def _fork(self) -> _Worker:
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe()
        process = context.Process(target=self._work, args=(theirs, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, mine)

    def _serve(self, function: str, jobs: Sequence[Job], info: RoundInfo) -> Results:
        self.states.write_all(range(len(jobs)), states_of(jobs))
        shares = [share for share in deal_jobs(jobs, self.count) if share]
        orders = [(function, (share, take_jobs(jobs, share)), info) for share in shares]
        mine = orders.pop() if len(orders) > len(self.workers) else None
        waiting = dict.fromkeys(range(len(orders)), 1)  # worker -> times its share was sent
        for w, order in enumerate(orders):
            self._send(w, order)
        if mine is not None:
            self._serve_own(*mine)
            self._stay_awake(list(waiting))
        watch = Watch(self.timeout)
        while waiting:
            pipes = {self.workers[w].pipe: w for w in waiting}
            ends = {self.workers[w].process.sentinel: w for w in waiting}
            # A worker that died shows at both its ends, but dies once.
            ready = {pipes[end] if end in pipes else ends[end] for end in wait([*pipes, *ends], self.timeout / 4)}
            for w in ready or {w for w in waiting if watch.is_stuck(self.workers[w].process.pid)}:
                answer = self._receive(w)
                if isinstance(answer, Exception):
                    self.close()
                    raise answer
                if answer is not None:
                    self.problem.warn_once(answer)
                    del waiting[w]
                    continue
                if waiting[w] == self.tries:
                    self.close()
                    clients = [jobs[slot] for slot in shares[w]]
                    raise self.explain_deaths(clients, info, "processes that live", "Is there enough memory?")
                self._end(w)
                self.workers[w] = self._fork()
                self._send(w, orders[w])
                waiting[w] += 1
        return self.results[function].read_all(len(jobs))

    def _serve_own(self, function: str, share: Share, info: RoundInfo) -> None:
        """Do this process's share. An error is raised in the same form as one of a worker."""
        try:
            self._do(self.own, function, share, info)
        except Exception as error:
            self.close()
            raise unpack_answer(pack_answer(error)) from error  # type: ignore[misc]

    def _stay_awake(self, workers: Sequence[int]) -> None:
        """Wait a moment for workers that are about to answer, without going to sleep."""
        soon = time.monotonic() + SPIN_SECONDS
        while not all(self.workers[w].pipe.poll(0) for w in workers) and time.monotonic() < soon:
            os.sched_yield()

    def _do(self, engine: Engine, function: str, share: Share, info: RoundInfo) -> None:
        """Serve a share and write the results where all processes see them."""
        slots, jobs = share
        # One client at a time, where clients are not joined in blocks: few results are in memory then.
        step = 1 if self.inner is Sequential else len(slots)
        for at in range(0, len(slots), step):
            some = slots[at : at + step]
            own = with_states(jobs[at : at + step], [self.states.read(slot) for slot in some])
            results = engine.map(function, own, self.received.read(0), info)
            self.results[function].write_all(some, results)
            del results

    def _send(self, w: int, order: tuple[str, Share, RoundInfo]) -> None:
        if (read_state(self.workers[w].process.pid) or ("", 0))[0] == "T":  # it is stopped, and would read nothing
            self._end(w)
            self.workers[w] = self._fork()
        # A dead worker shows in the wait for its answer.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.workers[w].pipe.send_bytes(pack_order(*order))

    def _receive(self, w: int) -> list[str] | Exception | None:
        """A worker's answer: its warnings, an exception, or None where it died before it answered."""
        try:
            return unpack_answer(self.workers[w].pipe.recv_bytes()) if self.workers[w].pipe.poll() else None
        except (EOFError, ConnectionResetError):
            return None

    def _work(self, pipe: Connection, parent: int) -> None:
        """What a worker does: take a share, serve it, answer; end when the parent ends."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        release_locks()
        torch.set_num_threads(1)
        gc.freeze()  # objects from before the fork stay, so the collector need not look at them
        problem = replace(self.problem, quiet=True)  # warnings go to the parent, which shows them
        engine = self.inner(problem, self.functions)
        while True:
            # Between rounds the parent needs a moment; a core that went to sleep meanwhile takes as long to wake.
            soon = time.monotonic() + SPIN_SECONDS
            while not pipe.poll(0) and time.monotonic() < soon:
                os.sched_yield()
            while not pipe.poll(1.0):
                if os.getppid() != parent:
                    os._exit(0)
            try:
                order = unpack_order(pipe.recv_bytes())
            except EOFError:
                os._exit(0)
            try:
                self._do(engine, *order)
                self.problem.data.release()
                pipe.send_bytes(pack_answer(sorted(problem.warned)))
            except Exception as error:  # the parent raises it
                pipe.send_bytes(pack_answer(error))


class Watch:
    """Tells workers that are stuck (stopped, or blocked for good) from those whose work takes long.

    A stuck process uses no processor time and does not wait for any. The system says both in /proc; where there is
    none, no worker counts as stuck.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.seen: dict[int, tuple[int, float]] = {}  # process -> its processor time, and when that last changed

    def is_stuck(self, process: int) -> bool:
        """Whether the process has done nothing for the ``timeout``, as far as it was looked at."""
        now, state = time.monotonic(), read_state(process)
        if state is None:
            return False
        letter, ticks = state
        before, since = self.seen.get(process, (-1, now))
        if letter == "R" or ticks != before:
            self.seen[process] = ticks, now
            return False
        return now - since >= self.timeout


def read_state(process: int) -> tuple[str, int] | None:
    """The letter that says what a process does (R: it runs, or waits for a core), and its processor time in ticks."""
    try:
        with open(f"/proc/{process}/stat", "rb", buffering=0) as file:  # several times as quick as by its path
            fields = file.read(4096).rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None


def can_fork() -> bool:
    """Whether workers may be forked: libraries of macOS break in forked processes, and Windows has none."""
    return sys.platform.startswith("linux")


def count_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_slots(example: Tree, most: int) -> int:
    """How many trees like ``example`` fit the arena, at most ``most``."""
    size = sum(x.numel() * x.element_size() for x in tree.leaves(example).values()) or 1
    return max(1, min(most, ARENA_BYTES // size))


def deal_jobs(jobs: Sequence[Job], shares: int) -> list[list[int]]:
    """Deal the jobs into ``shares`` parts of about equal work: the longest first, each to the part that has least."""
    if isinstance(jobs, Jobs):
        return [list(range(share, len(jobs), shares)) for share in range(shares)]
    sizes = [sum(len(rows.order) for rows in job.rows.values()) for job in jobs]
    parts: list[list[int]] = [[] for _ in range(shares)]
    load = [0] * shares
    for slot in sorted(range(len(jobs)), key=lambda i: -sizes[i]):
        least = load.index(min(load))
        parts[least].append(slot)
        load[least] += sizes[slot]
    return [sorted(share) for share in parts]
