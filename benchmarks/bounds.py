"""What must not be more than a bound: milliseconds, megabytes, wrong choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.variants import RAY

Stored = Mapping[str, Any]
"""Results as they are kept, by kind and name."""


FIRST_ROUND = "moiety run first.toml, to the end of round 1"
"""The row of the start-up table that is bounded."""


def bounds(stored: Stored) -> list[tuple[str, float, str, float | None]]:
    """What is bounded, the bound, its unit, and what was measured if it was."""

    def find(read: Callable[[], float]) -> float | None:
        try:
            return read()
        except (KeyError, StopIteration):
            return None

    def row_of(work: str, who: str) -> Mapping[str, Any]:
        return next(row for row in stored["works"][work]["rows"] if row["name"] == who)

    scale = {int(n): one["rows"] for n, one in stored.get("scale", {}).items()}
    found = [
        (
            "the leading process in a round of (d)",
            0.5,
            "ms",
            lambda: median(o["leader"] for o in stored["leader"]["d"]["rows"]) / 1e3,
        ),
        ("(d) on Ray, a round", 25.0, "ms", lambda: 1e3 * row_of("d", RAY)["seconds"]),
        (
            "(d) on Ray, first round after",
            8.0,
            "s",
            lambda: row_of("d", RAY)["first_round"],
        ),
        (
            "`moiety run first.toml`, first round beyond importing torch",
            1.5,
            "s",
            lambda: beyond_torch(stored["start_up"], FIRST_ROUND),
        ),
        (
            "peak of a hundred uploads of 1e7 parameters",
            1536.0,
            "MB",
            lambda: max(one["memory_mb"] for engine in stored["uploads"].values() for one in engine["rows"]),
        ),
        ("peak at 1,000,000 clients", 600.0, "MB", lambda: scale[1_000_000]["memory_mb"]),
        (
            "a round at 1,000,000 clients",
            1.25,
            "times that at 1,000",
            lambda: scale[1_000_000]["seconds"] / scale[1_000]["seconds"],
        ),
    ]
    for work in "abd":
        found += [
            (
                f"`auto` in ({work}), choices of ten that are wrong",
                1.0,
                "",
                lambda w=work: _wrong_choices(stored["choice"][w]["rows"]),
            ),
            (
                f"`auto` in ({work}), choosing",
                5.0,
                "% of the run",
                lambda w=work: 100 * max(r["share"] for r in stored["choice"][w]["rows"]),
            ),
        ]
    return [(what, most, unit, find(read)) for what, most, unit, read in found]


def _wrong_choices(rows: Sequence[Mapping[str, Any]]) -> float:
    """Of ten choices, in the kind of run in which most are wrong."""
    return max(10 * (row["tries"] - row["right"]) / row["tries"] for row in rows)


def beyond_torch(start_up: Mapping[str, Any], name: str) -> float:
    """How much longer a command takes than to import torch."""
    whole, torch = (median(one["whole"] for one in start_up[each]["rows"]) for each in (name, "import torch"))
    return whole - torch
