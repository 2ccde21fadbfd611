"""``[track]`` in a file, and ``--verbose``."""

from __future__ import annotations

import pytest
from cli_command import PERSONAL, call

from moiety.run.folder import read_history


def test_a_file_names_its_trackers(tmp_path, monkeypatch, capsys):
    """The file may drop them on resume: they change no number."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(PERSONAL + "\n[track]\ncsv = true\n")
    result = call(capsys, "run", "own.toml", "--out", "run", "-v")
    assert result.code == 0, result.err
    assert "moiety: engine " in result.err
    lines = (tmp_path / "run/history.csv").read_text().splitlines()
    assert len(lines) == 1 + len(read_history(tmp_path / "run"))
    (tmp_path / "own.toml").write_text(PERSONAL)
    assert call(capsys, "run", "own.toml", "--out", "run", "--resume", "--rounds", "3").code == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tensorbord = true", "`track` must be a table with keys of csv, tensorboard, mlflow, wandb, got tensorbord"),
        ("tensorboard = 3", "`track.tensorboard` must be true, false, or a table of arguments, got 3"),
        ("mlflow = {url = 'x'}", "`track.mlflow` must be a table with keys of experiment, uri, name, got url"),
        ("csv = {path = 3}", "`path` must be the path of a file, got 3"),
    ],
)
def test_bad_trackers(tmp_path, monkeypatch, capsys, line, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(f"{PERSONAL}\n[track]\n{line}\n")
    result = call(capsys, "run", "own.toml", "--out", "run")
    assert (result.code, words in result.err, (tmp_path / "run").exists()) == (2, True, False), result.err
