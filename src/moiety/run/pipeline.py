"""Pipelines: stages of training, each of which starts where the one before has ended.

Pillutla et al. 2022, appendix B.2: (a) one model is trained for all, (b) shared and personal parameters are trained
from there, (c) every client finetunes its personal parameters with the shared ones fixed. In a folder ``OUT`` each
stage is an ordinary run, ``OUT/1-fedavg``, ``OUT/2-fedalt``, ..., and ``OUT/pipeline.toml`` says what they make up.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_type_hints

from torch import nn

from moiety import task as tasks
from moiety import tree
from moiety.data import FederatedData
from moiety.errors import choice, kind, must, whole
from moiety.run import folder as files
from moiety.run.build import algorithm_from, make_problem, own_part, split_from
from moiety.run.checks import check_clients, check_kinds, check_split
from moiety.run.fit import fit
from moiety.run.load import open_run
from moiety.run.protocol import CallbackList, Callbacks
from moiety.run.reopen import REQUIRED, RunParts, continue_run, read_stored_options, remake
from moiety.run.result import Run
from moiety.run.settings import BUILDERS, SECTION_HINTS, Options, Settings, complete_options, option_tables
from moiety.seals import CONFIG, PIPELINE
from moiety.spec import Spec, check_table, table_of
from moiety.split import SPLITS, Split
from moiety.types import Algorithm, Task


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline.

    Args:
        algorithm: what a builder such as ``moiety.fedalt`` made.
        rounds: how many rounds to train.
        cohort: how many clients are asked in a round; all by default.
        split: a builder's name, a table such as ``{"name": "adapters", "width": 16}``, or a function of the model: each
            is made on the model as trained so far. A ``Split`` will do where the model has its names. By default the
            split of the stage before goes on, where it has something personal and the algorithm can work with it; else
            the algorithm's own. The table of the stage before goes on with its split as well.
        evaluate_every: rounds between evaluations; by default a twentieth of the stage.
        checkpoint_every: rounds between checkpoints; by default as evaluations.
    """

    algorithm: Algorithm
    rounds: int
    cohort: int | None = None
    split: Split | str | Spec | Callable[[Any], Split] | None = None
    evaluate_every: int | None = None
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        """Check all that needs neither model nor data."""
        kind("algorithm", self.algorithm, Algorithm, "what a builder such as moiety.fedalt made")
        whole("rounds", self.rounds, 1)
        self.options(Options())
        fits = self.split is None or callable(self.split) or isinstance(self.split, Split | str | dict)
        must(fits, "split", "a name, a table, a function of the model, or a Split", repr(self.split))

    def options(self, common: Options) -> Options:
        """The options of this stage; ``common`` are those of all."""
        settings = replace(common.settings, evaluate_every=self.evaluate_every, checkpoint_every=self.checkpoint_every)
        return replace(common, rounds=self.rounds, cohort=self.cohort, settings=settings)


FILE_TYPES = {**get_type_hints(Stage), "algorithm": Spec, "split": Spec}
"""The keys of a table ``[[stage]]`` and their types."""
OF_STAGES = ("rounds", "cohort", "evaluate_every", "checkpoint_every")


def check_stage_options(options: Options, where: str = "") -> None:
    """Refuse options of a pipeline that belong to its stages, or that stages do not know."""
    values = {**vars(options), **vars(options.settings)}
    for key in ("participation", "attackers", "start", "safeguard", *BUILDERS, *OF_STAGES):
        value = values[key]
        hint = "Stages know none; run them one after the other with start."
        if key == "safeguard":
            value, hint = value or None, "Call safeguard() of the run of a stage."
        if key in OF_STAGES:
            hint = f"Each stage has its own; the command has --set stage.1.{key}={value}."
        name = key if key in BUILDERS else where + key
        must(value in (None, "fixed"), name, "left out where there are stages", value, hint)


