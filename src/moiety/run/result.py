"""What ``fit`` returns: the history, a row per client, and models to take away."""

from __future__ import annotations

import contextlib
import copy
import html
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from moiety import tree
from moiety.errors import kind, must, refuse, whole
from moiety.evaluation import Row
from moiety.evaluation.calibration import calibration_rows
from moiety.evaluation.predictive import Predictive
from moiety.loop.evaluate import Evaluation, choose_evaluated, evaluate
from moiety.loop.round import Loop, Progress
from moiety.reports.curves import draw_history
from moiety.reports.ended import Result
from moiety.reports.summary import html_of, summarise_end
from moiety.run.draws import Draws
from moiety.run.predict import (
    current_state,
    draw_client,
    draw_newcomer,
    input_columns,
    newcomer_state,
    predict_draws,
    predicting_state,
)
from moiety.run.raw import is_table, name_outputs, prepare_examples, prepare_inputs, wrap_model
from moiety.run.settings import check_part
from moiety.split.grafts import merge_updates, remove_hooks
from moiety.types import Params, Tree

if TYPE_CHECKING:
    from moiety.reports.figures import Figure


@dataclass(repr=False)
class Run:
    """A finished (or resumed and finished) run.

    ``history`` has a row per evaluation, ``clients`` a row per client at the end: ``n``, ``loss`` and ``metric`` of the
    personal model, ``shared_loss`` and ``shared_metric`` of the shared model alone, ``gain`` and ``hurt``, and, with
    draws of a posterior, what these are worth (docs/uncertainty.md). ``unseen`` has such rows for clients that training
    never saw, each with the model that ``onboard`` makes for it.
    ``ledger`` holds bytes, FLOPs and memory. ``folder`` is where the run was written, if it was.

    Where the data come from a table (``from_frame``), ``predict``, ``predictive``, ``onboard`` and the models that
    ``export`` gives take raw rows, as they stand in the table.
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
    _kept: dict[int, Progress] = field(default_factory=dict)
    """Of a run without a folder: the models of its best round, where a callback keeps them."""
    _ends_with: int | None = None
    """The round whose models the run is to end with; None for the last."""
    _without_data: bool = False
    """Whether the run was opened without the rows of its clients."""

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
        return summarise_end(self.result())

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

    def parameters(self, client: int | str) -> Params:
        """The whole model of one client, by name: shared, personal and frozen parts merged."""
        loop = self._loop
        self._need_data(unless=loop.algorithm.stateful)
        return self._model_of(current_state(loop, loop.problem.data.index(client), loop.algorithm))

    def shared_parameters(self) -> Params:
        """The shared model alone: the server's part, with the personal part as it was first."""
        problem, algorithm, now = self._loop.problem, self._loop.algorithm, self._loop.progress
        return _copies(problem.shared_model(algorithm, problem.broadcast(algorithm, now.server)))

    def broadcast(self) -> Params:
        """What goes down to clients now, by name: the shared parameters and what the algorithm sends with them.

        FedPop's learned prior, for instance, is ``prior:mean`` and ``prior:log_scale``.
        """
        return self._loop.problem.broadcast(self._loop.algorithm, self._loop.progress.server)

    def export(self, client: int | str | None = None, *, merge: bool = False) -> nn.Module:
        """A copy of the model with that client's parameters in it, in evaluation mode; the shared model without one.

        Where the data come from a table, it is a ``RawModel`` that takes raw rows of numbers; its ``model`` is the
        model alone.

        Args:
            client: one of the run; None for the shared model.
            merge: add the updates of ``split.lora``, or those that PEFT made, to the weights of their layers: the model
                is then one like the first, without adapters.
        """
        kind("merge", merge, bool, "true or false")
        module = self._module(self.shared_parameters() if client is None else self.parameters(client))
        unload: Any = getattr(module, "merge_and_unload", None)  # of a model that PEFT made
        if merge and unload is not None:
            module = unload()
        elif merge:
            must(merge_updates(module) > 0, "merge", "false for a model without updates of low rank", merge)
        return wrap_model(remove_hooks(module), self._loop.problem.data, self._inputs())

    def shared_module(self) -> nn.Module:
        """The shared model alone, without the preprocessing of a table in front: what a next stage starts from."""
        return self._module(self.shared_parameters())

    def onboard(self, data: Any, *, passes: int = 1) -> nn.Module:
        """A personal model for a client never seen, by the algorithm's own rule; nothing of it is sent or kept.

        Args:
            data: the new client's training columns, as the run's own; or a data frame like the one that the run's
                data come from. None stands for a client without data, where the algorithm knows the population that
                clients are from: its model is then that of its centre.
            passes: how many times the rule is applied, one after the other.
        """
        whole("passes", passes, 1)
        loop = self._loop
        state = newcomer_state(loop, self._loss, prepare_examples(loop.problem.data, data), passes)
        if data is None:
            state = loop.problem.first_state(loop.algorithm)
        return wrap_model(self._module(self._model_of(state)), loop.problem.data, self._inputs())

    def predict(self, client: int | str | Mapping[str, Any] | Any | None, x: Any) -> np.ndarray:
        """What a client's model predicts for examples: names of classes (labels where they have none), or numbers.

        Args:
            client: one of the run; or the training rows of a client never seen, as for ``onboard``.
            x: the examples: a data frame with the features of the run's table (or the path of one), raw rows of
                numbers, or columns as the run's own where the data come from arrays.

        Returns:
            An entry for each example. With a loss of your own, the model's outputs.
        """
        return name_outputs(self._loop.problem.data, self.predictive(client, x), self._loss)

    def predict_proba(self, client: int | str | Mapping[str, Any] | Any | None, x: Any) -> np.ndarray:
        """The probabilities of classes, [examples, classes], in the order of ``class_names``; as for ``predict``.

        They are of a model that was trained with ``cross_entropy``, averaged over draws where there are some.
        """
        return self.predictive(client, x).probabilities

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the labels 0, 1, ..., in the order of ``predict_proba``; empty where they have none."""
        return self._loop.problem.data.class_names

    def predictive(
        self,
        client: int | str | Mapping[str, Any] | Any | None,
        x: Any,
        *,
        draws: int | None = None,
        fresh: bool = False,
        passes: int = 1,
    ) -> Predictive:
        """What a client's model predicts for examples, with its uncertainty where the algorithm has a posterior.

        Models are averaged over the draws of its personal part that the client keeps. One that keeps none, or was
        never asked, makes them first. Without a posterior (FedAlt, say) there is one draw: the model.

        Args:
            client: one of the run; or the training columns of a client never seen, as for ``onboard``; or None for a
                client without data, which is predicted by draws from the population.
            x: the examples: columns by name, or an array where the model takes one column; as for ``predict``.
            draws: make new draws, until so many of them are effective; a warning says where that cannot be had. Without
                it there are as many as a client keeps, whatever they are worth.
            fresh: let a client of the run draw anew, at the parameters that training ended with. With ``draws`` it does
                so in any case.
            passes: for a client never seen, as in ``onboard``.
        """
        loop, data = self._loop, self._loop.problem.data
        kind("fresh", fresh, bool, "true or false")
        whole("passes", passes, 1)
        if draws is not None:
            whole("draws", draws, 1)
        columns = input_columns(loop.problem, self._inputs(), prepare_inputs(data, x))
        several = draws is not None and loop.algorithm.posterior is not None
        state: Tree | Draws
        if client is None or isinstance(client, Mapping) or is_table(client):
            rows = prepare_examples(data, client)
            if several:
                state = draw_newcomer(loop, self._loss, rows, passes, draws or 1)
            else:
                state = newcomer_state(loop, self._loss, rows, passes)
        else:
            at, known = data.index(client), loop.algorithm.stateful and not fresh and not several
            owner = loop.algorithm.posterior is None or at in loop.progress.store.owners()
            self._need_data(unless=known and owner)
            state = draw_client(loop, at, draws or 1) if several else predicting_state(loop, at, fresh)
        prediction = replace(predict_draws(loop, state, columns), loss=self._loss)
        if several and prediction.effective is not None and prediction.effective < (draws or 1):
            got = f"{prediction.effective:.1f} of {draws} draws are effective after the longest chain"
            warnings.warn(f"{got}, split R-hat is {prediction.rhat:.2f}: trust them as far as that.", stacklevel=2)
        return prediction

    def calibration(
        self, part: str = "test", *, bins: int = 15, draws: int | None = None, fresh: bool = False
    ) -> tuple[list[Row], Row]:
        """Accuracy, calibration error, Brier score and log-likelihood of every client's averaged predictions.

        Args:
            part: ``train``, ``validation`` or ``test`` rows.
            bins: of confidence, for the calibration error.
            draws: as in ``predictive``.
            fresh: as in ``predictive``.

        Returns:
            A row for each client that has such rows, and one for all their examples together.
        """
        data, inputs = self._loop.problem.data, self._inputs()
        self._need_data()
        check_part(data, part, "part")
        predictions = {}
        for at in np.flatnonzero(data.sizes(part)):
            rows = data.at(int(at), part)
            columns = input_columns(self._loop.problem, inputs, {name: rows[name] for name in inputs or rows})
            several = draws is not None and self._loop.algorithm.posterior is not None
            state = (
                draw_client(self._loop, int(at), draws or 1)
                if several
                else predicting_state(self._loop, int(at), fresh)
            )
            outputs = predict_draws(self._loop, state, columns)
            predictions[str(data.ids[int(at)])] = (replace(outputs, loss=self._loss).probabilities, rows["y"])
        return calibration_rows(predictions, bins=bins)

    def evaluate(self, part: str = "test") -> list[Row]:
        """A row per client, as in ``clients``, with scores on ``train``, ``validation`` or ``test`` rows.

        The same clients are scored; ``n_test`` counts their rows of that part.
        """
        self._need_data()
        check_part(self._loop.problem.data, part, "part")
        with one_thread(), contextlib.closing(self._loop):
            return self._score_clients(part).rows

    def _need_data(self, *, unless: bool = False) -> None:
        """Refuse what needs the rows of clients in a run that was opened without them."""
        hint = "The client's own rows are needed for it."
        must(unless or not self._without_data, "data", "given to load for this", "nothing", hint)

    def _score_clients(self, part: str) -> Evaluation:
        """A row for each client that the run evaluates, and the metrics of sets over all their rows."""
        loop, now, data = self._loop, self._loop.progress, self._loop.problem.data
        clients = choose_evaluated(data, self.config["run"], loop.problem.seed)
        return evaluate(
            loop.problem,
            loop.algorithm,
            loop.get_engine(),
            now.server,
            now.store,
            part=part,
            round=now.round,
            clients=clients,
        )

    @property
    def _loss(self) -> str | None:
        """The name of the loss, if it has one."""
        loss = self.config["run"].get("loss")
        name: str | None = loss["name"] if isinstance(loss, dict) else loss
        return name

    def _inputs(self) -> Sequence[str]:
        """The columns that the model takes; a task of plain functions may take any."""
        return () if self._model is None else self.config["run"]["inputs"]

    def _model_of(self, state: Tree) -> Params:
        """The whole model of a client with that state, in tensors that the caller may change."""
        problem, algorithm = self._loop.problem, self._loop.algorithm
        received = problem.broadcast(algorithm, self._loop.progress.server)
        return _copies(problem.compose(*algorithm.personal_model(received, state)))

    def _module(self, params: Params) -> nn.Module:
        """A copy of the model with these values, in evaluation mode."""
        if self._model is None:
            refuse("model", "an nn.Module for export", "a task of plain functions")
        module = copy.deepcopy(self._model).eval()
        if self._loop.problem.split.model is not None:
            vars(module).pop("spec", None)  # more than what that names: the split has put something in
        with torch.no_grad():
            for name, tensor in tree.module_tensors(module).items():
                tensor.copy_(params[name])
        return module


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread meanwhile: parallel work is over clients."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _copies(params: Params) -> Params:
    """Tensors that the caller may change."""
    return {name: p.clone() for name, p in params.items()}
