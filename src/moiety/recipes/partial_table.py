"""The experiments of Pillutla et al. 2022: runs, tables with the paper's numbers beside them, claims, figures.

A recipe's folder holds ``recipe.json`` (what was asked for), a folder for each setting with ``tuning`` and ``seed-S``
(the runs, and what is left of each), the figures, and ``table.json`` and ``table.md``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.errors import MoietyError, choice, message, must
from moiety.recipes.base import RECIPE, Outcome, Watch
from moiety.recipes.partial_summary import Found
from moiety.recipes.rates import choose
from moiety.recipes.running import Ended, Runner, split_of
from moiety.recipes.setting import SCALES, Setting
from moiety.recipes.steps import steps

if TYPE_CHECKING:
    from moiety.data import FederatedData


def partial_table(
    name: str,
    settings: Callable[[str], Sequence[Setting]],
    *,
    scale: str | None,
    out: Path | None,
    rounds: int | None,
    seed: int | None,
    engine: str | None,
    resume: bool,
    watch: Watch,
) -> Outcome:
    """Run what has not ended yet, then write and return the tables.

    Args:
        name: the recipe's.
        settings: the recipe's settings at a scale.
        scale: one of ``SCALES``, ``laptop`` by default.
        out: a folder for runs, tables and figures; nothing is written without one.
        rounds: of stage (a), instead of the scale's; stage (b) keeps its ratio to it.
        seed: the first of the seeds, and the seed of the data; 0 by default.
        engine: as in ``moiety.fit``; left open, the first run of a setting measures and the others use what it chose.
        resume: continue what has begun in ``out``.
        watch: called before each run; gives what is to be called after every round.
    """
    from moiety.engines.auto import check_engine
    from moiety.recipes.partial_report import report

    asked = asked_for(out, {"recipe": name, "scale": scale, "rounds": rounds, "seed": seed}, resume)
    made = [replace(s, stages=s.stages.with_rounds(asked["rounds"])) for s in settings(asked["scale"])]
    check_engine(engine or "auto")
    data = [setting.data(asked["seed"]) for setting in made]  # before anything is written: it may not be at hand
    keep_asked(out, asked)
    found = [_run(each, fed, asked["seed"], out, engine, watch) for each, fed in zip(made, data, strict=True)]
    text, sentence = report(name, asked, found, out)
    return Outcome({}, sentence, text)


def asked_for(out: Path | None, asked: dict[str, Any], resume: bool) -> dict[str, Any]:
    """What was asked for, settled: as given, else as it began, else by default."""
    file = None if out is None else out / RECIPE
    begun = file is not None and file.is_file()
    must(resume or not begun, "out", "a folder that holds no run yet", out, "Resume it, or choose another folder.")
    was = _read(file) if begun and file is not None else {"scale": "laptop", "rounds": None, "seed": 0}
    settled = {key: was.get(key) if value is None else value for key, value in asked.items()}
    if begun:
        for key, value in settled.items():
            hint = "Leave it out, or begin in another folder."
            must(value == was.get(key), key, f"{was.get(key)}, as the recipe began", value, hint)
    choice("scale", settled["scale"], SCALES)
    return settled


def keep_asked(out: Path | None, asked: dict[str, Any]) -> None:
    """Keep what was asked for; where nothing is new, the file's time still says when the recipe was continued."""
    from moiety.files import report_failure, write_file

    if out is not None:
        with report_failure(out):
            out.mkdir(parents=True, exist_ok=True)
        write_file(out / RECIPE, (json.dumps(asked, indent=1) + "\n").encode())


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise MoietyError(message(file.name, "as it was written", f"{file}: {error}")) from None
    must(isinstance(found, dict), file.name, "a table", f"another in {file}")
    return dict(found)


def _run(
    setting: Setting, tuned: FederatedData, seed: int, out: Path | None, engine: str | None, watch: Watch
) -> Found:
    """Choose the rates, then run all steps of all seeds; the clients' data are the same for each."""
    folder = None if out is None else out / setting.name

    def below(name: str) -> Path | None:
        return None if folder is None else folder / name

    runner = Runner(setting, tuned, seed, below("tuning"), engine, watch, f"{setting.name} tuning", part="validation")
    chosen = choose(setting, runner)
    engine = runner.engine
    data = tuned.with_validation_in_train()
    seeds: dict[int, dict[str, Ended]] = {}
    for each in range(seed, seed + setting.stages.seeds):
        runner = Runner(setting, data, each, below(f"seed-{each}"), engine, watch, f"{setting.name} seed {each}")
        seeds[each] = {step.name: runner.run(step) for step in steps(setting, chosen.rates)}
        engine = runner.engine
    return Found(setting, chosen, seeds, _memory(setting, data, seed), folder)


def _memory(setting: Setting, data: FederatedData, seed: int) -> list[dict[str, Any]]:
    """Table 10: what one device needs, by split."""
    import torch

    from moiety.analysis.costs import memory_rows

    model = setting.model(seed)
    batch = {name: torch.as_tensor(column[:1]) for name, column in data.at(0).items()}
    how = {key: setting.fit[key] for key in ("loss", "inputs") if key in setting.fit}
    return list(memory_rows(model, {name: split_of(setting, name, model) for name in setting.splits}, batch, **how))
