"""What ``moiety run`` is asked for, and what it says when the user stopped it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

from moiety.errors import SEED, must, whole


class Request(NamedTuple):
    """What ``moiety run`` was asked for."""

    target: str
    sets: tuple[str, ...] = ()
    rounds: int | None = None
    seed: int | None = None
    engine: str | None = None
    workers: int | None = None
    scale: str | None = None
    seeds: int | None = None
    device: str | None = None
    out: Path | None = None
    resume: bool = False
    quiet: bool = False
    several: tuple[int, ...] = ()
    """The seeds, where there are several."""

    def tell_how_to_continue(self, folders: list[Path]) -> str:
        """What an interrupted run says; the first of ``folders`` is the run's, if it had one yet."""
        from moiety.cli.folders import holds_run

        if not folders or not holds_run(folders[0]):
            return "interrupted before anything was written"
        return f"interrupted; continue with: {self._resume_command(folders[0])}"

    def _resume_command(self, folder: Path) -> str:
        """The command line that continues this run in ``folder``."""
        words = ["moiety", "run", self.target]
        for assignment in self.sets:
            words += ["--set", assignment]
        for name in ("rounds", "seed", "engine", "workers", "scale", "seeds", "device"):
            value = getattr(self, name)
            value = ",".join(map(str, self.several)) if name == "seed" and self.several else value
            words += [] if value is None else [f"--{name}", str(value)]
        words += ["--quiet"] if self.quiet else []
        return shlex.join([*words, "--resume", "--out", str(folder)])


def read_seeds(name: str, text: str | None) -> tuple[int, ...]:
    """The seeds that an option names, separated by commas.

    >>> read_seeds("seed", "0,1,2"), read_seeds("seed", "7"), read_seeds("seed", None)
    ((0, 1, 2), (7,), ())
    """
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    numbers = all(part.removeprefix("-").isdecimal() for part in parts)
    must(numbers, name, "a whole number, or several with commas between them", repr(text), "As in 0,1,2.")
    seeds = tuple(int(part) for part in parts)
    for seed in seeds:
        whole(name, seed, 0, SEED)
    must(len(set(seeds)) == len(seeds), name, "different numbers", text)
    return seeds
