"""``fit`` and ``resume``: from a model, data and an algorithm to a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from moiety import data as data_package
from moiety import task as tasks
from moiety.aggregation import SERVERS
from moiety.algorithms import ALGORITHMS
from moiety.clients import uniform_cohort
from moiety.data import FederatedData
from moiety.engines import folder as files
from moiety.engines.checkpoint import latest, load_checkpoint, save_checkpoint
from moiety.engines.checks import check_data, check_model, check_numbers, check_split
from moiety.engines.choose import check_engine
from moiety.engines.evaluate import evaluate
from moiety.engines.problem import Problem, to_tensors
from moiety.engines.rounds import Rounds, begin
from moiety.engines.run import Run
from moiety.errors import must
from moiety.evaluation import Row, summarise
from moiety.models import MODELS
from moiety.schedules import SCHEDULES
from moiety.spec import Spec, build, spec_of
from moiety.split import SPLITS, Split
from moiety.types import Algorithm, Metric, Params, RoundRecord, Task

OnRound = Callable[[RoundRecord, int], None]
"""Called after every round with its record and the number of rounds asked for."""


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
            the fastest.
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
    must(isinstance(data, FederatedData), "data", "FederatedData", type(data).__name__, "See moiety.data.from_arrays.")
    must(isinstance(algorithm, Algorithm), "algorithm", "what a builder made", type(algorithm).__name__)
    check_engine(engine)
    twentieth = max(1, rounds // 20) if isinstance(rounds, int) else 1
    every = {"evaluate_every": twentieth if evaluate_every is None else evaluate_every}
    every["checkpoint_every"] = every["evaluate_every"] if checkpoint_every is None else checkpoint_every
    cohort = len(data) if cohort is None else cohort
    check_numbers(data, rounds, cohort, seed, every)
    check_data(data)
    part = evaluate_on or next(p for p in ("test", "validation", "train") if data.sizes(p).any())
    data.sizes(part)  # an unknown part is refused here
    chosen_loss = loss or _default_loss(data)
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
    folder = files.create(out, config, problem.task.init) if out is not None else None
    loop = Rounds(problem, algorithm, begin(problem, algorithm, folder), rounds, cohort, engine, workers)
    return _train(loop, config, folder, [], model, on_round)


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
    path = Path(folder)
    config = files.read_config(path)
    missing = [k for k in ("data", "model", "split", "algorithm", "run") if k not in config]
    must(not missing, "config.toml", "a whole configuration", f"no [{', '.join(missing)}] in {path}")
    options = config["run"]
    given = {"model": model, "data": data, "algorithm": algorithm}
    for kind, value in given.items():
        own = config[kind].get("own")
        must(not own or value is not None, kind, "given again", "nothing", f"The run began with its own {own}.")
    data = data or data_package.from_spec(config["data"])
    algorithm = algorithm or algorithm_from(config["algorithm"])
    model = model or build("model", MODELS, config["model"])
    if split is None and isinstance(model, nn.Module) and "own" not in config["split"]:
        split = split_from(config["split"], model)
    must(bool(loss) or "loss" in options, "loss", "given again", "nothing", "The run began with a loss of its own.")
    chosen_loss = loss or options["loss"]
    rounds = options["rounds"] if rounds is None else rounds
    engine = engine or options["engine"]
    check_engine(engine)
    every = {k: options[k] for k in ("evaluate_every", "checkpoint_every")}
    check_numbers(data, rounds, options["cohort"], options["seed"], every)
    problem = _problem(
        model,
        data,
        algorithm,
        split,
        options["seed"],
        chosen_loss,
        metric or options.get("metric"),
        options["inputs"],
        options["device"],
        options["partial"],
        initial=files.read_initial(path),
    )
    progress = begin(problem, algorithm, path)
    found = latest(path)
    if found is not None:
        load_checkpoint(found, progress, identity(problem, algorithm))
    must(rounds >= progress.round, "rounds", f">= {progress.round}, the rounds already trained", rounds)
    history = files.read_history(path, until=progress.round)
    files.write_history(path, history)
    options.update(rounds=rounds, engine=engine)
    files.write_config(path, config)
    loop = Rounds(problem, algorithm, progress, rounds, options["cohort"], engine, workers)
    return _train(loop, config, path, history, model, on_round)


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


def identity(problem: Problem, algorithm: Algorithm) -> dict[str, Any]:
    """What must be the same for a checkpoint to be continued."""
    shapes = {n: list(p.shape) for n, p in problem.task.init.items()}
    return {
        "algorithm": algorithm.spec or {"name": algorithm.name},
        "personal": list(problem.split.personal),
        "shapes": shapes,
        "seed": problem.seed,
        "data": problem.data.fingerprint(),
    }


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
    initial: Params | None = None,
) -> Problem:
    """The checked problem; ``initial`` takes the place of the model's present values."""
    task = model if isinstance(model, Task) else tasks.from_module(model, loss=loss, metric=metric, inputs=inputs)
    where = torch.device(device)
    task = replace(task, init={n: p.to(where) for n, p in (initial or task.init).items()})
    if split is None:
        hint = "For instance split=moiety.split.output_layer(model)."
        known = algorithm.default_split is not None and isinstance(model, nn.Module)
        must(known, "split", f"given for {algorithm.name} and {type(model).__name__}", "nothing", hint)
        split = split_from(str(algorithm.default_split), cast(nn.Module, model))
    names = {*split.shared, *split.personal, *split.frozen}
    must(names == task.init.keys(), "split", "made for this model", f"another's, with {len(names)} names")
    check_split(algorithm, split)
    problem = Problem(task, split, data, to_tensors(data, task, where), seed, partial)
    check_model(problem, tuple(inputs) if isinstance(model, nn.Module) else (), loss)
    return problem


