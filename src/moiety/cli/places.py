"""Which folder a run goes to, and which one is continued."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moiety.errors import MoietyError, message, must
from moiety.experiments.runner import RECIPE, is_experiment

RUNS = Path("runs")
PIPELINE = "pipeline.toml"
"""What a pipeline is, in its folder; the stages are in folders below."""


def folder_for(name: str, out: Path | None, *, resume: bool) -> Path:
    """The folder asked for, or the default one, checked: it must hold a run to resume, or none."""
    if resume:
        found = newest(name) if out is None else out
        must(holds_run(found), "out", "a folder with a run to resume", found, "Leave out --resume to begin one.")
        return found
    if out is None:
        return unused(name)
    hint = "Continue it with --resume, or choose another folder."
    must(not holds_run(out), "out", "a folder that holds no run yet", out, hint)
    must(not out.exists() or out.is_dir(), "out", "a folder", f"the file {out}")
    return out


def name_of(file: Path) -> str:
    """What a file's runs are called: as the file, or as the folder where a run or a pipeline has left it."""
    return (file.resolve().parent.name or file.stem) if file.name in ("config.toml", PIPELINE) else file.stem


def called(config: Mapping[str, Any], section: str) -> str:
    """What the algorithm, split, model or data of a run is called; data in a folder by its path."""
    table = config.get(section, {})
    known = table.get("path") if section == "data" and table.get("name") == "folder" else table.get("name")
    return str(known or table.get("own", "-"))


def holds_run(folder: Path) -> bool:
    """Whether a run is in the folder, or (as recipes and pipelines leave them) in folders below."""
    return (
        is_run(folder)
        or is_experiment(folder)
        or is_pipeline(folder)
        or any(is_run(below) for below in _folders(folder))
    )


def is_run(folder: Path) -> bool:
    """Whether a run has begun in this folder."""
    return (folder / "config.toml").is_file()


def is_pipeline(folder: Path) -> bool:
    """Whether a pipeline has begun in this folder."""
    return (folder / PIPELINE).is_file()


def unused(name: str) -> Path:
    """``runs/name``, or with -2, -3, ... the first that is not there or is empty."""
    number, folder = 1, RUNS / name
    while folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        number += 1
        folder = RUNS / f"{name}-{number}"
    return folder


def newest(name: str) -> Path:
    """The one of ``runs/name``, ``runs/name-2``, ... that was begun or continued last."""
    ours = re.compile(re.escape(name) + r"(-\d+)?")
    found = [folder for folder in _folders(RUNS) if ours.fullmatch(folder.name) and holds_run(folder)]
    if not found:
        hint = "Say which with --out, or leave out --resume to begin one."
        raise MoietyError(message("resume", "given where there is a run to continue", f"none in {RUNS / name}*", hint))
    return max(found, key=_touched)


def _touched(folder: Path) -> float:
    files = [place / "config.toml" for place in (folder, *_folders(folder)) if is_run(place)]
    files += [folder / RECIPE] if is_experiment(folder) else []
    files += [folder / PIPELINE] if is_pipeline(folder) else []
    return max(file.stat().st_mtime for file in files)


def _folders(folder: Path) -> list[Path]:
    return sorted(place for place in folder.iterdir() if place.is_dir()) if folder.is_dir() else []
