"""What ``fit`` returns: the history, a row per client, and models to take away."""

from __future__ import annotations

import contextlib
import html
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from moiety.errors import kind, must, proper_fraction
from moiety.evaluation import Row
from moiety.evaluation.paired import RowScores
from moiety.evaluation.safeguard import ALPHA
from moiety.files import lock_folder
from moiety.loop.evaluate import Evaluation, choose_evaluation_clients
from moiety.loop.round import Loop, Progress
from moiety.reports.curves import draw_history
from moiety.reports.groups import Group
from moiety.reports.page import write_report
from moiety.reports.result import Result
from moiety.reports.summary import html_of, summarise_end
from moiety.run import folder as files
from moiety.run.examine import examine, measure_calibration
from moiety.run.safeguard import Chooser, Safeguard, choose_models, guard_rows, guard_unseen, take_one_model
from moiety.run.safeguard_folder import write_safeguard
from moiety.run.serving import Serving
from moiety.run.settings import check_part
from moiety.types import Params

if TYPE_CHECKING:
    from moiety.reports.figures import Figure


@dataclass(repr=False)
class Run(Serving):
    """A finished (or resumed and finished) run.

    ``history`` has a row per evaluation, ``clients`` a row per client at the end: ``n``, ``loss`` and ``metric`` of the
    personal model, ``shared_loss`` and ``shared_metric`` of the shared model alone, ``gain`` and ``hurt``, and, with
    draws of a posterior, what these are worth (docs/uncertainty.md). ``unseen`` has such rows for clients that training
    never saw, each with the model that ``onboard`` makes for it.
    ``ledger`` holds bytes, FLOPs and memory. ``folder`` is where the run was written, if it was.

    Where the data come from a table (``from_frame``), ``predict``, ``predictive``, ``onboard`` and the models that
    ``export`` gives take raw rows, as they stand in the table.

    With local training all stays with the clients, and each has a model of its own:

    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": 1 - y}}, test=0.25)
    >>> run = mo.fit(mo.models.linear(1, 2), fed, mo.local_only(personal=0.5), rounds=2, engine="sequential")
    >>> run.last["metric"], run.predict("b", np.float32([[-1], [1]])).tolist(), run.ledger["up_payload"]
    (1.0, [1, 0], 0)
    """

    config: dict[str, Any]
    folder: Path | None
    _loop: Loop
    _model: nn.Module | None
    history: list[Row] = field(default_factory=list)
    clients: list[Row] = field(default_factory=list)
    ledger: dict[str, Any] = field(default_factory=dict)
    unseen: list[Row] = field(default_factory=list)
    stopped: str = ""
    """Why a callback stopped the run; empty where none did."""
    _best_models: dict[int, Progress] = field(default_factory=dict)
    """Of a run without a folder: the models of its best round, where a callback keeps them."""
    _ends_with: int | None = None
    """The round whose models the run is to end with; None for the last."""
    _without_data: bool = False
    """Whether the run was opened without the rows of its clients."""
    _guard: Safeguard | None = None
    """What each client chose, where the run was safeguarded."""

    def __repr__(self) -> str:
        loop = self._loop
        size = f"{loop.algorithm.name}, {loop.progress.round} rounds, {len(loop.problem.data)} clients"
        if not any(row["round"] <= self._loop.progress.round for row in self.history):
            return f"Run({size}; not evaluated)"
        last = self.last
        metric = "not finite" if last["metric"] is None else f"{last['metric']:.4g}"
        return f"Run({size}; {last['part']} {last['metric_name']} {metric})"

    @property
    def restored(self) -> int | None:
        """The round whose models the run has, where it went back to an earlier one than its last."""
        now = self._loop.progress
        return now.round if now.round < now.ledger.rounds else None

    @property
    def last(self) -> Row:
        """The row of the history for the models that the run has."""
        now = self._loop.progress.round
        rows = [row for row in self.history if row["round"] <= now]
        must(
            bool(rows), "history", f"one with a row up to round {now}", "none", "The run was not evaluated, or lost it."
        )
        return rows[-1]

    @property
    def engine(self) -> str:
        """The engine that did the work (what ``auto`` chose)."""
        return self._loop.engine_name

    def result(self, name: str = "") -> Result:
        """What the run says at its end, for tables and figures; ``name`` stands for it there."""
        name = name or self._loop.algorithm.name
        rows = (self.history, self.clients, self.ledger, self.unseen)
        return Result(name, self.config, *rows, self.stopped, self.restored, self.class_names)

    def summary(self) -> str:
        """How the run ended, as the command prints it: scores, who is helped and hurt, costs, and a sentence."""
        must(bool(self.clients), "run", "one whose clients tell their scores", "none")
        return summarise_end(self.result())

    def report(self, path: str | os.PathLike[str], *, against: Run | None = None) -> Path:
        """Write the run as one HTML page that opens from disk (docs/report.md), for a browser; gives its path.

        It shows curves, every client and who is hurt beyond noise, costs, and, with a posterior, calibration.

        Args:
            path: the file, as in ``report.html``; one that is there is written over.
            against: a run on the same data to compare this one with, client by client: one model for all, say.
        """
        if against is not None:
            kind("against", against, Run, "a run, as mo.fit gives it")
        runs = [self] if against is None else [against, self]
        for run in runs:
            must(bool(run.history and run.clients), "run", "one that has ended", "one without results")
        results = [examine(run) for run in runs]
        names = [result.name for result in results]
        if len(set(names)) < len(names):
            names = [f"{name} {at}" for at, name in enumerate(names, 1)]
        seeds = [int(run.config["run"].get("seed", 0)) for run in runs]
        groups = [Group(name, {seed: one}) for name, seed, one in zip(names, seeds, results, strict=True)]
        return write_report(groups, path)

    def plot(self) -> Figure:
        """Curves over rounds: losses, and the metric of the personal models. It needs the extra ``report``.

        Returns:
            A figure of matplotlib: notebooks show it, ``moiety.reports.save(figure, "curves.png")`` writes it.
        """
        must(len(self.history) > 0, "run", "evaluated at least once", "no history")
        return draw_history(self.history, restored=self.restored)

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        return html_of(self.result()) if self.clients and self.history else f"<pre>{html.escape(repr(self))}</pre>"

    def evaluate(self, part: str = "test") -> list[Row]:
        """A row per client, as in ``clients``, with scores on ``train``, ``validation`` or ``test`` rows.

        The same clients are scored; ``n_test`` counts their rows of that part.
        """
        self._need_data()
        check_part(self._loop.problem.data, part, "part")
        with one_thread(), contextlib.closing(self._loop):
            return self._score_clients(part).rows

    def score_rows(self, part: str = "test", *, shared: bool = False, personal: bool = False) -> dict[str, RowScores]:
        """The loss and the metric of every row, by client: what ``moiety.analysis.judge_clients`` compares.

        Args:
            part: ``train``, ``validation`` or ``test`` rows; clients without any are left out.
            shared: score one model for all: the shared one, or the one that ``safeguard`` was given.
            personal: score personal models, also where clients chose others.
        """
        for name, value in {"shared": shared, "personal": personal}.items():
            kind(name, value, bool, "true or false")
        must(not (shared and personal), "shared", "left out with personal=True", shared)
        self._need_data()
        data = self._loop.problem.data
        check_part(data, part, "part")
        chooser = Chooser.of(self._loop, self._loss, self._guard)
        scores = {}
        with one_thread():
            for at in self._list_evaluation_clients():
                if data.sizes(part)[at]:
                    pair, weight = self._get_choice(at)
                    scores[str(data.ids[at])] = pair.score(
                        chooser.columns(at, part), 0.0 if shared else 1.0 if personal else weight
                    )
        return scores

    def safeguard(self, *, alpha: float = ALPHA, mix: str = "predictions", one_model: Run | None = None) -> Safeguard:
        """Let each client choose between its personal model, the shared one, and mixtures of both (docs/safeguard.md).

        The choices become part of the run: ``predict``, ``export``, ``onboard``, ``evaluate`` and ``clients`` use them,
        and its folder keeps them. Clients look at training and validation rows alone. Choosing again starts anew.

        Args:
            alpha: how likely a client may be to lose by its choice.
            mix: mixtures of ``predictions`` (a client then keeps both models), or of ``parameters``.
            one_model: a run on the same model whose shared model is the one model for all, FedAvg's for instance; by
                default it is this run's own shared model.

        Returns:
            What each client chose. ``moiety.analysis.report_harm`` says what came of it.
        """
        proper_fraction("alpha", alpha)
        with lock_folder(self.folder):
            return self._let_choose(mix, take_one_model(self._loop.problem, one_model), alpha)

    def _let_choose(self, mix: str, one_model: Params | None, alpha: float) -> Safeguard:
        """Let all clients choose, and serve them by their choices from now on."""
        self._need_data()
        with one_thread(), contextlib.closing(self._loop):
            guard = choose_models(Chooser(self._loop, self._loss, mix, one_model), alpha)
        self._guard = guard
        part, rows = self.config["run"]["evaluate_on"], {row["client"]: row for row in self.clients}
        self.clients = [{**rows.get(row["client"], {}), **row} for row in self.evaluate(part)]
        self.unseen = guard_unseen(self._loop, self._loss, guard, self.unseen, part)
        if self.folder:
            write_safeguard(self.folder, self._loop.progress.run, guard)
            self._write_results()
        return guard

    def _write_results(self) -> None:
        """Write what the run ended with into its folder."""
        assert self.folder is not None
        notes = {"stopped": self.stopped, "restored": self.restored, files.CALIBRATION: measure_calibration(self)}
        files.write_results(self.folder, self.clients, self.ledger, self._loop.progress.run, self.unseen, notes)

    def _list_evaluation_clients(self) -> list[int]:
        """The positions of the clients that the run evaluates."""
        loop = self._loop
        return [int(i) for i in choose_evaluation_clients(loop.problem.data, self.config["run"], loop.problem.seed)]

    def _score_clients(self, part: str) -> Evaluation:
        """A row for each client that the run evaluates, and the metrics of sets over all their rows."""
        problem = self._loop.problem
        scores = self._loop.evaluate(part, choose_evaluation_clients(problem.data, self.config["run"], problem.seed))
        if self._guard is None:
            return scores
        return scores._replace(rows=guard_rows(self._loop, self._loss, self._guard, scores.rows, part))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread meanwhile: parallel work is over clients."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
