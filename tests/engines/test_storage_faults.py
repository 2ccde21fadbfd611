"""A disk that fails at any single call, or from there on: the folder holds the old state or the new, never a third."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from engine_cases import SHAPE, StopHereError, stop_after
from failing_disk import Disk
from night import NIGHTLY
from storage_cases import MARKS, fresh, kind_contents, run_kind

import moiety as mo
from moiety import files

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
KINDS = ("fit", "resume", "pipeline", "clock", "codec", "best", "sweep")


class Case:
    """A kind of run, what it ends with where nothing fails, and how many calls it makes."""

    def __init__(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind = "fit" if name == "resume" else name
        self.stopped: Path | None = None
        if name == "resume":
            self.stopped = folder / "stopped"
            with pytest.raises(StopHereError):
                run_kind("fit", self.stopped, rounds=3, callbacks=[stop_after(2)])
        self.whole = self.begin(folder / "whole")
        disk = Disk()
        with monkeypatch.context() as patch:
            patch.setattr(files, "system_call", disk)
            run_kind(self.kind, self.whole)
        self.calls, self.wanted = disk.calls, kind_contents(self.whole)

    def begin(self, out: Path) -> Path:
        """The folder as it is before the calls that may fail."""
        fresh(out)
        return out if self.stopped is None else Path(shutil.copytree(self.stopped, out))


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield Case(request.param, tmp_path_factory.mktemp(request.param), patch)


def try_disk(case: Case, disk: Disk, out: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run on that disk; then on a sound one to the end. What the first said, if it was stopped."""
    case.begin(out)
    text = ""
    with monkeypatch.context() as patch:
        patch.setattr(files, "system_call", disk)
        try:
            run_kind(case.kind, out)
        except mo.MoietyError as error:
            text = str(error)
    if any((out / mark).exists() for mark in MARKS):
        assert mo.verify(out) == [], (disk.n, disk.calls[disk.n])
    run_kind(case.kind, out)
    assert kind_contents(out) == case.wanted, (disk.n, disk.calls[disk.n])
    assert mo.verify(out) == []
    return text


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_every_call_may_fail(case: Case, for_good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All n at night; here each kind of call in each kind of run, and every fortieth, others where it is for good."""
    assert len(case.calls) > 50
    assert {"open", "write", "fsync", "pwrite", "replace", "rename", "mkdir"} <= set(case.calls)
    first = {name: case.calls.index(name) for name in reversed(case.calls)}
    sample = {*first.values(), *range(20 * for_good, len(case.calls), 40)}
    points = range(len(case.calls)) if NIGHTLY else sorted(sample)
    for n in points:
        disk = Disk(n, ERRORS[n % 3], for_good=for_good)
        text = try_disk(case, disk, tmp_path / "run", monkeypatch)
        if case.calls[n] in ("unlink", "rmdir") and not for_good:  # what should have been removed stays
            continue
        assert SHAPE.fullmatch(text), (n, case.calls[n], text)


def test_writes_that_stop_short_go_on(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert try_disk(case, Disk(only_short=True), tmp_path / "run", monkeypatch) == ""


def test_an_older_best_round_of_which_a_part_stays_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States of clients can be removed, and no other file of the best round before."""

    def system_call(call: Any, *arguments: Any) -> Any:
        place = str(arguments[0])
        if call in (os.unlink, os.rmdir) and "/best/" in place and not place.endswith("states.bin"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(files, "system_call", system_call)
        run_kind("best", tmp_path / "run")
    assert [place for place in (tmp_path / "run" / "best").glob(".*") if any(place.iterdir())]
    assert mo.verify(tmp_path / "run") == []


def test_a_sweeps_run_that_was_cut_off_while_it_was_made_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def system_call(call: Any, *arguments: Any) -> Any:
        if call is os.open and str(arguments[0]).endswith(".config.toml.moiety"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(files, "system_call", system_call)
        with pytest.raises(mo.MoietyError, match="No space left"):
            run_kind("sweep", tmp_path / "run")
    assert list((tmp_path / "run").rglob("identity.json"))
    assert mo.verify(tmp_path / "run") == []
