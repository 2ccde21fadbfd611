"""Clocks: when broadcasts reach clients and when uploads reach the server. ``moiety.Settings`` takes one.

Time is virtual: nothing waits, and a run with a clock can be repeated to the last bit. ``asynchronous`` and
``synchronous`` count in seconds that clients and links take (``constant``, ``exponential``, ``pareto``, ``trace``),
``delayed`` in rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moiety.clients.speed import (
    TIMES,
    Names,
    Times,
    as_times,
    check_count,
    client_value,
    constant,
    exponential,
    pareto,
    trace,
)
from moiety.errors import choice, kind, must, whole
from moiety.spec import Spec, build, recorded
from moiety.types import Recorded

__all__ = ["asynchronous", "constant", "delayed", "exponential", "pareto", "synchronous", "trace"]


@dataclass(frozen=True)
class Travel:
    """What a turn of a client is made of: the broadcast on its way down, local work, the upload on its way up."""

    compute: Times
    up: Times
    down: Times

    def seconds(self, seed: int, client: int, name: str, turn: int) -> float:
        """From the broadcast to the arrival of the upload, for a turn of the client counted from 0."""
        return sum(part.of(seed, what, client, name, turn) for what, part in self.parts().items())

    def loses(self, name: str, turn: int) -> bool:
        """Whether a turn of the client of that name comes to nothing."""
        return any(part.loses(name, turn) for part in self.parts().values())

    def check(self, names: Names) -> None:
        """Raise unless there are times for clients of these names."""
        for what, part in self.parts().items():
            part.check(what, names)

    def parts(self) -> dict[str, Times]:
        """The three times by name, in the order in which they pass."""
        return {"down": self.down, "compute": self.compute, "up": self.up}


@dataclass(frozen=True)
class Asynchronous(Recorded):
    """See ``asynchronous``."""

    active: int
    travel: Travel


@dataclass(frozen=True)
class Synchronous(Recorded):
    """See ``synchronous``."""

    travel: Travel


@dataclass(frozen=True)
class Delayed(Recorded):
    """See ``delayed``."""

    down: int | tuple[int, ...]
    up: int | tuple[int, ...]
    at: str

    def of(self, client: int) -> tuple[int, int]:
        """The rounds that a client's broadcasts and its uploads are under way."""
        return client_value(self.down, client), client_value(self.up, client)

    def longest(self) -> tuple[int, int]:
        """The oldest broadcast that anyone works with, and the longest round trip, in rounds."""
        count = max(len(each) if isinstance(each, tuple) else 1 for each in (self.down, self.up))
        pairs = [self.of(client) for client in range(count)]
        return max(down for down, _ in pairs), max(down + up for down, up in pairs)


Clock = Asynchronous | Synchronous | Delayed


@recorded
def asynchronous(
    *, active: int, compute: Times | float = 1.0, up: Times | float = 0.0, down: Times | float = 0.0
) -> Asynchronous:
    """Each upload moves the server as it arrives (Mishchenko et al. 2023, Algorithm 3).

    ``active`` clients, drawn without replacement, begin with the first parameters. One round is one arrival: the server
    steps with that upload alone, though it was computed at older parameters; then a client is drawn uniformly from
    those not active (the one that has just arrived among them), and begins with the newest parameters. With as many
    active as there are clients, whoever arrives begins anew. Uploads that arrive at the same moment come in the order
    in which their clients began. A client's new state is kept when its upload arrives.

    Args:
        active: how many clients work at a time.
        compute: seconds that local work takes, as a number or as times of this module.
        up: seconds that an upload takes.
        down: seconds that a broadcast takes.
    """
    whole("clock.active", active, 1)
    return Asynchronous(int(active), _travel(compute, up, down))


