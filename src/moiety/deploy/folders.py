"""What the folders of a federation say: the server's, with all devices, and a device's own."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import save

from moiety.deploy.app import App
from moiety.deploy.commands import read_node_config
from moiety.deploy.device import Device
from moiety.deploy.journal import DEVICE, Journal, list_runs
from moiety.deploy.roster import ROSTER, load_roster
from moiety.errors import must, refuse, report_errors
from moiety.files import write_file
from moiety.run.checkpoint import find_checkpoint, round_of
from moiety.run.folder import has_ended, read_config, read_history_until, read_id, warn_of_lost_rows
from moiety.run.raw import RawModel

Row = list[str]
MODULE = "federation"
"""The file of an app that ``init`` writes; both sides of the app are in it."""


class Status(NamedTuple):
    """A sentence, and a table with its head."""

    sentence: str
    head: Row
    rows: list[Row]


def read_status(folder: Path) -> Status:
    """The state of a federation or of a device, whichever the folder belongs to."""
    if (folder / DEVICE).exists():
        return _device_status(folder)
    constraint = "the folder of a federation's server or of a device"
    must((folder / ROSTER).exists(), "folder", constraint, folder, "See README.md of moiety deploy init.")
    return _server_status(folder)


def _server_status(folder: Path) -> Status:
    run, config = read_id(folder), read_config(folder)
    newest = find_checkpoint(folder)
    count, total = 0 if newest is None else round_of(newest), config["run"]["rounds"]
    history, lost = read_history_until(folder, run, count, config["run"])
    warn_of_lost_rows(folder, lost)
    last = history[-1] if history else {}
    down, up = last.get("down_payload", 0), last.get("up_payload", 0)
    state = "ended" if has_ended(folder, run) else "not ended"
    sentence = f"{folder}: {count} of {total} rounds, {state}; {down} bytes of models down, {up} up"
    absences: Counter[str] = Counter()
    why: dict[str, str] = {}
    for row in history:
        for place, reason in zip(row.get("dropped", ()), row.get("dropped_reasons", ()), strict=True):
            name = str(place).partition(":")[2]
            absences[name] += 1
            why[name] = str(reason)
    head = ["device", "training rows", "times left out", "why, the last time"]
    members = load_roster(folder, run).members
    rows = [[m.name, str(m.described["sizes"][0]), str(absences[m.name]), why.get(m.name, "")] for m in members]
    return Status(sentence, head, rows)


def _device_status(folder: Path) -> Status:
    head = ["run", "name", "last round received", "last turn that counted", "noisy uploads", "turns kept"]
    rows = []
    for run in list_runs(folder):
        journal = Journal(folder, run)
        if journal.is_member():
            received = journal.read_received()
            last = "none" if received is None else str(received[1])
            turn = "none" if received is None or received[2] < 0 else str(received[2])
            drawn, kept = journal.read_noise()[0], len(journal.list_turns())
            rows.append([run, str(journal.read_member()["name"]), last, turn, str(drawn), str(kept)])
    count = f"{len(rows)} {'run' if len(rows) == 1 else 'runs'}"
    return Status(f"{folder}: a device that has joined {count}", head, rows)


def load_app(folder: Path) -> App:
    """The app in a folder of ``moiety deploy init``, or in a Python file that has an ``app``."""
    file = folder if folder.suffix == ".py" else folder / f"{MODULE}.py"
    must(file.is_file(), "app", f"a folder with {MODULE}.py, or a Python file", folder)
    spec = importlib.util.spec_from_file_location(f"_moiety_app_{abs(hash(file.resolve()))}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with report_errors("app", "a file that can be run", (Exception, SystemExit), f" in {file}"):
        spec.loader.exec_module(module)
    app = getattr(module, "app", None)
    if not isinstance(app, App):
        refuse("app", "a file with `app = moiety.deploy.app(...)`", file)
    return app


def open_device(app: App, folder: Path, config: str = "") -> Device:
    """The device in a folder, with the ``--node-config`` that its node has besides name and folder."""
    must((folder / DEVICE).exists(), "device", "the folder of a device", folder)
    options = read_node_config(config)
    journals = [Journal(folder, run) for run in list_runs(folder)]
    names = {str(journal.read_member()["name"]) for journal in journals if journal.is_member()}
    must(len(names) > 0, "device", "one that has joined a run", f"none in {folder}")
    must(len(names) == 1 or "name" in options, "node-config", "one with a name", ", ".join(sorted(names)))
    return app.device({"name": min(names), **options, "folder": str(folder)})


def write_model(app: App, folder: Path, target: Path, config: str = "") -> int:
    """Write the model that a device uses now, the shared part it received last and its own; how many numbers it has."""
    device = open_device(app, folder, config)
    model = device.own_run().export(device.name)
    module = model.model if isinstance(model, RawModel) else model
    values = {name: each.detach().contiguous().clone() for name, each in module.state_dict().items()}
    write_file(target, save(values))
    return sum(each.numel() for each in values.values())
