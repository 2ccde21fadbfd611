"""Two processes do not train in one folder: the second is refused before it writes anything."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_cases import federation, mlp, same_folders
from run_settings import with_settings

import moiety as mo

pytest.importorskip("fcntl")
FED = federation()
HOLD = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
TRY = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def fit(out: Path, rounds: int, engine: str = "sequential", **options: Any) -> Any:
    algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5))
    split = mo.split.by_name(mlp(), personal=["head"])
    return mo.fit(mlp(), FED, algorithm, **with_settings(split=split, rounds=rounds, engine=engine, out=out, **options))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_folder_in_use_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    fit(tmp_path / "run", 2)
    before = contents(tmp_path / "run")
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run/.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(mo.MoietyError, match="`folder` must be one that nobody trains in now") as error:
            mo.resume(tmp_path / "run", rounds=4, model=mlp(), data=FED)
        assert "\n" not in str(error.value).strip()
        assert contents(tmp_path / "run") == before
        other.kill()
    mo.resume(tmp_path / "run", rounds=4, model=mlp(), data=FED)
    fit(tmp_path / "whole", 4)
    same_folders(tmp_path / "whole", tmp_path / "run")


def test_a_folder_in_use_is_refused_within_one_process_too(tmp_path: Path) -> None:
    """Nor is it free once somebody has read the file that is locked."""
    refusals = []

    def on_round(run: Any, record: Any) -> None:
        shutil.copytree(tmp_path / "run", tmp_path / f"copy{record.round}")
        with pytest.raises(mo.MoietyError, match="nobody trains in now") as error:
            mo.resume(tmp_path / "run", model=mlp(), data=FED)
        refusals.append(error)

    fit(tmp_path / "run", 3, callbacks=[on_round])
    assert len(refusals) == 3
    fit(tmp_path / "whole", 3)
    same_folders(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("engine", ["sequential", "processes:sequential"])
def test_a_run_holds_its_folder_until_its_end(engine: str, tmp_path: Path) -> None:
    lock = tmp_path / "run/.lock"

    def free() -> bool:
        process = subprocess.run([sys.executable, "-c", TRY, str(lock)], capture_output=True, text=True)
        assert not process.returncode or "BlockingIOError" in process.stderr
        return not process.returncode

    states = []
    fit(tmp_path / "run", 2, engine, workers=2, callbacks=[lambda run, record: states.append(free())])
    assert states == [False, False]
    assert free()
    mo.resume(tmp_path / "run", rounds=3, model=mlp(), data=FED, callbacks=[lambda run, record: states.append(free())])
    assert states[2:] == [False]
    assert free()
