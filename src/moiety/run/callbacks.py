"""Callbacks: what a run calls as it goes on. They can look, keep things, and stop the run.

What a callback knows of earlier rounds it derives from the run's
history, so a run that was killed and resumed goes on as if it had never stopped.
"""

from __future__ import annotations

import csv
import io
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from moiety.errors import kind, must, refuse, whole
from moiety.evaluation import Row
from moiety.evaluation.per_client import SHARED
from moiety.files import LOCK, append_line, check_path, make_folder, write_file
from moiety.run.best import keep_round, list_best_rounds
from moiety.run.folder import OURS, WRITTEN
from moiety.run.protocol import Callback
from moiety.run.trackers import MLflow, TensorBoard, WandB
from moiety.types import Metric, SetMetric

if TYPE_CHECKING:
    from moiety.run.result import Run

__all__ = ["CSV", "BestCheckpoint", "Callback", "EarlyStopping", "MLflow", "TensorBoard", "WandB"]

log = logging.getLogger("moiety")
HIGHER = {"gain": True, "helped": True, "hurt": False, "worst_decile": None, "metric": None}
"""Columns of the history that are better when higher, or lower; None where the metric decides."""


class BestCheckpoint(Callback):
    """Keeps the models of the best round, server and clients, besides those of the last.

    They lie in the run's folder below ``best/``, and ``moiety.load(folder, best=True)`` opens them. Without a folder
    they are in memory. Every better round copies all personal states once.

    Args:
        metric: the column of the history that decides, such as ``loss``, ``worst_decile`` or ``auroc_pooled``; by
            default the run's metric.

    Every round is as good as the first here, so the first is kept:

    >>> import tempfile
    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": y}}, test=0.25)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options = {"rounds": 3, "engine": "sequential", "callbacks": [mo.callbacks.BestCheckpoint()]}
    ...     _ = mo.fit(mo.models.linear(1, 2), fed, mo.fedavg(shared=0.5), **options, out=f"{folder}/run")
    ...     mo.load(f"{folder}/run", best=True)
    Run(fedavg, 1 rounds, 2 clients; test accuracy 1)
    """

    def __init__(self, metric: str | None = None) -> None:
        kind("metric", metric, (str, type(None)), "the name of a column of the history")
        self.metric = metric or "metric"
        self.since = 0
        """The first round that counts. States of earlier rounds were not kept."""

    def on_start(self, run: Run) -> bool | None:
        """Go on from the best round so far, if it was kept."""
        self.since, now = 0, run._loop.progress.round
        best = self.best_round(run)
        if best == now and now:
            keep_round(run)
        elif best is not None and best not in list_best_rounds(run):
            self.since = now + 1
            text = "Round %d is the best so far, and its models were not kept: the best is sought from round %d on."
            log.warning(text, best, self.since)
        return None

    def on_evaluate(self, run: Run, row: Row) -> bool | None:
        """Keep the round where it is the best so far."""
        if self.best_round(run) == row["round"]:
            keep_round(run)
        return None

    def best_round(self, run: Run) -> int | None:
        """The best round so far; of equal ones the first. None before there is one."""
        return find_best([row for row in run.history if row["round"] >= self.since], self.metric, run)


class EarlyStopping(BestCheckpoint):
    """Stops a run that gets no better, and lets it end with the models of its best round.

    The run's own evaluations decide. Let it evaluate on validation rows (``Settings(evaluate_on="validation")``): a
    round that was chosen by test rows has scores there that are too good.

    Args:
        patience: after how many evaluations in a row without a better one the run stops.
        metric: as for ``BestCheckpoint``.
        restore_best: end with the server and the personal states of the best round, whether the run was stopped or
            not. A resumed run trains on from its last round all the same. False to end with the last round.
    """

    def __init__(self, patience: int, metric: str | None = None, restore_best: bool = True) -> None:
        super().__init__(metric)
        whole("patience", patience, 1)
        kind("restore_best", restore_best, bool, "true or false")
        self.patience, self.restore_best = patience, restore_best

    def on_start(self, run: Run) -> bool | None:
        """Stop at once where the history says that patience has ended already."""
        self.since = 0
        if run.config["run"]["evaluate_on"] == "test":
            log.warning("Early stopping chooses a round by test rows, so scores there are too good.")
        if self.restore_best:
            super().on_start(run)
        return self._decide(run)

    def on_evaluate(self, run: Run, row: Row) -> bool | None:
        """Stop where patience has ended."""
        if self.restore_best:
            super().on_evaluate(run, row)
        return self._decide(run)

    def _decide(self, run: Run) -> bool:
        best = self.best_round(run)
        if self.restore_best:
            run._ends_with = best
        count = sum(row["round"] > (best or 0) and row["round"] >= self.since for row in run.history)
        if count < self.patience:
            return False
        since = "at all" if best is None else f"since round {best}"
        run.stopped = f"no better {self.metric} in {count} evaluations, {since}; a larger patience would train on"
        return True


