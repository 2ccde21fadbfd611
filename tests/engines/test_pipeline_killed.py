"""Pipelines that are interrupted, in any stage, go on bit for bit; ``test_killed_run`` kills them."""

from __future__ import annotations

from typing import Any

import pytest
from engine_cases import StopHereError, federation, mlp, same_runs, stop_after
from run_settings import with_settings

import moiety as mo

FED = federation()


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

    def stop(run: mo.Run, record: Any) -> None:
        if run.folder is not None and run.folder.name.startswith(str(stage)):
            stop_after(round)(run, record)

    with pytest.raises(StopHereError):
        mo.pipeline(stages(), mlp(), FED, **with_settings(out=tmp_path / "out", callbacks=[stop], **options))
    files = {p: p.read_bytes() for p in (tmp_path / "out").glob("*/checkpoint/*/*") if int(p.parts[-4][0]) < stage}
    runs = mo.resume(tmp_path / "out", data=FED)
    for one, other in zip(whole, runs, strict=True):
        same_runs(one, other)
    assert all(path.read_bytes() == content for path, content in files.items())
    assert (stage == 1) == (not files)


def test_an_ended_pipeline_stays_as_it_is(tmp_path):
    runs = mo.pipeline(stages(), mlp(), FED, out=tmp_path / "out", engine="sequential")
    text = (tmp_path / "out/pipeline.toml").read_text()
    calls: list[Any] = []
    again = mo.resume(tmp_path / "out", data=FED, callbacks=[lambda run, record: calls.append(record)])
    for one, other in zip(runs, again, strict=True):
        same_runs(one, other)
    assert calls == []
    assert (tmp_path / "out/pipeline.toml").read_text() == text
    # Each stage is an ordinary run, which goes on by itself as well.
    stage = mo.resume(tmp_path / "out/3-finetune", data=FED, rounds=3)
    assert stage.history[-1]["round"] == 3
