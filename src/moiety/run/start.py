"""A warm start: what a new run takes over from one that has ended.

The model begins with the values of the earlier run's shared model: the server's part, and the personal part as it was
first. A client that has a personal part of its own there begins with it, as far as it is personal in the new run too.
What the earlier model does not have (fresh adapters) begins as in the new one, the same on all clients.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from moiety import data as data_package
from moiety import task as tasks
from moiety import tree
from moiety.data import FederatedData
from moiety.engines.problem import Problem
from moiety.errors import kind, must
from moiety.loop.round import Progress
from moiety.run import folder as files
from moiety.run.build import unknown
from moiety.run.checkpoint import latest
from moiety.run.result import Run
from moiety.run.resume import checked_options, reopen
from moiety.split import Split
from moiety.types import Algorithm, Metric, Params, Task, Tree

IN_MEMORY = "a run in memory"


class Ended(NamedTuple):
    """A run that has ended, as a new one may start from it; ``place`` is its folder."""

    problem: Problem
    algorithm: Algorithm
    progress: Progress
    place: str

    def shared_model(self) -> Params:
        """The server's part with the personal part as it was first."""
        received = self.algorithm.broadcast(self.progress.server)
        return self.problem.shared_model(self.algorithm, received)


def ended(
    start: Run | str | os.PathLike[str],
    *,
    model: nn.Module | Task,
    data: FederatedData,
    split: Split | None,
    loss: tasks.Loss,
    metric: str | Metric | None,
) -> Ended:
    """The run to start from; where it is a folder that cannot name its model, split or loss, the given ones serve."""
    kind("start", start, (Run, str, os.PathLike), "a run that has ended, or its folder")
    if isinstance(start, Run):
        place = IN_MEMORY if start.folder is None else str(start.folder)
        found = Ended(start._loop.problem, start._loop.algorithm, start._loop.progress, place)
    else:
        found = _from_folder(Path(start), model, data, split, loss, metric)
    _same_clients(data.ids, found.problem.data.ids)
    return found


def _from_folder(
    path: Path,
    model: nn.Module | Task,
    data: FederatedData,
    split: Split | None,
    loss: tasks.Loss,
    metric: str | Metric | None,
) -> Ended:
    config = files.read_config(path)
    options = checked_options(config, path)
    newest = latest(path)
    done = int(newest.name.removeprefix("round-")) if newest else 0
    got = f"round {done} of {options['rounds']} in {path}"
    must(done >= options["rounds"], "start", "a run that has ended", got, "Resume it first.")
    own = {part: config[part].get("own") for part in ("algorithm", "data", "model", "split")}
    hint = "Open it with moiety.resume and start from the run that gives."
    named = not own["algorithm"] and not unknown(config["algorithm"])
    must(named, "start", "a run whose folder names its algorithm", f"one of its own in {path}", hint)
    alike = data.fingerprint() == files.read_identity(path).get("data")
    must(alike or not own["data"], "start", "a run on this data, or on data that its folder names", path, hint)
    found = reopen(
        path,
        config,
        model if own["model"] else None,
        data if alike else data_package.from_spec(config["data"]),
        None,
        split if own["split"] else None,
        options.get("loss", loss),
        options.get("metric", metric),
    )
    return Ended(found.problem, found.algorithm, found.progress, str(path))


def _same_clients(ours: Sequence[str] | np.ndarray[Any, Any], theirs: Sequence[str] | np.ndarray[Any, Any]) -> None:
    if ours is theirs:
        return
    wanted, hint = "of the clients of the run it starts from", "Personal values belong to one client."
    must(len(ours) == len(theirs), "data", wanted, f"{len(ours)} clients, not {len(theirs)}", hint)
    odd = next((pair for pair in zip(ours, theirs, strict=True) if str(pair[0]) != str(pair[1])), None)
    must(odd is None, "data", wanted, "{} in the place of {}".format(*(odd or ("", ""))), hint)


def warm(problem: Problem, earlier: Ended, model: nn.Module | Task) -> Problem:
    """The problem of ``model`` with the values of the earlier run's shared model as the first ones."""
    had, init = earlier.shared_model(), problem.task.init
    lost = [name for name in had if name not in init and not _taken_over(name, had[name], problem.split, model)]
    hint = "Begin with the model that export() of that run gives, and make the split from it."
    must(not lost, "model", "one with every name of the run it starts from", f"none called {', '.join(lost[:1])}", hint)
    for name in (name for name in had if name in init):
        wanted, got = tuple(had[name].shape), tuple(init[name].shape)
        must(wanted == got, "model", f"one with {name} of shape {wanted}, as in the run it starts from", got, hint)
    values = {name: had[name].to(value, copy=True) if name in had else value for name, value in init.items()}
    values |= {name: values[other].clone() for name, other in problem.split.mirrors.items() if name not in had}
    return replace(problem, task=replace(problem.task, init=values))


def _taken_over(name: str, value: Tensor, split: Split, model: nn.Module | Task) -> bool:
    """Whether a split that renames (a second model beside the first) was made from a model with that very value."""
    if split.model is None or isinstance(model, Task):
        return False
    given = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return name in given and torch.equal(given[name], value.to(given[name]))


def own_states(problem: Problem, algorithm: Algorithm, earlier: Ended) -> dict[int, Tree]:
    """First states of the clients that have personal values of their own from the earlier run."""
    if not algorithm.stateful or not tree.leaves(problem.first_state(algorithm)):
        return {}
    received = earlier.algorithm.broadcast(earlier.progress.server)
    shared, statistics = problem.first_shared()
    first = problem.first_personal()
    states: dict[int, Tree] = {}
    store = earlier.progress.store
    for client in store.owners():
        (state,) = store.get([client])
        had = earlier.algorithm.personal_model(received, state)[1]
        own = {name: had[name].to(value) for name, value in first.items() if name in had}
        if own:
            states[client] = algorithm.init_client({**shared, **statistics}, {**first, **own})
    return states
