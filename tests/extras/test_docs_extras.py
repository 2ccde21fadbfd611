"""What stands on pages of the documentation and needs Optuna or trackers: ``tests/site`` runs the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w
from docs_files import DOCS, blocks, commands, complete, first_file, words_of
from recipe_runs import call_command


@pytest.fixture(autouse=True)
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the file that pages speak of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOIETY_DATA", raising=False)
    Path("first.toml").write_text(tomli_w.dumps(complete("", first_file())), encoding="utf-8")


def test_the_search_of_the_page_on_sweeps() -> None:
    pytest.importorskip("optuna")
    (line,) = [
        line for _, text in blocks(DOCS / "sweeps.md") for line in commands(text) if line.startswith("moiety tune")
    ]
    code, out, problem = call_command(*words_of(line.replace("--trials 30", "--trials 2"))[1:])
    assert code == 0, problem
    assert "algorithm.shared" in out
    assert "run.cohort" in out


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own
def test_the_trackers_of_the_page_on_callbacks(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    (text,) = [text for kind, text in blocks(DOCS / "callbacks.md") if kind == "toml"]
    Path("track.toml").write_text(tomli_w.dumps(complete(text, first_file())), encoding="utf-8")
    code, _, problem = call_command("run", "track.toml", "--out", "runs/track", "--quiet")
    assert code == 0, problem
    assert list(Path("runs/track/tensorboard").glob("events.*"))
    assert Path("runs.db").stat().st_size > 0
