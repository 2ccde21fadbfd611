"""Runs with updates under way that are interrupted and resumed are the same; ``test_killed_run`` kills them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_cases import (
    StopHereError,
    federation,
    mlp,
    refused,
    reseal,
    same_folders,
    same_runs,
    stop_after,
)
from run_settings import with_settings

import moiety as mo
from moiety.loop.virtual_time import AsynchronousLoop
from moiety.run import checkpoint

FED = federation()
CLOCKS = {
    "asynchronous": mo.clock.asynchronous(
        active=3, compute=mo.clock.pareto(0.1, shape=1.2, spread=1.0), up=0.1, down=mo.clock.exponential(0.3)
    ),
    "synchronous": mo.clock.synchronous(compute=mo.clock.exponential(1.0)),
    "delayed": mo.clock.delayed(down=[0, 1, 2, 0, 1, 2], up=2),
    "on arrival": mo.clock.delayed(down=1, up=[0, 1, 2, 0, 1, 3], at="arrival"),
}
ALGORITHMS = {
    "fedavg": lambda: mo.fedavg(shared=mo.sgd(0.1, batch_size=5), schedule=mo.schedule.linear()),
    "fedalt": lambda: mo.fedalt(
        shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5), server=mo.server.adam(lr=0.05)
    ),
    "ffgg": lambda: mo.ffgg(shared=0.1, personal=mo.sgd(0.1, steps=2)),
}
CASES = [(c, a) for c in CLOCKS for a in ALGORITHMS if c != "synchronous" or a == "fedalt"]


def begin(clock: Any, algorithm: str, out: Path | None, **options: Any) -> mo.Run:
    model = mlp()
    split = None if algorithm == "fedavg" else mo.split.output_layer(model)
    arguments = {"rounds": 7, "seed": 7, "engine": "sequential", "evaluate_every": 2, "checkpoint_every": 1} | options
    return mo.fit(model, FED, ALGORITHMS[algorithm](), **with_settings(split=split, clock=clock, out=out, **arguments))


@pytest.mark.parametrize(("clock", "algorithm"), CASES)
def test_an_interrupted_run_ends_like_one_that_was_not(clock: str, algorithm: str, tmp_path: Path) -> None:
    """Stopped in a round without evaluation, so that what was counted since the last one is in the checkpoint."""
    timer = CLOCKS[clock]
    whole = begin(timer, algorithm, tmp_path / "whole")
    same_runs(whole, begin(timer, algorithm, None))  # a folder changes nothing
    with pytest.raises(StopHereError):
        begin(timer, algorithm, tmp_path / "parts", callbacks=[stop_after(3)])
    if clock != "synchronous":
        note = json.loads((checkpoint.find_checkpoint(tmp_path / "parts") / "state.json").read_text())["in_transit"]  # type: ignore[operator]
        assert note["messages"], "nothing under way"
    parts = mo.resume(tmp_path / "parts", data=FED)
    same_runs(whole, parts)
    same_folders(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("engine", ["vectorised", "processes:sequential"])
def test_other_engines_too(engine: str, tmp_path: Path) -> None:
    for name in ("asynchronous", "on arrival"):
        whole = begin(CLOCKS[name], "fedalt", None, engine=engine)
        with pytest.raises(StopHereError):
            begin(CLOCKS[name], "fedalt", tmp_path / name, engine=engine, callbacks=[stop_after(4)])
        same_runs(whole, mo.resume(tmp_path / name, data=FED))


def test_a_run_goes_on_after_its_end_with_what_was_under_way(tmp_path: Path) -> None:
    """Without a schedule that looks at the number of rounds, 4 + 3 rounds are 7 rounds."""
    whole = begin(CLOCKS["asynchronous"], "fedalt", None, evaluate_every=1)
    begin(CLOCKS["asynchronous"], "fedalt", tmp_path / "run", rounds=4, evaluate_every=1)
    same_runs(whole, mo.resume(tmp_path / "run", data=FED, rounds=7))


def test_an_interrupt_between_the_beginning_and_an_arrival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when a client has begun anew and nobody has arrived since: all are under way in the checkpoint."""
    whole = begin(CLOCKS["asynchronous"], "fedalt", None)
    start, calls = AsynchronousLoop._start_clients, []

    def interrupted(self: AsynchronousLoop) -> None:
        start(self)
        calls.append(len(self.in_transit.messages))
        if len(calls) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AsynchronousLoop, "_start_clients", interrupted)
        with pytest.raises(KeyboardInterrupt):
            begin(CLOCKS["asynchronous"], "fedalt", tmp_path / "run", checkpoint_every=7)
    assert calls == [3, 3, 3, 3]
    assert len(list((tmp_path / "run" / "checkpoint").glob("round-*3"))) == 1
    same_runs(whole, mo.resume(tmp_path / "run", data=FED))


def test_a_folder_of_another_clock_or_a_broken_transit_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "times.csv"
    lines = [f"{client},{1 + i}" for i, client in enumerate(FED.ids)]
    trace.write_text("\n".join(["client,seconds", *lines]))
    out = tmp_path / "run"
    with pytest.raises(StopHereError):
        begin(
            mo.clock.asynchronous(active=2, compute=mo.clock.trace(str(trace))),
            "fedavg",
            out,
            callbacks=[stop_after(3)],
        )
    trace.write_text("\n".join(["client,seconds", *reversed(lines)]) + "\n")
    refused(lambda: mo.resume(out, data=FED), "`traces` must be ")
    trace.write_text("\n".join(["client,seconds", *lines]))
    config = (out / "config.toml").read_text()
    (out / "config.toml").write_text(config.replace("active = 2", "active = 3"))
    reseal(out / "config.toml")
    refused(lambda: mo.resume(out, data=FED), r"`clock[.\w]*` must be ")
    (out / "config.toml").write_text(config.partition("[clock]")[0] + "[run]" + config.partition("[run]")[2])
    reseal(out / "config.toml")
    refused(lambda: mo.resume(out, data=FED), r"`clock[.\w]*` must be ")
    (out / "config.toml").write_text(config)
    state = checkpoint.find_checkpoint(out) / "state.json"  # type: ignore[operator]
    whole = json.loads(state.read_text())
    for change in (
        {"in_transit": {}},
        {"in_transit": {**whole["in_transit"], "messages": whole["in_transit"]["messages"][1:]}},
        {"in_transit": {**whole["in_transit"], "turns": 3}},
    ):
        state.write_text(json.dumps({**whole, **change}))
        reseal(state)
        refused(lambda: mo.resume(out, data=FED), "checkpoint.*under way")
    state.write_text(json.dumps(whole))
    reseal(state)
    mo.resume(out, data=FED)


def test_no_personal_name_is_in_what_crosses(tmp_path: Path) -> None:
    """Uploads and broadcasts are apart from the states of clients, as everywhere in a checkpoint."""
    from safetensors.torch import load_file

    begin(CLOCKS["asynchronous"], "fedalt", tmp_path / "run")
    begin(CLOCKS["on arrival"], "fedalt", tmp_path / "late")
    for folder in ("run", "late"):
        at = checkpoint.find_checkpoint(tmp_path / folder)
        assert at is not None
        assert not [name for name in load_file(at / "in_transit.safetensors") if "head" in name]
        assert [name for name in load_file(at / "working.safetensors") if "head" in name]
