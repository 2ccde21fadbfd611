"""``verify``: read every file of a run's folder and say what is wrong with which, without resuming or changing it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from moiety.clients.records import LAYOUT, Entry, open_records
from moiety.errors import MoietyError, kind, message, must
from moiety.files import CONFIG, PIPELINE, RECIPE, read_json, read_sealed
from moiety.run import folder as files
from moiety.run.checkpoint import INDEX, find_checkpoint, read_checkpoint, read_tensors

T = TypeVar("T")


def verify(folder: str | os.PathLike[str]) -> list[str]:
    """Check all files of a run, of a pipeline, or of a recipe with its runs, against their checksums.

    Args:
        folder: the folder; nothing in it is changed, and no model or data is needed.

    Returns:
        A sentence for each file that is damaged, missing or of another run; an empty list where all is well.
    """
    kind("folder", folder, (str, os.PathLike), "the folder of a run, of a pipeline or of a recipe")
    path = Path(folder)
    runs = list_runs(path)
    notes = {PIPELINE: files.read_pipeline, RECIPE: lambda place: read_json(place / RECIPE)}
    marks = [name for name in notes if (path / name).is_file()]
    must(bool(runs or marks), "folder", "one of a run, of a pipeline or of a recipe", path)
    check = _Check()
    for name in marks:
        check.ask(notes[name], path)
    for each in runs:
        _verify_run(each, check)
    return check.problems


def list_runs(folder: Path) -> list[Path]:
    """The folders of runs in a folder: itself, or those below it. One that was cut off while being made is none."""
    places = {mark.parent for name in (CONFIG, files.IDENTITY) for mark in folder.rglob(name)}
    return sorted(place for place in places if any((place / name).exists() for name in files.OURS))


class _Check:
    """Collects what is wrong, so that one damaged file does not hide another."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def ask(self, read: Callable[..., T], *arguments: Any) -> T | None:
        """What ``read`` gives, or None where it finds something wrong."""
        try:
            return read(*arguments)
        except MoietyError as error:
            self.problems.append(str(error))
            return None


def _verify_run(folder: Path, check: _Check) -> None:
    identity = check.ask(files.read_identity, folder)
    if identity is None:  # without the run's id nothing else can be compared
        return
    run = files.read_id(folder)
    config = check.ask(files.read_config, folder) or {}
    for name in ("initial", "start"):
        if name in identity:
            check.ask(read_tensors, folder / f"{name}.safetensors", identity[name])
    fitted = identity["data"].get("preprocessing") if isinstance(identity.get("data"), dict) else None
    if fitted is not None:
        check.ask(files.read_preprocessing, folder, run, fitted)
    newest = find_checkpoint(folder)
    state, tensors = (newest and check.ask(read_checkpoint, newest, run)) or ({}, {})
    if (newest is None and (folder / "clients" / LAYOUT).exists()) or state.get("index"):
        changes = tensors[INDEX]["changes"].numpy() if tensors else np.zeros((0, 4), dtype=np.int64)
        check.ask(_verify_clients, folder, run, state, changes, check)
    if state:
        check.ask(_verify_history, folder, run, state["round"], config.get("run", {}))
    if (folder / files.LEDGER).exists():  # without it the run has not ended, and its results are written again
        check.ask(files.read_results, folder, run)
        check.ask(files.read_unseen, folder, run)
    if (folder / files.COMMAND).exists():
        check.ask(read_sealed, folder / files.COMMAND, run)


def _verify_clients(folder: Path, run: str, state: dict[str, Any], changes: Any, check: _Check) -> None:
    """Compare the index with the checkpoint, and every record with the index."""
    records = open_records(folder / "clients", run, os.O_RDONLY)
    if not state:
        last = records.last_round()
        must(not last, "checkpoint", f"there, for clients has states of round {last}", f"none in {folder}")
    same = not state or records.digest(changes) == state["index"]
    must(same, "clients", f"as the checkpoint of round {state.get('round')} has it", f"another index in {folder}")
    records.pending = {client: Entry(*entry) for client, *entry in changes.tolist()}
    for client in records.owners():
        check.ask(records.read, client)


def _verify_history(folder: Path, run: str, done: int, options: dict[str, Any]) -> None:
    _, lost = files.read_history_until(folder, run, done, options)
    if lost:
        got = f"none of round {', '.join(map(str, lost[:10]))} in {folder / files.HISTORY}"
        raise MoietyError(message(files.HISTORY, "whole, with a row for each evaluation", got))
