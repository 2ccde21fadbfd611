"""``moiety run``: a recipe or a file, begun or continued, watched, and summed up at its end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from moiety.cli.folders import KeepAssignments, folder_for, read_assignments, run_name
from moiety.cli.output import say, show_page
from moiety.cli.progress import show_progress
from moiety.cli.report import report_end
from moiety.cli.request import Request
from moiety.cli.summary import show_end
from moiety.errors import must
from moiety.experiments.config import (
    Config,
    Table,
    assign,
    check_builders,
    check_same,
    check_tables,
    make_parts,
    make_trackers,
    read_assignment,
    read_file,
)
from moiety.experiments.registry import list_recipes, load_recipe
from moiety.run.fit import fit
from moiety.run.folder import read_config, read_pipeline
from moiety.run.pipeline import pipeline
from moiety.run.protocol import Callback
from moiety.run.result import Run
from moiety.run.resume import resume
from moiety.run.settings import MAY_DIFFER, Settings
from moiety.seals import CONFIG

OnFolder = Callable[[Path], None]
"""Called with the folder once it is known where the run goes."""


def run_target(request: Request, on_folder: OnFolder) -> None:
    """Run the recipe or the file that was named, and print how it ended."""
    must(bool(request.target), "target", "a recipe or a TOML file", "nothing")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # a client's batches are small: more threads cost more than they give
    if not request.target.endswith(".toml") and request.target in list_recipes():
        return _run_recipe(request, on_folder)
    return _run_file(request, on_folder)


def _run_recipe(request: Request, on_folder: OnFolder) -> None:
    name, hint = request.target, "A recipe chooses them by itself."
    must(request.workers is None, "--workers", f"left out for the recipe {name}", request.workers, hint)
    recipe = load_recipe(name)
    changes = dict(read_assignment(each) for each in request.sets)
    folder = folder_for(name, request.out, resume=request.resume)
    must(not (folder / CONFIG).is_file(), "out", f"a folder of the recipe {name}", f"{folder}, a single run")
    on_folder(folder)
    with show_progress(request.quiet) as watch:
        outcome = recipe.run(
            out=folder,
            scale=request.scale,
            rounds=request.rounds,
            seed=request.seed,
            seeds=request.seeds,
            changes=changes,
            engine=request.engine,
            device=request.device,
            resume=request.resume,
            watch=lambda label, place: watch(label),
        )
    if not request.quiet:
        say()
        show_page(outcome.page)
        say()
    report_end(folder, quiet=request.quiet)
    say(outcome.sentence)
    say(f"results in {folder}")


def _run_file(request: Request, on_folder: OnFolder) -> None:
    for option, value in {"--scale": request.scale, "--seeds": request.seeds}.items():
        must(value is None, option, "left out for a file", value, "Only recipes have it.")
    path = Path(request.target)
    name, tables = run_name(path), read_file(path)
    folder = folder_for(name, request.out, resume=request.resume)
    sets = _assignments(request)
    before = read_assignments(folder) if request.resume else []
    config, overrides = _configure(tables, before, sets)
    on_folder(folder)
    with show_progress(request.quiet) as watch:
        callbacks: list[Callback] = [watch(name), *make_trackers(config.tables)]
        if not before:  # interrupted in its first round, a run has not written down what it was told
            callbacks.append(KeepAssignments(folder, sets))
        if request.resume:
            original = read_pipeline(folder)[0] if "stage" in tables else read_config(folder)
            check_builders(config.tables)
            check_same(_comparable(tables), original, folder)
            runs = _continue(folder, config, overrides, callbacks)
        else:
            runs = _begin(folder, config, callbacks)
    show_end(runs, name, folder, quiet=request.quiet)


def _assignments(request: Request) -> list[str]:
    """All that the command line sets, as --set has it."""
    names = ("rounds", "seed", "engine", "workers", "device")
    options = {name: getattr(request, name) for name in names}
    return [*request.sets, *(f"run.{key}={value}" for key, value in options.items() if value is not None)]


def _configure(tables: Table, before: list[str], sets: list[str]) -> tuple[Config, Table]:
    """Put what was and is set into the file's tables and check them; also the ``[run]`` keys that are set now."""
    overrides: Table = {}
    for assignment in (*before, *sets):
        assign(tables, assignment)
    for assignment in sets:
        if assignment.partition(".")[0].strip() == "run":
            assign(overrides, assignment)
    return check_tables(tables), overrides.get("run", {})


def _begin(folder: Path, config: Config, callbacks: list[Callback]) -> list[Run]:
    """Run the file, in stages where it has any."""
    options = vars(config.options)
    watchers: Table = {"callbacks": callbacks, "progress": False}
    model, data, algorithm, split, stages = make_parts(config)
    if stages:
        common = {key: options[key] for key in ("seed", "engine", "loss", "metric", "settings")}
        return pipeline(stages, model, data, out=folder, **watchers, **common)
    assert algorithm is not None
    return [fit(model, data, algorithm, split=split, out=folder, **watchers, **options)]


def _continue(folder: Path, config: Config, overrides: Table, callbacks: list[Callback]) -> list[Run]:
    """Continue the run or the pipeline in a folder; ``overrides`` are keys of ``[run]`` that the command line sets."""
    fields = {name: overrides[name] for name in MAY_DIFFER if name in overrides}
    settings = Settings(**fields, attackers=config.options.settings.attackers)
    rounds = None if "stage" in config.tables else overrides.get("rounds")
    common: Table = {"engine": overrides.get("engine"), "settings": settings}
    runs = resume(folder, rounds=rounds, callbacks=callbacks, progress=False, **common)
    return runs if isinstance(runs, list) else [runs]


def _comparable(tables: Table) -> Table:
    """The tables to compare with those that a run began with.

    The folder names the attackers that a share or positions mean, and ``resume`` compares them. Trackers change no
    number, so they may change.
    """
    tables = {key: table for key, table in tables.items() if key != "track"}
    return {**tables, "run": {key: value for key, value in tables.get("run", {}).items() if key != "attackers"}}
