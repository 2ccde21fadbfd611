"""``resume``: a run is opened from its folder and goes on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from moiety import data as data_package
from moiety import task as tasks
from moiety.clients.clock import Clock, check_clock, clock_from
from moiety.data import FederatedData
from moiety.engines.auto import check_engine
from moiety.engines.problem import Problem
from moiety.errors import kind, must, whole
from moiety.files import lock_folder
from moiety.loop.round import Progress, begin_progress
from moiety.loop.uploads import load_upload_options
from moiety.loop.virtual_time import choose_loop
from moiety.models import MODELS
from moiety.run import folder as files
from moiety.run.build import algorithm_from, problem_for, split_from, unknown
from moiety.run.checkpoint import begin_with, latest, load_checkpoint, same_run
from moiety.run.checks import check_kinds, check_numbers, check_part
from moiety.run.result import Run
from moiety.run.train import OnRound, identity, train
from moiety.spec import build
from moiety.split import Split
from moiety.types import Algorithm, Metric, Task


def resume(
    folder: str | os.PathLike[str],
    *,
    rounds: int | None = None,
    model: nn.Module | Task | None = None,
    data: FederatedData | None = None,
    algorithm: Algorithm | None = None,
    split: Split | None = None,
    loss: tasks.Loss | None = None,
    metric: str | Metric | None = None,
    engine: str | None = None,
    workers: int | None = None,
    on_round: OnRound | None = None,
    **given: Any,
) -> Run:
    """Continue a run from its folder; ``moiety.resume`` says what the arguments are.

    ``given`` are aggregator, codec, attack and attackers.
    """
    kind("folder", folder, (str, os.PathLike), "a run's folder")
    path = Path(folder)
    config = files.read_config(path)
    options = checked_options(config, path)
    rounds = options["rounds"] if rounds is None else rounds
    whole("rounds", rounds, 1)
    engine = engine or options["engine"]
    check_engine(engine)
    with lock_folder(path):
        found = reopen(path, config, model, data, algorithm, split, loss, metric)
        at = found.progress.round
        must(rounds >= at, "rounds", f">= {at}, the rounds already trained", rounds)
        uploads = load_upload_options(config, found.problem.data, found.algorithm, given)
        problem = uploads.poison_labels(found.problem)
        history = files.read_history(path, at, options["evaluate_every"])
        files.tidy(path)
        files.write_history(path, history)
        if engine != options["engine"]:
            options["engine_reason"] = "as asked"
        options.update(rounds=rounds, engine=engine)
        files.write_config(path, config)
        workers = workers or options.get("workers")
        kind_of, cohort = choose_loop(found.clock), options["cohort"]
        loop = kind_of(
            problem, found.algorithm, found.progress, rounds, cohort, engine, workers, uploads, clock=found.clock
        )
        return train(loop, config, path, history, found.model, on_round)


class Reopened(NamedTuple):
    """A run as its newest checkpoint left it."""

    problem: Problem
    algorithm: Algorithm
    progress: Progress
    model: nn.Module | Task
    clock: Clock | None


def reopen(
    path: Path,
    config: dict[str, Any],
    model: nn.Module | Task | None,
    data: FederatedData | None,
    algorithm: Algorithm | None,
    split: Split | None,
    loss: tasks.Loss | None,
    metric: str | Metric | None,
) -> Reopened:
    """The run in the folder: what its configuration names is made again, what it cannot name must be given."""
    options = checked_options(config, path)
    given = {"model": model, "data": data, "algorithm": algorithm}
    own = {what: config[what].get("own") for what in given}
    own["algorithm"] = own["algorithm"] or unknown(config["algorithm"])
    lost = [what for what, value in given.items() if own[what] and value is None]
    began = "The run began with " + " and ".join(f"its own {own[what]}" for what in lost) + "."
    must(not lost, "`, `".join(lost), "given again", "nothing", began)
    data = data_package.from_spec(config["data"]) if data is None else data
    algorithm = algorithm_from(config["algorithm"]) if algorithm is None else algorithm
    model = build("model", MODELS, config["model"]) if model is None else model
    check_kinds(model, data, algorithm, split)
    if split is None and isinstance(model, nn.Module) and "own" not in config["split"]:
        split = split_from(config["split"], model)
    must(bool(loss) or "loss" in options, "loss", "given again", "nothing", "The run began with a loss of its own.")
    every = {k: options[k] for k in ("evaluate_every", "checkpoint_every")}
    check_numbers(data, options["rounds"], options["cohort"], options["seed"], every)
    check_part(data, options["evaluate_on"])
    problem = problem_for(
        model,
        data,
        algorithm,
        split,
        options["seed"],
        loss or options["loss"],
        metric or options.get("metric"),
        options["inputs"],
        options["device"],
        options["partial"],
    )
    clock = None if config.get("clock") is None else clock_from(config["clock"])
    if clock is not None:
        check_clock(clock, data.ids)
    known = identity(problem, algorithm, clock)
    begun = files.read_identity(path)
    digests = {name: begun.pop(name, "") for name in ("initial", "start")}
    same_run(begun, known, path)
    initial = files.read_initial(path, digests["initial"], problem.task.init)
    where = torch.device(options["device"])
    problem = replace(problem, task=replace(problem.task, init={n: p.to(where) for n, p in initial.items()}))
    progress = begin_progress(problem, algorithm, path, clock)
    found = latest(path)
    if found is not None:
        load_checkpoint(found, progress, known)
    else:
        progress.store.restart(0)
        begin_with(progress, files.read_start(path, digests["start"], progress.store.first()))
    return Reopened(problem, algorithm, progress, model, clock)


KINDS: dict[str, type] = {
    "rounds": int,
    "cohort": int,
    "seed": int,
    "engine": str,
    "evaluate_on": str,
    "evaluate_every": int,
    "checkpoint_every": int,
    "device": str,
    "partial": bool,
    "inputs": list,
}
"""What every ``[run]`` of a run folder holds."""


def checked_options(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The table ``[run]``, checked, of a configuration that has all its tables."""
    for table in ("data", "model", "split", "algorithm", "run"):
        must(isinstance(config.get(table), dict), "config.toml", f"one with a table [{table}]", f"none in {path}")
    options: dict[str, Any] = config["run"]
    for key, wanted in KINDS.items():
        got = f"{options.get(key, 'nothing')!r} in {path}"
        must(isinstance(options.get(key), wanted), f"run.{key}", f"given, as {wanted.__name__}", got)
    return options
