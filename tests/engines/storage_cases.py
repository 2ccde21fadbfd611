"""Small runs of several kinds, begun and continued, and disks that fail; for tests of what is left on disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_cases import federation, folder_contents, mlp

import moiety as mo

FED = federation((4, 6, 8))
ALT = mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5))
SETTINGS: dict[str, dict[str, Any]] = {
    "fit": {},
    "clock": {"clock": mo.clock.asynchronous(active=2, compute=mo.clock.exponential(1.0, spread=1.0), up=0.1)},
    "codec": {"codec": mo.codec.qsgd(levels=7)},
}


def run_kind(kind: str, out: Path, rounds: int = 2, **options: Any) -> None:
    """Begin a run of that kind, or go on with it: what a user does after an error."""
    if kind == "pipeline":
        if (out / "pipeline.toml").exists():
            mo.resume(out, data=FED)
            return
        stages = [mo.Stage(mo.fedavg(shared=0.1), rounds=1), mo.Stage(ALT, rounds=1, split="output_layer")]
        mo.pipeline(stages, mlp(), FED, engine="sequential", out=out)
        return
    if (out / "config.toml").exists():
        mo.resume(out, data=FED)
        return
    model, settings = mlp(), mo.Settings(evaluate_every=1, checkpoint_every=1, **SETTINGS[kind])
    cohort = None if kind == "clock" else 2
    split = mo.split.output_layer(model)
    options = {
        "split": split,
        "rounds": rounds,
        "cohort": cohort,
        "engine": "sequential",
        "settings": settings,
    } | options
    mo.fit(model, FED, ALT, seed=5, out=out, **options)


def kind_contents(out: Path) -> list[dict[str, Any]]:
    """What the folders of a run's or a pipeline's runs say, without times and without where they lie."""
    places = sorted(file.parent for file in out.rglob("config.toml"))
    found = [folder_contents(place) for place in places]
    for each in found:
        each["config"] = each["config"].replace(str(out), "OUT")
    return found


def fresh(out: Path) -> Path:
    """The folder, without what an earlier try left there."""
    shutil.rmtree(out, ignore_errors=True)
    return out


class Disk:
    """In the place of ``moiety.files.system_call``: counts calls, and fails the n-th or writes only half of it.

    ``for_good`` lets all calls after it fail too, as a full disk does. A short write is followed by an error at the
    next write, unless ``only_short``.
    """

    def __init__(self, n: int = -1, error: int = errno.ENOSPC, *, for_good: bool = False, only_short: bool = False):
        self.n, self.error, self.for_good, self.only_short = n, error, for_good, only_short
        self.calls: list[str] = []

    def __call__(self, call: Callable[..., Any], *arguments: Any) -> Any:
        at, name = len(self.calls), call.__name__
        self.calls.append(name)
        writes = name in ("write", "pwrite")
        if self.only_short:
            if writes and len(arguments[1]) > 1:
                return call(arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
        elif at == self.n or (self.for_good and at > self.n >= 0):
            if writes and at == self.n:  # half of it reaches the disk, and then there is no room
                call(arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
            raise OSError(self.error, os.strerror(self.error))
        return call(*arguments)
