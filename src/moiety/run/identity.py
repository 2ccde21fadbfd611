"""What makes a run this one and no other: compared before a resume touches anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moiety.clients.clock import Clock, trace_digests
from moiety.engines.problem import Problem
from moiety.errors import must
from moiety.types import Algorithm


def run_identity(problem: Problem, algorithm: Algorithm, clock: Clock | None) -> dict[str, Any]:
    """What must be the same for a checkpoint to be continued."""
    identity = {
        "algorithm": algorithm.spec or {"name": algorithm.name},
        "personal": list(problem.split.personal),
        "model": {name: list(p.shape) for name, p in problem.task.init.items()},
        "seed": problem.seed,
        "data": problem.data.fingerprint(),
    }
    # A file of times may have changed though its name has not.
    return identity if clock is None else {**identity, "clock": clock.spec, "traces": trace_digests(clock)}


def check_identity(stored: dict[str, Any], identity: dict[str, Any], path: Path) -> None:
    """Raise unless what is stored in ``path`` belongs to the problem at hand."""
    for key in sorted({*stored, *identity}):
        was, wanted = stored.get(key), identity.get(key)
        must(was == wanted, "folder", f"of this run, with {key} {wanted!s:.40}", f"{was!s:.40} in {path}")
