"""``fit`` and ``resume``: from a model, data and an algorithm to a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from moiety import data as data_package
from moiety import task as tasks
from moiety.aggregation import SERVERS
from moiety.algorithms import ALGORITHMS
from moiety.data import FederatedData
from moiety.engines import folder as files
from moiety.engines.checkpoint import latest, load_checkpoint, same_run
from moiety.engines.checks import (
    check_data,
    check_device,
    check_kinds,
    check_model,
    check_numbers,
    check_part,
    check_split,
)
from moiety.engines.choose import check_engine
from moiety.engines.problem import Problem, to_tensors
from moiety.engines.rounds import Rounds, begin
from moiety.engines.run import Run
from moiety.engines.training import OnRound, identity, train
from moiety.errors import kind, must, whole
from moiety.models import MODELS
from moiety.schedules import SCHEDULES
from moiety.spec import Spec, build, spec_of
from moiety.split import SPLITS, Split
from moiety.types import Algorithm, Metric, Task


def fit(
    model: nn.Module | Task,
    data: FederatedData,
    algorithm: Algorithm,
    *,
    split: Split | None = None,
    rounds: int,
    cohort: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    out: str | os.PathLike[str] | None = None,
    loss: tasks.Loss | None = None,
    metric: str | Metric | None = None,
    inputs: Sequence[str] = ("x",),
    evaluate_on: str | None = None,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = None,
    evaluate_clients: int | None = None,
    device: str = "cpu",
    workers: int | None = None,
    partial: bool = True,
    on_round: OnRound | None = None,
) -> Run:
    """Train ``model`` on ``data`` with ``algorithm``.

    Args:
        model: an ``nn.Module``, whose present values are the first ones (so an exported model is a warm start), or a
            ``Task`` of plain functions. It is not changed.
        data: the examples of all clients.
        algorithm: what a builder such as ``moiety.fedalt`` made.
        split: what is shared and what is personal; FedAvg and local training have their own.
        rounds: how many rounds to train.
        cohort: how many clients are asked in a round; all by default.
        seed: everything random in the run derives from it.
        engine: ``sequential``, ``vectorised``, ``processes`` (all cores) or ``auto``, which measures them and keeps
            the fastest; or ``ray``, for a cluster.
        out: a folder for configuration, history, results and checkpoints; nothing is written without one.
        loss: ``cross_entropy``, ``mse`` or a function of (output, batch) with one loss per example. By default
            cross-entropy where the labels ``y`` are whole numbers, mean squared error otherwise.
        metric: ``accuracy``, ``mse`` or a ``Metric``; by default the one that goes with the loss.
        inputs: the columns that go into the model, in order.
        evaluate_on: ``test``, ``validation`` or ``train``; by default the first of these that has rows.
        evaluate_every: rounds between evaluations; by default a twentieth of the run. The last round always has one.
        checkpoint_every: rounds between checkpoints; by default as evaluations. The last round always has one.
        evaluate_clients: evaluate this many clients, the same sample each time; all by default.
        device: where the arithmetic happens.
        workers: how many processes, for the engines that have any; all cores by default.
        partial: compute once per row what the trained parameters do not reach, where rows come round again; the
            numbers are the same either way.
        on_round: called after every round.

    Returns:
        The run: history, a row per client, the ledger, and models to export.
    """
    check_kinds(model, data, algorithm, split)
    check_engine(engine)
    kind("inputs", inputs, (list, tuple), "a list of column names")
    twentieth = max(1, rounds // 20) if isinstance(rounds, int) else 1
    every = {"evaluate_every": twentieth if evaluate_every is None else evaluate_every}
    every["checkpoint_every"] = every["evaluate_every"] if checkpoint_every is None else checkpoint_every
    cohort = len(data) if cohort is None else cohort
    check_numbers(data, rounds, cohort, seed, every)
    check_data(data)
    part = check_part(data, evaluate_on)
    if evaluate_clients is not None:
        whole("evaluate_clients", evaluate_clients, 1, len(data))
    if workers is not None:
        whole("workers", workers, 1)
    chosen_loss = loss or (_default_loss(data) if isinstance(model, nn.Module) else "its own")
    problem = _problem(model, data, algorithm, split, seed, chosen_loss, metric, inputs, device, partial)
    run_config = {
        "rounds": rounds,
        "cohort": cohort,
        "seed": seed,
        "engine": engine,
        "evaluate_on": part,
        **every,
        "evaluate_clients": evaluate_clients,
        "device": device,
        "workers": workers,
        "partial": partial,
        "loss": chosen_loss if isinstance(chosen_loss, str) else None,
        "metric": metric if isinstance(metric, str) else None,
        "inputs": list(inputs),
    }
    config = {
        "data": dict(data.spec) or {"own": "data"},
        "model": spec_of(model) or {"own": type(model).__name__},
        "split": problem.split.spec or {"own": "split"},
        "algorithm": algorithm.spec or {"own": algorithm.name},
        "run": run_config,
    }
    known = identity(problem, algorithm)
    folder = files.create(out, config, problem.task.init, known) if out is not None else None
    loop = Rounds(problem, algorithm, begin(problem, algorithm, folder), rounds, cohort, engine, workers)
    return train(loop, config, folder, [], problem.split.model or model, on_round)


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
) -> Run:
    """Continue a run from its folder, bit for bit as if it had never stopped.

    What the folder can name (data sets, models, splits and algorithms of the library) is made again; what was the
    user's own must be given again, and is checked against the folder.

    Args:
        folder: the run's folder.
        rounds: train up to this round in all; by default as far as was asked at first. Schedules that depend on the
            number of rounds use the new number from here on.
        model: as given to ``fit``, where it was of the user's own.
        data: likewise.
        algorithm: likewise.
        split: likewise.
        loss: likewise.
        metric: likewise.
        engine: by default the engine the run began with.
        workers: how many processes, for the engines that have any; all cores by default.
        on_round: called after every round.
    """
    kind("folder", folder, (str, os.PathLike), "a run's folder")
    path = Path(folder)
    config = files.read_config(path)
    options = _options(config, path)
    given = {"model": model, "data": data, "algorithm": algorithm}
    for what, value in given.items():
        own = config[what].get("own")
        must(not own or value is not None, what, "given again", "nothing", f"The run began with its own {own}.")
    data = data_package.from_spec(config["data"]) if data is None else data
    algorithm = algorithm_from(config["algorithm"]) if algorithm is None else algorithm
    model = build("model", MODELS, config["model"]) if model is None else model
    check_kinds(model, data, algorithm, split)
    if split is None and isinstance(model, nn.Module) and "own" not in config["split"]:
        split = split_from(config["split"], model)
    must(bool(loss) or "loss" in options, "loss", "given again", "nothing", "The run began with a loss of its own.")
    rounds = options["rounds"] if rounds is None else rounds
    engine = engine or options["engine"]
    check_engine(engine)
    every = {k: options[k] for k in ("evaluate_every", "checkpoint_every")}
    check_numbers(data, rounds, options["cohort"], options["seed"], every)
    check_part(data, options["evaluate_on"])
    problem = _problem(
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
    known = identity(problem, algorithm)
    begun = files.read_identity(path)
    first = begun.pop("initial", "")
    same_run(begun, known, path)
    initial = files.read_initial(path, first, problem.task.init)
    where = torch.device(options["device"])
    problem = replace(problem, task=replace(problem.task, init={n: p.to(where) for n, p in initial.items()}))
    progress = begin(problem, algorithm, path)
    found = latest(path)
    if found is not None:
        load_checkpoint(found, progress, known)
    else:
        progress.store.restart(0)
    must(rounds >= progress.round, "rounds", f">= {progress.round}, the rounds already trained", rounds)
    history = files.read_history(path, progress.round, options["evaluate_every"])
    files.tidy(path)
    files.write_history(path, history)
    if engine != options["engine"]:
        options["engine_reason"] = "as asked"
    options.update(rounds=rounds, engine=engine)
    files.write_config(path, config)
    loop = Rounds(problem, algorithm, progress, rounds, options["cohort"], engine, workers or options.get("workers"))
    return train(loop, config, path, history, problem.split.model or model, on_round)


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


def _options(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The table ``[run]``, checked, of a configuration that has all its tables."""
    for table in ("data", "model", "split", "algorithm", "run"):
        must(isinstance(config.get(table), dict), "config.toml", f"one with a table [{table}]", f"none in {path}")
    options: dict[str, Any] = config["run"]
    for key, wanted in KINDS.items():
        got = f"{options.get(key, 'nothing')!r} in {path}"
        must(isinstance(options.get(key), wanted), f"run.{key}", f"given, as {wanted.__name__}", got)
    return options


