"""Starts pipelines and kills them with SIGKILL, in the process of ``kill_all``.

It works as ``kill_harness`` does, with a pipeline in the place of a run, and kills at chosen changes of the folder:
such as a single run does not have (the pipeline's file, the second stage with the states it starts from) and one in
the middle of each stage.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kill_harness
from engine_cases import federation, folder_contents, mlp

import moiety as mo

FED = federation((4, 5, 7, 9, 6))
NAMES = ("1-fedalt", "2-finetune")


def work(out: Path, rounds: int) -> None:
    """Begin the pipeline, or go on with it: what a user does after a crash."""
    if (out / "pipeline.toml").exists():
        mo.resume(out, data=FED)
        return
    adapters = {"name": "adapters", "width": 2, "targets": ["hidden1"]}
    stages = [
        mo.Stage(mo.fedalt(shared=0.1, personal=0.2), rounds=rounds, cohort=3, split=adapters),
        mo.Stage(mo.finetune(personal=0.1), rounds=rounds, cohort=4),
    ]
    mo.pipeline(stages, mlp(), FED, seed=5, engine="sequential", out=out)


def listing(out: Path) -> Callable[[], None]:
    """Write down every change of the folder, as ``kill_harness.at_event`` counts them."""
    changes = {"os.rename", "os.mkdir", "os.remove", "os.rmdir"}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in changes:
            return
        place = os.path.join(os.getcwd() if event == "os.mkdir" else str(out), str(arguments[0]))
        if place.startswith(str(out)):
            with open(out.with_suffix(".events"), "a") as file:
                file.write(f"{event} {place.removeprefix(str(out))}\n")

    return lambda: sys.addaudithook(hook)


def choose_points(events: list[str]) -> list[int]:
    """The changes at which to kill."""
    second = next(i for i, event in enumerate(events) if "/2-finetune" in event)
    early = [i for i in range(second, len(events)) if "checkpoint" not in events[i]][:8]
    pipeline = [i for i, event in enumerate(events) if "pipeline.toml" in event]
    middle = [next(i for i, e in enumerate(events) if f"{name}/checkpoint" in e) + 2 for name in NAMES]
    return sorted({*pipeline, second // 2, *middle, second - 1, *early, len(events) - 1})


def contents(out: Path) -> dict[str, Any]:
    """What the folders of both stages say, without times and without where they lie."""
    names = sorted(p.name for p in out.iterdir() if not p.name.startswith("."))
    parts: dict[str, Any] = {"pipeline": (out / "pipeline.toml").read_text().partition("# moiety")[0], "names": names}
    for name in NAMES:
        stage = folder_contents(out / name)
        stage["config"] = stage["config"].replace(str(out), "OUT")
        parts |= {f"{name} {part}": value for part, value in stage.items()}
        path = out / name / "start.safetensors"
        parts[f"{name} start"] = path.read_bytes() if path.exists() else None
    return parts


def compare_run(run: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The run, with what it has otherwise than the one that nobody killed."""
    out = Path(run["folder"])
    error = out.with_suffix(".error")
    run["error"] = error.read_text() if error.exists() else None
    if run["end"] == "done":
        try:
            actual = contents(out)
            run["differs"] = [part for part in wanted if actual[part] != wanted[part]]
        except Exception:
            run["error"] = traceback.format_exc()
    return run


def kill_pipelines(folder: Path) -> list[dict[str, Any]]:
    """Pipelines that were killed once each, before chosen changes of the folder."""
    kill_harness.work = work
    whole = folder / "whole"
    assert kill_harness.wait(kill_harness.start(whole, 1, listing(whole))) == "done"
    kill_harness.import_all(json.loads(whole.with_suffix(".modules").read_text()))
    events, expected = whole.with_suffix(".events").read_text().splitlines(), contents(whole)
    runs = []
    for number in choose_points(events):
        out = folder / f"point{number}"
        end = kill_harness.wait(kill_harness.start(out, 1, kill_harness.at_event(number, out, half=False)))
        stages = [name for name in NAMES if (out / name / "config.toml").exists()]
        run = {"folder": str(out), "killed": end, "at": events[number], "begun": stages}
        runs.append(compare_run(run | {"end": kill_harness.wait(kill_harness.start(out, 1))}, expected))
    return runs
