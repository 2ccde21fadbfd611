"""Actors of a Ray cluster: each holds the data of its own clients and their personal states, and serves them.

Client c belongs to actor c modulo the number of actors. An actor is sent the rows of its clients once, when it is made,
and no other rows ever. It keeps the state of each client as its last turn left it (up to ``ARENA_BYTES``), so a state
goes down only where the actor does not hold the very same one. All states come back with the results: the run's own
store, which checkpoints are written from, stays the truth. So an actor that dies takes nothing with it: another is made
with the same rows, gets the states from the store and serves the clients again. Seeds belong to clients, so the result
is the same.
"""

from __future__ import annotations

import os
import pickle
import socket
import traceback
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from moiety import tree
from moiety.engines.base import Engine, Functions, RoundInfo, join_blocks
from moiety.engines.jobs import clients_of, states_of, take_jobs, with_states
from moiety.engines.problem import Problem
from moiety.engines.processes import count_cores, count_slots
from moiety.engines.ray_messages import (
    Joined,
    PackedJobs,
    digest_each,
    join_trees,
    pack,
    pack_jobs,
    part_trees,
    stack_trees,
    unpack,
    unpack_jobs,
)
from moiety.engines.rows import Job
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import MoietyError, message, must
from moiety.types import Params, Tree

INLINE_BYTES = 100_000
"""Ray sends what is smaller along with a call."""
STARTS = 3
"""How often to begin a cluster on this machine before giving up."""


