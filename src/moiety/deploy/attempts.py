"""A run that is started again until all its rounds are done: ``moiety deploy run``.

When the server's process of a run ends, Flower does not start it again. A new run of the same app continues from the
last checkpoint, so this file starts one. ``flwr run`` may lose sight of a run that goes on, and its exit code does not
say whether a run ended well. So the run's folder is asked whether it is done.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509

from moiety.deploy.app import read_run_config
from moiety.deploy.commands import CONNECTION, QUIET, run_command
from moiety.deploy.folders import load_app
from moiety.deploy.keys import check_end
from moiety.deploy.plan import Plan
from moiety.deploy.processes import search_path
from moiety.errors import MoietyError, must, near
from moiety.files import lock_folder, read_toml
from moiety.run.checkpoint import find_checkpoint, round_of
from moiety.run.folder import has_ended, read_id
from moiety.seals import CONFIG

PAUSES = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
"""Seconds before each new attempt in a row that brings no round; one more such attempt, and it is given up."""
LOOK = 1.0
"""Seconds between two looks whether a server's process still trains."""


def run_until_done(app: Path, config: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Run an app until the folder of its run holds all rounds and the results.

    Args:
        app: the folder of the app.
        config: what the run sets anew, as ``flwr run --run-config`` takes it.
        say: gets a line for every new attempt.
    """
    plan = read_plan(app, config)
    command, failures = run_command(app, config), 0
    while not is_done(plan):
        before = count_done(plan.folder)
        check_certificate()
        call(command)
        wait_for_server(plan.folder)
        if is_done(plan):
            break
        rounds = count_done(plan.folder)
        failures = 0 if rounds > before else failures + 1
        hint = "What was printed above, and the executor's output, say why."
        must(
            failures <= len(PAUSES),
            "run",
            "one that goes on",
            f"{failures} attempts in a row without a new round",
            hint,
        )
        pause = PAUSES[max(failures - 1, 0)]
        say(f"the run ended after round {rounds} of {plan.rounds}: it goes on with a new attempt in {pause:g} s")
        time.sleep(pause)
    say(f"{plan.folder} has all {plan.rounds} rounds")


def check_certificate() -> None:
    """Refuse a certificate that has ended: ``flwr`` would say no more than that it cannot reach the SuperLink."""
    file = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr")) / "config.toml"
    table: Any = read_toml(file) if file.exists() else {}
    for key in ("superlink", CONNECTION, "root-certificates"):
        table = table.get(key) if isinstance(table, dict) else None
    if not isinstance(table, str) or not Path(table).is_file():
        return
    try:
        certificate = x509.load_pem_x509_certificate(Path(table).read_bytes())
    except ValueError:  # what is no certificate is Flower's to refuse
        return
    check_end(certificate, Path(table))


def call(command: Sequence[str]) -> int:
    """Run a command of Flower to its end."""
    return subprocess.call(command, env={**os.environ, **QUIET, "PATH": search_path()})


def read_plan(app: Path, config: Mapping[str, Any]) -> Plan:
    """The plan of an app, with what its ``pyproject.toml`` and the command set."""
    known: Any = read_toml(app / "pyproject.toml")
    for key in ("tool", "flwr", "app", "config"):
        known = known.get(key, {})
        must(isinstance(known, dict), key, f"a table in {app / 'pyproject.toml'}", f"{known!r:.60}")
    for name in config:  # Flower refuses others too, at every attempt
        must(name in known, "run-config", f"of names in {app / 'pyproject.toml'}", name, near(name, known))
    return read_run_config(load_app(app).plan, {**known, **config})


def is_done(plan: Plan) -> bool:
    """Whether the folder of the run holds all rounds and the results."""
    folder = plan.folder
    return count_done(folder) >= plan.rounds and has_ended(folder, read_id(folder))


def count_done(folder: Path) -> int:
    """How many rounds the newest checkpoint in a folder has; 0 without one."""
    newest = find_checkpoint(folder) if (folder / CONFIG).exists() else None
    return 0 if newest is None else round_of(newest)


def wait_for_server(folder: Path) -> None:
    """Wait while a server's process trains in a folder: ``flwr run`` may have lost sight of it."""
    while is_used(folder):
        time.sleep(LOOK)


def is_used(folder: Path) -> bool:
    """Whether a process trains in a folder now."""
    if not folder.is_dir():
        return False
    may = os.access(folder, os.R_OK | os.W_OK | os.X_OK)
    must(may, "folder", "one that this user may use", folder, "Run this as the user that the executor runs as.")
    try:
        with lock_folder(folder):
            return False
    except MoietyError:
        return True
