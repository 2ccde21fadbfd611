"""Runs that are killed with SIGKILL, at random moments and at changes of their folder, go on bit for bit.

At night they are killed at every change, in the gate at every fourth.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from night import NIGHTLY

FOLDER = Path(__file__).parent
MEMORY = Path("/dev/shm")
STEP = 1 if NIGHTLY else 4
Runs = list[dict[str, Any]]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runs]:
    """What the harness found.

    Kills at chosen points are made in a folder in memory where there is one: a kill loses no write that was made, so
    that flushing to disk is of no account there.
    """
    disk = tmp_path_factory.mktemp("killed")
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as memory:
        command = [sys.executable, str(FOLDER / "kill_all.py"), str(disk), memory, "1", str(STEP)]
        process = subprocess.run(command, capture_output=True, text=True, timeout=1200, cwd=FOLDER)
    assert process.returncode == 0, process.stderr
    results: dict[str, Runs] = json.loads(process.stdout)
    return results


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
    assert len(runs) * STEP > 25
    assert all(run["kills"][0]["end"] == "killed" for run in runs)
    check(runs)
    assert any(not run["kills"][0]["config"] for run in runs)
    assert any(len(run["kills"][0]["rounds"]) == 2 for run in runs)  # between the new one and the old one's removal


def test_killed_in_the_middle_of_every_write(killed: dict[str, Runs]) -> None:
    """Half of what was to be written is on disk."""
    runs = killed["halves"]
    assert len(runs) * STEP > 30
    assert all(run["kills"][0]["end"] == "killed" for run in runs)
    check(runs)


def test_killed_between_stages_and_inside_them(killed: dict[str, Runs]) -> None:
    """Pipelines, killed before chosen changes of the folder."""
    runs = killed["pipelines"]
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


def test_killed_with_updates_under_way(killed: dict[str, Runs]) -> None:
    """Runs with a clock, killed before changes of the folder while the second and third checkpoint are made."""
    runs = killed["clocked"]
    for run in runs:
        assert run["kills"][0]["end"] == "killed", run
        assert run["error"] is None, run["error"]
        assert run["end"] == "done", run
        assert run["differs"] == [], run
    for name in ("asynchronous", "delayed"):
        rounds = {max(r["kills"][0]["rounds"]) for r in runs if Path(r["folder"]).name.startswith(name)}
        assert rounds >= {1, 2}
