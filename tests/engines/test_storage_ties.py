"""What ties folders together: a run and its checkpoint, a pipeline and its stages, a run and its data."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_cases import StopHereError, refused, stop_after, tree_hash
from storage_cases import FED, kind_contents, run_kind

import moiety as mo
from moiety import files
from moiety.cli import main
from moiety.data import FederatedData, from_spec, open_folder

# A run without personal states: nothing but progress.json tells that it had a checkpoint.


def fit_shared(out: Path, **options: Any) -> None:
    """Train three rounds of FedAvg, with a checkpoint after each."""
    settings = mo.Settings(evaluate_every=1, checkpoint_every=1)
    how = {"rounds": 3, "engine": "sequential", "settings": settings, **options}
    mo.fit(mo.models.mlp(4, 3, hidden=(5,), seed=3), FED, mo.fedavg(shared=0.1), seed=5, out=out, **how)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that was stopped after two rounds; its first checkpoint is kept beside it."""

    def keep_first_and_stop(run: Any, record: Any) -> None:
        if record.round == 1:
            shutil.copytree(tmp_path / "run/checkpoint", tmp_path / "first")
        stop_after(2)(run, record)

    with pytest.raises(StopHereError):
        fit_shared(tmp_path / "run", callbacks=[keep_first_and_stop])
    return tmp_path / "run"


