"""Runs that are killed with SIGKILL, at random moments and at every change of their folder, go on bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MEMORY = Path("/dev/shm")
Runs = list[dict[str, Any]]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runs]:
    """What the harness found.

    Kills at chosen points are made in a folder in memory where there is one: a kill loses no write that was made, so
    that flushing to disk is of no account there.
    """
    disk = tmp_path_factory.mktemp("killed")
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as memory:
        command = [sys.executable, str(HERE / "kill_harness.py"), str(disk), memory, "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200, cwd=HERE)
    assert done.returncode == 0, done.stderr
    found: dict[str, Runs] = json.loads(done.stdout)
    return found


def check(runs: Runs) -> None:
    """Every run went on to its end, and its folder says the same as that of a run that nobody killed."""
    for run in runs:
        assert run["error"] is None, run["error"]
        assert run["end"] == "done", run
        assert run["differs"] == [], run
        # An interrupted checkpoint is cleared away by the next one; what else is left over is hidden, and harmless.
        assert not [name for name in run["strays"] if name.startswith(".new") or not name.startswith(".")]


def test_killed_at_random_moments(killed: dict[str, Runs]) -> None:
    runs = killed["random"]
    kills = [kill for run in runs for kill in run["kills"]]
    assert sum(kill["end"] == "killed" for kill in kills) >= 6
    check(runs)
    # The kills fell where they should: some before the first checkpoint, some after it.
    assert any(not kill["rounds"] for kill in kills)
    assert any(kill["rounds"] for kill in kills)


def test_killed_before_every_renaming_and_removal(killed: dict[str, Runs]) -> None:
    runs = killed["points"]
    assert len(runs) > 15
    assert all(run["kills"][0]["end"] == "killed" for run in runs)
    check(runs)
    assert any(not run["kills"][0]["config"] for run in runs)
    assert any(len(run["kills"][0]["rounds"]) == 2 for run in runs)  # between the new one and the old one's removal


def test_killed_in_the_middle_of_every_write(killed: dict[str, Runs]) -> None:
    """Half of what was to be written is on disk."""
    runs = killed["halves"]
    assert len(runs) > 10
    assert all(run["kills"][0]["end"] == "killed" for run in runs)
    check(runs)
