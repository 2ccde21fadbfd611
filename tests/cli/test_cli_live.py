"""``moiety run --live`` and ``moiety watch`` as commands: started, asked for their page, interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from cli_command import PERSONAL, call, start
from waiting import LONG, wait_until

import moiety as mo
from moiety.run.verify import list_runs

HOSTILE = "<script>window.broken=1</script>"
ENDLESS = PERSONAL.replace("rounds = 2", "rounds = 1000000\nevaluate_every = 5")


def read_address(process: subprocess.Popen[str]) -> str:
    """The address that the command prints first."""
    for line in process.stdout:
        if match := re.search(r"http://127\.0\.0\.1:\d+/", line):
            return match[0]
    raise AssertionError(process.stderr.read())


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=LONG) as answer:
        return answer.read().decode()


def stop(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, problem = process.communicate(timeout=LONG)
    return process.returncode, problem


def test_watch_serves_the_page_of_a_folder_until_it_is_interrupted(capsys, tmp_path: Path) -> None:
    file = tmp_path / "first.toml"
    file.write_text(PERSONAL)
    assert call(capsys, "run", file, "--out", tmp_path / HOSTILE.replace("/", "!")).code == 0
    process = start("watch", tmp_path, cwd=tmp_path)
    try:
        address = read_address(process)
        page = fetch(address)
        assert "Personal models reach" in page
        assert "&lt;script&gt;window.broken=1" in page  # the folder's name is the run's
        assert page.count("<script") == 2  # the page's own data and program
        assert "fedalt" in fetch(f"{address}state?since=")
        assert stop(process) == (0, "")
    finally:
        process.kill()
        process.communicate()
    with pytest.raises(OSError, match="refused"):
        fetch(address)


def test_a_folder_that_vanishes_while_runs_are_listed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run replaces its checkpoint by renaming a temporary folder."""
    for folder in ("run", "run/checkpoint", "run/checkpoint/.new.moiety"):
        (tmp_path / folder).mkdir()
    for name in ("config.toml", "identity.json"):
        (tmp_path / "run" / name).write_text("")
    scandir = os.scandir

    def look(path: str) -> object:
        if str(path).endswith(".new.moiety"):
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", look)
    assert list_runs(tmp_path) == [tmp_path / "run"]


def test_a_live_run_shows_its_rounds_and_ends_where_it_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_text(ENDLESS)
    process = start("run", "first.toml", "--out", "run", "--live", cwd=tmp_path)
    try:
        address = read_address(process)
        words = wait_until(lambda: re.search(r"<h1>Round ([\d,]+) of 1,000,000: accuracy", fetch(address)), pause=0.2)
        rounds = int(words[1].replace(",", ""))
        assert rounds >= 5
        assert rounds % 5 == 0
        code, problem = stop(process)
    finally:
        process.kill()
        process.communicate()
    assert code == 130, problem
    assert mo.verify(tmp_path / "run") == []
    with pytest.raises(OSError, match="refused"):
        fetch(address)
