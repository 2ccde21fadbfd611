"""How long things take on a virtual clock: computing, a broadcast, an upload, for each client and each of its turns.

Every draw belongs to (seed, what takes the time, client, the client's turn). So a turn takes the same time whatever
happened before it, and a run can be repeated.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from moiety.errors import kind, must, near, number, report_errors
from moiety.random import generator
from moiety.spec import recorded
from moiety.types import Recorded

Value = TypeVar("Value", int, float)
Names = Sequence[str] | np.ndarray
"""The names of all clients, in their order."""
Draw = Callable[[np.random.Generator, float, int], float]
"""Takes a generator, a client's own seconds and the count of its turns; returns the seconds of this turn."""


@dataclass(frozen=True)
class Times(Recorded):
    """Seconds that one thing takes; made by one of the builders of ``TIMES``.

    ``seconds`` is one number for all clients, or one for each. With ``spread`` a client's number is multiplied by
    exp(spread z), z drawn once for the client from the standard normal distribution. ``traced`` has the recorded times
    of each client by its name, where a file gives them.
    """

    seconds: float | tuple[float, ...]
    draw: Draw
    spread: float = 0.0
    traced: Mapping[str, tuple[float, ...]] | None = None
    digest: str = ""
    """The digest of the file that the times were read from; empty where there is none."""
    lost: Mapping[str, tuple[bool, ...]] | None = None
    """Whether the upload of each recorded turn was lost, where the file says so."""

    def of(self, seed: int, what: str, client: int, name: str, turn: int) -> float:
        """The seconds of one turn of a client, counted from 0."""
        if self.traced is not None:
            times = self.traced[name]
            return times[turn % len(times)]
        own = client_value(self.seconds, client)
        if self.spread:
            own *= math.exp(self.spread * generator(seed, what, "spread", client).standard_normal())
        return self.draw(generator(seed, what, client, turn), own, turn)

    def loses(self, name: str, turn: int) -> bool:
        """Whether the upload of a turn of the client of that name is lost on its way."""
        losses = self.lost[name] if self.lost is not None else (False,)
        return losses[turn % len(losses)]

    def check(self, what: str, names: Names) -> None:
        """Raise unless there are times for clients of these names."""
        if self.traced is not None:
            missing = [str(name) for name in names if str(name) not in self.traced]
            hint = near(missing[0], self.traced) if missing else ""
            must(not missing, f"clock.{what}", "a trace with a line for every client", f"none for {missing[:1]}", hint)
        check_count(f"clock.{what}", self.seconds, len(names))


def client_value(value: Value | tuple[Value, ...], client: int) -> Value:
    """The value of a client, where there is one for all or one for each."""
    return value[client] if isinstance(value, tuple) else value


def check_count(name: str, value: object, clients: int) -> None:
    """Raise where there is a value for each client, but not as many as clients."""
    count = len(value) if isinstance(value, tuple) else clients
    must(count == clients, name, f"one number, or one for each of {clients} clients", count)


def _times(name: str, seconds: object, draw: Draw, spread: float, *, zero: bool = False) -> Times:
    """Times from one number or a list with a number for each client, checked."""
    constraint = f"{'>=' if zero else '>'} 0 and finite"

    def holds(x: float) -> bool:
        return 0 < x < math.inf or (zero and x == 0)

    # An array is refused: a run folder could not say it, and the run could not be continued.
    several = isinstance(seconds, list | tuple)
    must(not several or bool(seconds), name, "a number, or one for each client", "none")
    for each in seconds if several else [seconds]:  # type: ignore[attr-defined]
        number(name, each, constraint if several else f"{constraint}, or a list of such numbers", holds)
    number("spread", spread, ">= 0 and at most 50", lambda x: 0 <= x <= 50)  # exp(50 z) is a float for all z drawn
    own = tuple(float(each) for each in seconds) if several else float(seconds)  # type: ignore[attr-defined, arg-type]
    return Times(own, draw, float(spread))


@recorded
def constant(seconds: float | list[float], *, spread: float = 0.0) -> Times:
    """The same time in every turn.

    Args:
        seconds: for all clients, or a list with a number for each.
        spread: how much clients differ: each has its own factor exp(spread z), z standard normal.

    >>> times = constant([1.0, 60.0])  # then clock.asynchronous(active=2, compute=times)
    >>> [times.of(seed=0, what="compute", client=client, name="", turn=0) for client in (0, 1)]
    [1.0, 60.0]
    """
    return _times("seconds", seconds, lambda draw, own, turn: own, spread, zero=True)