def pipeline(
    stages: Sequence[Stage],
    model: nn.Module | Task,
    data: FederatedData,
    *,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    loss: tasks.Loss | None = None,
    metric: tasks.Metrics | None = None,
    engine: str = "auto",
    callbacks: CallbackList = (),
    progress: bool | None = None,
    settings: Settings | None = None,
) -> list[Run]:
    """Train ``model`` in stages, each of which starts where the one before has ended.

    The model goes on with the values it has; a client that has personal values of its own goes on with those that
    are personal in the next stage too. Rounds, schedules and the server's optimiser begin anew in every stage. All
    stages have the same ``seed``: with as large a cohort, round t asks the same clients in each of them.

    Args:
        stages: ``moiety.Stage(...)``, in order.
        model: as for ``fit``; the first stage starts with its present values.
        data: the examples of all clients.
        seed: everything random in every stage derives from it.
        out: a folder for the pipeline, with one for each stage below it; nothing is written without one.
        loss: as for ``fit``.
        metric: likewise.
        engine: likewise; ``auto`` measures in each stage.
        callbacks: as for ``fit``; every stage calls them, from ``on_start`` to ``on_end``. One that stops a stage does
            not stop the pipeline: the next stage begins.
        progress: as for ``fit``, with a bar for each stage.
        settings: the rare options of all stages. ``evaluate_every`` and ``checkpoint_every`` belong to a stage; stages
            know no aggregator, codec, attack or clock, and fixed cohorts only.

    Returns:
        A run for each stage.

    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": 1 - y}}, test=0.25)
    >>> stages = [
    ...     mo.Stage(mo.fedavg(shared=0.5), rounds=2),
    ...     mo.Stage(mo.finetune(personal=0.5), rounds=1, split="everything"),
    ... ]
    >>> mo.pipeline(stages, mo.models.linear(1, 2), fed, engine="sequential")
    [Run(fedavg, 2 rounds, 2 clients; test accuracy 0.5), Run(finetune, 1 rounds, 2 clients; test accuracy 1)]
    """
    stages, listeners = check_stages(stages), Callbacks(callbacks)
    check_kinds(model, data, stages[0].algorithm, None)
    options = Options(
        seed=seed, engine=engine, loss=loss, metric=metric, settings=Settings() if settings is None else settings
    )
    check_stage_options(options)
    first_split = check_ahead(stages, model, data)
    # The stages would find this too, but only after the folder has been made.
    first = complete_options(stages[0].options(options), model, data, stages[0].algorithm)
    problem = make_problem(model, data, stages[0].algorithm, first_split, first)
    for each in stages[1:]:
        check_clients(problem, each.algorithm)
    options = replace(options, loss=first.loss)
    folder = None if out is None else files.make_run_folder(out)
    if folder is not None:
        _write_pipeline(folder, stages, model, data, options)
    return _train_stages(stages, RunParts(model, data), options, folder, listeners, progress)


def continue_pipeline(
    path: Path,
    parts: RunParts,
    stages: Sequence[Stage] | None,
    callbacks: Callbacks,
    *,
    engine: str | None,
    progress: bool | None,
) -> list[Run]:
    """Continue the pipeline in a folder; ``resume`` says what the arguments are."""
    config, run = files.read_pipeline(path)
    keys = [key for key in REQUIRED if key not in (*OF_STAGES, "evaluate_on", "inputs")]
    first_options = read_stored_options(config, path, parts, file=PIPELINE, tables=("data", "model", "run"), keys=keys)
    options = replace(first_options, engine=first_options.engine if engine is None else engine)
    check_stage_options(options)
    plan = read_stages(config.get("stage"), stages, path)
    parts = remake(config, parts, ("model", "data"), "pipeline")
    files.remove_leftovers(path)
    files.write_config(path, config, run, PIPELINE)
    return _train_stages(plan, parts, options, path, callbacks, progress, engine)


def _write_pipeline(
    folder: Path, stages: Sequence[Stage], model: nn.Module | Task, data: FederatedData, options: Options
) -> None:
    """Write into the folder what the pipeline is."""
    runs = [str(file.parent) for file in sorted(folder.glob(f"*/{CONFIG}"))]
    must(not runs, "out", "a folder that holds no run yet", ", ".join(runs[:1]), "Choose another folder.")
    parts = {"data": table_of(data, "data"), "model": table_of(model, type(model).__name__)}
    tables = {**parts, **option_tables(options), "stage": [stage_table(each) for each in stages]}
    files.write_config(folder, tables, secrets.token_hex(8), PIPELINE)


def _train_stages(
    stages: Sequence[Stage],
    parts: RunParts,
    common: Options,
    folder: Path | None,
    callbacks: Callbacks,
    progress: bool | None,
    engine: str | None = None,
) -> list[Run]:
    """Begin every stage, or continue it where it has begun.

    ``parts`` has the model and the data, ``common`` the options of all stages. Stages that have begun take ``engine``
    and the settings of ``parts``.
    """
    runs: list[Run] = []
    model, before = parts.model, None
    names = files.stage_names(each.algorithm.name for each in stages)
    if folder is not None:
        files.check_stages(folder, names)
    for number, (name, each) in enumerate(zip(names, stages, strict=True), 1):
        place = None if folder is None else folder / name
        trained_model = _model_after(model, runs[-1]) if runs else model
        split: Split = split_for(number, each, trained_model, before)
        if split is not before:  # else it was made on the model that we have already
            model = trained_model
        options = each.options(common)
        if place is not None and (place / CONFIG).is_file():
            stage_parts = RunParts(
                model, parts.data, each.algorithm, split, options.loss, options.metric, parts.settings
            )
            if files.read_notes(place, files.read_id(place)):  # a callback ended it: it stays as it is
                run = open_run(place, stage_parts)
            else:
                run = continue_run(place, stage_parts, callbacks, engine=engine, progress=progress)
        else:
            arguments = {**vars(options), "start": runs[-1] if runs else None}
            listeners: dict[str, Any] = {"callbacks": callbacks.all, "progress": progress}
            run = fit(model, parts.data, each.algorithm, split=split, out=place, **listeners, **arguments)
        runs.append(run)
        before = split
    return runs


