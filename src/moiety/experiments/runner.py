"""Runs an experiment: settles the options, runs each cell once and keeps its result, then writes the page."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.errors import choice, must, whole
from moiety.experiments.page import find_commit, write_page
from moiety.experiments.plans import SCALES, change_plan, describe_plan, plain_fields
from moiety.experiments.records import Cell, Key, Outcome, Row, Watch, watch_nothing
from moiety.files import make_folder
from moiety.seals import RECIPE, digest, is_whole_table, read_sealed, write_sealed

if TYPE_CHECKING:
    from moiety.experiments.experiment import Experiment
    from moiety.run.result import Run

LOGGER = logging.getLogger("moiety.cells")
AGAIN = ("model", "data", "split", "algorithm", "loss", "metric", "settings")
"""The arguments of ``moiety.fit`` that a run needs again when it is continued."""


def run(
    experiment: Experiment[Any], request: Row, out: Path | None, *, engine: str | None, resume: bool, watch: Watch
) -> Outcome:
    """Run what has not ended yet, and write the page.

    ``request`` holds the options that must stay the same when the experiment is resumed; None is what was left out.
    """
    from moiety.engines.auto import check_engine

    _check_options(experiment, {**request, "engine": engine})
    options, run = _settle(experiment, request, out, resume)
    choice("scale", options["scale"], SCALES)
    check_engine(engine or experiment.engine)
    plan, seeds = _make_plan(experiment, options)
    from moiety.data.sources.provenance import note_files  # here: lists of recipes do without NumPy

    with note_files() as files:
        cells = experiment.cells(plan, seeds)
        cell = next(cells)  # before anything is written: the data may not be at hand
        if out is not None:  # also where nothing is new: the file's time says when the experiment was continued
            record = {"recipe": experiment.name, "plan": _fingerprint(plan), **options}
            write_sealed(make_folder(out, private=False) / RECIPE, record, run)
        rounds = plan.rounds if experiment.extensible else None
        runner = Runner(out, engine, experiment.engine, options["device"], watch, files, id=run, rounds=rounds)
        with contextlib.suppress(StopIteration):
            while True:
                cell = cells.send(runner.run_all(cell) if isinstance(cell, list) else runner.run(cell))
    page = experiment.page(plan, seeds, runner.results)
    return write_page(experiment, {**options, "engine": engine}, page, runner.results, out, run)


def _check_options(experiment: Experiment[Any], options: Row) -> None:
    for name, reason in experiment.refused.items():
        value = options.get(name) or options["changes"].get(name)
        must(value is None, name, f"left out for {experiment.name}", value, reason)
    for name, least in {"rounds": 1, "seeds": 1, "seed": 0}.items():
        if options[name] is not None:
            whole(name, options[name], least)


def _settle(experiment: Experiment[Any], request: Row, out: Path | None, resume: bool) -> tuple[Row, str]:
    """The options as given, else as the experiment began, else as they are by default; and the id of what is run."""
    file = None if out is None else out / RECIPE
    if file is None or not file.is_file():
        return {**request, "scale": request["scale"] or "laptop", "seed": request["seed"] or 0}, secrets.token_hex(8)
    must(resume, "out", "a folder that holds no run yet", out, "Resume it, or choose another folder.")
    record = read_sealed(file, None, ("run", "recipe", "plan", *request), "Begin in another folder.")
    must(record["recipe"] == experiment.name, "out", f"a folder of {experiment.name}", f"one of {record['recipe']}")
    options = {key: record[key] if value in (None, {}) else value for key, value in request.items()}
    for key, value in options.items():
        more = experiment.extensible and key == "rounds" and (record[key] or 0) < (value or 0)
        hint = "Leave it out, or begin in another folder."
        must(more or value == record[key], key, f"{record[key]}, as the recipe began", value, hint)
    same = _fingerprint(_make_plan(experiment, record)[0]) == record["plan"]
    hint = "Use the version of the recipe that began it, or begin in another folder."
    must(same, "plan", f"the one that the recipe in {out} began with", "another, for the same options", hint)
    return options, str(record["run"])


def _fingerprint(plan: Any) -> str:
    return digest(json.dumps(describe_plan(plan)).encode())


def _make_plan(experiment: Experiment[Any], options: Row) -> tuple[Any, range]:
    """The plan with all changes, and the seeds."""
    scale = options["scale"]
    plan = experiment.plan("laptop" if scale == "night" and not experiment.night else scale)
    for name, value in options["changes"].items():
        plan = change_plan(plan, name, value)
    for name in ("rounds", "seeds"):
        if options[name] is not None:
            plan = change_plan(plan, name, options[name])
    return plan, range(options["seed"], options["seed"] + plain_fields(plan).get("seeds", 1))


@dataclass
class Runner:
    """Runs the cells of one experiment, one after another. ``results`` holds what was kept of those that ended."""

    out: Path | None
    engine: str | None = None
    """What the user asked for; where it is None, the cell's own, or else the one of ``default_engine``."""
    default_engine: str = "auto"
    device: str | None = None
    watch: Watch = watch_nothing
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """The files of data sets that were read since the experiment began, by name."""
    id: str = ""
    """Tells what this experiment wrote from what others did."""
    rounds: int | None = None
    """Where cells that ended may be trained on: up to which round."""
    results: dict[Key, Row] = field(default_factory=dict)
    runs: dict[Key, Run] = field(default_factory=dict)
    """Runs by key where nothing is written, for those that start from them."""
    engines: dict[str, str] = field(default_factory=dict)
    """The engine that the first cell of a group chose."""

    def run(self, cell: Cell) -> Row:
        """What is kept of a cell: read where it has ended, else after beginning or continuing its run."""
        must(cell.key not in self.results, "key", "that of one cell only", cell.key)
        file = None if self.out is None else self.out / f"{cell.place}.json"
        row = None if file is None else self._read(cell, file)
        if row is None or (self.rounds is not None and row["rounds"] < self.rounds):
            began = time.perf_counter()
            row = cell.work() if cell.work else self.fit(cell)
            row["seconds"] = time.perf_counter() - began
            commit = find_commit()
            row |= {"commit": commit} if commit else {}
            if self.files:
                row["files"] = list(self.files.values())
            row = json.loads(json.dumps(row))  # the same as when it is read again
            if file is not None:
                make_folder(file.parent)
                write_sealed(file, {"cell": list(cell.key), "result": row}, self.id)
        self.results[cell.key] = row
        if cell.group is not None and cell.vectorise:
            self.engines.setdefault(cell.group, row["engine"])
        return self.results[cell.key]

    def run_all(self, cells: Sequence[Cell]) -> list[Row]:
        """What is kept of cells that do not depend on each other: run side by side, one on each core.

        Each runs in a process of its own. ``moiety`` logs how many have ended.
        """
        from moiety.experiments.parallel import count_jobs, run_cells  # here: lists of recipes do without torch

        rest = [cell for cell in cells if self.out is None or not (self.out / f"{cell.place}.json").is_file()]
        for cell in cells:
            if cell not in rest:
                self.run(cell)
        jobs = count_jobs(1 if self.out is None else None, len(rest))  # runs to start from must be in a folder
        for count, (cell, row) in enumerate(run_cells(self, rest, jobs), len(cells) - len(rest)):
            duration = f"{row['seconds']:.1f} s"
            LOGGER.info("%d of %d cells ended; last %s, %s", count + 1, len(cells), cell.label, duration)
        return [self.results[cell.key] for cell in cells]

    def _read(self, cell: Cell, file: Path) -> Row | None:
        """What was kept of a cell; None where there is nothing, and with a warning where the file is damaged."""
        if not file.is_file():
            return None
        if not is_whole_table(file):
            warnings.warn(f"{file} is not as it was written: the cell {cell.label} is run again.", stacklevel=2)
            return None
        table = read_sealed(file, self.id, ("cell", "result"), "Restore it from a copy, or remove it to run the cell.")
        own = table["cell"] == list(cell.key)
        must(own, file.name, f"the result of {cell.label}", f"that of another cell in {file}")
        return dict(table["result"])

    def fit(self, cell: Cell) -> Row:
        """Begin or continue the run of a cell; what is kept of it."""
        from moiety.engines.auto import OPEN
        from moiety.run.fit import fit
        from moiety.run.resume import resume
        from moiety.run.settings import Settings

        must(cell.fit is not None, "cell", "one with fit or work", cell.key)
        folder = self.out / cell.place if self.out is not None and cell.stored else None
        options = dict(cell.fit())  # type: ignore[misc]
        callback = self.watch(cell.label, folder)
        own = options.get("callbacks", ())
        extras = {"callbacks": own if callback is None else [*own, callback], "progress": False}
        options |= {"engine": self._choose_engine(cell, options.get("engine")), **extras}
        if self.device is not None:
            options["settings"] = replace(options.get("settings") or Settings(), device=self.device)
        if folder is not None and (folder / "config.toml").is_file():
            again = {key: options[key] for key in (*AGAIN, "engine", *extras) if key in options}
            if again["engine"] in OPEN:  # the folder names the one that was chosen
                del again["engine"]
            run: Run = resume(folder, rounds=options["rounds"], **again)
        else:
            run = fit(**{"start": self._start(cell), **options}, out=folder)
        if folder is None and cell.stored:
            self.runs[cell.key] = run
        return {**cell.keep(run), "engine": run.engine}

    def _choose_engine(self, cell: Cell, option: str | None) -> str:
        """The engine asked for; where it is left open, the one that the cell's group has measured."""
        from moiety.engines.auto import OPEN

        engine = self.engine or cell.engine or option or self.default_engine
        if engine in OPEN and cell.group is not None:
            engine = self.engines.get(cell.group, engine)
        return engine if cell.vectorise else engine.replace("vectorised", "sequential")

    def _start(self, cell: Cell) -> Run | Path | None:
        if cell.start is None or cell.start in self.runs:
            return self.runs.get(cell.start or ())
        must(self.out is not None, "start", "an earlier cell that is stored", cell.start)
        return self.out / Cell(key=cell.start).place  # type: ignore[operator]
