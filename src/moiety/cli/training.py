"""``moiety run``: a recipe or a file, begun or continued, watched, and summed up at its end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from moiety.cli.commands import Request
from moiety.cli.config import Config, Table, assign, check, check_same, read, read_assignment
from moiety.cli.output import say, show, show_page
from moiety.cli.places import folder_for, is_run, name_of
from moiety.cli.progress import reporter
from moiety.cli.remembering import remembered, remembering
from moiety.errors import must
from moiety.experiments import Watch, list_recipes, load_recipe

if TYPE_CHECKING:
    from moiety.engines import Run

T = TypeVar("T")
Begun = Callable[[Path], None]
"""Called with the folder once it is known where the run goes."""


def train(request: Request, begun: Begun) -> None:
    """Do what was asked and print how it ended."""
    if request.target in list_recipes():
        _recipe(request, begun)
    elif not request.target.endswith(".toml") and _is_unported(request.target):
        _unported(request, begun)
    else:
        _file(request, begun)


def _is_unported(name: str) -> bool:
    from moiety.recipes import RECIPES

    return name in RECIPES


def _unported(request: Request, begun: Begun) -> None:
    """A recipe that is no ``Experiment`` yet."""
    from moiety.recipes import RECIPES

    given = {"out": request.out, "rounds": request.rounds, "seed": request.seed, "engine": request.engine}
    folder = folder_for(request.target, request.out, resume=request.resume)
    begun(folder)
    options = {**given, "out": folder, "resume": request.resume, "scale": request.scale}
    outcome = _watched(request, lambda watch: RECIPES[request.target](**options, watch=watch))  # type: ignore[arg-type]
    if not request.quiet:
        show_page(f"\n{outcome.report}\n")
    say(outcome.closing)
    say(f"results in {folder}")


def _recipe(request: Request, begun: Begun) -> None:
    name = request.target
    hint = "A recipe chooses them by itself."
    must(request.workers is None, "--workers", f"left out for the recipe {name}", request.workers, hint)
    recipe = load_recipe(name)
    changes = dict(read_assignment(each) for each in request.sets)
    folder = folder_for(name, request.out, resume=request.resume)
    must(not is_run(folder), "out", f"a folder of the recipe {name}", f"{folder}, a single run")
    begun(folder)
    outcome = _watched(
        request,
        lambda watch: recipe.run(
            out=folder,
            scale=request.scale,
            rounds=request.rounds,
            seed=request.seed,
            seeds=request.seeds,
            changes=changes,
            engine=request.engine,
            device=request.device,
            resume=request.resume,
            watch=watch,
        ),
    )
    if not request.quiet:
        say()
        show_page(outcome.page)
        say()
    say(outcome.sentence)
    say(f"results in {folder}")


def _file(request: Request, begun: Begun) -> None:
    must(bool(request.target), "target", "a recipe or a TOML file", "nothing")
    for option, value in {"--scale": request.scale, "--seeds": request.seeds}.items():
        must(value is None, option, "left out for a file", value, "Only recipes have it.")
    path = Path(request.target)
    name = name_of(path)
    tables = read(path)
    folder = folder_for(name, request.out, resume=request.resume)
    sets = _assignments(request)
    before = remembered(folder) if request.resume else []
    config, asked = _configured(tables, before, sets)
    begun(folder)

    def kept(watch: Watch) -> Watch:
        # Interrupted in its first round, a run has not written down what it was told.
        return watch if before else remembering(watch, folder, sets)

    if config.stage is not None:
        from moiety.cli import staging

        runs = _watched(request, lambda watch: staging.run(request, folder, config, tables, asked, kept(watch)))
        staging.close(runs, folder, quiet=request.quiet)
        return
    run = _watched(request, lambda watch: _run(request, name, folder, config, tables, asked, kept(watch)))

    from moiety.cli.closing import costs, scores, sentence
    from moiety.cli.results import of_run

    result = of_run(name, run)
    if not request.quiet:
        say()
        show(scores(result))
        say("shared alone: the shared model with the personal part as it was first; a gain above 0 is for the better\n")
        show(costs(result))
        say()
    say(sentence(result))
    say(f"results in {folder}")


def _assignments(request: Request) -> list[str]:
    """All that the command line sets, as --set has it."""
    options: dict[str, object] = {
        "rounds": request.rounds,
        "seed": request.seed,
        "engine": request.engine,
        "workers": request.workers,
    }
    options |= {"device": request.device}
    return [*request.sets, *(f"run.{key}={value}" for key, value in options.items() if value is not None)]


def _configured(tables: Table, before: list[str], sets: list[str]) -> tuple[Config, Table]:
    """Put what was and is set into the file's tables and check them; also the ``[run]`` keys that are set now."""
    asked = Table()
    for assignment in (*before, *sets):
        assign(tables, assignment)
    for assignment in sets:
        if assignment.partition(".")[0].strip() == "run":
            assign(asked, assignment)
    return check(tables), asked.get("run", {})


def _run(request: Request, name: str, folder: Path, config: Config, tables: Table, asked: Table, watch: Watch) -> Run:
    on_round = watch(name, folder)

    from moiety.cli.building import options, parts
    from moiety.engines import fit, resume
    from moiety.engines.folder import read_config

    if request.resume:
        # The folder names the attackers that a share or positions in the file mean: the run compares them.
        given = {**tables, "run": {k: v for k, v in tables.get("run", {}).items() if k != "attackers"}}
        check_same(given, read_config(folder), folder)
        free = {key: asked.get(key) for key in ("rounds", "engine", "workers")}
        return resume(folder, **free, attackers=config.run.attackers, on_round=on_round)
    hint = "Write it into the file or use --rounds."
    must(config.run.rounds is not None, "run.rounds", "given", "nothing", hint)
    made = parts(config)
    how = options(config.run)
    return fit(
        made.model, made.data, made.algorithm, split=made.split, out=folder, on_round=on_round, **made.ways, **how
    )


def _watched(request: Request, work: Callable[[Watch], T]) -> T:
    with reporter(request.quiet) as shown:
        import torch

        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)  # a client's batches are small: more threads cost more than they give
        return work(shown.watch)
