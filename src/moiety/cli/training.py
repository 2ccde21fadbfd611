"""``moiety run``: a recipe or a file, begun or continued, watched, and summed up at its end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from moiety.cli.commands import Request
from moiety.cli.config import Config, Table, assign, check, check_same, read
from moiety.cli.output import say, show, show_page
from moiety.cli.places import folder_for, name_of
from moiety.cli.progress import reporter
from moiety.cli.remembering import remembered, remembering
from moiety.errors import must
from moiety.recipes import RECIPES, Watch
from moiety.recipes.base import is_run

if TYPE_CHECKING:
    from moiety.run.result import Run

T = TypeVar("T")
Begun = Callable[[Path], None]
"""Called with the folder once it is known where the run goes."""


def train(request: Request, begun: Begun) -> None:
    """Do what was asked and print how it ended."""
    if request.target in RECIPES:
        _recipe(request, begun)
    else:
        _file(request, begun)


def _recipe(request: Request, begun: Begun) -> None:
    name = request.target
    hint = "Only --scale, --rounds, --seed, --engine and --out may be given with a recipe."
    must(not request.sets, "--set", f"left out for the recipe {name}", ", ".join(request.sets), hint)
    must(request.workers is None, "--workers", f"left out for the recipe {name}", request.workers, hint)
    folder = folder_for(name, request.out, resume=request.resume)
    must(not is_run(folder), "out", f"a folder of the recipe {name}", f"{folder}, a single run")
    begun(folder)

    outcome = _watched(
        request,
        lambda watch: RECIPES[name](
            out=folder,
            rounds=request.rounds,
            seed=request.seed,
            engine=request.engine,
            resume=request.resume,
            watch=watch,
            scale=request.scale,
        ),
    )
    from moiety.cli.comparing import show_results
    from moiety.cli.results import of_run

    if not request.quiet:
        say()
        if outcome.report:
            show_page(outcome.report)
        else:
            show_results([of_run(each, run) for each, run in outcome.runs.items()])
        say()
    say(outcome.closing)
    say(f"results in {folder}")


def _file(request: Request, begun: Begun) -> None:
    must(bool(request.target), "target", "a recipe or a TOML file", "nothing")
    must(request.scale is None, "--scale", "left out for a file", request.scale, "Only recipes have scales.")
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
    options = {"rounds": request.rounds, "seed": request.seed, "engine": request.engine, "workers": request.workers}
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
    from moiety.run.fit import fit
    from moiety.run.folder import read_config
    from moiety.run.resume import resume

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
