"""The command as tests call it: in this process, or as a stranger's shell would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from moiety.cli import main

SMALL = """
model = "linear"

[data]
name = "digits"
clients = 4
partition = "iid"

[algorithm]
name = "fedavg"
shared = {name = "sgd", lr = 0.1, steps = 1}

[run]
rounds = 2
cohort = 2
engine = "sequential"
"""
"""A run that takes no time."""

PERSONAL = SMALL.replace('"linear"', '{name = "mlp", hidden = [8]}\nsplit = "output_layer"').replace(
    '"fedavg"\nshared = {name = "sgd", lr = 0.1, steps = 1}',
    '"fedalt"\nshared = {name = "sgd", lr = 0.5}\npersonal = {name = "sgd", lr = 0.5, steps = 4}',
)


class Result(NamedTuple):
    code: int
    out: str
    err: str


def call(capsys: pytest.CaptureFixture[str], *argv: object) -> Result:
    """The command in this process."""
    capsys.readouterr()
    code = main([str(word) for word in argv])
    return Result(code, *capsys.readouterr())


def start(*argv: object, cwd: Path) -> subprocess.Popen[str]:
    """The command in a process of its own, still running."""
    words = [sys.executable, "-c", "import sys; from moiety.cli import main; sys.exit(main())", *map(str, argv)]
    env = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS", "MOIETY_DATA")}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=cwd, env=env)


def shell(*argv: object, cwd: Path) -> Result:
    """The command in a process of its own, from start to end."""
    process = start(*argv, cwd=cwd)
    out, err = process.communicate(timeout=300)
    return Result(process.returncode, out, err)


def one_line(text: str) -> bool:
    """Whether this is exactly one line that begins as errors do."""
    return text.startswith("moiety: ") and text.endswith("\n") and text.count("\n") == 1
