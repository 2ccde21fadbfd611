"""Only ``files.py`` writes to a disk: Python's audit events say who opens, renames and removes files during runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import moiety as mo
from moiety import experiments, files
from moiety_recipes.claims import decide_claim
from moiety_recipes.holds import Drawing, Holds

ROOT = str(Path(mo.__file__).parent) + os.sep
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}
"""The events of calls that change a folder; a file that is opened for writing has the event ``open``."""


class Watch:
    """Which module of moiety was at work at each change of a disk below ``folder``; an audit hook stays for good."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.writers: set[str] = set()
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or not (event in CHANGES or event == "open"):
            return
        writes = event != "open" or (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and str(arguments[0]).startswith(self.folder):
            self.writers.add(self.find_module())

    @staticmethod
    def find_module() -> str:
        frame: Any = sys._getframe(2)
        while frame and not frame.f_code.co_filename.startswith(ROOT):
            frame = frame.f_back
        return str(Path(frame.f_code.co_filename).relative_to(ROOT)) if frame else "no module"


@pytest.fixture(scope="module")
def watch() -> Watch:
    """Only when a test asks for it: the hook makes Python slower from then on."""
    return Watch()


def make_data() -> mo.FederatedData:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 2)), rng.integers(2, size=24)
    return mo.data.from_arrays({"x": x, "y": y}, client=np.arange(24) % 3, seed=0)


def run_and_resume(folder: Path) -> None:
    model = nn.Linear(2, 2)
    split = mo.split.by_name(model, personal=["bias"])
    options: dict[str, Any] = {"split": split, "engine": "sequential"}
    mo.fit(model, make_data(), mo.fedalt(shared=0.1, personal=0.1), rounds=2, out=folder / "run", **options)
    mo.resume(folder / "run", model=model, data=make_data(), rounds=3)


def run_pipeline(folder: Path) -> None:
    stages = [
        mo.Stage(mo.fedavg(shared=0.1), rounds=1),
        mo.Stage(mo.finetune(personal=0.1), split="everything", rounds=1),
    ]
    mo.pipeline(stages, nn.Linear(2, 2), make_data(), out=folder / "pipeline", engine="sequential")


def run_recipe(folder: Path) -> None:
    experiments.load_recipe("quickstart").run(scale="ci", out=folder / "recipe", engine="sequential")


def save_data(folder: Path) -> None:
    make_data().save(folder / "data")
    mo.data.open_folder(folder / "data").digest()


def write_what_holds(folder: Path) -> None:
    """A page of ``holds.py``, with a figure, and the page of several settings, which has a table too."""
    claim = decide_claim("A beats B", {"people": [0.1, 0.3]}, headline=True) | {"recipe": "one"}
    table = {"recipe": "one", "command": "moiety run one", "date": "today", "rows": [claim]}
    runs = folder.parent / "runs"
    runs.mkdir()
    (runs / "table.json").write_text(json.dumps(table))
    paper = Holds(
        program="holds",
        about="",
        paper="",
        plan="",
        titles={"one": "One"},
        drawings={"a.png": Drawing("one", ".*", "")},
    )
    assert paper.main([str(runs), "--out", str(folder / "page")]) == 0
    experiments.write_summary(folder / "table", "", figures={}, table=table)


@pytest.mark.parametrize("work", [run_and_resume, run_pipeline, run_recipe, save_data, write_what_holds])
def test_only_files_writes(work: Callable[[Path], None], watch: Watch, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    watch.folder, watch.writers = str(folder), set()
    try:
        work(folder)
    finally:
        watch.folder = None
    assert watch.writers == {"files.py"}


def test_another_writer_is_noticed(watch: Watch, tmp_path: Path) -> None:
    watch.folder, watch.writers = str(tmp_path), set()
    (tmp_path / "by hand").write_text("")
    files.write_file(tmp_path / "by files.py", b"")
    watch.folder = None
    assert watch.writers == {"no module", "files.py"}
