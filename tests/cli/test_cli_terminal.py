"""On a terminal there is a bar; the terminal is a pseudo-terminal here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_command import PERSONAL

pty = pytest.importorskip("pty")


def on_a_terminal(*argv: str, cwd: Path, **env: str) -> tuple[int, str]:
    master, slave = pty.openpty()
    words = [sys.executable, "-c", "import sys; from moiety.cli import main; sys.exit(main())", *argv]
    whole = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", **env}
    process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=whole)
    os.close(slave)
    read = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux says so where the other side has closed
            break
        if not chunk:
            break
        read += chunk
    os.close(master)
    return process.wait(timeout=60), read.decode()


def test_a_bar_with_round_loss_and_metric(tmp_path: Path):
    (tmp_path / "own.toml").write_text(PERSONAL)
    code, seen = on_a_terminal("run", "own.toml", cwd=tmp_path)
    assert code == 0
    assert "\x1b[" in seen
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert re.search(r"own ━+ 2/2 loss \d\.\d{4}  test \d\.\d{4}  accuracy \d+\.\d% ", plain)
    assert "clients helped" in plain
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") > 0  # the cursor is given back


def test_bad_input_leaves_no_bar(tmp_path: Path):
    (tmp_path / "own.toml").write_text(PERSONAL)
    code, seen = on_a_terminal("run", "own.toml", "--set", "model.hiden=[3]", cwd=tmp_path)
    assert code == 2
    assert "Did you mean hidden?" in seen
    assert not (tmp_path / "runs").exists()


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path):
    (tmp_path / "own.toml").write_text(PERSONAL)
    code, seen = on_a_terminal("run", "own.toml", cwd=tmp_path, TERM="dumb")
    assert code == 0
    assert "\x1b" not in seen
    assert "round 2/2" in seen