class Ray(Engine):
    """Serves clients on ``workers`` actors, each with an ``inner`` engine; by default as many as the cluster has cores.

    ``address`` is that of a running cluster; by default what ``RAY_ADDRESS`` says, else a cluster on this machine is
    begun, and ended by ``close``. Where this process is connected to Ray already, that is used and left as it is.
    """

    pools = False

    def __init__(
        self,
        problem: Problem,
        functions: Functions,
        *,
        inner: type[Sequential | Vectorised] = Sequential,
        workers: int | None = None,
        address: str | None = None,
    ) -> None:
        super().__init__(problem, functions)
        self.name, self.inner = f"ray:{inner.name}", inner
        self.refuse_device()
        self.actors: list[Any] = []
        self.actor_states: list[dict[int, bytes]] = []  # for each actor, the states it holds: client -> digest
        self.ray, self.began_ray = connect(address or os.environ.get("RAY_ADDRESS"), workers)
        try:
            available = max(1, int(self.ray.cluster_resources().get("CPU", 1)))
            self.count = workers or available
            # Ray would wait forever for an actor that the cluster has no core for.
            must(self.count <= available, "workers", f"at most {available}, the cores of the Ray cluster", workers)
            # Each actor gets the data of its own clients later.
            self.common = self._put((replace(problem, data=cast(Any, None), columns={}), dict(functions)))
        except BaseException:
            self.close()
            raise
        self.shift = row_shifts(problem.data.bounds, self.count)

    def map(self, function: str, jobs: Sequence[Job], received: Params, info: RoundInfo) -> Sequence[Tree]:
        """Run the function for each job on the actor that owns its client."""
        if not jobs:
            return []
        if not self.actors:
            self.actor_states = [{} for _ in range(self.count)]
            self.actors = [self._actor(w, cpus=1) for w in range(self.count)]
        limit = count_slots(jobs[0].state, len(self.problem.data))
        content = pack(received)
        if sum(x.nbytes for x in tree.values(content)) > INLINE_BYTES:  # stored once for all actors
            content = self.ray.put(content)
        call = (function, limit, info, content)
        shares: dict[int, list[int]] = {}
        clients = clients_of(jobs)
        for slot, client in enumerate(clients):
            shares.setdefault(client % self.count, []).append(slot)
        replies: dict[int, Joined] = {}
        waiting = {self._send(w, take_jobs(jobs, share), call): (w, 1) for w, share in shares.items()}
        while waiting:
            (answer,), _ = self.ray.wait(list(waiting))
            w, tries = waiting.pop(answer)
            share = take_jobs(jobs, shares[w])
            try:
                answers, digests = self.ray.get(answer)
            except self.ray.exceptions.RayTaskError as error:
                self._end()  # the others may be at work still, and nobody will ask for their results
                raise (MoietyError(str(error.cause)) if isinstance(error.cause, MoietyError) else error) from None
            except self.ray.exceptions.RayError as error:
                if tries == self.tries:
                    self._end()
                    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                    reason = lines[-1] if lines else type(error).__name__
                    hint = "Is there memory enough, and every module of yours on every machine? Ray said:"
                    raise self.explain_deaths(share, info, "actors that live", f"{hint} {reason[:200]}") from None
                self.ray.kill(self.actors[w])  # one that cannot be reached may be alive
                self.actor_states[w] = {}
                self.actors[w] = self._actor(w, cpus=0)
                waiting[self._send(w, share, call)] = (w, tries + 1)
                continue
            replies[w] = answers
            for slot, after in zip(shares[w], digests, strict=True):
                remember(self.actor_states[w], clients[slot], after, limit)
        layouts = {each.layout() for each in replies.values()}
        if len(layouts) == 1 and None not in layouts:
            blocks = ((shares[w], stack_trees(each)) for w, each in replies.items())
            return join_blocks(blocks, len(jobs))
        results: list[Tree] = [None] * len(jobs)
        for w, each in replies.items():
            for slot, result in zip(shares[w], part_trees(each), strict=True):
                results[slot] = result
        return results

    def close(self) -> None:
        """End the actors, and Ray too if this engine began it."""
        self._end()
        if self.began_ray:
            self.ray.shutdown()
            self.began_ray = False

    def _end(self) -> None:
        actors, self.actors = self.actors, []
        if self.ray.is_initialized():
            for actor in actors:
                self.ray.kill(actor)

    def _put(self, value: Any) -> Any:
        try:
            return self.ray.put(value)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise MoietyError(message("model", "one that can be sent to other processes", error)) from error

    def _actor(self, w: int, *, cpus: int) -> Any:
        """A new actor with the rows of its clients. A replacement asks for no core: its machine may be gone."""
        data = self.problem.data
        clients = np.arange(w, len(data), self.count)
        sizes = data.bounds[clients, -1] - data.bounds[clients, 0]
        rows = torch.from_numpy(np.arange(sizes.sum()) + np.repeat(self.shift[clients], sizes))
        shard = {name: column.index_select(0, rows) for name, column in self.problem.columns.items()}
        actor = self.ray.remote(Actor).options(num_cpus=cpus, max_restarts=0, scheduling_strategy="SPREAD")
        return actor.remote(self.common, pack(shard), self.inner)

    def _send(self, w: int, jobs: Sequence[Job], call: tuple[Any, ...]) -> Any:
        """Send an actor its share: rows by their numbers there, and those states that it does not hold."""
        function, limit, info, received = call
        clients, states = clients_of(jobs), states_of(jobs)
        digests = digest_each(states)
        absent = [i for i, client in enumerate(clients) if self.actor_states[w].get(client) != digests[i]]
        names = [str(self.problem.data.ids[client]) for client in clients]
        content = join_trees([states[i] for i in absent])
        packed = pack_jobs(jobs, self.shift)
        order = Order(function, packed, names, [clients[i] for i in absent], content, limit, info)
        return self.actors[w].serve.remote(order, received)


class Order(NamedTuple):
    """What an actor is sent for a round, beside the broadcast: jobs, the names of their clients, and some states."""

    function: str
    jobs: PackedJobs
    names: list[str]
    absent: list[int]
    """The clients whose ``states`` are sent."""
    states: Joined
    limit: int
    """How many states the actor is to hold."""
    info: RoundInfo


