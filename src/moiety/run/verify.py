"""``verify``: read every file of a folder and say what is wrong with which, without resuming or changing anything."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from moiety.clients.records import LAYOUT, Entry, open_records
from moiety.data import FederatedData, from_spec, open_folder
from moiety.data.digest import Digest, explain_difference
from moiety.data.folder import META
from moiety.errors import MoietyError, kind, message, must
from moiety.files import check_path, report_unreadable
from moiety.run import folder as files
from moiety.run.best import check_best_round, find_best_rounds, place_of
from moiety.run.build import own_part
from moiety.run.checkpoint import INDEX, check_newest, find_checkpoint, read_checkpoint, read_tensors
from moiety.run.privacy import read_counted
from moiety.run.safeguard_folder import read_safeguard
from moiety.seals import CONFIG, PIPELINE, RECIPE, TABLE, TABLE_FORMAT, read_sealed

T = TypeVar("T")


def verify(folder: str | os.PathLike[str], *, data: bool | FederatedData = False) -> list[str]:
    """Check all files of a run, of a pipeline, of a recipe with its runs, or of saved data against their checksums.

    Args:
        folder: the folder; nothing in it is changed, and no model is needed.
        data: True to read all data of the runs too, and compare it with what they began with. Data that their folders
            cannot name is given here itself. A folder of data is always read whole.

    Returns:
        A sentence for each file that is damaged, missing or of another run; an empty list where all is well.

    >>> import tempfile
    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": 1 - y}}, test=0.25)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     algorithm = mo.local_only(personal=0.5)
    ...     _ = mo.fit(mo.models.linear(1, 2), fed, algorithm, rounds=2, engine="sequential", out=f"{folder}/run")
    ...     mo.verify(f"{folder}/run")
    []
    """
    constraint = "the folder of a run, of a pipeline, of a recipe or of data"
    check_path("folder", folder, constraint)
    kind("data", data, (bool, FederatedData), "True, False or federated data")
    path = Path(folder)
    runs, check = list_runs(path), _Check(data)
    notes = {PIPELINE: _verify_pipeline, RECIPE: _verify_recipe}
    marks = [name for name in notes if (path / name).is_file()]
    must(bool(runs or marks or holds_data(path)), "folder", constraint.replace("the folder", "one"), path)
    if holds_data(path):
        check.ask(lambda: open_folder(path, read_all=True))
    for name in marks:
        check.ask(notes[name], path, runs, check)
    for each in runs:
        _verify_run(each, check)
    return check.problems


def list_runs(folder: Path) -> list[Path]:
    """The folders of runs in a folder: itself, or those below it; without those that were cut off while being made.

    A folder that vanishes meanwhile, as a running run's temporary ones do, is passed over.
    """
    marks = {CONFIG, files.IDENTITY}
    places = [Path(top) for top, folders, names in os.walk(folder) if marks & {*folders, *names}]
    return sorted(place for place in places if any((place / name).exists() for name in files.OURS))


def holds_data(folder: Path) -> bool:
    """Whether data was saved in a folder."""
    return any((folder / name).is_file() for name in (META, "bounds.npy"))


@dataclass
class _Check:
    """Collects what is wrong, so that one damaged file does not hide another; ``data`` as for ``verify``."""

    data: bool | FederatedData
    problems: list[str] = field(default_factory=list)
    data_sets: dict[str, tuple[FederatedData, Digest]] = field(default_factory=dict)
    """Data of runs by their tables, with their digests."""

    def ask(self, read: Callable[..., T], *arguments: Any) -> T | None:
        """What ``read`` gives, or None where it finds something wrong."""
        try:
            return read(*arguments)
        except MoietyError as error:
            self.problems.append(str(error))
            return None

    def read_data(self, config: dict[str, Any], folder: Path) -> tuple[FederatedData, Digest]:
        """The data of a run, given or made again from what its file names, and the digest of all its bytes."""
        explicit = isinstance(self.data, FederatedData)
        own = own_part(config, "data") is not None and not explicit
        hint = "In Python, give it as moiety.verify(folder, data=...)."
        must(not own, "data", f"given for the run in {folder}, whose file cannot name it", "nothing", hint)
        table = "" if explicit else json.dumps(config["data"], sort_keys=True)
        if table not in self.data_sets:
            data = self.data if isinstance(self.data, FederatedData) else from_spec(config["data"])
            data = replace(data, mapped={})  # without the digests that are kept beside columns
            self.data_sets[table] = data, data.digest()
        return self.data_sets[table]


def _verify_pipeline(path: Path, runs: list[Path], check: _Check) -> None:
    """Compare what the pipeline is, and whether the stages that have begun are its own."""
    config, _ = files.read_pipeline(path)
    with report_unreadable(path / PIPELINE):
        parts = [stage["algorithm"] for stage in config["stage"]]
        names = files.stage_names(part.get("name") or part["own"] for part in parts)
    files.check_stages(path, names)


def _verify_recipe(path: Path, runs: list[Path], check: _Check) -> None:
    """Compare the recipe's table and the results of its cells: all JSON files that belong to no run."""
    run = str(read_sealed(path / RECIPE, keys=["run"])["run"])
    if (path / TABLE).exists():
        check.ask(lambda: read_sealed(path / TABLE, run, format=TABLE_FORMAT))
    for file in sorted(path.rglob("*.json")):
        of_a_run = {*file.parents} & {*runs} or files.is_beginning(file)
        if file not in (path / RECIPE, path / TABLE) and not of_a_run:
            check.ask(read_sealed, file, run, ("cell", "result"))


