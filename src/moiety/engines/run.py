"""What ``fit`` returns: the history, a row per client, and models to take away."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moiety.data import from_clients
from moiety.engines.checks import PARTS, check_columns, check_targets, like_columns
from moiety.engines.evaluate import asked, current_states, evaluate, served
from moiety.engines.problem import to_tensors
from moiety.engines.rounds import Rounds
from moiety.engines.sequential import Sequential
from moiety.errors import choice, kind, must, whole
from moiety.evaluation import Row
from moiety.types import Params, Tree


@dataclass
class Run:
    """A finished (or resumed and finished) run.

    ``history`` has a row per evaluation, ``clients`` a row per client at the end: ``n``, ``loss`` and ``metric`` of the
    personal model, ``shared_loss`` and ``shared_metric`` of the shared model alone, ``gain`` and ``hurt``.
    ``ledger`` holds bytes, FLOPs and memory. ``folder`` is where the run was written, if it was.
    """

    history: list[Row]
    clients: list[Row]
    ledger: dict[str, Any]
    config: dict[str, Any]
    folder: Path | None
    _rounds: Rounds
    _model: nn.Module | None

    @property
    def engine(self) -> str:
        """The engine that did the work (what ``auto`` chose)."""
        return self._rounds.engine

    def parameters(self, client: int | str) -> Params:
        """The whole model of one client, by name: shared, personal and frozen parts merged."""
        problem, algorithm, now = self._rounds.problem, self._rounds.algorithm, self._rounds.progress
        at = [problem.data.index(client)]
        received = algorithm.broadcast(now.server)
        (state,) = current_states(
            problem, algorithm, Sequential(problem, served(algorithm)), received, now.store, at, now.round
        )
        return _copies(problem.compose(*algorithm.personal_model(received, state)))

    def shared_parameters(self) -> Params:
        """The shared model alone: the server's part, with the personal part as it was first."""
        problem, algorithm, now = self._rounds.problem, self._rounds.algorithm, self._rounds.progress
        parts = algorithm.personal_model(algorithm.broadcast(now.server), problem.first(algorithm))
        return _copies(problem.compose(*problem.split.alone(*parts)))

    def export(self, client: int | str | None = None) -> nn.Module:
        """A copy of the model with that client's parameters in it, in evaluation mode; the shared model without one."""
        return self._module(self.shared_parameters() if client is None else self.parameters(client))

    def onboard(self, data: Mapping[str, Any], *, passes: int = 1) -> nn.Module:
        """A personal model for a client never seen, by the algorithm's own rule; nothing of it is sent or kept.

        Args:
            data: the new client's training columns, as the run's own.
            passes: how many times the rule is applied, one after the other.
        """
        whole("passes", passes, 1)
        kind("data", data, Mapping, "a mapping of columns")
        problem, algorithm, now = self._rounds.problem, self._rounds.algorithm, self._rounds.progress
        fed = from_clients({"new client": like_columns(problem.data, data)}, test=0.0)
        check_columns(problem.data, fed)
        guest = replace(problem, data=fed, columns=to_tensors(fed, problem.task, torch.device("cpu")))
        with torch.no_grad():
            few = {name: column[:1] for name, column in guest.columns.items()}
            output = problem.task.predict(problem.task.init, few)
        check_targets(self.config["run"].get("loss"), guest.columns, fed, output)
        received = algorithm.broadcast(now.server)
        state: Tree = problem.first(algorithm)
        engine = Sequential(guest, served(algorithm))
        for k in range(passes):
            jobs = guest.jobs(algorithm.phases, [0], [state], "onboard", k, part="train")
            (state,) = engine.map("adapt", jobs, received, scale=1.0, round=now.round + k)
        return self._module(problem.compose(*algorithm.personal_model(received, state)))

    def evaluate(self, part: str = "test") -> list[Row]:
        """A row per client, as in ``clients``, with scores on ``train``, ``validation`` or ``test`` rows.

        The same clients are scored; ``n_test`` counts their rows of that part.
        """
        choice("part", part, PARTS)
        loop, now = self._rounds, self._rounds.progress
        problem = loop.problem
        hint = "Split the data so that it has some."
        must(bool(problem.data.sizes(part).any()), "part", "one that has rows", part, hint)
        some = asked(problem.data, self.config["run"], problem.seed)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return evaluate(
                problem, loop.algorithm, loop.ready(), now.server, now.store, part=part, round=now.round, clients=some
            )
        finally:
            loop.close()
            torch.set_num_threads(threads)

    def _module(self, params: Params) -> nn.Module:
        must(self._model is not None, "model", "an nn.Module for export", "a task of plain functions")
        assert self._model is not None
        module = copy.deepcopy(self._model).eval()
        if self._rounds.problem.split.model is not None:
            vars(module).pop("spec", None)  # more than what that names: the split has put something in
        with torch.no_grad():
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                tensor.copy_(params[name])
        return module


def _copies(params: Params) -> Params:
    """Tensors that the caller may change."""
    return {name: p.clone() for name, p in params.items()}