def _model_after(model: nn.Module | Task, last: Run) -> nn.Module | Task:
    """The model with what all clients share after the stage, and what the stage's split put into it."""
    return replace(model, init=last.shared_parameters()) if isinstance(model, Task) else last.shared_module()


def split_for(number: int, each: Stage, model: nn.Module | Task, before: Split | None) -> Split:
    """The split of a stage, made on the model as it is then; ``before`` is that of the stage before."""
    split, name = each.split, f"stage.{number}.split"
    personal = before is not None and bool(before.trained_personal)
    if split is None and personal and each.algorithm.needs in ("any", "personal"):
        split = before
    split = each.algorithm.default_split if split is None else split
    must(split is not None, name, f"given for {each.algorithm.name}", "nothing", 'As in split="output_layer".')
    if isinstance(split, str | dict):
        table = {"name": split} if isinstance(split, str) else split
        if before is not None and before.spec == table:
            split = before
        else:
            hint = "Give a Split or a function of the task."
            must(isinstance(model, nn.Module), name, "no name where the model is a Task", table.get("name"), hint)
            split = split_from(table, cast(nn.Module, model), name)
    if callable(split):
        split = split(model)
        kind(name, split, Split, "a function that gives a Split")
    assert isinstance(split, Split)
    if split is not before:
        names = set(model.init if isinstance(model, Task) else tree.module_tensors(split.model or model))
        fault = f"one with other names, {min(names ^ split.sizes.keys(), default='')} for one"
        hint = "Give a name, a table or a function of the model, so that it is made on the model of that stage."
        must(names == split.sizes.keys(), name, "made for the model of that stage", fault, hint)
    check_split(each.algorithm, split)
    return split


def check_ahead(stages: Sequence[Stage], model: nn.Module | Task, data: FederatedData) -> Split:
    """Check all stages before hours of training are spent; return the split of the first.

    Splits are tried on the untrained model. A later split that is a function of the user's own may look at trained
    values, so the check ends before it.
    """
    splits: list[Split] = []
    for number, each in enumerate(stages, 1):
        fits = each.cohort is None or each.cohort <= len(data)
        must(fits, f"stage.{number}.cohort", f"<= {len(data)}, the number of clients", each.cohort)
    for number, each in enumerate(stages, 1):
        if callable(each.split) and number > 1:
            break
        before = splits[-1] if splits else None
        split = split_for(number, each, model, before)
        early = isinstance(each.split, Split) and split.model is not None and number > 1 and split is not before
        hint = 'Give a table, as in split={"name": "adapters"}.'
        must(not early, f"stage.{number}.split", "made on the trained model", "one of the untrained model", hint)
        model = split.model or model
        splits.append(split)
    return splits[0]


def check_stages(stages: Sequence[Stage]) -> list[Stage]:
    """The stages, if that is what they are."""
    kind("stages", stages, (list, tuple), "a list of stages", "As in [moiety.Stage(...), moiety.Stage(...)].")
    must(len(stages) > 0, "stages", "a list of at least one stage", "none")
    for each in stages:
        kind("stages", each, Stage, "a list of moiety.Stage(...)")
    return list(stages)


def stage_table(each: Stage) -> Spec:
    """A stage as a file says it."""
    split = {"name": each.split} if isinstance(each.split, str) else each.split
    if split is not None and not isinstance(split, dict):
        split = table_of(split, "split")
    algorithm = table_of(each.algorithm, each.algorithm.name)
    return files.drop_none({**vars(each), "split": split, "algorithm": algorithm})  # type: ignore[no-any-return]


def stage_from(number: int, table: Spec) -> Stage:
    """The stage that a table of a file describes."""
    name = f"stage.{number}"
    table = check_table(name, table, FILE_TYPES, hints=SECTION_HINTS)
    for key in ("algorithm", "rounds"):
        must(key in table, f"{name}.{key}", "given", "nothing", "Add it to that [[stage]].")
    if "split" in table:
        choice(f"{name}.split.name", table["split"].get("name"), SPLITS)
    return Stage(**{**table, "algorithm": algorithm_from(table["algorithm"], f"{name}.algorithm")})


def read_stages(tables: Any, stages: Sequence[Stage] | None, path: Path) -> list[Stage]:
    """The stages that a folder describes, or the given ones where they are the same."""
    has_stages = isinstance(tables, list) and bool(tables) and all(isinstance(each, dict) for each in tables)
    must(has_stages, PIPELINE, "one with tables [[stage]]", f"none in {path}")
    if stages is not None:
        same = [stage_table(each) for each in check_stages(stages)] == tables
        must(same, "stages", "as the pipeline began with", "others", "Begin another pipeline for those.")
        return list(stages)
    for number, table in enumerate(tables, 1):
        for part in (part for part in ("algorithm", "split") if part in table):
            hint = "Resume it with stages=[...] as it began."
            must(not own_part(table, part), "stages", "given again", f"nothing for the {part} of stage {number}", hint)
    return [stage_from(number, table) for number, table in enumerate(tables, 1)]
