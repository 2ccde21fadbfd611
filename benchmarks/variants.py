"""Who runs: the bare loop, moiety with each of its engines, and the peers with their best settings on this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import python_of

CORES = len(os.sched_getaffinity(0))
BASE = "bare loop, 1 thread"
MOIETY = "moiety"
REFERENCE = "moiety, sequential"
WITHOUT = f"{REFERENCE}, without partial evaluation"


@dataclass(frozen=True)
class Variant:
    """One row of a table: a runner with its arguments, and the works it can do."""

    name: str
    runner: str
    works: str = "abcde"
    peer: str | None = None
    threads: int = 1
    engine: str | None = None
    processes: int = 1
    partial: bool = True

    def command(self, work: str, rounds: int) -> list[str]:
        """The command line that runs it."""
        python: Path | str = python_of(self.peer) if self.peer else sys.executable
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", self.processes] if self.processes > 1 else []
        options = ["--work", work, "--rounds", rounds, "--threads", self.threads]
        engine = ["--engine", self.engine, *([] if self.partial else ["--no-partial"])] if self.engine else []
        return [str(part) for part in [python, *launch, "-m", f"benchmarks.runners.{self.runner}", *options, *engine]]


def variants(peers: list[str]) -> list[Variant]:
    """All rows, in the order of the table."""
    from moiety.engines.auto import ENGINES

    rows = [Variant(BASE, "bare")]
    rows += [Variant(f"bare loop, {n} threads", "bare", threads=n) for n in (2, 4, 8, 16, 32) if n <= CORES]
    # Threads 0: nothing is set, moiety decides as it would for anyone.
    rows.append(Variant(MOIETY, "moiety_runner", threads=0, engine="auto"))
    engines = [e for e in ENGINES if e != "ray"]  # for clusters; on one machine it says nothing
    rows += [Variant(f"moiety, {e}", "moiety_runner", _works(e), threads=0, engine=e) for e in engines]
    rows.append(Variant(WITHOUT, "moiety_runner", "ce", threads=0, engine="sequential", partial=False))
    theirs = [Variant("pfl", "pfl_runner", "abd", "pfl")]
    if CORES > 1:
        theirs.append(Variant(f"pfl, {CORES} processes", "pfl_runner", "abd", "pfl", processes=CORES))
    theirs.append(Variant("fluke", "fluke_runner", "abcd", "fluke"))
    theirs.append(Variant("Flower", "flower_runner", "abd", "flower"))
    return rows + [v for v in theirs if v.peer in peers]


def _works(engine: str) -> str:
    """Convolutions of whole clients under vmap take many times as long as the loop: not worth the wait."""
    return "ade" if "vectorised" in engine else "abcde"
