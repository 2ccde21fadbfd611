"""The models of a run: to predict with, and to take away."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from moiety import tree
from moiety.errors import kind, must, refuse, whole
from moiety.evaluation import Row
from moiety.evaluation.calibration import calibration_rows
from moiety.evaluation.predictive import Predictive
from moiety.evaluation.safeguard import Choice
from moiety.loop.round import Loop
from moiety.run.draws import Draws, describe_shortfall
from moiety.run.examine import predict_part
from moiety.run.predict import (
    draw_client,
    draw_newcomer,
    input_columns,
    newcomer_state,
    predict_draws,
    predicting_state,
)
from moiety.run.raw import is_table, name_outputs, prepare_examples, prepare_inputs, wrap_model
from moiety.run.safeguard import Chooser, Pair, Safeguard, weight_of
from moiety.split.grafts import merge_updates, remove_hooks
from moiety.task.mixing import MixedModel
from moiety.types import Params, Tree


class Serving:
    """What a ``Run`` serves its clients, and new ones, with."""

    config: dict[str, Any]
    _loop: Loop
    _model: nn.Module | None
    _without_data: bool
    _guard: Safeguard | None

    @property
    def choices(self) -> dict[str, Choice]:
        """What each client chose, by name, where the run has a safeguard; empty otherwise."""
        return {} if self._guard is None else dict(self._guard.choices)

    def parameters(self, client: int | str) -> Params:
        """The whole model of one client, by name: shared, personal and frozen parts merged.

        In a run with a safeguard it is the model that the client chose; a mixture of predictions has no parameters of
        its own, and is refused.
        """
        loop = self._loop
        self._need_data(unless=loop.algorithm.stateful)
        pair, weight = self._get_choice(loop.problem.data.index(client))
        return _copy_params(pair.parameters(weight))

    def shared_parameters(self) -> Params:
        """The shared model alone: the server's part, with the first values of the personal part."""
        problem, algorithm, now = self._loop.problem, self._loop.algorithm, self._loop.progress
        return _copy_params(problem.shared_model(algorithm, problem.broadcast(algorithm, now.server)))

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
        if client is None:
            return self._wrap(self._finish(self.shared_parameters(), merge))
        self._need_data(unless=self._loop.algorithm.stateful)
        return self._export_choice(*self._get_choice(self._loop.problem.data.index(client)), merge)

    def _export_choice(self, pair: Pair, weight: float, merge: bool = False) -> nn.Module:
        """The model that a client chose; with a mixture of predictions both models are in it."""
        models = [pair.parameters(w) for w in pair.needs(weight)]
        modules = [self._finish(model, merge) for model in models]
        module = modules[0] if len(modules) == 1 else MixedModel(modules[0], modules[1], weight, self._loss).eval()
        return self._wrap(module)

    def _wrap(self, module: nn.Module) -> nn.Module:
        return wrap_model(module, self._loop.problem.data, self._list_inputs())

    def _finish(self, params: Params, merge: bool) -> nn.Module:
        """A module with these values, with updates of low rank merged where that is asked for."""
        module = self._build_module(params)
        unload: Any = getattr(module, "merge_and_unload", None)  # of a model that PEFT made
        if merge and unload is not None:
            module = unload()
        elif merge:
            must(merge_updates(module) > 0, "merge", "false for a model without updates of low rank", merge)
        return remove_hooks(module)

    def shared_module(self) -> nn.Module:
        """The shared model alone, without the preprocessing of a table in front: what a next stage starts from."""
        return self._build_module(self.shared_parameters())

    def onboard(self, data: Any, *, passes: int = 1) -> nn.Module:
        """A personal model for a client never seen, by the algorithm's own rule; nothing of it is sent or kept.

        In a run with a safeguard the client chooses as those of the run did, on folds of its rows.

        Args:
            data: the new client's training columns, as the run's own; or a data frame like the one that the run's
                data come from. None stands for a client without data, where the algorithm knows the population that
                clients are from: its model is then that of its centre.
            passes: how many times the rule is applied, one after the other.
        """
        whole("passes", passes, 1)
        loop, rows = self._loop, prepare_examples(self._loop.problem.data, data)
        state = newcomer_state(loop, self._loss, rows, passes)
        if data is None:
            state = loop.problem.first_state(loop.algorithm)
        chooser = Chooser.of(loop, self._loss, self._guard)
        return self._export_choice(chooser.pair(state), chooser.weigh_newcomer(self._guard, rows, state, passes))

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
        columns = input_columns(loop.problem, self._list_inputs(), prepare_inputs(data, x))
        several = draws is not None and loop.algorithm.posterior is not None
        state: Tree | Draws
        chooser, weight = Chooser.of(loop, self._loss, self._guard), 1.0
        if client is None or isinstance(client, Mapping) or is_table(client):
            rows = prepare_examples(data, client)
            if several:
                state = draw_newcomer(loop, self._loss, rows, passes, draws or 1)
            else:
                state = newcomer_state(loop, self._loss, rows, passes)
            if self._guard is not None and rows is not None:
                one = newcomer_state(loop, self._loss, rows, passes) if several else state
                weight = chooser.weigh_newcomer(self._guard, rows, one, passes)
        else:
            at, has_state = data.index(client), loop.algorithm.stateful and not fresh and not several
            owner = loop.algorithm.posterior is None or at in loop.progress.store.owners()
            self._need_data(unless=has_state and owner)
            state = draw_client(loop, at, draws or 1) if several else predicting_state(loop, at, fresh)
            weight = weight_of(self._guard, data.ids[at])
        prediction = chooser.mix_prediction(predict_draws(loop, state, columns), state, columns, weight)
        prediction = replace(prediction, loss=self._loss)
        if several and (text := describe_shortfall(draws or 1, prediction.effective, prediction.rhat)):
            warnings.warn(text, stacklevel=2)
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
        return calibration_rows(predict_part(self, part, draws=draws, fresh=fresh), bins=bins)

    def _get_choice(self, at: int) -> tuple[Pair, float]:
        """The two models of the client at a position, and how much of its own it uses."""
        chooser = Chooser.of(self._loop, self._loss, self._guard)
        return chooser.pair_of(at), weight_of(self._guard, self._loop.problem.data.ids[at])

    def _need_data(self, *, unless: bool = False) -> None:
        """Refuse what needs the rows of clients in a run that was opened without them."""
        hint = "The client's own rows are needed for it."
        must(unless or not self._without_data, "data", "given to load for this", "nothing", hint)

    @property
    def _loss(self) -> str | None:
        """The name of the loss, if it has one."""
        loss = self.config["run"].get("loss")
        name: str | None = loss["name"] if isinstance(loss, dict) else loss
        return name

    def _list_inputs(self) -> Sequence[str]:
        """The columns that the model takes; a task of plain functions may take any."""
        return () if self._model is None else self.config["run"]["inputs"]

    def _model_of(self, state: Tree) -> Params:
        """The whole model of a client with that state, in tensors that the caller may change."""
        problem, algorithm = self._loop.problem, self._loop.algorithm
        received = problem.broadcast(algorithm, self._loop.progress.server)
        return _copy_params(problem.compose(*algorithm.personal_model(received, state)))

    def _build_module(self, params: Params) -> nn.Module:
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


def _copy_params(params: Params) -> Params:
    """Tensors that the caller may change."""
    return {name: p.clone() for name, p in params.items()}