def _train(
    loop: Rounds,
    config: dict[str, Any],
    folder: Path | None,
    history: list[Row],
    model: nn.Module | Task,
    on_round: OnRound | None,
) -> Run:
    """The rounds that are still to do, on one thread per process, and what is left of them in the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        clients = _rounds(loop, config, folder, history, on_round)
    except KeyboardInterrupt:
        if folder and loop.progress.whole and loop.progress.round:
            save_checkpoint(folder, loop.progress, identity(loop.problem, loop.algorithm))
        raise
    finally:
        loop.close()
        torch.set_num_threads(threads)
    ledger = loop.progress.ledger.as_dict()
    if folder:
        files.write_results(folder, clients, ledger)
    return Run(history, clients, ledger, config, folder, loop, model if isinstance(model, nn.Module) else None)


def _rounds(
    loop: Rounds, config: dict[str, Any], folder: Path | None, history: list[Row], on_round: OnRound | None
) -> list[Row]:
    """Train to the end, with evaluations, checkpoints and records on the way; the last rows per client."""
    options = config["run"]
    known = identity(loop.problem, loop.algorithm)
    seconds = history[-1]["seconds"] if history else 0.0
    clients: list[Row] = []
    while loop.progress.round < loop.rounds:
        began = time.perf_counter()
        record = loop.step()
        seconds += time.perf_counter() - began
        last = record.round == loop.rounds
        if options["engine"] != loop.engine or "engine_reason" not in options:
            options.update(engine=loop.engine, engine_reason=loop.reason)
            if folder:
                files.write_config(folder, config)
        if last or record.round % options["evaluate_every"] == 0:
            clients, row = _evaluation(loop, record, options, seconds)
            history.append(row)
            record = replace(record, evaluation=row)
            if folder:
                files.append_history(folder, row)
        if folder and (last or record.round % options["checkpoint_every"] == 0):
            save_checkpoint(folder, loop.progress, known)
        if on_round:
            on_round(record, loop.rounds)
    # Resumed after its end: only the rows per client are to be made again.
    return clients or _evaluation(loop, None, options, seconds)[0]


def _evaluation(loop: Rounds, record: RoundRecord | None, options: Spec, seconds: float) -> tuple[list[Row], Row]:
    """A row per client, and the row of the history that sums them up."""
    problem, now = loop.problem, loop.progress
    engine = loop.ready()
    part, population = options["evaluate_on"], len(problem.data)
    count = options.get("evaluate_clients") or population
    asked = uniform_cohort(population, count, seed=problem.seed, round=-1)
    clients = evaluate(
        problem, loop.algorithm, engine, now.server, now.store, part=part, round=now.round, clients=asked
    )
    loss = record.train_loss if record else float("nan")
    row: Row = {"round": now.round, "part": part, "train_loss": None if loss != loss else loss}
    row |= summarise(clients, higher_is_better=problem.task.metric.higher_is_better)
    row |= {"metric_name": problem.task.metric.name, "dropped": list(now.dropped), **now.ledger.as_dict()}
    row["seconds"] = seconds
    now.dropped.clear()
    return clients, row
