"""A CSV file from the shell: begun, continued, and refused in one line where it changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_command import call

RUN = """
model = { name = "mlp", hidden = [4] }
split = "output_layer"

[data]
name = "table"
path = "visits.csv"
client = "site"
target = "outcome"
standardise = true
unseen_clients = 0.25

[algorithm]
name = "fedalt"
shared = 0.1
personal = 0.1

[run]
rounds = 2
engine = "sequential"
"""


def test_a_table_runs_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [f"{'abcd'[i % 4]},{rng.normal():.3f},{rng.choice(['u', 'v'])},{['ill', 'well'][i % 2]}" for i in range(80)]
    Path("visits.csv").write_text("\n".join(["site,age,ward,outcome", *lines]))
    Path("run.toml").write_text(RUN)
    result = call(capsys, "run", "run.toml", "--out", "out")
    assert result.code == 0
    assert "clients never seen" in result.out
    assert call(capsys, "run", "run.toml", "--out", "out", "--resume", "--rounds", "3").code == 0
    assert call(capsys, "verify", "out").code == 0
    Path("visits.csv").write_text("\n".join(["site,age,ward,outcome", *lines[::-1]]))
    result = call(capsys, "run", "run.toml", "--out", "out", "--resume", "--rounds", "4")
    assert result.code == 2
    assert "`data` must be as the run in out began" in result.err
    Path("run.toml").write_text(RUN.replace('target = "outcome"', 'target = "outcom"'))
    result = call(capsys, "run", "run.toml", "--out", "other")
    assert (result.code, Path("other").exists()) == (2, False)
    assert "`target` must be a column of the table, got 'outcom'. Did you mean outcome?" in result.err


def test_the_closing_table_names_the_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{'abcd'[i % 4]},{i % 7},{'uv'[i % 2]},{['ill', 'well'][i // 4 % 2]}" for i in range(80)]
    Path("visits.csv").write_text("\n".join(["site,age,ward,outcome", *lines]))
    Path("run.toml").write_text(RUN)
    rows = [line for line in call(capsys, "run", "run.toml").out.splitlines() if line.startswith("classes ")]
    assert [line.split(maxsplit=1)[1] for line in rows] == ["ill, well"]
    Path("run.toml").write_text(RUN + 'metric = ["f1", "accuracy", "auroc"]\n')
    rows = [line for line in call(capsys, "run", "run.toml").out.splitlines() if line.startswith("classes ")]
    assert [line.split(maxsplit=1)[1] for line in rows] == ["ill, well; f1, auroc of 'well'"]