def _verify_run(folder: Path, check: _Check) -> None:
    identity = check.ask(files.read_identity, folder)
    if identity is None:  # without the run's id nothing else can be compared
        return
    run = files.read_id(folder)
    config = check.ask(files.read_config, folder) or {}
    for name in ("initial", "start"):
        if name in identity:
            check.ask(read_tensors, folder / f"{name}.safetensors", identity[name])
    if check.data is not False and config:
        check.ask(_verify_data, folder, identity, config, check)
    checksum = identity["data"].get("preprocessing") if isinstance(identity.get("data"), dict) else None
    if checksum is not None:
        check.ask(files.read_preprocessing, folder, run, checksum)
    newest = find_checkpoint(folder)
    note = check.ask(check_newest, folder, newest, run)
    state, tensors = (newest and check.ask(read_checkpoint, newest, run)) or ({}, {})
    if (newest is None and (folder / "clients" / LAYOUT).exists()) or state.get("index"):
        changes = tensors[INDEX]["changes"].numpy() if tensors else np.zeros((0, 4), dtype=np.int64)
        check.ask(_verify_clients, folder, run, state, changes, check)
    if state:
        check.ask(_verify_history, folder, run, state["round"], config.get("run", {}))
    if newest and state and note is not None:
        check.problems += files.find_lost_files(folder, newest, note).values()
    ended_with = dict[str, Any]()
    if (folder / files.LEDGER).exists() and check.ask(files.read_results, folder, run) is not None:
        check.ask(files.read_unseen, folder, run)
        ended_with = check.ask(files.read_notes, folder, run) or {}
    for round in sorted({*find_best_rounds(folder), *([ended_with["restored"]] if "restored" in ended_with else [])}):
        check.ask(_verify_best_round, place_of(folder, round), run, check)
    if "privacy" in config:
        check.ask(read_counted, folder, run)
    check.ask(read_safeguard, folder, run, None)
    if (folder / files.COMMAND).exists():
        check.ask(read_sealed, folder / files.COMMAND, run)


def _verify_best_round(place: Path, run: str, check: _Check) -> None:
    """Compare the models of a best round with their checksums."""
    state, tensors = read_checkpoint(check_best_round(place, run), run)
    if state["index"]:
        _verify_clients(place, run, state, tensors[INDEX]["changes"].numpy(), check)


def _verify_data(folder: Path, identity: dict[str, Any], config: dict[str, Any], check: _Check) -> None:
    """Read all data of a run and compare it with the digest that the run began with."""
    fed, now = check.read_data(config, folder)
    odd = explain_difference(identity["data"], now, fed.bounds, fed.ids)
    must(not odd, "data", f"as the run in {folder} began", odd)


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


def _verify_history(folder: Path, run: str, round: int, options: dict[str, Any]) -> None:
    _, missing = files.read_history_until(folder, run, round, options)
    if missing:
        fault = f"none of round {', '.join(map(str, missing[:10]))} in {folder / files.HISTORY}"
        raise MoietyError(message(files.HISTORY, "whole, with a row for each evaluation", fault))
