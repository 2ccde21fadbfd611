"""Trackers: callbacks that log a run to TensorBoard, MLflow or Weights & Biases.

All log the same: the parameters of the run, its history, the spread of the metric over clients (a histogram, and the
worst tenth), the ledger and, at the end, the files of its folder. A resumed run goes on in the same record. Each
library is imported when a run begins, and is in the extra ``track``.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moiety.errors import MoietyError, kind, must
from moiety.evaluation import Row
from moiety.run.protocol import Callback

if TYPE_CHECKING:
    from moiety.run.result import Run

ARTEFACTS = ("config.toml", "clients.parquet", "unseen.parquet", "ledger.json", "history.jsonl", "preprocessing.json")
"""The files of a run's folder that are logged at its end, where they are there."""
BINS = 20


def flatten_config(config: Mapping[str, Any], above: str = "") -> dict[str, str | int | float | bool]:
    """The configuration as names and plain values.

    >>> flatten_config({"run": {"rounds": 5, "inputs": ["x"]}})
    {'run.rounds': 5, 'run.inputs': "['x']"}
    """
    flat: dict[str, str | int | float | bool] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten_config(value, f"{above}{key}.")
        else:
            flat[above + key] = value if isinstance(value, str | int | float | bool) else str(value)
    return flat


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, which may go into a curve; the round is where they lie.

    >>> numbers_of({"round": 3, "part": "test", "loss": 0.5, "metric": None, "dropped": ["3:ann"]})
    {'loss': 0.5, 'dropped': 1.0}
    """
    numbers = {"dropped": float(len(row["dropped"]))} if "dropped" in row else {}
    plain = {k: v for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool) and k != "round"}
    return {**{name: float(value) for name, value in plain.items() if math.isfinite(value)}, **numbers}


def metrics_of_clients(run: Run) -> np.ndarray:
    """The metric of every client that has one."""
    metrics = np.array([row["metric"] for row in run.clients], dtype=np.float64)
    return metrics[np.isfinite(metrics)]


def import_tracker(name: str, package: str) -> Any:
    """The module of a tracker, if its package is installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MoietyError(f"{package} is not installed ({error}): pip install 'moiety[track]'.") from None


def artefacts_of(run: Run) -> list[Path]:
    """The files of the run's folder to log."""
    return [] if run.folder is None else [run.folder / name for name in ARTEFACTS if (run.folder / name).is_file()]


class TensorBoard(Callback):
    """Writes event files for TensorBoard.

    The history is ``history/...``, the metric over clients the histogram ``clients/metric``, and the parameters,
    the closing table and the ledger are texts. TensorBoard keeps no artefacts: these stay in the run's folder.

    Args:
        dir: where to; by default ``tensorboard`` in the run's folder. Leave it out for a pipeline.

    >>> import moiety as mo
    >>> board = mo.callbacks.TensorBoard("runs/board")  # then mo.fit(..., callbacks=[board])
    >>> board.dir
    'runs/board'
    """

    def __init__(self, dir: str | os.PathLike[str] | None = None) -> None:
        kind("dir", dir, (str, os.PathLike, type(None)), "a folder")
        self.dir = dir
        self.writer: Any = None

    def on_start(self, run: Run) -> None:
        """Open the file; what an earlier sitting logged after the newest checkpoint is hidden."""
        module = import_tracker("torch.utils.tensorboard", "tensorboard")
        must(self.dir is not None or run.folder is not None, "dir", "given for a run without a folder", "nothing")
        place = self.dir or run.folder / "tensorboard"  # type: ignore[operator]
        round = run._loop.progress.round
        self.writer = module.SummaryWriter(str(place), purge_step=round + 1 if round else None)
        if not round:
            lines = [f"| {name} | {value} |" for name, value in flatten_config(run.config).items()]
            self.writer.add_text("parameters", "\n".join(["| parameter | value |", "|---|---|", *lines]), 0)

    def on_evaluate(self, run: Run, row: Row) -> None:
        """Log the row, and the spread over clients."""
        for name, value in numbers_of(row).items():
            self.writer.add_scalar(f"history/{name}", value, row["round"])
        metrics = metrics_of_clients(run)
        if len(metrics):
            self.writer.add_histogram("clients/metric", metrics, row["round"])
        self.writer.flush()

    def on_end(self, run: Run) -> None:
        """Log how the run ended, and close the file."""
        last = run._loop.progress.ledger.rounds
        lines = [f"| {name} | {value} |" for name, value in run.ledger.items()]
        self.writer.add_text("ledger", "\n".join(["| cost | amount |", "|---|---|", *lines]), last)
        summary = run.summary().replace("\n", "\n    ")
        self.writer.add_text("summary", f"    {summary}", last)
        self.writer.close()


