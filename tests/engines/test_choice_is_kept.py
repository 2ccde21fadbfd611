"""What ``auto`` and ``processes`` chose is written before the first result: a killed run goes on with it."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_cases import StopHereError, federation, measure_always, mlp, same_folders, same_runs
from run_settings import with_settings

import moiety as mo
from moiety.engines import auto
from moiety.engines.auto import make_engine
from moiety.engines.base import RoundInfo
from moiety.engines.processes import Processes
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.loop.round import Loop

FED = federation()


def fit(**options: Any) -> mo.Run:
    model = mlp()
    split = mo.split.by_name(model, personal=["head"])
    algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5))
    options = {"rounds": 3, "cohort": 4, "evaluate_every": 1, **options}
    return mo.fit(model, FED, algorithm, **with_settings(split=split, **options))


class Clock:
    """A clock that only engines move: the ``quick`` one by a microsecond, all others by a second."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        measure_always(patch)
        self.quick, self.now, self.depth = "", 0.0, 0
        self.ticks = itertools.count()
        for kind in (Sequential, Vectorised, Processes):
            patch.setattr(kind, "map", self.slowed(kind.map))
        patch.setattr(auto.time, "perf_counter", lambda: self.now + next(self.ticks) * 1e-9)

    def slowed(self, plain: Any) -> Any:
        def run(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.depth:  # an engine within another takes no time of its own
                self.now += 1e-6 if engine.name == self.quick else 1.0
            self.depth += 1
            try:
                return plain(engine, *args, **kwargs)
            finally:
                self.depth -= 1

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


CHOICES = [
    ("auto", "vectorised", "sequential"),
    ("auto", "sequential", "vectorised"),
    ("processes", "processes:vectorised", "processes:sequential"),
    ("processes", "processes:sequential", "processes:vectorised"),
]


@pytest.mark.parametrize(("asked", "first", "then"), CHOICES)
def test_a_run_killed_right_after_the_choice_goes_on_with_it(
    asked: str, first: str, then: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round is computed but never closed. When the run goes on, the other engine would look quicker."""

    def kill(self: Loop, *args: Any, **kwargs: Any) -> None:
        raise StopHereError

    workers = {"workers": 2} if asked == "processes" else {"workers": 1}
    clock.quick = first
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "close_round", kill)
        with pytest.raises(StopHereError):
            fit(engine=asked, out=tmp_path / "killed", **workers)
    options = tomllib.loads((tmp_path / "killed/config.toml").read_text())["run"]
    assert options["engine"] == first
    assert "measured" in options["engine_reason"]
    clock.quick = then
    run = mo.resume(tmp_path / "killed", data=FED)
    assert run.engine == first
    same_runs(run, fit(engine=first, **workers))
    assert fit(engine=asked, rounds=1, **workers).engine == then  # the clock really says so


def test_the_number_of_processes_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which clients are vectorised together depends on it; a machine with other cores must not change that."""

    def stop(run: Any, record: mo.RoundRecord) -> None:
        raise StopHereError

    monkeypatch.setattr("moiety.engines.processes.count_cores", lambda: 3)
    whole = fit(engine="processes:vectorised", out=tmp_path / "whole")
    with pytest.raises(StopHereError):
        fit(engine="processes:vectorised", out=tmp_path / "stopped", callbacks=[stop])
    monkeypatch.setattr("moiety.engines.processes.count_cores", lambda: 2)
    run = mo.resume(tmp_path / "stopped", data=FED)
    assert run.config["run"]["workers"] == whole.config["run"]["workers"] == 3
    same_runs(run, whole)
    same_folders(tmp_path / "stopped", tmp_path / "whole")
    other = mo.resume(tmp_path / "stopped", data=FED, rounds=4, settings=mo.Settings(workers=2))
    assert other.config["run"]["workers"] == 2
    assert tomllib.loads((tmp_path / "stopped/config.toml").read_text())["run"]["workers"] == 2


def test_what_is_served_together_does_not_depend_on_the_first_call() -> None:
    """An engine that was measured on two clients serves 300 as one that was not."""
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(size=(300, 4)).astype(np.float32), "y": np.arange(300) % 3}
    run = mo.fit(
        mlp(),
        mo.data.from_arrays(columns, np.arange(300), test=0),
        mo.fedavg(shared=0.1),
        rounds=1,
        cohort=1,
        engine="sequential",
    )
    loop = run._loop
    received = loop.broadcast()
    jobs = loop.make_jobs(range(300), loop.progress.store.get(range(300)), 0)
    slots = []
    for first in (2, 300):
        engine = make_engine("processes:sequential", loop.problem, loop.functions, 2)
        assert isinstance(engine, Processes)
        try:
            engine.map("train", jobs[:first], received, RoundInfo())
            slots.append((engine.states.slots, engine.results["train"].slots))
        finally:
            engine.close()
    assert slots == [(300, 300), (300, 300)]