def lose(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoint")


def exchange(folder: Path) -> None:
    lose(folder)
    shutil.copytree(folder.with_name("first"), folder / "checkpoint")


@pytest.mark.parametrize(("change", "got"), [(lose, "none in"), (exchange, "one of round 1 in")])
def test_a_lost_or_older_checkpoint_is_refused(stopped: Path, change: Any, got: str) -> None:
    change(stopped)
    before = tree_hash(stopped)
    message = rf"^`checkpoint` must be of round 2, which progress\.json names, got {got} .*to start again\.$"
    refused(lambda: mo.resume(stopped, data=FED), message)
    assert any("`checkpoint` must be of round 2" in line for line in mo.verify(stopped))
    assert tree_hash(stopped) == before


def test_a_checkpoint_that_was_not_written_down_yet_is_right(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill may come after a checkpoint is in place and before progress.json names it."""
    whole = stopped.with_name("whole")
    fit_shared(whole)
    place = stopped.with_name("killed")

    def kill(call: Any, *arguments: Any) -> Any:
        if call is os.replace and arguments[1] == place / "progress.json" and (place / "progress.json").exists():
            raise KeyboardInterrupt
        return call(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(files, "system_call", kill)
        with pytest.raises(KeyboardInterrupt):
            fit_shared(place)
    assert sorted(p.name for p in (place / "checkpoint").iterdir()) == ["round-00000001", "round-00000002"]
    assert mo.verify(place) == []
    mo.resume(place, data=FED)
    assert kind_contents(place) == kind_contents(whole)


@pytest.mark.parametrize("name", ["progress.json", "ledger.json"])
def test_a_file_that_the_run_once_had_is_missed(tmp_path: Path, name: str) -> None:
    """``verify`` names it; a resume says so and writes it again; a run without its results is not opened."""
    out = tmp_path / "run"
    fit_shared(out)
    expected = kind_contents(out)
    (out / name).unlink()
    message = f"`{name}` must be there, for .*, got none in .*Resume the run: it is written again"
    (problem,) = mo.verify(out)
    assert re.match(message, problem)
    if name == "ledger.json":
        refused(lambda: mo.load(out, data=FED), message)
    with pytest.warns(UserWarning, match=message):
        mo.resume(out, data=FED)
    assert mo.verify(out) == []
    assert kind_contents(out) == expected


def test_a_run_that_goes_on_after_its_end_misses_nothing(tmp_path: Path) -> None:
    """It has the results of its earlier end until it ends again, and may be killed while it writes the new ones."""
    out = tmp_path / "run"
    fit_shared(out)
    with pytest.raises(StopHereError):
        mo.resume(out, data=FED, rounds=6, callbacks=[stop_after(5)])
    assert mo.verify(out) == []

    def kill(call: Any, *arguments: Any) -> Any:
        if call is os.replace and arguments[1] == out / "ledger.json":
            raise KeyboardInterrupt
        return call(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "system_call", kill)
        with pytest.raises(KeyboardInterrupt):
            mo.resume(out, data=FED)
    assert not (out / "ledger.json").exists()
    assert mo.verify(out) == []
    mo.resume(out, data=FED)
    fit_shared(tmp_path / "whole", rounds=6)
    assert kind_contents(out) == kind_contents(tmp_path / "whole")


def test_no_round_is_trained_before_all_states_are_compared(tmp_path: Path) -> None:
    """Though the next round asks another client, and the next evaluation is far."""
    settings = mo.Settings(evaluate_every=4, checkpoint_every=1)
    with pytest.raises(StopHereError):
        run_kind("fit", tmp_path / "run", rounds=4, cohort=1, settings=settings, callbacks=[stop_after(2)])
    slots = np.fromfile(tmp_path / "run/clients/index.bin", dtype="<u4").reshape(-1, 3)[:, 1]
    assert np.count_nonzero(slots) == 2  # so one of them at least is not asked in the next round
    for client in np.flatnonzero(slots).tolist():
        out = Path(shutil.copytree(tmp_path / "run", tmp_path / f"{client}"))
        states = np.memmap(out / "clients/states.bin", dtype=np.uint8, mode="r+")
        states.reshape(len(slots), 2, -1)[client, slots[client] - 1, -1] ^= 1
        states.flush()
        rounds: list[int] = []
        message = f"states.bin.*another state of client {client}"
        refused(lambda: mo.resume(out, data=FED, callbacks=[lambda r, n: rounds.append(r.round)]), message)  # noqa: B023
        assert rounds == []


# Stages of a pipeline.


def test_a_stage_of_another_pipeline_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("one", "other"):
        run_kind("pipeline", tmp_path / name)
        assert mo.verify(tmp_path / name) == []
    modes = {p.stat().st_mode & 0o777 for p in [tmp_path / "one", *(tmp_path / "one").rglob("*")]}
    assert modes == {0o700, 0o600}
    stage = tmp_path / "one/1-fedavg"
    shutil.rmtree(stage)
    shutil.copytree(tmp_path / "other/1-fedavg", stage)
    before = tree_hash(tmp_path / "one")
    message = r"`1-fedavg` must be a stage of the pipeline in .*one, got run \w{16} of another one"
    refused(lambda: mo.resume(tmp_path / "one", data=FED), message)
    (problem,) = mo.verify(tmp_path / "one")
    assert problem.startswith("`1-fedavg` must be a stage of the pipeline in")
    assert tree_hash(tmp_path / "one") == before
    assert mo.verify(shutil.copytree(stage, tmp_path / "apart")) == []  # on its own it is an ordinary run


def test_a_file_of_the_users_own_may_be_called_pipeline(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text("[run]\n")
    run_kind("fit", tmp_path / "run")
    assert mo.verify(tmp_path / "run") == []


def test_a_stage_that_is_lost_is_refused_by_name(tmp_path: Path) -> None:
    run_kind("pipeline", tmp_path / "out")
    shutil.rmtree(tmp_path / "out/1-fedavg")
    before = tree_hash(tmp_path / "out")
    refused(lambda: mo.resume(tmp_path / "out", data=FED), "`1-fedavg` must be there, for 2-fedalt has begun, got none")
    assert [line.partition(",")[0] for line in mo.verify(tmp_path / "out")] == ["`1-fedavg` must be there"]
    assert tree_hash(tmp_path / "out") == before
    shutil.rmtree(tmp_path / "out/2-fedalt")
    assert len(mo.resume(tmp_path / "out", data=FED)) == 2


# All data of a run.


def decay(path: Path) -> None:
    """Change a value, and let the file seem unchanged: its digest is kept with the times that it has now."""
    x = np.load(path, mmap_mode="r+")
    x[0, 1] += 1
    x.flush()


def pretend_unchanged(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from moiety.data import digest

    monkeypatch.setattr(digest, "SETTLED", -1)
    open_folder(folder)
    state = digest._file_state(path)
    plain = digest._file_state
    monkeypatch.setattr(digest, "_file_state", lambda place: state if place == path else plain(place))


def test_verify_reads_all_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Of a run on saved data. A start does not notice that a file decayed; ``--data`` does and names the client."""
    monkeypatch.chdir(tmp_path)
    FED.save("data")
    model = mo.models.mlp(4, 3, hidden=(5,), seed=3)
    fed = from_spec({"name": "folder", "path": "data"})
    mo.fit(model, fed, mo.fedavg(shared=0.1), rounds=1, engine="sequential", out="run")
    words = ["verify", "run", "--data"]
    assert main(words) == 0
    assert capsys.readouterr().out == "run: every file is as it was written (1 run with data)\n"
    assert main(["verify", "data"]) == 0
    assert capsys.readouterr().out == "data: every file is as it was written (data)\n"
    pretend_unchanged(Path("data"), Path("data/columns/x.npy"), monkeypatch)
    decay(Path("data/columns/x.npy"))
    open_folder("data")
    assert main(["verify", "run"]) == 0
    capsys.readouterr()
    before = tree_hash(tmp_path)
    for folder, what in (
        ("run", "`data` must be as the run in run began"),
        ("data", "`folder` must be as it was saved"),
    ):
        assert main(["verify", folder, "--data"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"moiety: {what}, got other values in column x, client c0")
        assert error.count("\n") == 1
    assert tree_hash(tmp_path) == before
    shutil.rmtree("data")
    assert main(words) == 2
    assert "which is no folder" in capsys.readouterr().err


def test_verify_compares_data_that_is_given(tmp_path: Path, capsys: Any) -> None:
    """Data that was given in Python has no name in the folder: it is compared where it is given again."""
    fit_shared(tmp_path / "run")
    assert mo.verify(tmp_path / "run", data=FED) == []
    columns = {name: column.copy() for name, column in FED.columns.items()}
    columns["x"][-1] += 1
    other = FederatedData(columns, FED.bounds, FED.ids, FED.classes)
    (problem,) = mo.verify(tmp_path / "run", data=other)
    assert problem.startswith(f"`data` must be as the run in {tmp_path / 'run'} began, got other values in column x")
    (problem,) = mo.verify(tmp_path / "run", data=True)
    assert "`data` must be given for the run in" in problem
    assert main(["verify", str(tmp_path / "run"), "--data"]) == 2
    assert capsys.readouterr().err == f"moiety: {problem}\n"
    refused(lambda: mo.verify(tmp_path / "run", data=3), "`data` must be True, False or federated data")
