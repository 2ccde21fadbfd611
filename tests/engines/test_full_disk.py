"""Writes that fail: a full disk, a file that may not grow, a place that is no folder, a folder that is taken."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_cases import federation, mlp, refused, same_folders, tree_hash
from run_settings import with_settings

import moiety as mo
from moiety.files import LOCK
from moiety.run.checkpoint import find_checkpoint

FED = federation()


def begin(out: Path, **options: Any) -> mo.Run:
    model = mlp()
    split = mo.split.by_name(model, personal=["head"])
    algorithm = mo.fedalt(
        shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5), server=mo.server.adam(lr=0.05)
    )
    options = {"rounds": 4, "cohort": 3, "engine": "sequential", "evaluate_every": 1, "partial": False} | options
    return mo.fit(model, FED, algorithm, **with_settings(split=split, out=out, **options))


def go_on(out: Path) -> mo.Run:
    """What a user does when there is room again."""
    return mo.resume(out, data=FED) if (out / "config.toml").exists() else begin(out)


def nothing_half_written(out: Path) -> None:
    assert not [p for p in out.rglob("*") if p.name.startswith(".") and p.name != LOCK]
    history = out / "history.jsonl"
    for line in history.read_text().splitlines() if history.exists() else []:
        json.loads(line)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    begin(folder)
    return folder


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes: writes then fail with EFBIG (Python ignores SIGXFSZ)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def biggest(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_size for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["initial.safetensors", "config.toml", "server.safetensors", "clients.parquet"])
def test_a_file_that_may_not_grow(name: str, whole: Path, tmp_path: Path) -> None:
    """A real failure of the system in the middle of a write; afterwards the run goes on bit for bit."""
    out = tmp_path / "run"
    with files_up_to(biggest(whole)[name] - 1):
        refused(lambda: begin(out), f"out.*{os.strerror(errno.EFBIG)}.*run")
    nothing_half_written(out)
    go_on(out)
    same_folders(whole, out)


def test_a_history_that_may_not_grow(tmp_path: Path) -> None:
    """The fifth row no longer fits: four rows remain, not four and a half."""
    whole = tmp_path / "whole"
    begin(whole, rounds=6)
    rows = (whole / "history.jsonl").read_text().splitlines(keepends=True)
    room = sum(map(len, rows[:4])) + len(rows[4]) // 2
    out = tmp_path / "run"
    # Everything else must be smaller than that.
    assert max(size for name, size in biggest(whole).items() if name not in ("history.jsonl", "clients.parquet")) < room
    with files_up_to(room):
        refused(lambda: begin(out, rounds=6), "out.*run")
    newest = find_checkpoint(out)
    assert newest is not None
    assert newest.name == "round-00000004"
    try:
        nothing_half_written(out)
    finally:
        go_on(out)
        same_folders(whole, out)


def test_the_disk_is_full_at_every_single_flush(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC at the n-th flush, for every n: one line, whole files, and the older checkpoint can be resumed."""
    calls, fail_at = 0, -1

    def fsync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls - 1 == fail_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    begin(tmp_path / "count", rounds=2)
    total = calls
    assert total >= 15
    for n in range(total):
        out = tmp_path / f"run{n}"
        calls, fail_at = 0, n
        refused(lambda out=out: begin(out, rounds=2), f"out.*{os.strerror(errno.ENOSPC)}")  # type: ignore[misc]
        calls, fail_at = 0, -1
        nothing_half_written(out)
        if (out / "config.toml").exists():
            mo.resume(out, data=FED)
        else:
            begin(out, rounds=2)
        same_folders(tmp_path / "count", out)


def test_the_older_checkpoint_survives_a_failed_one(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    begin(out, rounds=2)
    before = {k: v for k, v in tree_hash(out).items() if k.startswith("checkpoint")}
    rename = os.rename

    def no_room(source: Any, target: Any) -> None:
        if "round-" in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, target)

    monkeypatch.setattr(os, "rename", no_room)
    refused(lambda: mo.resume(out, data=FED, rounds=4), os.strerror(errno.ENOSPC))
    assert {k: v for k, v in tree_hash(out).items() if k.startswith("checkpoint")} == before
    monkeypatch.setattr(os, "rename", rename)
    mo.resume(out, data=FED)
    same_folders(whole, out)


class TestAPlaceThatCannotBeWritten:
    def test_out_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("hello")
        refused(lambda: begin(tmp_path / "taken"), "out.*taken")
        assert (tmp_path / "taken").read_text() == "hello"

    def test_out_is_below_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("hello")
        refused(lambda: begin(tmp_path / "taken" / "a" / "b"), "out.*taken")
        assert (tmp_path / "taken").read_text() == "hello"

    def test_the_checkpoint_folder_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "checkpoint").write_text("hello")
        refused(lambda: begin(tmp_path / "run"), "out.*checkpoint")
        assert (tmp_path / "run" / "checkpoint").read_text() == "hello"

    def test_the_history_is_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "run" / "history.jsonl").mkdir(parents=True)
        refused(lambda: begin(tmp_path / "run"), "out.*run")

    def test_a_name_that_is_too_long(self, tmp_path: Path) -> None:
        refused(lambda: begin(tmp_path / ("x" * 300)), "out")

    def test_out_already_holds_a_run(self, tmp_path: Path) -> None:
        begin(tmp_path / "run", rounds=1)
        before = tree_hash(tmp_path)
        refused(lambda: begin(tmp_path / "run"), "out.*no run yet.*Resume it")
        assert tree_hash(tmp_path) == before

    def test_a_bad_model_leaves_no_folder(self, tmp_path: Path) -> None:
        wrong = mo.models.linear(7, 3)
        refused(lambda: mo.fit(wrong, FED, mo.fedavg(shared=0.1), rounds=1, out=tmp_path / "run"), "model")
        assert not (tmp_path / "run").exists()

    def test_out_may_hold_other_files(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "notes.txt").write_text("hello")
        begin(tmp_path / "run", rounds=1)
        assert (tmp_path / "run" / "notes.txt").read_text() == "hello"

    def test_folders_above_are_made(self, tmp_path: Path) -> None:
        assert begin(tmp_path / "a" / "b" / "c", rounds=1).folder == tmp_path / "a" / "b" / "c"
        assert (tmp_path / "a" / "b" / "c" / "config.toml").exists()
