"""Pipelines: stages of training, each of which starts where the one before has ended.

Pillutla et al. 2022, appendix B.2: (a) one model is trained for all, (b) shared and personal parameters are trained
from there, (c) every client finetunes its personal parameters with the shared ones fixed. In a folder ``OUT`` each
stage is an ordinary run, ``OUT/1-fedavg``, ``OUT/2-fedalt``, ..., and ``OUT/pipeline.toml`` says what they make up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from moiety import task as tasks
from moiety.data import FederatedData
from moiety.errors import must
from moiety.run import folder as files
from moiety.run.build import make_problem, named_tables
from moiety.run.checks import check_clients, check_kinds
from moiety.run.fit import fit
from moiety.run.reopen import Given, check_keys, continue_run, remake
from moiety.run.result import Run
from moiety.run.settings import Options, Settings, change_settings, complete_options, option_tables, read_options
from moiety.run.stages import (
    Stage,
    check_ahead,
    check_stage_options,
    check_stages,
    split_for,
    stage_table,
    stored_stages,
)
from moiety.run.train import OnRound
from moiety.split import Split
from moiety.types import Metric, Task

Watch = Callable[[str, Path | None], OnRound | None]
"""Called with the name and folder of each stage before it begins; what it returns is called after every round."""


def pipeline(
    stages: Sequence[Stage],
    model: nn.Module | Task,
    data: FederatedData,
    *,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    loss: tasks.Loss | None = None,
    metric: str | Metric | None = None,
    engine: str = "auto",
    watch: Watch | None = None,
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
        watch: called with the name (``1-fedavg``) and the folder of each stage before it begins; what it returns is
            called after every round of it, as ``on_round`` of ``fit`` is.
        settings: the rare options of all stages. ``evaluate_every`` and ``checkpoint_every`` belong to a stage; stages
            know no aggregator, codec, attack or clock, and fixed cohorts only.

    Returns:
        A run for each stage.
    """
    stages = check_stages(stages)
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
    whole = Pipeline(stages, model, data, replace(options, loss=first.loss), None if out is None else files.empty(out))
    whole.write()
    return whole.train(watch)


def continue_pipeline(
    path: Path, given: Given, stages: Sequence[Stage] | None, *, engine: str | None, watch: Watch | None
) -> list[Run]:
    """Continue the pipeline in a folder; ``resume`` says what the arguments are."""
    config = files.read_config(path, files.PIPELINE)
    for table in ("data", "model", "run"):
        must(isinstance(config.get(table), dict), files.PIPELINE, f"one with a table [{table}]", f"none in {path}")
    check_keys(config["run"], ["seed", "engine", "device", "partial", "inputs"], path)
    began = read_options(config, given.settings)
    settings = change_settings(began.settings, given.settings)
    loss, metric = given.loss or began.loss, given.metric or began.metric
    options = replace(began, engine=engine or began.engine, loss=loss, metric=metric, settings=settings)
    check_stage_options(options)
    known = stored_stages(config.get("stage"), stages, path)
    given = remake(config, given, ("model", "data"), "pipeline")
    files.tidy(path)
    files.write_config(path, config, files.PIPELINE)
    return Pipeline(known, given.model, given.data, options, path).train(watch, engine, given.settings)


@dataclass(frozen=True)
class Pipeline:
    """A checked pipeline; ``options`` are those of all stages."""

    stages: Sequence[Stage]
    model: nn.Module | Task
    data: FederatedData
    options: Options
    folder: Path | None

    def write(self) -> None:
        """Write into the folder, if there is one, what the pipeline is."""
        if self.folder is None:
            return
        taken = [str(file.parent) for file in sorted(self.folder.glob(f"*/{files.CONFIG}"))]
        must(not taken, "out", "a folder that holds no run yet", ", ".join(taken[:1]), "Choose another folder.")
        tables: dict[str, Any] = {**named_tables(self.model, self.data), **option_tables(self.options)}
        tables["stage"] = [stage_table(each) for each in self.stages]
        files.write_config(self.folder, tables, files.PIPELINE)

    def train(self, watch: Watch | None, engine: str | None = None, settings: Settings | None = None) -> list[Run]:
        """Begin every stage, or continue it where it has begun: with that engine and those settings, if given."""
        runs: list[Run] = []
        model, before = self.model, None
        for number, each in enumerate(self.stages, 1):
            name = f"{number}-" + re.sub(r"[^\w.-]", "_", each.algorithm.name)
            folder = None if self.folder is None else self.folder / name
            trained = _trained(model, runs[-1]) if runs else model
            split: Split = split_for(number, each, trained, before)
            if split is not before:  # else it was made on the model that we have already
                model = trained
            on_round = watch(name, folder) if watch else None
            options = each.options(self.options)
            if folder is not None and (folder / files.CONFIG).is_file():
                given = Given(model, self.data, each.algorithm, split, options.loss, options.metric, settings)
                run = continue_run(folder, given, engine=engine, on_round=on_round)
            else:
                arguments = {**vars(options), "start": runs[-1] if runs else None}
                run = fit(model, self.data, each.algorithm, split=split, out=folder, on_round=on_round, **arguments)
            runs.append(run)
            before = split
        return runs


def _trained(model: nn.Module | Task, last: Run) -> nn.Module | Task:
    """The model with what all clients share after the stage, and what the stage's split put into it."""
    return replace(model, init=last.shared_parameters()) if isinstance(model, Task) else last.export()
