"""Starts runs and kills them with SIGKILL, in the process of ``kill_all``.

It imports torch once and forks a run for every kill, so that a kill costs little. It never trains itself: torch does
not survive a fork after autograd has been used.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from engine_cases import batch_norm_net, federation, folder_contents

import moiety as mo

FED = federation((4, 9, 9, 12))


def work(out: Path, rounds: int) -> None:
    """Begin the run, or go on with it: what a user does after a crash."""
    if (out / "config.toml").exists():
        mo.resume(out, data=FED, model=batch_norm_net())
        return
    model = batch_norm_net()
    split = mo.split.by_name(model, personal=["head"], running_stats="shared")
    algorithm = mo.fedalt(
        shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5), server=mo.server.adam(lr=0.05)
    )
    options: dict[str, Any] = {"rounds": rounds, "cohort": 3, "engine": "sequential"}
    settings = mo.Settings(evaluate_every=1, checkpoint_every=1, partial=False)
    mo.fit(model, FED, algorithm, split=split, seed=5, out=out, settings=settings, **options)


def start(out: Path, rounds: int, before: Callable[[], None] = lambda: None) -> int:
    """Fork a process that does ``work``; its exit code is 0, or 1 with its traceback in ``FOLDER.error``."""
    child = os.fork()
    if child:
        return child
    try:
        before()
        work(out, rounds)
        out.with_suffix(".modules").write_text(json.dumps(sorted(sys.modules)))
    except BaseException:
        out.with_suffix(".error").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def wait(child: int) -> str:
    """How a child ended: ``done``, ``failed`` or ``killed``."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "killed" if os.WTERMSIG(status) == signal.SIGKILL else f"signal {os.WTERMSIG(status)}"
    return "done" if os.WEXITSTATUS(status) == 0 else "failed"


def list_leftovers(out: Path) -> dict[str, Any]:
    """What a kill left behind: how far the newest checkpoint is, and names that no finished run has."""
    rounds = sorted(int(p.name.removeprefix("round-")) for p in (out / "checkpoint").glob("round-*"))
    strays = sorted(p.name for p in out.rglob(".*")) if out.exists() else []
    return {"config": (out / "config.toml").exists(), "rounds": rounds, "strays": strays}


def at_event(number: int, out: Path, half: bool) -> Callable[[], None]:
    """Die at the given change of the folder, counted from 0.

    That is before a renaming or a removal, or (``half``) in the middle of a write, with half of the file on disk.
    """
    count = -1

    def reached() -> bool:
        nonlocal count
        count += 1
        return count == number

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        changes = {"os.rename", "os.mkdir", "os.remove", "os.rmdir"}
        # What a removal of a folder removes has names relative to that folder.
        place = os.path.join(os.getcwd() if event == "os.mkdir" else str(out), str(arguments[0]))
        if event in changes and place.startswith(str(out)) and reached():
            die()

    def fsync(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if path.startswith(str(out)) and not os.path.isdir(path) and reached():
            if os.path.basename(path) not in (
                "states.bin",
                "index.bin",
            ):  # written in place, so it cannot be short: see pwrite
                os.truncate(path, os.path.getsize(path) // 2)
            die()

    whole_pwrite = os.pwrite

    def pwrite(handle: int, content: bytes, at: int) -> int:
        """A record of a personal state of which only the first half reaches the file, over whatever was there."""
        if os.readlink(f"/proc/self/fd/{handle}").startswith(str(out)) and reached():
            whole_pwrite(handle, content[: len(content) // 2], at)
            die()
        return whole_pwrite(handle, content, at)

    def install() -> None:
        if half:
            os.fsync = fsync
            os.pwrite = pwrite
        else:
            sys.addaudithook(hook)

    return install


def random_kills(folder: Path, rng: Random, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Two runs, each killed again and again after random times, at once at first, then left to end."""
    runs = []
    for chain in range(2):
        out = folder / f"random{chain}"
        kills = []
        for delay in [0.0, *(rng.uniform(0, 0.35 * seconds) for _ in range(4))]:
            kills.append(kill_after(delay, out, rounds))
        while not list_leftovers(out)["rounds"] and len(kills) < 20:  # the machine may have become slower meanwhile
            kills.append(kill_after(0.5 * seconds, out, rounds))
        runs.append({"folder": str(out), "kills": kills, "end": wait(start(out, rounds))})
    return runs


def kill_after(delay: float, out: Path, rounds: int) -> dict[str, Any]:
    """One run that has ``delay`` seconds to live."""
    child = start(out, rounds)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    return {"end": wait(child), **list_leftovers(out)}


def every_point(folder: Path, rounds: int, half: bool, step: int) -> list[dict[str, Any]]:
    """A run killed at every ``step``-th change of its folder in turn, each resumed and left to end.

    Where ``step`` is not 1, kills in the middle of a write and kills before a renaming are at different files.
    """
    runs: list[dict[str, Any]] = []
    for number in itertools.count(half * (step - 1), step):
        out = folder / f"{'half' if half else 'point'}{number}"
        end = wait(start(out, rounds, at_event(number, out, half)))
        if end == "done":
            break
        kill = {"end": end, **list_leftovers(out)}
        runs.append({"folder": str(out), "kills": [kill], "end": wait(start(out, rounds))})
    return runs


def import_all(names: list[str]) -> None:
    """Import what a run imported on its way (torch does so when first used), or every fork would do it again."""
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def reference(out: Path, rounds: int) -> float:
    """A run that nobody kills; how many seconds it took."""
    start_time = time.perf_counter()
    assert wait(start(out, rounds)) == "done", out.with_suffix(".error").read_text()
    return time.perf_counter() - start_time


def compare_runs(runs: list[dict[str, Any]], wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs, with what each of them has otherwise than the one that nobody killed."""
    for run in runs:
        out = Path(run["folder"])
        error = out.with_suffix(".error")
        run["error"] = error.read_text() if error.exists() else None
        run["differs"] = None
        if run["end"] == "done":
            try:
                actual = folder_contents(out)
                run["differs"] = [part for part in wanted if actual[part] != wanted[part]]
            except Exception:
                run["error"] = traceback.format_exc()
        run["strays"] = list_leftovers(out)["strays"]
    return runs


def kill_runs(disk: Path, memory: Path, seed: int, step: int) -> dict[str, list[dict[str, Any]]]:
    """Runs that were killed at random moments, before changes of the folder, and in the middle of writes."""
    short, long = memory / "short", disk / "long"
    reference(short, 2)
    import_all(json.loads(short.with_suffix(".modules").read_text()))
    seconds = reference(long, 12)
    at_random = random_kills(disk, Random(seed), 12, seconds)
    points = every_point(memory, 2, half=False, step=step)
    halves = every_point(memory, 2, half=True, step=step)
    return {
        "random": compare_runs(at_random, folder_contents(long)),
        "points": compare_runs(points, folder_contents(short)),
        "halves": compare_runs(halves, folder_contents(short)),
    }
