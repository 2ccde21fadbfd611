"""On a terminal there is a bar; the terminal is a pseudo-terminal here."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_command import PERSONAL
from rich.console import Console

from moiety.cli import progress
from moiety.errors import MoietyError
from moiety.reports import console as reports_console
from moiety.run.progress import Bars
from moiety.types import RoundRecord

pty = pytest.importorskip("pty")
RUN = SimpleNamespace(
    folder=None,
    config={"algorithm": {"name": "fedavg"}, "data": {}, "run": {"cohort": 1, "seed": 0, "engine": "auto"}},
    _loop=SimpleNamespace(rounds=5, progress=SimpleNamespace(round=0)),
)
"""As much of a run as a bar looks at."""


COMMAND = "import sys; from moiety.cli import main; sys.exit(main())"


def on_a_terminal(*argv: str, cwd: Path, code: str = COMMAND, **env: str) -> tuple[int, str]:
    master, slave = pty.openpty()
    words = [sys.executable, "-c", code, *argv]
    whole = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", **env}
    process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=whole)
    os.close(slave)
    output = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux says so where the other side has closed
            break
        if not chunk:
            break
        output += chunk
    os.close(master)
    return process.wait(timeout=300), output.decode()


def test_a_bar_with_round_loss_and_metric(tmp_path: Path):
    (tmp_path / "own.toml").write_text(PERSONAL)
    code, output = on_a_terminal("run", "own.toml", cwd=tmp_path)
    assert code == 0
    assert "\x1b[" in output
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    assert re.search(r"own ━+ 2/2 loss \d\.\d{4}  test \d\.\d{4}  accuracy \d+\.\d% ", plain)
    assert "clients helped" in plain
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") > 0  # the cursor is given back


def test_a_bar_in_python(tmp_path: Path):
    script = """
import numpy as np, moiety as mo
fed = mo.data.from_clients({"a": {"x": np.eye(4, dtype="float32"), "y": np.arange(4) % 2}}, test=0.5)
for progress in (None, False):
    mo.fit(mo.models.linear(4, 2), fed, mo.fedavg(shared=0.1), rounds=3, engine="sequential", progress=progress)
"""
    code, output = on_a_terminal(cwd=tmp_path, code=script)
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    assert "checking model and data" in plain or "preparing" in plain
    assert len(re.findall(r"3/3 loss \d\.\d{4}  test \d\.\d{4}  accuracy \d+\.\d% 00:0\d", plain)) >= 1
    assert plain.count("fedavg on data") == 1  # and nothing from the second


def test_bad_input_leaves_no_bar(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(progress, "on_terminal", lambda: True)
    monkeypatch.setattr(progress, "console", lambda: Console(file=stream, force_terminal=True, width=80))

    def fail() -> None:
        with progress.show_progress(quiet=False) as watch:
            watch("mine")
            raise MoietyError("no")

    with pytest.raises(MoietyError):
        fail()
    assert "mine" not in stream.getvalue().rpartition("\x1b[2K")[2]


def test_the_bar_says_what_happens_before_the_first_round():
    bars = Bars(Console(file=io.StringIO(), width=80))
    log = logging.getLogger("moiety")
    before = list(log.handlers)
    with bars.show():
        log.info("there is no bar yet")
        bar = bars.watch("mine")
        (task,) = bars.progress.tasks
        assert task.fields["status"] == "preparing"
        log.info("measuring engines")
        assert task.fields["status"] == "measuring engines"
        bar.on_start(RUN)
        bar.on_round(RUN, RoundRecord(1, (0,), 0.5, (), None))
        assert task.fields["status"] == "loss 0.5000"
    log.info("nobody listens any more")
    assert task.fields["status"] == "loss 0.5000"
    assert log.handlers == before


@pytest.mark.parametrize("width", [80, 120])
def test_a_long_name_leaves_room_for_the_bar_the_count_and_the_time(width):
    """The line of a sweep's run: what tells it from the others is at the end of its name."""
    stream = io.StringIO()
    bars = Bars(Console(file=stream, width=width))
    bar = bars.watch("data.partition=dirichlet algorithm.shared=0.003 seed 17")
    bar.on_start(RUN)
    bar.on_evaluate(RUN, {"part": "test", "loss": 0.6019, "metric": 0.808, "metric_name": "accuracy"})
    bar.on_round(RUN, RoundRecord(4, (0,), 0.6535, (), None))
    bars.progress.console.print(bars.progress.get_renderable())
    (line,) = [line for line in stream.getvalue().splitlines() if "4/5" in line]
    assert len(line) <= width
    loss = "" if width == 80 else "loss 0.6535  "
    assert re.search(rf"^….*\.003 seed 17 ━+╸? +4/5 {loss}test 0\.6019  accuracy 80\.8% +\S*:\S\S", line), line
    assert line.count("━") >= 8


def test_dropped_clients_are_counted_on_the_bar():
    bars = Bars(Console(file=io.StringIO(), width=80))
    bar = bars.watch("mine")
    bar.on_start(RUN)
    for number, clients in ((1, ("ann",)), (2, ()), (3, ("bob", "eve"))):
        bar.on_round(RUN, RoundRecord(number, (0,), float("nan"), clients, None))
    (task,) = bars.progress.tasks
    assert (task.completed, task.total, task.fields["status"]) == (3, 5, "loss -  3 dropped")


@pytest.mark.parametrize(
    ("tty", "term", "expected"),
    [(True, "xterm", True), (True, "dumb", False), (True, "", False), (False, "xterm", False)],
)
def test_a_bar_needs_a_terminal_that_can_draw_it(monkeypatch, tty, term, expected):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")  # colours nothing that is not a terminal
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty)
    assert reports_console.on_terminal() is expected
    assert reports_console.console().is_terminal is expected