def find_best(rows: Iterable[Row], metric: str, run: Run) -> int | None:
    """The round of the best row, the first of equal ones; None where no row has a finite value."""
    best: tuple[float, int] | None = None
    for row in rows:
        must(metric in row, "metric", "a column of the history", metric, f"It has {', '.join(row)}.")
        value = row[metric]
        if value is None:
            continue
        score = float(value) if is_higher_better(metric, run) else -float(value)
        if best is None or score > best[0]:
            best = score, row["round"]
    return None if best is None else best[1]


def is_higher_better(name: str, run: Run) -> bool:
    """Whether more is better in a column of the history."""
    task = run._loop.problem.task
    base = name.removeprefix(SHARED).removesuffix("_unweighted").removesuffix("_pooled")
    if base.endswith("loss"):
        return False
    metrics: list[Metric | SetMetric] = [task.metric, *task.sets]
    directions = {**HIGHER, **{metric.name: metric.higher_is_better for metric in metrics}}
    if base not in directions:
        refuse(
            "metric", "a column of the history that can be better or worse", name, f"As {', '.join(directions)}, loss."
        )
    higher = directions[base]
    return task.deciding.higher_is_better if higher is None else higher


class CSV(Callback):
    """Writes the history to a CSV file, a line for each evaluation.

    Args:
        path: the file; by default ``history.csv`` in the run's folder. Leave it out for a pipeline.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        if path is not None:
            check_path("path", path, "the path of a file")
            must(bool(Path(path).name), "path", "the path of a file", repr(str(path)))
        self.path = None if path is None else Path(path)
        self.columns: list[str] = []

    def on_start(self, run: Run) -> bool | None:
        """Write the rows that are there."""
        place = self._place(run)
        if run.folder is not None and place.absolute().is_relative_to(run.folder.absolute()):
            first = place.absolute().relative_to(run.folder.absolute()).parts[:1]
            free = first != () and first[0] not in (*OURS, *WRITTEN, LOCK)
            must(free, "path", "another file than those of the run", place, "Leave it out for history.csv.")
        must(not os.path.isdir(place), "path", "the path of a file", f"the folder {place}")
        self._rewrite(run)
        return None

    def on_evaluate(self, run: Run, row: Row) -> bool | None:
        """Add a line; a row with other columns changes all lines."""
        if self.columns != list(row):
            self._rewrite(run)
        else:
            append_line(self._place(run), self._format([row]).removesuffix(b"\n"))
        return None

    def _rewrite(self, run: Run) -> None:
        self.columns = list(dict.fromkeys(name for row in run.history for name in row))
        place = self._place(run)
        make_folder(place.parent)
        heads = self._format([dict(zip(self.columns, self.columns, strict=True))]) if self.columns else b""
        write_file(place, heads + self._format(run.history))

    def _format(self, rows: Iterable[Row]) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for row in rows:
            values = (row.get(name) for name in self.columns)
            writer.writerow(["; ".join(map(str, value)) if isinstance(value, list) else value for value in values])
        return text.getvalue().encode()

    def _place(self, run: Run) -> Path:
        if self.path is None and run.folder is None:
            refuse("path", "given for a run without a folder", "nothing")
        return self.path or run.folder / "history.csv"  # type: ignore[operator]