@recorded
def synchronous(*, compute: Times | float = 1.0, up: Times | float = 0.0, down: Times | float = 0.0) -> Synchronous:
    """Rounds as they are without a clock, each of which takes as long as the slowest client of its cohort.

    Args:
        compute: seconds that local work takes, as a number or as times of this module.
        up: seconds that an upload takes.
        down: seconds that a broadcast takes.

    Two rounds with a client that computes for one second and one that computes for three:

    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": y}}, test=0.25)
    >>> clock = mo.clock.synchronous(compute=mo.clock.constant([1.0, 3.0]), up=0.5)
    >>> options = {"rounds": 2, "engine": "sequential", "settings": mo.Settings(clock=clock)}
    >>> mo.fit(mo.models.linear(1, 2), fed, mo.fedavg(shared=0.5), **options).last["time"]
    7.0
    """
    travel = _travel(compute, up, down)
    losses = any(part.lost is not None for part in travel.parts().values())
    must(not losses, "clock", "one without lost uploads where rounds are synchronous", "a trace with some")
    return Synchronous(travel)


@recorded
def delayed(*, down: int | list[int] = 0, up: int | list[int] = 0, at: str = "dispatch") -> Delayed:
    """Rounds in which broadcasts and uploads are under way for whole numbers of rounds.

    Version t is what the server would send at the start of round t, counted from 0. In round t client i works with
    version t - down_i (with version 0 before that one is there) and its new state is there in the next round. What it
    uploads is aggregated in round t + up_i, with all else that arrives in that round. A round in which nothing arrives
    leaves the server as it is, and what is under way when the run ends is lost. ``Work.round_trip`` is down_i + up_i.

    With ``at="arrival"`` the upload is not computed when the client works but when it arrives, as by a server that was
    sent the client's batch and state. Client i works in round t as above, for its new state alone. In round s =
    t + up_i ``client_update`` is called once more, with version s, the state that the client had before its work in
    round t, and the batches and the draws of round t. That upload is aggregated; the state that comes with it is
    dropped.

    Args:
        down: rounds that a broadcast takes, for all clients or a list with a number for each.
        up: rounds that an upload takes, likewise.
        at: ``dispatch`` or ``arrival``: when the upload is computed.
    """
    choice("clock.at", at, ("dispatch", "arrival"))
    return Delayed(_rounds("clock.down", down), _rounds("clock.up", up), at)


CLOCKS: dict[str, Callable[..., Clock]] = {
    "asynchronous": asynchronous,
    "synchronous": synchronous,
    "delayed": delayed,
}


def clock_from(spec: Spec | str) -> Clock:
    """The clock that a table of a configuration describes.

    >>> clock = clock_from({"name": "asynchronous", "active": 4, "compute": {"name": "exponential", "mean": 2.0}})
    >>> clock.active, clock.travel.compute.seconds, clock.travel.up.seconds
    (4, 2.0, 0.0)
    """
    return build("clock", CLOCKS, spec, {"compute": TIMES, "up": TIMES, "down": TIMES})


def check_clock(clock: object, names: Names) -> None:
    """Raise unless ``clock`` is one for clients of these names."""
    hint = "For instance moiety.clock.asynchronous(active=4)."
    kind("clock", clock, (Asynchronous, Synchronous, Delayed), "what moiety.clock makes", hint)
    if isinstance(clock, Delayed):
        check_count("clock.down", clock.down, len(names))
        check_count("clock.up", clock.up, len(names))
        return
    assert isinstance(clock, Asynchronous | Synchronous)
    clock.travel.check(names)
    if isinstance(clock, Asynchronous):
        must(clock.active <= len(names), "clock.active", f"<= {len(names)}, the number of clients", clock.active)


def trace_digests(clock: Clock) -> list[str]:
    """Digests of the files that the clock's times were read from."""
    if isinstance(clock, Delayed):
        return []
    return [part.digest for part in clock.travel.parts().values() if part.digest]


def _travel(compute: Times | float, up: Times | float, down: Times | float) -> Travel:
    return Travel(as_times("clock.compute", compute), as_times("clock.up", up), as_times("clock.down", down))


def _rounds(name: str, rounds: int | list[int]) -> int | tuple[int, ...]:
    """A number of rounds, or one for each client, checked."""
    several = isinstance(rounds, list | tuple)
    for each in rounds if several else [rounds]:  # type: ignore[union-attr]
        whole(name, each, 0)
    return tuple(int(each) for each in rounds) if several else int(rounds)  # type: ignore[arg-type, union-attr]
