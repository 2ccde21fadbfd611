"""Pipelines that are killed with SIGKILL, between stages and inside them, go on bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from engine_cases import StopHereError, federation, mlp, same_runs, stop_after
from run_settings import with_settings

import moiety as mo

HERE = Path(__file__).parent
MEMORY = Path("/dev/shm")
FED = federation()


def test_killed_between_stages_and_inside_them():
    """A real process, a real SIGKILL, before chosen changes of the folder; a kill loses no write that was made."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as memory:
        command = [sys.executable, str(HERE / "pipeline_harness.py"), memory]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200, cwd=HERE)
    assert done.returncode == 0, done.stderr
    runs: list[dict[str, Any]] = json.loads(done.stdout)
    for run in runs:
        assert run["killed"] == "killed", run
        assert run["error"] is None, run["error"]
        assert run["end"] == "done", run
        assert run["differs"] == [], run
    # The kills fell where they should: before any stage, in the first, between them, and in the second.
    assert any("pipeline.toml" in run["at"] for run in runs)
    assert any("1-fedalt/checkpoint" in run["at"] for run in runs)
    assert any("2-finetune" in run["at"] and "2-finetune" not in run["begun"] for run in runs)
    assert any("2-finetune" in run["at"] and "2-finetune" in run["begun"] for run in runs)


def stages() -> list[Any]:
    return [
        mo.Stage(mo.fedavg(shared=mo.sgd(0.1, batch_size=5)), rounds=2, cohort=3),
        mo.Stage(mo.fedalt(shared=0.1, personal=0.2), rounds=3, cohort=3, split="output_layer"),
        mo.Stage(mo.finetune(personal=0.1), rounds=2, cohort=2, checkpoint_every=2),
    ]


@pytest.mark.parametrize(("stage", "round"), [(1, 1), (1, 2), (2, 2), (3, 1), (3, 2)])
def test_interrupted_in_every_stage(tmp_path, stage, round):
    """Ended stages stay as they are, byte for byte; the rest is as it would have been."""
    options = {"seed": 3, "engine": "sequential"}
    whole = mo.pipeline(stages(), mlp(), FED, **with_settings(**options))

    def watch(name: str, folder: Path | None) -> Any:
        return stop_after(round) if name.startswith(str(stage)) else None

    with pytest.raises(StopHereError):
        mo.pipeline(stages(), mlp(), FED, **with_settings(out=tmp_path / "out", watch=watch, **options))
    ended = {p: p.read_bytes() for p in (tmp_path / "out").glob("*/checkpoint/*/*") if int(p.parts[-4][0]) < stage}
    runs = mo.resume(tmp_path / "out", data=FED)
    for one, other in zip(whole, runs, strict=True):
        same_runs(one, other)
    assert all(path.read_bytes() == content for path, content in ended.items())
    assert (stage == 1) == (not ended)


def test_an_ended_pipeline_stays_as_it_is(tmp_path):
    runs = mo.pipeline(stages(), mlp(), FED, out=tmp_path / "out", engine="sequential")
    text = (tmp_path / "out/pipeline.toml").read_text()
    calls: list[Any] = []
    again = mo.resume(tmp_path / "out", data=FED, on_round=lambda record, rounds: calls.append(record))
    for one, other in zip(runs, again, strict=True):
        same_runs(one, other)
    assert calls == []
    assert (tmp_path / "out/pipeline.toml").read_text() == text
    # Each stage is an ordinary run, which goes on by itself as well.
    alone = mo.resume(tmp_path / "out/3-finetune", data=FED, rounds=3)
    assert alone.history[-1]["round"] == 3
