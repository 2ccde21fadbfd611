"""Recipes at their smallest scale, each run once for all tests of a session, in however many worker processes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from moiety.cli import main
from moiety.experiments import parallel
from moiety.reports import figures

SEQUENTIAL = ("--scale", "ci", "--engine", "sequential")
OWN_ENGINE = ("--scale", "ci")
RECIPES: dict[str, tuple[str, ...]] = {
    "quickstart": ("--rounds", "10", "--engine", "sequential"),
    "fedalt-images": SEQUENTIAL,
    "fedalt-labels": SEQUENTIAL,
    "fedalt-numbers": SEQUENTIAL,
    "fedalt-people": SEQUENTIAL,
    "fedalt-roles": SEQUENTIAL,
    "fedalt-speech": SEQUENTIAL,
    "fedalt-text": SEQUENTIAL,
    "fedpop-full": SEQUENTIAL,
    "fedpop-network": SEQUENTIAL,
    "fedpop-people": SEQUENTIAL,
    "fedpop-small": SEQUENTIAL,
    "fedpop-toy": SEQUENTIAL,
    "fedpop-uncertainty": SEQUENTIAL,
    "fedpop-work": SEQUENTIAL,
    "ffgg-async": SEQUENTIAL,
    "ffgg-byzantine": SEQUENTIAL,
    "ffgg-diagnosis": SEQUENTIAL,
    "ffgg-figure1": SEQUENTIAL,
    "ffgg-readings": OWN_ENGINE,
    "ffgg-speeds": SEQUENTIAL,
    "ffgg-splits": SEQUENTIAL,
    "ffgg-theorem8": OWN_ENGINE,
    "ffgg-table1": SEQUENTIAL,
    "glocal-table1": OWN_ENGINE,
    "glocal-clients": OWN_ENGINE,
    "glocal-delay": OWN_ENGINE,
    "glocal-features": OWN_ENGINE,
    "glocal-fictitious": OWN_ENGINE,
    "glocal-readings": OWN_ENGINE,
    "glocal-rules": OWN_ENGINE,
    "fedspa-table1": SEQUENTIAL,
    "fedspa-table2": SEQUENTIAL,
    "fedspa-sparsity": SEQUENTIAL,
    "fedspa-ablations": SEQUENTIAL,
    "fedspa-lenet": SEQUENTIAL,
    "fedspa-theorem1": OWN_ENGINE,
}
"""The options of each. The recipes of Glocal, and those on formulas, take no engine, and quickstart has no scales."""

FORKED = ("ffgg-readings",)
"""Recipes whose cells run side by side, as they do for a user; its cells are few."""


@dataclass(frozen=True)
class RecipeRun:
    """A recipe that has ended: its folder, what the command printed, and its table as the command left it."""

    folder: Path
    printed: str
    table: dict[str, Any]


def run_recipe(name: str, folder: Path) -> RecipeRun:
    """Run a recipe in a folder by the command.

    At this scale no recipe needs files of data. The folder of such files is hidden, so that none is looked at. All but
    the recipes of ``FORKED`` see one core, so that a cell is not a process: to fork costs more than to train here.
    Figures are drawn without looking for room for their labels; tests of figures look at that.
    """
    cores = contextlib.nullcontext() if name in FORKED else mock.patch.object(parallel, "count_cores", return_value=1)
    with mock.patch.dict(os.environ), cores, mock.patch.object(figures, "LAYOUT", None):
        os.environ.pop("MOIETY_DATA", None)
        code, text, errors = call_command("run", name, *RECIPES[name], "--out", str(folder))
    assert (code, errors) == (0, ""), f"{name} ended with {code}: {errors}"
    file = folder / "table.json"
    return RecipeRun(folder, text, json.loads(file.read_text()) if file.is_file() else {})


def run_recipe_once(name: str, root: Path) -> RecipeRun:
    """Run a recipe below ``root``, or read the run of it that is there. The worker that comes second waits."""
    root.mkdir(exist_ok=True)
    record = root / f"{name}.json"
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists():
            run = run_recipe(name, root / name)
            record.write_text(json.dumps([run.printed, run.table]))
    return RecipeRun(root / name, *json.loads(record.read_text()))


def call_command(*words: str) -> tuple[int, str, str]:
    """Call the command in this process; its exit code, and what it printed to both streams."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()
