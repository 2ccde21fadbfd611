"""Which folder a run goes to, which one is continued, and what the command line set when it began."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moiety.errors import must, refuse
from moiety.run.folder import COMMAND, read_id
from moiety.run.protocol import Callback
from moiety.seals import CONFIG, PIPELINE, RECIPE, read_sealed, write_sealed

if TYPE_CHECKING:
    from moiety.run.result import Run
    from moiety.types import RoundRecord

RUNS = Path("runs")


def folder_for(name: str, out: Path | None, *, resume: bool) -> Path:
    """The folder asked for, or the default one, checked: it must hold a run to resume, or none."""
    if resume:
        folder = find_newest(name) if out is None else out
        must(holds_run(folder), "out", "a folder with a run to resume", folder, "Leave out --resume to begin one.")
        return folder
    if out is None:
        return pick_unused(name)
    hint = "Continue it with --resume, or choose another folder."
    must(not holds_run(out), "out", "a folder that holds no run yet", out, hint)
    must(not out.exists() or out.is_dir(), "out", "a folder", f"the file {out}")
    return out


def run_name(file: Path) -> str:
    """The name of a file's runs: that of the file, or of its folder where a run or a pipeline has written it."""
    return (file.resolve().parent.name or file.stem) if file.name in (CONFIG, PIPELINE) else file.stem


def holds_run(folder: Path) -> bool:
    """Whether a run is in the folder, or (as recipes and pipelines leave them) in folders below."""
    return bool(_list_marks(folder))


def _list_marks(folder: Path) -> list[Path]:
    """The files that say what is in a folder and in those right below."""
    files = [folder / CONFIG, folder / PIPELINE, folder / RECIPE, *(place / CONFIG for place in _list_folders(folder))]
    return [file for file in files if file.is_file()]


def pick_unused(name: str) -> Path:
    """``runs/name``, or with -2, -3, ... the first that is not there or is empty."""
    number, folder = 1, RUNS / name
    while folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        number += 1
        folder = RUNS / f"{name}-{number}"
    return folder


def find_newest(name: str) -> Path:
    """The one of ``runs/name``, ``runs/name-2``, ... that was begun or continued last."""
    pattern = re.compile(re.escape(name) + r"(-\d+)?")
    folders = [folder for folder in _list_folders(RUNS) if pattern.fullmatch(folder.name) and holds_run(folder)]
    if not folders:
        hint = "Say which with --out, or leave out --resume to begin one."
        refuse("resume", "given where there is a run to continue", f"none in {RUNS / name}*", hint)
    return max(folders, key=lambda folder: max(file.stat().st_mtime for file in _list_marks(folder)))


def _list_folders(folder: Path) -> list[Path]:
    return sorted(place for place in folder.iterdir() if place.is_dir()) if folder.is_dir() else []


def read_assignments(folder: Path) -> list[str]:
    """What the command line set when the run in this folder began, so that --resume need not be told again."""
    file = folder / COMMAND
    if not file.is_file():
        return []
    sets = read_sealed(file, read_id(folder), ["set"])["set"]
    whole = isinstance(sets, list) and all(isinstance(each, str) for each in sets)
    must(whole, COMMAND, "as it was written", f"another list in {file}")
    return list(sets)


class KeepAssignments(Callback):
    """Writes what the command line set into a folder after the first round: then it is sure there is a run."""

    def __init__(self, folder: Path, sets: Sequence[str]) -> None:
        self.file, self.sets = folder / COMMAND, list(sets)

    def on_round(self, run: Run, record: RoundRecord) -> None:
        """Write them once."""
        if self.sets or self.file.exists():
            write_sealed(self.file, {"set": self.sets}, read_id(self.file.parent))
        self.on_round = lambda run, record: None  # type: ignore[method-assign]
