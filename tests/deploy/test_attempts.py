"""``moiety deploy run``: a run whose server ends early is started again, and its folder says when it is done."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from local_grid import LocalGrid, serve_here

from moiety.cli import main
from moiety.deploy import attempts
from moiety.deploy.folders import load_app
from moiety.deploy.init import write_app
from moiety.errors import MoietyError
from moiety.files import lock_folder

ROUNDS = 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attempts") / "trial"
    file = folder.with_name("federation.toml")
    file.write_text(
        'data = {name = "digits", clients = 2, seed = 0}\nmodel = {name = "linear"}\n'
        f'algorithm = {{name = "fedavg", shared = 0.5}}\nrun = {{rounds = {ROUNDS}}}\n'
    )
    write_app(folder, ["127.0.0.1"], file=file, nodes=2, secure=False)
    return folder


class Flower:
    """Stands for ``flwr run``: each call trains up to a round, and ends there as if its process was killed."""

    def __init__(self, folder: Path, *ends: int | None) -> None:
        self.folder, self.ends, self.commands = folder, list(ends), []  # type: ignore[var-annotated]

    def __call__(self, command: Any) -> int:
        self.commands.append(list(command))
        end = self.ends.pop(0)
        if end is not None:
            app = load_app(self.folder / "app")
            nodes = {
                k + 1: {"partition-id": k, "name": f"n{k}", "folder": str(self.folder / f"n{k}")} for k in range(2)
            }
            serve_here(app, LocalGrid(app, nodes), rounds=end, out=self.folder / "federation")
        return 0  # as Flower says after a killed server, too


@pytest.fixture
def trial(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "trial")
    monkeypatch.chdir(tmp_path / "trial")
    monkeypatch.setattr(attempts, "PAUSES", (0.0,) * 3)
    return tmp_path / "trial"


@pytest.fixture
def flower(trial: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Flower]:
    def stand_in(*ends: int | None) -> Flower:
        flower = Flower(trial, *ends)
        monkeypatch.setattr(attempts, "call", flower)
        return flower

    return stand_in


def test_a_run_that_ends_early_is_started_again(
    flower: Callable[..., Flower], capfd: pytest.CaptureFixture[str]
) -> None:
    calls = flower(1, None, None, None, 2, None, None, None, 3)
    assert main(["deploy", "run", "app"]) == 0
    assert not calls.ends
    assert calls.commands[0] == ["flwr", "run", "app", "trial", "--stream"]
    out = capfd.readouterr().out
    assert out.count("the run ended after round 1 of 3") == 4
    assert out.count("the run ended after round 2 of 3") == 4
    flower()
    assert main(["deploy", "run", "app"]) == 0  # nothing is called
    assert "federation has all 3 rounds" in capfd.readouterr().out


def test_a_run_that_never_goes_on_is_given_up(flower: Callable[..., Flower], capfd: pytest.CaptureFixture[str]) -> None:
    flower(1, None, None, None, None)
    assert main(["deploy", "run", "app"]) == 2
    problem = capfd.readouterr().err
    assert "4 attempts in a row without a new round" in problem


def test_more_rounds_are_a_new_attempt(flower: Callable[..., Flower]) -> None:
    flower(3)
    assert main(["deploy", "run", "app"]) == 0
    calls = flower(5)
    assert main(["deploy", "run", "app", "--run-config", "rounds=5"]) == 0
    assert calls.commands == [["flwr", "run", "app", "trial", "--stream", "--run-config", "rounds=5"]]


def test_a_run_that_flower_lost_sight_of_is_waited_for(
    flower: Callable[..., Flower], trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's process holds the folder; nothing else is started meanwhile."""
    first = flower(1)
    waits = []
    out = trial / "federation"
    first(["flwr"])
    flower(None, 3)
    lock = lock_folder(out)

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            lock.__exit__(None, None, None)

    monkeypatch.setattr(attempts.time, "sleep", sleep)
    lock.__enter__()
    attempts.run_until_done(Path("app"), {}, lambda line: None)
    assert waits[:4] == [attempts.LOOK] * 3 + [0.0]


def test_another_user_than_the_executors_does_not_wait_for_ever(
    flower: Callable[..., Flower], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    flower(1)
    monkeypatch.setattr(attempts.os, "access", lambda path, mode: Path(path).name != "federation")
    assert main(["deploy", "run", "app"]) == 2
    assert "Run this as the user that the executor runs as." in capfd.readouterr().err


def test_what_cannot_be_run_is_said_in_one_line(trial: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "run", "nowhere"]) == 2
    assert capfd.readouterr().err.count("\n") == 1
    for text, words in {
        "roundz=5": "`run-config` must be of names in app/pyproject.toml, got roundz. Did you mean rounds?",
        "rounds": "`run-config` must be as in 'rounds=20', got rounds.",
        "rounds=[": "`run-config` must be as in 'rounds=20'",
    }.items():
        assert main(["deploy", "run", "app", "--run-config", text]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert words in line
    Path("odd").mkdir()
    for text, words in {"tool = 3": "`tool` must be a table", "[tool.flwr]\napp = 3": "`app` must be a table"}.items():
        Path("odd", "pyproject.toml").write_text(text)
        assert main(["deploy", "run", "odd"]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert words in line
    with pytest.raises(MoietyError, match="rounds"):
        attempts.read_plan(Path("app"), {"rounds": "many"})
    assert attempts.read_plan(Path("app"), {"rounds": 7, "out": "else"}).folder == Path("else")


def test_flowers_command_is_found_and_asks_nobody_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(attempts.subprocess, "call", lambda command, env: seen.update(env) or 3)
    assert attempts.call(["flwr"]) == 3
    assert seen["FLWR_TELEMETRY_ENABLED"] == "0"
    assert shutil.which("flwr", path=seen["PATH"]) is not None
