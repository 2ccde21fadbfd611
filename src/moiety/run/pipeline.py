"""Pipelines: stages of training, each of which starts where the one before has ended.

Pillutla et al. 2022, appendix B.2: (a) one model is trained for all, (b) shared and personal parameters are trained
from there, (c) every client finetunes its personal parameters with the shared ones fixed. In a folder ``OUT`` each
stage is an ordinary run, ``OUT/1-fedavg``, ``OUT/2-fedalt``, ..., and ``OUT/pipeline.toml`` says what they make up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from moiety import data as data_package
from moiety import task as tasks
from moiety.data import FederatedData
from moiety.engines.auto import check_engine
from moiety.errors import kind, must
from moiety.models import MODELS
from moiety.run import folder as files
from moiety.run import resume as resuming
from moiety.run.build import default_loss, problem_for, unknown
from moiety.run.checks import check_clients, check_kinds
from moiety.run.fit import check_options, fit
from moiety.run.result import Run
from moiety.run.stages import Stage, check_ahead, check_stages, split_of, stage, stage_from, stage_table
from moiety.run.train import OnRound
from moiety.server.attacks import Attack
from moiety.server.robust import Aggregator
from moiety.spec import Spec, build, spec_of
from moiety.split import Split
from moiety.types import Algorithm, Codec, Metric, Task

Watch = Callable[[str, Path | None], OnRound | None]
"""Called with the name and folder of each stage before it begins; what it returns is called after every round."""

__all__ = ["Watch", "pipeline", "resume", "resume_pipeline", "stage"]


def pipeline(
    stages: Sequence[Stage],
    model: nn.Module | Task,
    data: FederatedData,
    *,
    seed: int = 0,
    engine: str = "auto",
    out: str | os.PathLike[str] | None = None,
    loss: tasks.Loss | None = None,
    metric: str | Metric | None = None,
    inputs: Sequence[str] = ("x",),
    evaluate_on: str | None = None,
    evaluate_clients: int | None = None,
    device: str = "cpu",
    workers: int | None = None,
    partial: bool = True,
    watch: Watch | None = None,
) -> list[Run]:
    """Train ``model`` in stages, each of which starts where the one before has ended.

    The model goes on with the values it has; a client that has personal values of its own goes on with those that
    are personal in the next stage too. Rounds, schedules and the server's optimiser begin anew in every stage. All
    stages have the same ``seed``: with as large a cohort, round t asks the same clients in each of them.

    Args:
        stages: what ``moiety.stage`` made, in order.
        model: as for ``fit``; the first stage starts with its present values.
        data: the examples of all clients.
        seed: everything random in every stage derives from it.
        engine: as for ``fit``; ``auto`` measures in each stage.
        out: a folder for the pipeline, with one for each stage below it; nothing is written without one.
        loss: as for ``fit``, like all that follow.
        metric: likewise.
        inputs: likewise.
        evaluate_on: likewise.
        evaluate_clients: likewise.
        device: likewise.
        workers: likewise.
        partial: likewise.
        watch: called with the name (``1-fedavg``) and the folder of each stage before it begins; what it returns is
            called after every round of it, as ``on_round`` of ``fit`` is.

    Returns:
        A run for each stage.
    """
    stages = check_stages(stages)
    check_kinds(model, data, stages[0].algorithm, None)
    check_options(data, engine, inputs, evaluate_on, evaluate_clients, workers)
    chosen = loss or (default_loss(data) if isinstance(model, nn.Module) else "its own")
    options = {
        "seed": seed,
        "engine": engine,
        "evaluate_on": evaluate_on,
        "evaluate_clients": evaluate_clients,
        "device": device,
        "workers": workers,
        "partial": partial,
        "loss": chosen,
        "metric": metric,
        "inputs": list(inputs),
    }
    first = check_ahead(stages, model, data, seed)
    # The first stage would find this too, but only after the folder has been made.
    problem = problem_for(model, data, stages[0].algorithm, first, seed, chosen, metric, inputs, device, partial)
    for each in stages[1:]:
        check_clients(problem, each.algorithm)
    folder = None
    if out is not None:
        folder = files.empty(out)
        begun = sorted(folder.glob(f"*/{files.CONFIG}"))
        must(
            not begun,
            "out",
            "a folder that holds no run yet",
            str(begun[0].parent) if begun else "",
            "Choose another folder.",
        )
        files.write_config(folder, _tables(stages, model, data, options), files.PIPELINE)
    return _train(stages, model, data, options, folder, watch)


def _train(
    stages: Sequence[Stage],
    model: nn.Module | Task,
    data: FederatedData,
    options: dict[str, Any],
    out: Path | None,
    watch: Watch | None,
    **again: Any,
) -> list[Run]:
    """Begin every stage, or continue it where it has begun; ``again`` are options for those that are continued."""
    runs: list[Run] = []
    before: Split | None = None
    for number, each in enumerate(stages, 1):
        name = f"{number}-" + re.sub(r"[^\w.-]", "_", each.algorithm.name)
        folder = None if out is None else out / name
        trained = _trained(model, runs[-1]) if runs else model
        split = split_of(number, each, trained, before)
        if split is not before:  # else it was made on the model that we have already
            model = trained
        on_round = watch(name, folder) if watch else None
        if folder is not None and (folder / files.CONFIG).is_file():
            own = {key: options[key] for key in ("loss", "metric")}
            parts: dict[str, Any] = {"model": model, "data": data, "algorithm": each.algorithm, "split": split}
            run = resuming.resume(folder, **parts, **own, on_round=on_round, **again)
        else:
            start = runs[-1] if runs else None
            how: dict[str, Any] = {**options, **each.numbers()}
            run = fit(model, data, each.algorithm, split=split, start=start, out=folder, on_round=on_round, **how)
        runs.append(run)
        before = split
    return runs


def _trained(model: nn.Module | Task, last: Run) -> nn.Module | Task:
    """The model with what all clients share after the stage, and what the stage's split put into it."""
    return replace(model, init=last.shared_parameters()) if isinstance(model, Task) else last.export()


