"""Actors of a Ray cluster: each holds the data of its own clients and their personal states, and serves them.

Client c belongs to actor c modulo the number of actors. An actor is sent the rows of its clients once, when it is made,
and no other rows ever. It keeps the state of each client as its last turn left it (up to ``ARENA_BYTES``), so a state
goes down only where the actor does not hold the very same one. All states come back with the results: the run's own
store, which checkpoints are written from, stays the truth. So an actor that dies takes nothing with it: another is made
with the same rows, gets the states from the store and serves the clients again. Seeds belong to clients, so the result
is the same.
"""

from __future__ import annotations

import hashlib
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
from torch import Tensor

from moiety import tree
from moiety.engines.base import Engine, Functions, RoundInfo
from moiety.engines.problem import Problem
from moiety.engines.processes import count_cores, count_slots
from moiety.engines.rows import Job, Rows
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import MoietyError, message, must
from moiety.types import Params, Tree

INLINE_BYTES = 100_000
"""Ray sends what is smaller along with a call."""
STARTS = 3
"""How often to begin a cluster on this machine before giving up."""


class Joined(NamedTuple):
    """Many trees as one message."""

    size: int
    shape: Tree | None
    """A tree of zeros of the shape of each; None where they are not alike."""
    content: list[Any]


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
        self.held: list[dict[int, bytes]] = []  # for each actor, the states it holds: client -> digest
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

    def map(self, function: str, jobs: Sequence[Job], received: Params, info: RoundInfo) -> list[Tree]:
        """Run the function for each job on the actor that owns its client."""
        if not jobs:
            return []
        if not self.actors:
            self.held = [{} for _ in range(self.count)]
            self.actors = [self._actor(w, cpus=1) for w in range(self.count)]
        limit = count_slots(jobs[0].state, len(self.problem.data))
        sent = pack(received)
        if sum(x.nbytes for x in tree.values(sent)) > INLINE_BYTES:  # stored once for all actors
            sent = self.ray.put(sent)
        call = (function, limit, info, sent)
        shares: dict[int, list[int]] = {}
        for slot, job in enumerate(jobs):
            shares.setdefault(job.client % self.count, []).append(slot)
        results: list[Tree] = [None] * len(jobs)
        waiting = {self._send(w, [jobs[s] for s in share], call): (w, 1) for w, share in shares.items()}
        while waiting:
            (answer,), _ = self.ray.wait(list(waiting))
            w, tries = waiting.pop(answer)
            share = [jobs[s] for s in shares[w]]
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
                self.held[w] = {}
                self.actors[w] = self._actor(w, cpus=0)
                waiting[self._send(w, share, call)] = (w, tries + 1)
                continue
            for slot, result, after in zip(shares[w], part_trees(answers), digests, strict=True):
                results[slot] = result
                remember(self.held[w], jobs[slot].client, after, limit)
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
        absent = [job for job in jobs if self.held[w].get(job.client) != digest(pack(job.state))]
        names = [str(self.problem.data.ids[job.client]) for job in jobs]
        states = join_trees([job.state for job in absent])
        order = Order(function, pack_jobs(jobs, self.shift), names, [job.client for job in absent], states, limit, info)
        return self.actors[w].serve.remote(order, received)


class Order(NamedTuple):
    """What an actor is sent for a round, beside the broadcast: jobs, the names of their clients, and some states."""

    function: str
    jobs: tuple[np.ndarray, dict[str, tuple[np.ndarray, ...]]]
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
        self.data = SimpleNamespace(ids={})  # of all that is known about clients, the engine asks for names only
        self.engine = inner(replace(problem, data=cast(Any, self.data), columns=unpack(shard)), functions)
        self.states: dict[int, Tree] = {}

    def serve(self, order: Order, received: Tree) -> tuple[Joined, list[bytes]]:
        """The results, and digests of the states that the actor holds after them."""
        share = unpack_jobs(order.jobs)
        self.data.ids = dict(zip((job.client for job in share), order.names, strict=True))
        states = self.states | dict(zip(order.absent, part_trees(order.states), strict=True))
        before = [states[job.client] for job in share]
        jobs = [job._replace(state=state) for job, state in zip(share, before, strict=True)]
        results = self.engine.map(order.function, jobs, unpack(received), order.info)
        # The run may yet reject a new state. The digests then differ, and the old one is sent.
        after = results if order.function == "adapt" else before
        if order.function == "train":
            after = [state for _, state, _ in results]
        for job, state in zip(share, after, strict=True):
            remember(self.states, job.client, tree.clone(state), order.limit)
        return join_trees(results), [digest(pack(state)) for state in after]


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
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anyone that was not asked for
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
                got = f"{STARTS} that did not: {error}"
                text = message("engine", "ray with a cluster that starts", got, "Is the machine too busy?")
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