def algorithm_from(spec: Spec | str) -> Algorithm:
    """The algorithm that a table of a configuration describes."""
    inner = {
        "server": lambda s: build("algorithm.server", SERVERS, s),
        "schedule": lambda s: build("algorithm.schedule", SCHEDULES, s),
    }
    made: Algorithm = build("algorithm", ALGORITHMS, spec, inner)
    return made


def split_from(spec: Spec | str, model: nn.Module) -> Split:
    """The split of ``model`` that a table of a configuration describes."""
    made: Split = build("split", SPLITS, spec, given={"model": model})
    return made


def _default_loss(data: FederatedData) -> str:
    must("y" in data.columns, "data", "columns with y, or a loss of your own", ", ".join(data.columns))
    return "cross_entropy" if data.columns["y"].dtype.kind in "iub" else "mse"


def _problem(
    model: nn.Module | Task,
    data: FederatedData,
    algorithm: Algorithm,
    split: Split | None,
    seed: int,
    loss: tasks.Loss,
    metric: str | Metric | None,
    inputs: Sequence[str],
    device: str,
    partial: bool,
) -> Problem:
    """The checked problem, with the model's present values as the first ones."""
    where = check_device(device)
    if split is None:
        hint = "For instance split=moiety.split.output_layer(model)."
        known = algorithm.default_split is not None and isinstance(model, nn.Module)
        must(known, "split", f"given for {algorithm.name} and {type(model).__name__}", "nothing", hint)
        split = split_from(str(algorithm.default_split), cast(nn.Module, model))
    if isinstance(model, Task):
        task = model
    else:
        module = split.model or model
        task = tasks.from_module(module, loss=loss, metric=metric, inputs=inputs, penalty=split.penalty)
    task = replace(task, init={n: p.to(where) for n, p in task.init.items()})
    names = {*split.shared, *split.personal, *split.frozen}
    must(names == task.init.keys(), "split", "made for this model", f"another's, with {len(names)} names")
    check_split(algorithm, split)
    problem = Problem(task, split, data, to_tensors(data, task, where), seed, partial=partial)
    own = isinstance(model, Task)
    check_model(problem, () if own else tuple(inputs), None if own else loss)
    return problem