class Actor:
    """A process of the cluster: the rows of its clients, their states as of their last turn, and an engine."""

    def __init__(self, common: tuple[Problem, Functions], shard: Tree, inner: type[Sequential | Vectorised]) -> None:
        torch.set_num_threads(1)
        problem, functions = common
        # Of all that is known about clients, the engine asks for names only; no data is mapped here.
        self.data = SimpleNamespace(ids={}, release=lambda: None)
        self.engine = inner(replace(problem, data=cast(Any, self.data), columns=unpack(shard)), functions)
        self.states: dict[int, Tree] = {}

    def serve(self, order: Order, received: Tree) -> tuple[Joined, list[bytes]]:
        """The results, and digests of the states that the actor holds after them."""
        share = unpack_jobs(order.jobs)
        clients = clients_of(share)
        self.data.ids = dict(zip(clients, order.names, strict=True))
        states = self.states | dict(zip(order.absent, part_trees(order.states), strict=True))
        before = [states[client] for client in clients]
        jobs = with_states(share, before)
        results = self.engine.map(order.function, jobs, unpack(received), order.info)
        # The run may yet reject a new state. The digests then differ, and the old one is sent.
        after = results if order.function == "adapt" else before
        if order.function == "train":
            after = [state for _, state, _ in results]
        for client, state in zip(clients, after, strict=True):
            remember(self.states, client, tree.clone(state), order.limit)
        return join_trees(results), digest_each(after)


def connect(address: str | None, workers: int | None) -> tuple[Any, bool]:
    """The package ``ray``, connected, and whether this call connected it."""
    try:
        import ray
    except ImportError:
        hint = "Install it with: pip install 'moiety[ray]'"
        raise MoietyError(message("engine", "one that is installed", "ray", hint)) from None
    if ray.is_initialized():
        return ray, False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address in (None, "", "local"):
        os.environ.setdefault(
            "RAY_USAGE_STATS_ENABLED", "0"
        )  # no usage statistics are sent, unless the user asked for it
        os.environ.setdefault("RAY_worker_niceness", "0")  # this process only waits for them
        _start(ray, address="local", num_cpus=workers or count_cores(), include_dashboard=False, **quiet)
        return ray, True
    host, _, port = str(address).removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray itself would try for minutes
        ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        hint = f"The reason: {error}"[:250]
        raise MoietyError(message("address", "that of a running Ray cluster", address, hint)) from error
    return ray, True


def _start(ray: Any, **options: Any) -> None:
    """Begin a cluster on this machine.

    Ray gives its own processes thirty seconds to start and then raises a bare ``Exception``; a busy machine may need
    longer, and has most of what it needs in memory the next time. What was begun is ended before the next try: left
    alone it would live as long as this process.
    """
    for attempt in range(1, STARTS + 1):
        try:
            ray.init(**options)
            return
        except Exception as error:
            nodes: list[Any] = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
            for node in nodes:
                if hasattr(node, "kill_all_processes"):
                    node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
            if attempt == STARTS:
                fault = f"{STARTS} that did not: {error}"
                text = message("engine", "ray with a cluster that starts", fault, "Is the machine too busy?")
                raise MoietyError(text) from error


def row_shifts(bounds: np.ndarray, actors: int) -> np.ndarray:
    """For each client, what to subtract from the numbers of its rows to get their numbers at its actor.

    An actor holds the rows of its clients one client after the other.

    >>> row_shifts(np.array([[0, 2, 2, 3], [3, 5, 5, 5], [5, 7, 8, 9]]), 2).tolist()
    [0, 3, 2]
    """
    shift = np.empty(len(bounds), dtype=np.int64)
    for w in range(actors):
        own = bounds[w::actors]
        sizes = own[:, -1] - own[:, 0]
        shift[w::actors] = own[:, 0] - (np.cumsum(sizes) - sizes)
    return shift


def remember(memory: dict[int, Any], client: int, value: Any, limit: int) -> None:
    """Keep the value of a client, and forget those kept longest where there are more than ``limit``.

    Engine and actor both do this, in the same order, and so agree on what the actor holds.
    """
    memory.pop(client, None)
    memory[client] = value
    while len(memory) > limit:
        del memory[next(iter(memory))]
