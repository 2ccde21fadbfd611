"""Who runs: the bare loop, moiety with each of its engines, and the peers with their best settings on this machine."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import ROOT, python_of
from benchmarks.work import COHORTS, FOLDER, SIZES

CORES = len(os.sched_getaffinity(0))
BASE = "bare loop, 1 thread"
MOIETY = "moiety"
REFERENCE = "moiety, sequential"
WITHOUT = f"{REFERENCE}, without partial evaluation"
EARLIER = "d44ef69"
"""The commit before steps were taken inside the backward pass."""
BEFORE = f"moiety, commit {EARLIER}"
RAY = "moiety, ray:vectorised"
LONG = {"a": 10_000, "b": 200, "d": 10_000}
"""How many rounds ``auto`` is told of in a run that is then stopped early, so that it measures before it chooses."""
PLANNED = f"{MOIETY}, of a long run"
OURS = tuple("fgh")
"""Works that nobody else has; they are compared with an earlier commit."""


def base_of(work: str) -> str:
    """The row that the others of a work are compared with."""
    return BEFORE if work in OURS else BASE


@dataclass(frozen=True)
class Variant:
    """One row of a table: a runner with its arguments, and the works it can do."""

    name: str
    runner: str
    works: tuple[str, ...] = tuple("abcde")
    peer: str | None = None
    threads: int = 1
    engine: str | None = None
    processes: int = 1
    partial: bool = True
    commit: str | None = None
    planned: bool = False

    def command(self, work: str, rounds: int) -> list[str]:
        """The command line that runs it."""
        python: Path | str = python_of(self.peer) if self.peer else sys.executable
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", self.processes] if self.processes > 1 else []
        options = ["--work", work, "--rounds", rounds, "--threads", self.threads]
        engine = ["--engine", self.engine, *([] if self.partial else ["--no-partial"])] if self.engine else []
        planned = ["--planned", LONG[work]] if self.planned else []
        runner = ["-m", f"benchmarks.runners.{self.runner}"]
        return [str(part) for part in [python, *launch, *runner, *options, *engine, *planned]]

    def path(self) -> str:
        """Where its Python looks first: these benchmarks, and before them the package of an earlier commit."""
        return f"{unpack(self.commit) / 'src'}:{ROOT}" if self.commit else str(ROOT)


def unpack(commit: str) -> Path:
    """The package as it was, in a folder that is made once."""
    folder = FOLDER / commit
    if not folder.exists():
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
    return folder


def variants(peers: list[str]) -> list[Variant]:
    """All rows, in the order of the table."""
    from moiety.engines.auto import ENGINES

    rows = [Variant(BASE, "bare", (*"abcde", *SIZES, *COHORTS))]
    rows += [Variant(f"bare loop, {n} threads", "bare", threads=n) for n in (2, 4, 8, 16, 32) if n <= CORES]
    # Threads 0: nothing is set, moiety decides as it would for anyone.
    rows.append(Variant(BEFORE, "moiety_runner", OURS, threads=0, engine="auto", commit=EARLIER))
    rows.append(Variant(MOIETY, "moiety_runner", (*"abcde", *OURS, *COHORTS), threads=0, engine="auto"))
    rows.append(Variant(PLANNED, "moiety_runner", tuple(LONG), threads=0, engine="auto", planned=True))
    engines = [e for e in ENGINES if not e.startswith("ray")]
    rows += [Variant(f"moiety, {e}", "moiety_runner", _works(e), threads=0, engine=e) for e in engines]
    rows.append(Variant(RAY, "moiety_runner", ("d",), threads=0, engine="ray:vectorised"))
    rows.append(Variant(WITHOUT, "moiety_runner", ("c", "e"), threads=0, engine="sequential", partial=False))
    abd = tuple("abd")
    theirs = [Variant("pfl", "pfl_runner", abd, "pfl")]
    if CORES > 1:
        theirs.append(Variant(f"pfl, {CORES} processes", "pfl_runner", abd, "pfl", processes=CORES))
    theirs.append(Variant("fluke", "fluke_runner", (*abd, "c"), "fluke"))
    theirs.append(Variant("Flower", "flower_runner", abd, "flower"))
    return rows + [v for v in theirs if v.peer in peers]


def _works(engine: str) -> tuple[str, ...]:
    """Convolutions of whole clients under vmap take many times as long as the loop: not worth the wait."""
    sizes = tuple(SIZES) if engine == "sequential" else ()
    return (*("ade" if "vectorised" in engine else "abcde"), *sizes)
