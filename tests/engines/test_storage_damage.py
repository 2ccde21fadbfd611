"""Flipped bits and cut files of a run's folder: each is noticed and named, and no run goes on with it in silence."""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from engine_cases import StopHereError, exact, refused, stop_after, tree_hash
from night import NIGHTLY
from storage_cases import FED, ROUNDS, fresh, kind_contents, run_kind

import moiety as mo
from moiety.cli import main
from moiety.cli.results import read_result
from moiety.run.folder import read_id
from moiety.seals import write_sealed

FOLDER = Path(__file__).parent
COUNT = 1000 if NIGHTLY else 30


class Folders(NamedTuple):
    """A run of some kind that ended, and one that was stopped."""

    kind: str
    ended: Path
    stopped: Path


@pytest.fixture(scope="module", params=["fit", "clock", "best"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A run that ended after some rounds, and one that was stopped one round earlier."""
    kind, rounds = request.param, ROUNDS.get(request.param, 3)
    place = tmp_path_factory.mktemp(kind)
    run_kind(kind, place / "ended", rounds=rounds)
    assert not list((place / "ended").glob("best/*")) or kind == "best"
    with pytest.raises(StopHereError):
        run_kind(kind, place / "stopped", rounds=rounds, callbacks=[stop_after(rounds - 1)])
    for name in ("ended", "stopped"):
        write_sealed(place / name / "command.json", {"set": []}, read_id(place / name))
    return Folders(kind, place / "ended", place / "stopped")


def bits_in_use(file: Path) -> list[int]:
    """The bits that mean something: of personal states, those of the slots that the index names."""
    if file.name != "states.bin":
        return list(range(8 * file.stat().st_size))
    slots = np.fromfile(file.parent / "index.bin", dtype="<u4").reshape(-1, 3)[:, 1]
    size = 8 * file.stat().st_size // len(slots) // 2
    starts = [(2 * c + int(slot) - 1) * size for c, slot in enumerate(slots) if slot]
    return [at for start in starts for at in range(start, start + size)]


def damage(folder: Path, draw: Random) -> str:
    """Flip a bit of some file, or cut the file; what was done."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    file = draw.choice(files)
    content = bytearray(file.read_bytes())
    if draw.random() < 0.3:
        keep = draw.randrange(len(content))
        os.truncate(file, keep)
        return f"{file.relative_to(folder)} cut to {keep} of {len(content)}"
    bit = draw.choice(bits_in_use(file))
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(bytes(content))
    return f"{file.relative_to(folder)} bit {bit}"


def test_damage_is_found_by_verify_and_never_used(folders: Folders, tmp_path: Path) -> None:
    ended, stopped = folders.ended, folders.stopped
    expected = kind_contents(ended)
    draw = Random(1)
    assert mo.verify(ended) == mo.verify(stopped) == []
    for turn in range(COUNT):
        out = Path(shutil.copytree(stopped if turn % 2 else ended, fresh(tmp_path / "run")))
        what = damage(out, draw)
        before = tree_hash(out)
        problems = mo.verify(out)
        assert tree_hash(out) == before, what
        if not problems:  # the checkpoint holds that entry of the index too, and resuming writes it again
            assert "index.bin bit" in what, what
            (check_resumed if turn % 2 else check_results)(out, folders, expected, what)
            continue
        assert all("\n" not in problem for problem in problems), what
        name = Path(what.split()[0]).name
        word = {"index.bin": "clients", "state.json": "state.json"}.get(name, name)
        assert any(word in problem for problem in problems), (what, problems)
        (check_resumed if turn % 2 else check_results)(out, folders, expected, what)


def check_resumed(out: Path, folders: Folders, wanted: Any, what: str) -> None:
    """A resumed run is refused in one line, or ends with the same models, without rows that a warning names."""
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        try:
            run_kind(folders.kind, out)
        except mo.MoietyError:
            return
    (one,), (other,) = wanted, kind_contents(out)
    differs = [part for part in one if one[part] != other[part]]
    assert differs == (["history"] if "history.jsonl" in what else []), what
    assert bool(differs) == any("has lost the rows of" in str(each.message) for each in records), what
    assert any(name in what for name in ("history.jsonl", "command.json", "index.bin")), what


def check_results(out: Path, folders: Folders, wanted: Any, what: str) -> None:
    """The results of an ended run are refused in one line, or as they were, without rows that a warning names.

    So are its models.
    """
    whole = read_result(folders.ended, "run")
    with warnings.catch_warnings(), contextlib.suppress(mo.MoietyError):
        warnings.simplefilter("ignore")
        assert models_of(out) == models_of(folders.ended), what
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        try:
            result = read_result(out, "run")
        except mo.MoietyError:
            return
    assert (result.config, result.clients, result.ledger) == (whole.config, whole.clients, whole.ledger), what
    rows = [row for row in whole.history if row not in result.history]
    assert len(result.history) == len(whole.history) - len(rows), what
    assert bool(rows) == any("has lost the rows of" in str(each.message) for each in records), what


def models_of(folder: Path) -> list[Any]:
    """The models of all clients that a run ended with."""
    run = mo.load(folder, data=FED)
    return [exact(run.parameters(client)) for client in range(len(FED))]


def test_the_command(folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = Path(shutil.copytree(folders.ended, tmp_path / "run"))
    assert main(["verify", str(out)]) == 0
    output = capsys.readouterr()
    assert output.out == f"{out}: every file is as it was written (1 run)\n"
    assert output.err == ""
    for name in ("clients.parquet", "initial.safetensors"):
        with open(out / name, "ab") as file:
            file.write(b"x")
    assert main(["verify", str(out)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert [line.partition("`")[2].partition("`")[0] for line in output.err.splitlines()] == [
        "initial.safetensors",
        "clients.parquet",
    ]
    assert main(["verify", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("moiety: `folder` must be one of a run, of a pipeline, of a recipe")


def test_verify_of_what_is_lost_and_of_another_run(folders: Folders, tmp_path: Path) -> None:
    _, ended, stopped = folders
    names = ("clients", "identity.json", "config.toml", "checkpoint", "initial.safetensors", "clients.parquet")
    for name in (*names, "progress.json", "ledger.json"):
        out = Path(shutil.copytree(ended, fresh(tmp_path / "run")))
        (shutil.rmtree if (out / name).is_dir() else os.unlink)(out / name)
        assert mo.verify(out), f"without {name}"
    for name in ("clients", "config.toml", "checkpoint", "history.jsonl", "command.json"):
        out = Path(shutil.copytree(ended, fresh(tmp_path / "run")))
        (shutil.rmtree if (out / name).is_dir() else os.unlink)(out / name)
        (shutil.copytree if (stopped / name).is_dir() else shutil.copy)(stopped / name, out / name)
        assert mo.verify(out), f"with another run's {name}"


def test_the_history_of_another_run_with_as_many_rows_is_noticed(tmp_path: Path) -> None:
    for name in ("one", "other"):
        run_kind("fit", tmp_path / name)
        assert mo.verify(tmp_path / name) == []
    shutil.copy(tmp_path / "other/history.jsonl", tmp_path / "one/history.jsonl")
    assert any("history.jsonl" in line for line in mo.verify(tmp_path / "one"))


def test_a_pipeline_is_verified_stage_by_stage(tmp_path: Path) -> None:
    run_kind("pipeline", tmp_path / "out")
    assert mo.verify(tmp_path / "out") == []
    with open(tmp_path / "out/2-fedalt/checkpoint/round-00000001/server.safetensors", "ab") as file:
        file.write(b"x")
    text = (tmp_path / "out/pipeline.toml").read_text()
    (tmp_path / "out/pipeline.toml").write_text(text.replace("seed = 0", "seed = 1"))
    first, second = mo.verify(tmp_path / "out")
    assert "pipeline.toml" in first
    assert "2-fedalt" in second
    assert "server.safetensors" in second


@pytest.mark.parametrize("number", [1, 2])
def test_a_folder_of_an_older_format(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was written by the code of that time: one line with both numbers, and nothing is touched."""
    out = Path(shutil.copytree(FOLDER / f"format_{number}/run", tmp_path / "run"))
    before = tree_hash(out)
    message = f"`folder` must be of format 3, got format {number} in .*identity.json"
    refused(lambda: mo.resume(out, data=FED), message)
    refused(lambda: run_kind("fit", tmp_path / "new", start=out), message)
    for options in ({}, {"data": FED}, {"best": True}):
        refused(lambda options=options: mo.load(out, **options), message)
    refused(lambda: read_result(out, "run"), message)
    (problem,) = mo.verify(out)
    assert f"of format 3, got format {number}" in problem
    for words in (["verify", str(out)], ["compare", str(out), str(out)]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"of format 3, got format {number}" in error
    assert tree_hash(out) == before
