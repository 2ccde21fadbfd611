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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from moiety import tree
from moiety.data import FederatedData, from_spec
from moiety.engines.problem import Problem
from moiety.errors import kind, must
from moiety.run import folder as files
from moiety.run.build import own_part
from moiety.run.checkpoint import find_checkpoint
from moiety.run.reopen import RunParts, read_stored_options, reopen
from moiety.run.result import Run
from moiety.run.settings import Options
from moiety.split import Split
from moiety.types import Algorithm, Task, Tree


def open_start(
    start: object, model: nn.Module | Task, data: FederatedData, split: Split | None, options: Options
) -> Run:
    """The run to start from. Where its folder cannot name its model, split or loss, those of the new run are used."""
    kind("start", start, (Run, str, os.PathLike), "a run that has ended, or its folder")
    earlier = start if isinstance(start, Run) else _from_folder(Path(start), model, data, split, options)  # type: ignore[arg-type]
    _check_same_clients(data.ids, earlier._loop.problem.data.ids)
    return earlier


def _from_folder(
    path: Path, model: nn.Module | Task, data: FederatedData, split: Split | None, options: Options
) -> Run:
    config = files.read_config(path)
    for name in (
        "aggregator",
        "codec",
        "attack",
    ):  # how its uploads travelled no longer matters, and may need code of the user's own
        config.pop(name, None)
    own = RunParts(loss=options.loss, metric=options.metric)
    if isinstance(config.get("run"), dict):
        config["run"].pop("attackers", None)
        own = RunParts(**{name: value for name, value in own._asdict().items() if name not in config["run"]})
    first_options, newest = read_stored_options(config, path, own), find_checkpoint(path)
    round = int(newest.name.removeprefix("round-")) if newest else 0
    assert first_options.rounds is not None
    fault = f"round {round} of {first_options.rounds} in {path}"
    complete = round >= first_options.rounds or "stopped" in files.read_notes(path, files.read_id(path))
    must(complete, "start", "a run that has ended", fault, "Resume it first.")
    hint = "Open it with moiety.resume and start from the run that gives."
    fits = own_part(config, "algorithm") is None
    must(fits, "start", "a run whose folder names its algorithm", f"one of its own in {path}", hint)
    same = data.digest() == files.read_identity(path).get("data")
    fits = same or own_part(config, "data") is None
    must(fits, "start", "a run on this data, or on data that its folder names", path, hint)
    parts = RunParts(
        model if own_part(config, "model") else None,
        data if same else from_spec(config["data"]),
        split=split if own_part(config, "split") else None,
    )
    return reopen(path, config, first_options, parts, to_train=False)


def _check_same_clients(
    ours: Sequence[str] | np.ndarray[Any, Any], theirs: Sequence[str] | np.ndarray[Any, Any]
) -> None:
    if ours is theirs:
        return
    constraint, hint = "of the clients of the run it starts from", "Personal values belong to one client."
    must(len(ours) == len(theirs), "data", constraint, f"{len(ours)} clients, not {len(theirs)}", hint)
    odd = next((pair for pair in zip(ours, theirs, strict=True) if str(pair[0]) != str(pair[1])), None)
    must(odd is None, "data", constraint, "{} in the place of {}".format(*(odd or ("", ""))), hint)


def take_over_values(problem: Problem, earlier: Run, model: nn.Module | Task) -> Problem:
    """The problem of ``model`` with the values of the earlier run's shared model as the first ones."""
    base, init = earlier.shared_parameters(), problem.task.init
    missing = [name for name in base if name not in init and not _is_taken_over(name, base[name], problem.split, model)]
    hint = "Begin with the model that export() of that run gives, and make the split from it."
    must(
        not missing,
        "model",
        "one with every name of the run it starts from",
        f"none called {', '.join(missing[:1])}",
        hint,
    )
    for name in (name for name in base if name in init):
        expected, shape = tuple(base[name].shape), tuple(init[name].shape)
        must(
            expected == shape,
            "model",
            f"one with {name} of shape {expected}, as in the run it starts from",
            shape,
            hint,
        )
    values = {name: base[name].to(value, copy=True) if name in base else value for name, value in init.items()}
    values |= {name: values[other].clone() for name, other in problem.split.mirrors.items() if name not in base}
    return replace(problem, task=replace(problem.task, init=values))


def _is_taken_over(name: str, value: Tensor, split: Split, model: nn.Module | Task) -> bool:
    """Whether ``model``, from which a split with new names was made, has that very value under that name."""
    if split.model is None or isinstance(model, Task):
        return False
    tensors = tree.module_tensors(model)
    return name in tensors and torch.equal(tensors[name], value.to(tensors[name]))


def take_over_states(problem: Problem, algorithm: Algorithm, earlier: Run) -> dict[int, Tree]:
    """First states of the clients that have personal values of their own from the earlier run."""
    if not algorithm.stateful or not tree.leaves(problem.first_state(algorithm)):
        return {}
    before, store = earlier._loop.algorithm, earlier._loop.progress.store
    received = earlier._loop.problem.broadcast(before, earlier._loop.progress.server)
    shared, statistics = problem.first_shared()
    first = problem.first_personal()
    states: dict[int, Tree] = {}
    for client in store.owners():
        (state,) = store.get([client])
        parameters = before.personal_model(received, state)[1]
        own = {name: parameters[name].to(value) for name, value in first.items() if name in parameters}
        if own:
            states[client] = algorithm.init_client({**shared, **statistics}, {**first, **own})
    return states