def _tables(
    stages: Sequence[Stage], model: nn.Module | Task, data: FederatedData, options: dict[str, Any]
) -> dict[str, Any]:
    """The pipeline as a file says it."""
    plain = {k: v if k not in ("loss", "metric") or isinstance(v, str) else None for k, v in options.items()}
    return {
        "data": dict(data.spec) or {"own": "data"},
        "model": spec_of(model) or {"own": type(model).__name__},
        "run": plain,
        "stage": [stage_table(each) for each in stages],
    }


def resume(
    folder: str | os.PathLike[str],
    *,
    rounds: int | None = None,
    model: nn.Module | Task | None = None,
    data: FederatedData | None = None,
    algorithm: Algorithm | None = None,
    split: Split | None = None,
    stages: Sequence[Stage] | None = None,
    loss: tasks.Loss | None = None,
    metric: str | Metric | None = None,
    engine: str | None = None,
    workers: int | None = None,
    aggregator: Aggregator | None = None,
    codec: Codec | None = None,
    attack: Attack | None = None,
    attackers: float | Sequence[int | str] | None = None,
    on_round: OnRound | None = None,
) -> Any:
    """Continue a run or a pipeline from its folder, bit for bit as if it had never stopped.

    What the folder can name (data sets, models, splits and algorithms of the library) is made again; what was the
    user's own must be given again, and is checked against the folder. Stages of a pipeline that have ended stay, the
    one under way goes on, the rest begin.

    Args:
        folder: the folder of the run or of the pipeline.
        rounds: train up to this round in all; by default as far as was asked at first. Schedules that depend on the
            number of rounds use the new number from here on. Not for a pipeline.
        model: as given to ``fit``, where it was of the user's own.
        data: likewise.
        algorithm: likewise, of a run.
        split: likewise, of a run.
        stages: as given to ``pipeline``, where an algorithm or a split was of the user's own.
        loss: as given to ``fit``, where it was of the user's own.
        metric: likewise.
        engine: by default the engine the run began with.
        workers: how many processes, for the engines that have any; all cores by default.
        aggregator: as given to ``fit``, where it was of the user's own.
        codec: likewise.
        attack: likewise.
        attackers: the folder names them; where they are given again they must be the same.
        on_round: called after every round.

    Returns:
        The ``Run``; for a pipeline, a list with a run for each stage.
    """
    kind("folder", folder, (str, os.PathLike), "the folder of a run or of a pipeline")
    given: dict[str, Any] = {"model": model, "data": data, "loss": loss, "metric": metric}
    given |= {"engine": engine, "workers": workers}
    ways: dict[str, Any] = {"aggregator": aggregator, "codec": codec, "attack": attack, "attackers": attackers}
    if not (Path(folder) / files.PIPELINE).is_file():
        must(stages is None, "stages", "left out for a single run", "some")
        single: dict[str, Any] = {"rounds": rounds, "algorithm": algorithm, "split": split, "on_round": on_round}
        return resuming.resume(folder, **given, **single, **ways)
    for name, value in {"rounds": rounds, "algorithm": algorithm, "split": split, **ways}.items():
        must(value is None, name, "left out for a pipeline", "one", "What was of your own is given as stages=[...].")
    return resume_pipeline(Path(folder), stages=stages, watch=lambda name, place: on_round, **given)


