"""Starts runs with a clock and kills them with SIGKILL, in the process of ``kill_all``.

It works as ``kill_harness`` does, and kills at changes of the folder while the checkpoints of rounds 2 and 3 are made,
when uploads are under way.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kill_harness
from engine_cases import federation, folder_contents, mlp
from pipeline_harness import listing

import moiety as mo

FED = federation((4, 5, 7, 9, 6, 8))
CLOCKS = {
    "asynchronous": mo.clock.asynchronous(active=3, compute=mo.clock.exponential(1.0, spread=1.0), up=0.1),
    "delayed": mo.clock.delayed(down=[0, 1, 2, 0, 1, 2], up=2),
}


def work(out: Path, rounds: int) -> None:
    """Begin the run, or go on with it: what a user does after a crash."""
    if (out / "config.toml").exists():
        mo.resume(out, data=FED)
        return
    model = mlp()
    algorithm = mo.fedalt(
        shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5), server=mo.server.adam(lr=0.05)
    )
    mo.fit(
        model,
        FED,
        algorithm,
        split=mo.split.output_layer(model),
        rounds=rounds,
        seed=5,
        engine="sequential",
        settings=mo.Settings(evaluate_every=2, checkpoint_every=1, clock=CLOCKS[out.name.partition("-")[0]]),
        out=out,
    )


def kill_clocked(folder: Path, step: int) -> list[dict[str, Any]]:
    """Runs that were killed once each, at every ``step``-th change while the second and third checkpoint were made."""
    kill_harness.work = work
    runs = []
    for name in CLOCKS:
        whole = folder / f"{name}-whole"
        assert kill_harness.wait(kill_harness.start(whole, 4, listing(whole))) == "done", name
        kill_harness.import_all(json.loads(whole.with_suffix(".modules").read_text()))
        events = whole.with_suffix(".events").read_text().splitlines()
        # The last four are the beginnings of the four checkpoints; uploads are under way in the two in the middle.
        starts = [i for i, event in enumerate(events) if event.startswith("os.mkdir") and "/.new.moiety" in event][-4:]
        for number in [*range(starts[1], starts[2], step), *range(starts[2] + step // 2, starts[3], step)]:
            out = folder / f"{name}-point{number}"
            end = kill_harness.wait(kill_harness.start(out, 4, kill_harness.at_event(number, out, half=False)))
            run = {"folder": str(out), "kills": [{"end": end, **kill_harness.list_leftovers(out)}]}
            run["end"] = kill_harness.wait(kill_harness.start(out, 4))
            runs += kill_harness.compare_runs([run], folder_contents(whole))
    return runs