@recorded
def exponential(mean: float | list[float], *, spread: float = 0.0) -> Times:
    """Exponential times: memoryless, now and then a few times the mean.

    Args:
        mean: in seconds, for all clients, or a list with a number for each.
        spread: how much clients differ: each has its own factor exp(spread z), z standard normal.

    >>> times = exponential(2.0)  # then clock.asynchronous(active=2, compute=times)
    >>> turns = [times.of(seed=0, what="compute", client=0, name="", turn=turn) for turn in range(1000)]
    >>> 1.8 < sum(turns) / 1000 < 2.2, max(turns) > 10
    (True, True)
    """
    return _times("mean", mean, lambda draw, own, turn: own * float(draw.standard_exponential()), spread)


@recorded
def pareto(least: float | list[float], *, shape: float, spread: float = 0.0) -> Times:
    """Heavy-tailed times: P(more than s seconds) = (least / s)^shape for s >= least.

    The mean is least shape / (shape - 1), infinite for a shape of 1 or less; the variance is infinite for 2 or less.

    Args:
        least: seconds that no turn goes below, for all clients, or a list with a number for each.
        shape: the smaller, the heavier the tail.
        spread: how much clients differ: each has its own factor exp(spread z), z standard normal.
    """
    number("shape", shape, "> 0 and finite", lambda x: 0 < x < math.inf)
    return _times("least", least, lambda draw, own, turn: own * (1.0 + float(draw.pareto(shape))), spread)


@recorded
def trace(file: str, *, column: str = "seconds", lost: str | None = None) -> Times:
    r"""Recorded times, from a CSV file.

    Its first line names the columns: ``client`` and at least one of times. Each further line is a turn: the client's
    name and the seconds it took. A client's turns take the times of its lines in their order, and when these are used
    up, from the first again. Other columns are not looked at, so that one file may hold ``compute``, ``up`` and
    ``down``.

    Args:
        file: where it is.
        column: the column to read.
        lost: a column with 1 in each turn whose upload was lost on its way, and 0 in the others; for ``asynchronous``
            alone, whose server then leaves that arrival out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(f"{folder}/times.csv").write_text("client,seconds\nann,2\nann,5\nbob,9\n")
    ...     times = trace(f"{folder}/times.csv")  # then clock.asynchronous(active=2, compute=times)
    >>> [times.of(seed=0, what="compute", client=0, name="ann", turn=turn) for turn in range(3)]
    [2.0, 5.0, 2.0]
    """
    kind("file", file, str, "the path of a CSV file")
    with report_errors("file", "a CSV file that can be read", (OSError, csv.Error, ValueError), f" at {file}"):
        content = Path(file).read_bytes()
        rows = list(csv.DictReader(content.decode().splitlines()))
    must(bool(rows), "file", "a CSV file with a line of names and lines of times", f"none in {file}")
    for name in ("client", column, *([] if lost is None else [lost])):
        must(name in rows[0], "file", f"one with a column {name}", file, near(name, [k for k in rows[0] if k]))
    traced: dict[str, tuple[float, ...]] = {}
    losses: dict[str, tuple[bool, ...]] = {}
    for at, row in enumerate(rows, start=2):
        try:
            seconds = float(row[column])
        except (TypeError, ValueError):
            seconds = math.nan
        good = 0 <= seconds < math.inf and bool(row["client"])
        must(good, "file", "lines of a client and of seconds >= 0", f"{row['client']}, {row[column]} in line {at}")
        traced[row["client"]] = (*traced.get(row["client"], ()), seconds)
        if lost is not None:
            must(row[lost] in ("0", "1"), "file", f"one with 0 or 1 as {lost}", f"{row[lost]!r:.40} in line {at}")
            losses[row["client"]] = (*losses.get(row["client"], ()), row[lost] == "1")
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return Times(0.0, lambda draw, own, turn: own, traced=traced, digest=digest, lost=losses or None)


TIMES: dict[str, Callable[..., Times]] = {
    "constant": constant,
    "exponential": exponential,
    "pareto": pareto,
    "trace": trace,
}


def as_times(name: str, value: Times | float) -> Times:
    """The value as times; a number stands for ``constant(number)``."""
    if isinstance(value, Times):
        return value
    hint = "For instance moiety.clock.exponential(1.0)."
    number(name, value, "seconds >= 0, or times of moiety.clock", lambda x: 0 <= x < math.inf, hint)
    return constant(float(value))
