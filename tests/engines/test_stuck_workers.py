"""Workers that stop answering, and systems on which there are none."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_cases import StopHereError, federation, mlp, same_runs, stop_after
from run_settings import with_settings

import moiety as mo
from moiety import files
from moiety.errors import MoietyError

FED = federation()
PLAIN = mo.fedavg(shared=mo.sgd(0.1, batch_size=5))
PERSONAL = mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.1, batch_size=5))
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there are no workers")


def fit(engine: str, algorithm: mo.Algorithm = PLAIN, **options: Any) -> mo.Run:
    return mo.fit(mlp(), FED, algorithm, **with_settings(rounds=2, engine=engine, seed=3, **options))


def first_time(path: Path, act: Callable[[], None]) -> mo.Algorithm:
    """FedAvg whose first client in a worker acts; every worker that gets that far writes a line."""
    parent = os.getpid()

    def client_update(work: Any, received: Any, state: Any) -> Any:
        if os.getpid() != parent:
            with path.open("a") as file:
                first = file.tell() == 0
                file.write("x")
            if first:
                act()
        return PLAIN.client_update(work, received, state)

    return replace(PLAIN, client_update=client_update)


@linux
def test_a_stopped_worker_is_replaced(tmp_path: Path) -> None:
    algorithm = first_time(tmp_path / "acted", lambda: os.kill(os.getpid(), signal.SIGSTOP))
    run = fit("processes:sequential", algorithm, workers=2, worker_timeout=0.2)
    assert (tmp_path / "acted").exists()
    same_runs(fit("sequential"), run)


@linux
def test_a_worker_stopped_between_rounds_is_replaced() -> None:
    from multiprocessing import active_children

    def stop(run: Any, record: Any) -> None:
        for child in active_children():
            os.kill(child.pid, signal.SIGSTOP)

    run = fit("processes:sequential", workers=2, worker_timeout=0.2, callbacks=[stop])
    same_runs(fit("sequential"), run)


@linux
def test_a_worker_that_is_at_work_is_left_alone(tmp_path: Path) -> None:
    """It works for four times the stated time; were it replaced, some client would be served twice."""

    def work() -> None:
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            pass

    algorithm = first_time(tmp_path / "acted", work)
    fit("processes:sequential", algorithm, workers=2, worker_timeout=0.2)
    assert len((tmp_path / "acted").read_text()) == 2 * len(FED) // 2  # of two rounds; half are served by this process


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "a", True])
def test_the_stated_time_is_checked(value: Any) -> None:
    with pytest.raises(MoietyError, match=r"`worker_timeout` must be > 0"):
        mo.Settings(worker_timeout=value)


def test_it_may_change_on_resume(tmp_path: Path) -> None:
    fit("sequential", out=tmp_path / "run")
    run = mo.resume(tmp_path / "run", model=mlp(), data=FED, rounds=3, settings=mo.Settings(worker_timeout=5.0))
    assert run._loop.timeout == 5.0


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_systems_without_workers(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    def refuse_to_fork(self: Any) -> Any:
        raise AssertionError("forked")

    monkeypatch.setattr("moiety.engines.processes.Processes._fork", refuse_to_fork)
    monkeypatch.setattr("moiety.engines.processes.count_cores", lambda: 4)
    monkeypatch.setattr(sys, "platform", platform)
    for engine in ("sequential", "vectorised"):
        assert fit(engine).engine == engine
    run = fit("auto")
    assert run.engine in ("sequential", "vectorised")
    assert "processes" not in run.config["run"]["engine_reason"]
    for engine in ("processes", "processes:sequential"):
        with pytest.raises(MoietyError, match=f"`engine` must be one that needs no forked process on {platform}"):
            fit(engine)


def test_a_system_without_locks_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    files.warn_of_no_lock.cache_clear()
    with pytest.warns(UserWarning, match="cannot be locked") as records:
        [fit("sequential", out=tmp_path / name) for name in ("one", "two")]
    files.warn_of_no_lock.cache_clear()
    assert len(records) == 1


@pytest.mark.filterwarnings("ignore:.*cannot be locked")
def test_a_folder_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has neither ``pread`` nor ``pwrite`` nor locks, and opens no folder; the same bits all the same."""
    split = mo.split.output_layer(mlp())
    whole = fit("sequential", PERSONAL, split=split, out=tmp_path / "wanted")
    system_open = os.open

    def open_no_folder(path: Any, *arguments: Any) -> int:
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        return system_open(path, *arguments)

    class Windows:
        """All of ``os`` that files use, as it is there."""

        name = "nt"
        open = staticmethod(open_no_folder)

        def __getattr__(self, name: str) -> Any:
            if name in ("pread", "pwrite"):
                raise AttributeError(name)
            return getattr(os, name)

    for name, value in {"os": Windows(), "fcntl": None}.items():
        monkeypatch.setattr(files, name, value)
    with pytest.raises(StopHereError):
        fit("sequential", PERSONAL, split=split, out=tmp_path / "run", callbacks=[stop_after(1)])
    run = mo.resume(tmp_path / "run", data=FED)
    assert mo.verify(tmp_path / "run") == []
    same_runs(whole, run)
