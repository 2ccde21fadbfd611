"""What ``moiety run`` is asked for, and how it is told that the user stopped it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path


class Interrupted(Exception):  # noqa: N818 - to stop is no error
    """The user stopped the work; the message says how to go on."""


@dataclass(frozen=True)
class Request:
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

    def resume_command(self, folder: Path) -> str:
        """The command line that continues this run in ``folder``."""
        words = ["moiety", "run", self.target]
        for assignment in self.sets:
            words += ["--set", assignment]
        for name in ("rounds", "seed", "engine", "workers", "scale", "seeds", "device"):
            value = getattr(self, name)
            words += [] if value is None else [f"--{name}", str(value)]
        words += ["--quiet"] if self.quiet else []
        return shlex.join([*words, "--resume", "--out", str(folder)])