def remember(held: dict[int, Any], client: int, value: Any, limit: int) -> None:
    """Keep the value of a client, and forget those kept longest where there are more than ``limit``.

    Engine and actor both do this, in the same order, and so agree on what the actor holds.
    """
    held.pop(client, None)
    held[client] = value
    while len(held) > limit:
        del held[next(iter(held))]


def pack(value: Tree) -> Tree:
    """The tree with arrays for tensors: Ray moves those without further copies, and of a view only what it shows."""

    def array(x: Tensor) -> Any:
        return x.detach().clone() if x.dtype is torch.bfloat16 else x.detach().numpy()  # NumPy has no bfloat16

    return tree.map_leaves(lambda x: array(x) if isinstance(x, Tensor) else x, value)


def unpack(value: Tree) -> Tree:
    """The tree with tensors again, in memory of their own: what Ray hands out is not to be written to."""
    return tree.map_leaves(lambda x: torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x, value)


def join_trees(trees: Sequence[Tree]) -> Joined:
    """Many trees as one message: an array for each leaf with a row for each tree, where all trees are alike."""
    layouts = {_describe(each) for each in trees}
    if len(layouts) != 1 or None in layouts:
        return Joined(len(trees), None, [pack(each) for each in trees])
    rows = [tree.values(each) for each in trees]
    stacked = [pack(torch.stack([row[leaf] for row in rows])) for leaf in range(len(rows[0]))]
    return Joined(len(trees), tree.map_leaves(lambda leaf: 0, trees[0]), stacked)


def part_trees(joined: Joined) -> list[Tree]:
    """The inverse of ``join_trees``; trees that are alike are views into one tensor for each leaf."""
    if joined.shape is None:
        return [unpack(each) for each in joined.content]
    make = tree.maker(joined.shape)
    columns = [unpack(column).unbind(0) for column in joined.content]
    return [make(iter([column[row] for column in columns])) for row in range(joined.size)]


def _describe(value: Tree) -> tuple[Any, ...] | None:
    """What trees that can be joined have in common; None for a tree with a leaf that is no tensor."""
    leaves = tree.values(value)
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        return None
    return repr(tree.map_leaves(lambda leaf: 0, value)), tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def pack_jobs(jobs: Sequence[Job], shift: np.ndarray) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, ...]]]:
    """Jobs without their states as a few arrays, with the numbers that rows have at the actor."""
    numbers = np.array([[job.client, job.examples, job.key, job.turn, job.round_trip] for job in jobs])
    phases: dict[str, tuple[np.ndarray, ...]] = {}
    for name in jobs[0].rows:
        orders = [job.rows[name].order - shift[job.client] for job in jobs]
        sizes = [job.rows[name].sizes for job in jobs]
        counts = np.array([[len(order), len(size)] for order, size in zip(orders, sizes, strict=True)])
        phases[name] = np.concatenate(orders), np.concatenate(sizes), counts
    return numbers, phases


def unpack_jobs(packed: tuple[np.ndarray, dict[str, tuple[np.ndarray, ...]]]) -> list[Job]:
    """The inverse of ``pack_jobs``."""
    numbers, phases = packed
    rows: list[dict[str, Rows]] = [{} for _ in numbers]
    for name, (orders, sizes, counts) in phases.items():
        ends = counts.cumsum(0)[:-1]
        pieces = zip(np.split(orders.copy(), ends[:, 0]), np.split(sizes.copy(), ends[:, 1]), strict=True)
        for each, piece in zip(rows, pieces, strict=True):
            each[name] = Rows(*piece)
    return [
        Job(client, own, examples, None, key, turn, round_trip)
        for own, (client, examples, key, turn, round_trip) in zip(rows, numbers.tolist(), strict=True)
    ]


def digest(packed: Tree) -> bytes:
    """Tells a packed state from any other."""
    content = hashlib.blake2b(digest_size=16)
    for path, leaf in tree.leaves(packed).items():
        array = leaf.float().numpy() if isinstance(leaf, Tensor) else np.asarray(leaf)
        content.update(f"{path} {array.dtype} {array.shape};".encode() + array.tobytes())
    return content.digest()
