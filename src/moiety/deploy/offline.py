"""A device on its own: the model that it has now, without the server."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from moiety import tree
from moiety.clients import Store
from moiety.deploy.choice import choose_model, find_choice, gather_evidence, keep_choice
from moiety.deploy.journal import Journal, list_runs
from moiety.errors import must
from moiety.loop.evaluate import current_states
from moiety.loop.round import Loop, Progress
from moiety.run.result import Run
from moiety.run.settings import option_tables
from moiety.transport import Ledger
from moiety.types import Params, Task, Tree

if TYPE_CHECKING:
    from moiety.deploy.device import Device, Ready


def find_run(device: Device) -> str:
    """The run that the device received something of last."""
    folders = [device.folder / "runs" / run for run in list_runs(device.folder)]
    runs = [path for path in folders if (path / "received.json").exists()]
    hint = "It has none before the first message of a round."
    must(bool(runs), "device", "one that has received a model", f"none in {device.folder}", hint)
    return max(runs, key=lambda path: (path / "received.json").stat().st_mtime_ns).name


def open_own_run(device: Device, run: str | None = None) -> Run:
    """The device's model as a run of one client: it predicts, exports and evaluates, offline.

    The shared part is what the device received last, the personal part that of its last turn which the server used. A
    device that was never asked gets its personal part by the algorithm's own rule for newcomers. With a safeguard it
    uses the model that it chose; where it has heard nothing of the end of the run, it tests its candidates by itself.
    """
    run = run or find_run(device)
    ready, journal = device.ready(run), Journal(device.folder, run)
    entry = journal.read_received()
    must(entry is not None, "device", "one that has received a model", f"none in {device.folder}")
    assert entry is not None
    received, round, used = entry
    first = ready.problem.first_state(ready.algorithm)
    state = journal.read_state(used, first) if used >= 0 else first
    own = make_own_run(device.plan.model, ready, run, received, state, round, used)
    if device.plan.safeguard:
        guard = find_choice(journal.folder, run, own._loss, round)
        if guard is None:
            guard = choose_model(own, ready.position, gather_evidence(own, ready.position, 1), None)
            keep_choice(journal.folder, run, guard)
        own._guard = guard
    return own


def make_own_run(
    model: nn.Module | Task, ready: Ready, run: str, received: Params, state: Tree, round: int, used: int
) -> Run:
    """A run of one client, of the shared model that the device received and a state of its own."""
    first = ready.problem.first_state(ready.algorithm)
    if used < 0 and ready.algorithm.stateful and tree.leaves(first):  # where clients keep none, the run makes it itself
        state = onboard(ready, received, round)
    # What the server sends is all that the device has of the server.
    algorithm = replace(ready.algorithm, broadcast=lambda server: server)
    store = Store(lambda: first)
    store.put([ready.position], [state])
    progress = Progress(received, store, Ledger(), round=round, run=run)
    loop = Loop(ready.problem, algorithm, progress, rounds=max(round, 1), cohort=1, engine_name="sequential")
    module = ready.problem.split.module_for(model) if isinstance(model, nn.Module) else None
    return Run(option_tables(ready.options), None, loop, module)


def onboard(ready: Ready, received: Params, round: int) -> Tree:
    """The state of a device that was never asked, by the algorithm's own rule."""
    algorithm = replace(ready.algorithm, stateful=False)
    store = Store(lambda: ready.problem.first_state(algorithm))
    clients = np.array([ready.position])
    (state,) = current_states(ready.problem, algorithm, ready.engine, received, store, clients, round)
    return state