class MLflow(Callback):
    """Logs to MLflow: a run of an experiment, with parameters, metrics by round, and artefacts.

    MLflow has no histograms: the metric of each client goes to ``clients.json``, in bins, by round.

    Args:
        experiment: its name; made where it is not there.
        uri: of the tracking store, as in ``sqlite:///runs.db``; by default as MLflow is set up.
        name: of the run; by default that of its folder.

    >>> import moiety as mo
    >>> tracker = mo.callbacks.MLflow("hospitals", uri="sqlite:///runs.db")  # then mo.fit(..., callbacks=[tracker])
    >>> tracker.experiment, tracker.uri
    ('hospitals', 'sqlite:///runs.db')
    """

    def __init__(self, experiment: str = "moiety", uri: str | None = None, name: str | None = None) -> None:
        for key, value in {"experiment": experiment, "uri": uri, "name": name}.items():
            kind(key, value, (str, type(None)), "a text")
        self.experiment, self.uri, self.name = experiment, uri, name
        self.client: Any = None
        self.id, self.histograms = "", dict[str, Any]()

    def on_start(self, run: Run) -> None:
        """Begin a run, or go on with the one that this run began earlier."""
        self.client = import_tracker("mlflow", "mlflow").MlflowClient(tracking_uri=self.uri)
        self.histograms = {}
        entry = self.client.get_experiment_by_name(self.experiment)
        experiment = entry.experiment_id if entry else self.client.create_experiment(self.experiment)
        own = run._loop.progress.run
        query = f"tags.moiety = '{own}'"
        earlier = self.client.search_runs([experiment], filter_string=query) if own else []
        if earlier:
            self.id = earlier[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            return
        name = self.name or (run.folder.name if run.folder else run._loop.algorithm.name)
        self.id = self.client.create_run(experiment, run_name=name, tags={"moiety": own} if own else {}).info.run_id
        for key, value in flatten_config(run.config).items():
            self.client.log_param(self.id, key, str(value)[:500])

    def on_evaluate(self, run: Run, row: Row) -> None:
        """Log the row, and the spread over clients."""
        for name, value in numbers_of(row).items():
            self.client.log_metric(self.id, name, value, step=row["round"])
        metrics = metrics_of_clients(run)
        if len(metrics):
            counts, edges = np.histogram(metrics, bins=BINS)
            self.histograms[str(row["round"])] = {"counts": counts.tolist(), "edges": edges.tolist()}

    def on_end(self, run: Run) -> None:
        """Log the ledger, the artefacts and how the run ended."""
        for name, value in run.ledger.items():
            self.client.log_metric(self.id, f"ledger.{name}", float(value))
        self.client.log_dict(self.id, self.histograms, "clients.json")
        self.client.log_text(self.id, run.summary(), "summary.txt")
        for path in artefacts_of(run):
            self.client.log_artifact(self.id, str(path))
        self.client.set_tag(self.id, "stopped", run.stopped)
        self.client.set_terminated(self.id)


class WandB(Callback):
    """Logs to Weights & Biases.

    Args:
        project: its name.
        name: of the run; by default that of its folder.
        mode: ``online``, ``offline`` or ``disabled``; by default as W&B is set up.
        dir: where W&B keeps its files; by default as it is set up.

    >>> import moiety as mo
    >>> tracker = mo.callbacks.WandB("hospitals", mode="offline")  # then mo.fit(..., callbacks=[tracker])
    >>> tracker.project, tracker.mode
    ('hospitals', 'offline')
    """

    def __init__(
        self,
        project: str = "moiety",
        name: str | None = None,
        mode: str | None = None,
        dir: str | os.PathLike[str] | None = None,
    ) -> None:
        for key, value in {"project": project, "name": name, "mode": mode}.items():
            kind(key, value, (str, type(None)), "a text")
        self.project, self.name, self.mode, self.dir = project, name, mode, dir
        self.module: Any = None
        self.run: Any = None

    def on_start(self, run: Run) -> None:
        """Begin a run, or go on with the one that this run began earlier."""
        self.module = import_tracker("wandb", "wandb")
        own = run._loop.progress.run
        self.run = self.module.init(
            project=self.project,
            name=self.name or (run.folder.name if run.folder else None),
            mode=self.mode,
            dir=None if self.dir is None else str(self.dir),
            id=own or None,
            resume="allow" if own else None,
            config=flatten_config(run.config),
            reinit="create_new",
        )

    def on_evaluate(self, run: Run, row: Row) -> None:
        """Log the row, and the spread over clients."""
        values: dict[str, Any] = {f"history/{name}": value for name, value in numbers_of(row).items()}
        metrics = metrics_of_clients(run)
        if len(metrics):
            values["clients/metric"] = self.module.Histogram(np_histogram=np.histogram(metrics, bins=BINS))
        self.run.log(values, step=row["round"])

    def on_end(self, run: Run) -> None:
        """Log the ledger and the artefacts, and finish."""
        for name, value in run.ledger.items():
            self.run.summary[f"ledger/{name}"] = value
        self.run.summary["stopped"] = run.stopped
        paths = artefacts_of(run)
        if paths:
            artefact = self.module.Artifact(f"run-{self.run.id}", type="moiety-run")
            for path in paths:
                artefact.add_file(str(path))
            self.run.log_artifact(artefact)
        self.run.finish()
