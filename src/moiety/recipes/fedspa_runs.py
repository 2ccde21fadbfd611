"""The runs behind the recipes of FedSpa (Huang et al. 2022): every method in every setting, over seeds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.errors import MoietyError, message, whole
from moiety.recipes.base import Outcome, Watch, is_run
from moiety.recipes.partial_table import asked_for, keep_asked

if TYPE_CHECKING:
    from torch import nn

    from moiety.data import FederatedData
    from moiety.types import Algorithm

IID, A, B = "IID", "A", "B"
SETTINGS = (IID, A, B)
"""How labels are dealt: alike, and by Dirichlet distributions of which B is the more uneven."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One data set with one model at one scale.

    ``data(setting, seed)`` deals it, ``methods`` are the rows, by the names that tables show. ``gamma`` are the
    parameters of the Dirichlet distributions of settings A and B. A run is evaluated every ``every`` rounds.
    ``paper`` says whose numbers stand beside ours.
    """

    name: str
    title: str
    data: Callable[[str, int], FederatedData]
    model: Callable[[int], nn.Module]
    methods: Mapping[str, Algorithm]
    rounds: int
    seeds: int
    every: int
    cohort: int = 10
    gamma: tuple[float, float] = (0.5, 0.3)
    paper: str = ""
    notes: tuple[str, ...] = ()

    def panel(self, setting: str) -> str:
        """The setting as a reader wants it."""
        return setting if setting == IID else f"{setting}: Dirichlet({self.gamma[setting == B]:g})"


@dataclass(frozen=True)
class Course:
    """What is left of a run: accuracies along its rounds, of personal models and of the shared one; its bill."""

    rounds: list[int]
    scores: list[float]
    shared: list[float]
    ledger: dict[str, Any]
    engine: str
    seconds: float

    def reached(self, score: float) -> int | None:
        """The round of the first evaluation with at least that score; None where there is none."""
        return next((t for t, s in zip(self.rounds, self.scores, strict=True) if s >= score), None)


Courses = dict[tuple[str, str], list[Course]]
"""By setting and method, a course for each seed."""
Found = Sequence[tuple[Task, Courses]]
Report = Callable[[dict[str, Any], Found, Path | None], tuple[str, str]]


def experiment(
    name: str,
    tasks: Callable[[str], list[Task]],
    report: Report,
    *,
    scale: str | None,
    out: Path | None,
    rounds: int | None,
    seed: int | None,
    engine: str | None,
    resume: bool,
    watch: Watch,
) -> Outcome:
    """Run what has not ended yet, then report.

    Args:
        name: the recipe's.
        tasks: what is run at a scale.
        report: from what was asked for, what was found and the folder to the page and its closing sentence.
        scale: ``ci``, ``laptop`` (by default) or ``paper``.
        out: a folder for runs, tables and figures; nothing is written without one.
        rounds: of every run, instead of the scale's.
        seed: the first of the seeds; 0 by default.
        engine: as in ``moiety.fit``; left open, the first run of a task measures and the others use what it chose.
        resume: continue what has begun in ``out``.
        watch: called before each run; gives what is to be called after every round.
    """
    from moiety.engines.auto import check_engine

    asked = asked_for(out, {"recipe": name, "scale": scale, "rounds": rounds, "seed": seed}, resume)
    check_engine(engine or "auto")
    made = tasks(asked["scale"])
    if asked["rounds"] is not None:
        whole("rounds", asked["rounds"], 1)
        made = [replace(task, rounds=asked["rounds"], every=min(task.every, asked["rounds"])) for task in made]
    for task in made:
        task.data(IID, asked["seed"])  # before anything is written: it may not be at hand
    keep_asked(out, asked)
    found = [(task, _courses(task, asked["seed"], out, engine, watch)) for task in made]
    text, sentence = report(asked, found, out)
    return Outcome({}, sentence, text)


def _courses(task: Task, seed: int, out: Path | None, engine: str | None, watch: Watch) -> Courses:
    """All runs of a task. The methods of one setting and seed see the same data, first weights and cohorts."""
    found: Courses = {(setting, method): [] for setting in SETTINGS for method in task.methods}
    for setting in SETTINGS:
        for each in range(seed, seed + task.seeds):
            data = task.data(setting, each)
            for method in task.methods:
                folder = None if out is None else out / task.name / setting / f"seed-{each}" / slug(method)
                course = _run(task, data, method, each, folder, engine, watch(f"{task.name} {setting}", folder))
                engine = engine or course.engine
                found[setting, method].append(course)
    return found


def slug(name: str) -> str:
    """A method's name as that of a folder.

    >>> slug("FedSpa (DST)"), slug("sparsity 0.2")
    ('fedspa-dst', 'sparsity-0.2')
    """
    return name.lower().replace("(", "").replace(")", "").replace(",", "").replace(" ", "-")


def _run(
    task: Task, data: FederatedData, method: str, seed: int, folder: Path | None, engine: str | None, on_round: Any
) -> Course:
    """One run: read where it has ended, else begun or continued."""
    from moiety.files import write_file

    file = None if folder is None else folder.with_name(folder.name + ".json")
    if file is not None and file.is_file():
        return read(file)
    began = time.perf_counter()
    parts: dict[str, Any] = {"model": task.model(seed), "data": data, "on_round": on_round}
    if folder is not None and is_run(folder):
        run = mo.resume(folder, **parts, engine=engine)
    else:
        how: dict[str, Any] = {"rounds": task.rounds, "cohort": task.cohort}
        how["settings"] = mo.Settings(evaluate_every=task.every)
        run = mo.fit(algorithm=task.methods[method], **parts, **how, seed=seed, engine=engine or "auto", out=folder)
    rounds, scores, shared = ([row[key] for row in run.history] for key in ("round", "metric", "shared_metric"))
    course = Course(rounds, scores, shared, dict(run.ledger), run.engine, time.perf_counter() - began)
    if file is not None:
        write_file(file, json.dumps(asdict(course)).encode())
    return course


def read(file: Path) -> Course:
    """What is left of a run that has ended."""
    try:
        return Course(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        hint = "Remove the file: the run is then continued from its folder."
        raise MoietyError(message(file.name, "as it was written", f"{file}: {error}", hint)) from None
