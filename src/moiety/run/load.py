"""``load``: a run opens from its folder, to predict, export, onboard and evaluate, without training."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from moiety import task as tasks
from moiety.data import FederatedData, Preprocessing
from moiety.data.federated import NumberNames
from moiety.errors import kind, must
from moiety.files import check_path
from moiety.run import folder as files
from moiety.run.best import find_best_rounds, restore_round
from moiety.run.build import own_part
from moiety.run.checkpoint import find_checkpoint
from moiety.run.reopen import RunParts, read_stored_options, reopen
from moiety.run.result import Run
from moiety.run.safeguard_folder import read_safeguard
from moiety.split import Split
from moiety.types import Algorithm, Task


def load(
    folder: str | os.PathLike[str],
    *,
    model: nn.Module | Task | None = None,
    data: FederatedData | None = None,
    algorithm: Algorithm | None = None,
    split: Split | None = None,
    loss: tasks.Loss | None = None,
    metric: tasks.Metrics | None = None,
    best: bool = False,
) -> Run:
    """Open a run from its folder without training: it predicts, exports, onboards and evaluates.

    What the folder can name (models, splits, algorithms and data sets of the library) is made again; what was the
    user's own must be given again, and is checked against the folder. Data of the user's own may be left out: the run
    then predicts, exports and onboards, and refuses only what needs rows of its clients, such as ``evaluate``.

    Args:
        folder: the folder of a run that has ended, or that has a checkpoint.
        model: as given to ``fit``, where it was of the user's own.
        data: likewise, to evaluate.
        algorithm: likewise.
        split: likewise.
        loss: likewise.
        metric: likewise.
        best: open the models of the best round, which ``BestCheckpoint`` or ``EarlyStopping`` kept. By default those
            that the run ended with; of a run under way, those of its last checkpoint.

    >>> import tempfile
    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": 1 - y}}, test=0.25)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model, algorithm = mo.models.linear(1, 2), mo.local_only(personal=0.5)
    ...     _ = mo.fit(model, fed, algorithm, rounds=2, engine="sequential", out=f"{folder}/run")
    ...     mo.load(f"{folder}/run").predict("b", np.float32([[-1], [1]])).tolist()
    [1, 0]
    """
    check_path("folder", folder, "the folder of a run")
    kind("best", best, bool, "true or false")
    path = Path(folder)
    run = open_run(path, RunParts(model, data, algorithm, split, loss, metric))
    if best:
        rounds = find_best_rounds(path)
        hint = "Train with callbacks=[moiety.callbacks.BestCheckpoint()]."
        must(bool(rounds), "best", "left out where no best round was kept", f"none in {path}", hint)
        restore_round(run, rounds[-1])
        run.clients = run.clients if rounds[-1] == run.restored else []
        run._guard = run._guard if rounds[-1] == run.restored else None
    return run


def open_run(path: Path, parts: RunParts) -> Run:
    """The run in a folder as it ended, or as its newest checkpoint left it."""
    config = files.read_config(path)
    options, identity = read_stored_options(config, path, parts), files.read_id(path)
    hint = "Resume it, or begin another run."
    must(find_checkpoint(path) is not None, "folder", "that of a run with a checkpoint", f"none in {path}", hint)
    without_data = parts.data is None and own_part(config, "data") is not None
    if without_data:
        parts = parts._replace(data=stand_in(path, identity))
    run = reopen(path, config, options, parts, to_train=False, any_data=without_data)
    run._without_data = without_data
    rounds = run._loop.progress.ledger.rounds
    run.history, missing = files.read_history_until(path, identity, rounds, config["run"])
    files.warn_of_lost_rows(path, missing)
    if files.has_ended(path, identity):
        run.clients, run.ledger = files.read_results(path, identity)
        run.unseen = files.read_unseen(path, identity)
        guard = read_safeguard(path, identity, run._loss)
        current = guard is not None and guard.round == run._loop.progress.round
        run._guard = guard if current and all("personal_share" in row for row in run.clients) else None
        run.stopped = str(files.read_notes(path, identity).get("stopped", ""))
    return run


def stand_in(path: Path, run: str) -> FederatedData:
    """Data with the clients and the columns of the run's own, and a row of zeros in the place of all rows."""
    schema = files.read_schema(path)
    hint = "Give the data that the run began with."
    must(schema is not None, "data", "given for a run whose folder does not describe it", "nothing", hint)
    assert schema is not None
    ids: Any = schema["ids"]
    count = ids if isinstance(ids, int) else len(ids)
    columns = {name: np.zeros((1, *shape), dtype=dtype) for name, (dtype, shape) in schema["columns"].items()}
    bounds = np.zeros((count, 4), dtype=np.int64)
    bounds[0, 1:], bounds[1:] = 1, 1
    names = NumberNames(count) if isinstance(ids, int) else np.asarray(ids, dtype=np.str_)
    fed = FederatedData(columns, bounds, names, classes=schema["classes"])
    checksum = files.read_identity(path)["data"].get("preprocessing")
    recipe: Preprocessing | None = None if checksum is None else files.read_preprocessing(path, run, checksum)
    return replace(fed, preprocessing=recipe)