def resume_pipeline(
    path: Path,
    *,
    model: nn.Module | Task | None = None,
    data: FederatedData | None = None,
    stages: Sequence[Stage] | None = None,
    loss: tasks.Loss | None = None,
    metric: str | Metric | None = None,
    engine: str | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
) -> list[Run]:
    """Continue the pipeline in the folder."""
    config = files.read_config(path, files.PIPELINE)
    options = _options(config, path)
    for what, value in {"model": model, "data": data}.items():
        own = config[what].get("own")
        must(not own or value is not None, what, "given again", "nothing", f"The pipeline began with its own {own}.")
    must(bool(loss) or "loss" in options, "loss", "given again", "nothing", "The pipeline began with its own.")
    chosen = _again(config["stage"], stages)
    model = build("model", MODELS, config["model"]) if model is None else model
    data = data_package.from_spec(config["data"]) if data is None else data
    if engine is not None:
        check_engine(engine)
        options["engine"] = engine
    options["workers"] = workers or options.get("workers")
    files.tidy(path)
    files.write_config(path, config, files.PIPELINE)
    how = {**options, "loss": loss or options["loss"], "metric": metric or options.get("metric")}
    return _train(chosen, model, data, how, path, watch, engine=engine, workers=workers)


KINDS: dict[str, type] = {"seed": int, "engine": str, "device": str, "partial": bool, "inputs": list}
"""What every ``[run]`` of a pipeline holds."""


def _options(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The table ``[run]``, checked, of a file that has all its tables."""
    for table in ("data", "model", "run"):
        must(isinstance(config.get(table), dict), files.PIPELINE, f"one with a table [{table}]", f"none in {path}")
    stages = config.get("stage")
    whole = isinstance(stages, list) and stages and all(isinstance(each, dict) for each in stages)
    must(bool(whole), files.PIPELINE, "one with tables [[stage]]", f"none in {path}")
    options: dict[str, Any] = config["run"]
    for key, wanted in KINDS.items():
        got = f"{options.get(key, 'nothing')!r} in {path}"
        must(isinstance(options.get(key), wanted), f"run.{key}", f"given, as {wanted.__name__}", got)
    return options


def _again(found: list[Spec], given: Sequence[Stage] | None) -> list[Stage]:
    """The stages that the file describes, or the given ones where they are the same."""
    if given is not None:
        same = [stage_table(each) for each in given] == found
        must(same, "stages", "as the pipeline began with", "others", "Begin another pipeline for those.")
        return list(given)
    for number, table in enumerate(found, 1):
        for part in ("algorithm", "split"):
            value = table.get(part)
            own = isinstance(value, dict) and ("own" in value or (part == "algorithm" and unknown(value)))
            hint = "Resume it with stages=[...] as it began."
            must(not own, "stages", "given again", f"nothing for the {part} of stage {number}", hint)
    return [stage_from(number, table) for number, table in enumerate(found, 1)]
