"""``sweep``: one configuration with all values of a grid and several seeds, and which of them is best."""

from __future__ import annotations

import inspect
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.analysis.versus import average
from moiety.data.sources.provenance import note_files
from moiety.engines.processes import count_cores
from moiety.errors import is_whole, kind, must, whole
from moiety.experiments.config import Table, make_parts, read_file
from moiety.experiments.grid import (
    Point,
    configure,
    describe_value,
    fit_arguments,
    list_points,
    name_folder,
    name_point,
)
from moiety.experiments.judge import compare, score_row, show_interval
from moiety.experiments.page import show_section
from moiety.experiments.parallel import count_jobs, run_cells
from moiety.experiments.records import Cell, Results, Row, Section, Watch, watch_nothing
from moiety.experiments.runner import Runner
from moiety.files import LOCK, aside_of, check_path, lock_folder, make_folder, write_file
from moiety.loop.divergence import DivergenceError
from moiety.reports.words import format_count, format_metric, is_percentage, list_names
from moiety.run.fit import fit
from moiety.run.settings import Settings
from moiety.seals import RECIPE, TABLE, TABLE_FORMAT, digest, read_sealed, write_sealed

if TYPE_CHECKING:
    from moiety.run.result import Run

MakeArguments = Callable[[Point], Mapping[str, Any]]
Target = str | os.PathLike[str] | Mapping[str, Any] | MakeArguments
OnResult = Callable[[str, Row, int, int], None]
"""Called when a run has ended: with its name, what is kept of it, how many have ended, and how many there are."""
UNJUDGED = "No best is named: the data has no validation rows, and test rows must not choose. Give the data some."
SEEDS = "Seeds change run.seed alone: data, split of rows and first values are the same in all runs of a point."


@dataclass(frozen=True)
class Sweep:
    """What a sweep gives.

    ``rows`` has a row for each point: its name (``row``), its values (``point``), its ``metric`` on the rows that runs
    are evaluated on and on ``validation`` rows (each with mean ``ours``, 95% ``interval`` over seeds, and ``each``
    seed), ``seeds``, and ``failed``: how many runs diverged, or have no finite metric. ``best`` is the row that is best
    on validation rows, or None; ``sentence`` says which it is, or why none is named. ``results`` has what was kept of
    each run, by point and seed.
    """

    rows: list[Row]
    best: Row | None
    sentence: str
    results: Results
    page: str
    folder: Path | None


def sweep(
    target: Target,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int | Sequence[int] = 5,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    watch: Watch = watch_nothing,
    on_result: OnResult | None = None,
) -> Sweep:
    """Run a configuration with all values of a grid, each with several seeds, and compare them.

    A sweep that was stopped goes on when it is called again with the same folder. What has ended is not run again, so
    values and seeds can also be added later. A run that diverges is counted as failed, and the others go on.

    Args:
        target: a TOML file as for ``moiety run``, or its tables; or a function of a point, such as
            ``{"lr": 0.1}``, that gives the arguments of ``moiety.fit``. The sweep adds ``seed`` and ``out``. What it
            gives is not compared with what ended runs began with: choose another folder where the function changes.
        grid: values by their places in the file, as in ``{"algorithm.shared": [0.03, 0.1]}``; every combination is a
            point. For a function, any names.
        seeds: how many seeds, from 0 on, or which.
        out: a folder for runs, results and the table; nothing is written without one.
        jobs: how many runs are computed at a time, each in a process with one thread; by default as many as there are
            cores. Engines with processes of their own get their share of the cores.
        watch: called before each run where runs go one after another; gives what is called after every round.
        on_result: called when a run has ended.
    """
    points, numbers = list_points(grid or {}), check_seeds(seeds)
    count = count_jobs(jobs, len(points) * len(numbers))
    base = target if callable(target) else read_tables(target)
    plans = [Plan.of(base, point, seed, count) for point in points for seed in numbers]
    plans[0].check()
    folder = prepare_folder(out, "sweep")
    with lock_folder(folder), note_files() as files:
        plan = getattr(base, "__qualname__", "function") if callable(base) else base
        runner = Runner(folder, files=files, watch=watch, id=begin_folder(folder, "sweep", plan))
        cells = [plan.cell(runner) for plan in plans]
        for number, (cell, row) in enumerate(run_cells(runner, cells, count), 1):
            if on_result is not None:
                on_result(cell.label, row, number, len(cells))
        return _conclude(points, numbers, runner)


def check_seeds(seeds: int | Sequence[int]) -> list[int]:
    """The seeds of a list; for a number, so many from 0 on."""
    if is_whole(seeds):
        whole("seeds", seeds, 1)
        return list(range(int(seeds)))  # type: ignore[arg-type]
    kind("seeds", seeds, (list, tuple, range), "a number of seeds or a list of them")
    for seed in seeds:  # type: ignore[union-attr]
        whole("seeds", seed, 0, 2**63)
    numbers = [int(seed) for seed in seeds]  # type: ignore[union-attr]
    must(0 < len(numbers) == len(set(numbers)), "seeds", "at least one, and different ones", numbers)
    return numbers


@dataclass(frozen=True)
class Plan:
    """One run of a sweep: its point and seed, the engine that its file names, and what makes ``fit``'s arguments."""

    point: Point
    seed: int
    engine: str | None
    make: Callable[[], dict[str, Any]]
    check: Callable[[], Any]

    @staticmethod
    def of(target: Table | MakeArguments, point: Point, seed: int, jobs: int) -> Plan:
        """The plan of a point; what a file says is checked now, and its data are loaded later."""
        workers = None if jobs == 1 else max(1, count_cores() // jobs)
        if callable(target):

            def make() -> dict[str, Any]:
                arguments = _check_arguments(target(dict(point)))
                settings = arguments.get("settings") or Settings()
                _check_share(arguments.get("engine"), settings, jobs)
                own = settings if workers is None or settings.workers else replace(settings, workers=workers)
                return {**arguments, "seed": seed, "settings": own}

            return Plan(point, seed, None, make, lambda: None)
        config = configure(target, point, seed)
        _check_share(config.options.engine, config.options.settings, jobs)
        make_from_file = lambda: fit_arguments(config, workers)  # noqa: E731
        return Plan(point, seed, config.options.engine, make_from_file, lambda: make_parts(config))

    def cell(self, runner: Runner) -> Cell:
        """The cell that runs it, or says that it diverged."""
        key = (name_folder(self.point), self.seed)
        inner = Cell(key=key, fit=self.make, keep=keep_scores, engine=self.engine)

        def work() -> Row:
            try:
                return runner.fit(inner)
            except DivergenceError as error:
                return {"failed": str(error), "score": None, "engine": None}

        return Cell(key=key, work=work)


def _check_arguments(arguments: Any) -> dict[str, Any]:
    """What a function gave, if it can be given to ``fit``."""
    kind("target", arguments, Mapping, "a function that gives the arguments of moiety.fit")
    parameters = inspect.signature(fit).parameters
    names = {name for name, each in parameters.items() if each.default is each.empty}
    missing, extra = (
        sorted(names - {*arguments}),
        sorted({*map(str, arguments)} - {*parameters} | {*arguments} & {"out"}),
    )
    constraint = "a function that gives arguments of moiety.fit"
    must(not missing, "target", constraint, f"one that gives no {list_names(missing, 3)}")
    must(not extra, "target", f"{constraint}, and no folder", f"one that gives {list_names(extra, 3)}")
    settings = arguments.get("settings")
    kind("callbacks", arguments.get("callbacks", ()), (list, tuple), "a list")
    kind("settings", settings, (Settings, type(None)), "moiety.Settings(...)")
    return dict(arguments)


def _check_share(engine: str | None, settings: Settings, jobs: int) -> None:
    """Refuse runs that would use more cores together than there are."""
    if jobs == 1:
        return
    hint = "Use jobs=1 (--jobs 1)."
    must(engine is None or not engine.startswith("ray"), "engine", "another than ray for parallel runs", engine, hint)
    must(settings.device == "cpu", "device", "cpu for parallel runs", settings.device, hint)
    total, cores = jobs * (settings.workers or 1), count_cores()
    problem = f"{settings.workers} for each of {jobs} runs at a time"
    must(total <= cores, "workers", f"such that all runs together use at most {cores} cores", problem)


def keep_scores(run: Run) -> Row:
    """Keep the row of each client, on the rows that the run is evaluated on, and on validation rows if there are any.

    Also the metric, and whether more of it is better.
    """
    data, deciding = run._loop.problem.data, run._loop.problem.task.deciding
    part = run.history[-1]["part"]
    validation = run.clients if part == "validation" else None
    if validation is None and data.sizes("validation").any():
        validation = run.evaluate("validation")
    row = {"metric": deciding.name, "higher_is_better": deciding.higher_is_better, "part": part}
    return {**row, "score": _score(run.clients), "validation": None if validation is None else _score(validation)}


def _score(clients: Sequence[Row]) -> float | None:
    """The mean over all examples; None where it is not finite, since JSON has no such numbers."""
    value = average(clients)
    return value if math.isfinite(value) else None


def read_tables(target: Target) -> Table:
    """The tables of a file, or those that are given."""
    if isinstance(target, Mapping):
        return dict(target)
    constraint = "a TOML file, its tables, or a function that gives the arguments of moiety.fit"
    kind("target", target, (str, os.PathLike), constraint)
    return read_file(Path(target))  # type: ignore[arg-type]


def prepare_folder(out: str | os.PathLike[str] | None, what: str) -> Path | None:
    """The folder, made where there is none; one that holds other things is refused."""
    if out is None:
        return None
    check_path("out", out, "a folder's path")
    folder = Path(out)
    if folder.is_dir() and not (folder / RECIPE).is_file():
        ours = (LOCK, aside_of(folder / RECIPE).name)
        names = sorted(place.name for place in folder.iterdir() if place.name not in ours)
        content = f"{folder} with {list_names(names, 3)}"
        must(not names, "out", f"an empty folder, or one of moiety {what}", content, "Choose another folder.")
    return make_folder(folder, private=False)


def begin_folder(folder: Path | None, what: str, plan: Any, options: Mapping[str, Any] | None = None) -> str:
    """The id of what is in a folder, begun there if there is nothing; another thing, or another plan, is refused.

    ``options`` is the plan as JSON has it, by the names that users know: the refusal then says which is another.
    """
    if folder is None:
        return ""
    base = digest(json.dumps(plan, sort_keys=True, default=str).encode())
    file, hint = folder / RECIPE, "Choose another folder."
    if not file.is_file():
        id = secrets.token_hex(8)
        write_sealed(file, {"recipe": what, "plan": base} | ({"options": options} if options else {}), id)
        return id
    record = read_sealed(file, None, ("run", "recipe", "plan"), hint)
    must(record["recipe"] == what, "out", f"a folder of moiety {what}", f"{folder}, one of {record['recipe']}", hint)
    constraint, given = f"what the {what} in {folder} began with", dict(options or {})
    for name, first in (record.get("options") or {}).items():
        value = given.get(name)
        must(value == first, name, constraint, f"{_shorten(value)} instead of {_shorten(first)}", hint)
    must(record["plan"] == base, "target", constraint, "another", hint)
    return str(record["run"])


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _conclude(points: Sequence[Point], seeds: Sequence[int], runner: Runner) -> Sweep:
    """The table of the points, and which is best."""
    rows = [_summarise(point, [runner.results[name_folder(point), seed] for seed in seeds]) for point in points]
    best, sentence = _choose_best(rows)
    first = next((row for row in rows if row["metric_name"]), {"metric_name": "", "part": "test"})
    metric, part = first["metric_name"], first["part"]
    lines = [
        {
            "point": row["row"],
            "validation": show_score(row["validation"], metric),
            "score": show_score(row["metric"], metric),
            "seeds": f"{row['seeds'] - row['failed']} of {row['seeds']}",
        }
        for row in rows
    ]
    columns = {"point": "point", "validation": f"validation {metric}", "score": f"{part} {metric}", "seeds": "seeds"}
    notes = [sentence, "Means with 95% intervals over seeds.", SEEDS]
    page = show_section(Section(title="Sweep", rows=lines, columns=columns, notes=notes))
    if runner.out is not None:
        write_sealed(runner.out / TABLE, {"rows": rows, "best": best}, runner.id, format=TABLE_FORMAT, private=False)
        write_file(runner.out / "table.md", (page + "\n").encode(), private=False)
    return Sweep(rows, best, sentence, runner.results, page, runner.out)


def _summarise(point: Point, runs: Sequence[Row]) -> Row:
    """The row of a point. One whose runs did not all end well has scores of those that did."""
    whole_runs = [run for run in runs if run.get("score") is not None]
    first = whole_runs[0] if whole_runs else {}
    plain = {name: json.loads(describe_value(name, value)) for name, value in point.items()}
    row: Row = {"row": name_point(point), "point": plain, "seeds": len(runs), "failed": len(runs) - len(whole_runs)}
    row |= {"metric_name": first.get("metric"), "part": first.get("part")}
    row["higher_is_better"] = first.get("higher_is_better")
    for name, key in {"metric": "score", "validation": "validation"}.items():
        values = [run[key] for run in whole_runs]
        complete = bool(values) and all(value is not None for value in values)
        row[name] = score_row(row["row"], values) if complete else None
    return row


def _choose_best(rows: Sequence[Row]) -> tuple[Row | None, str]:
    """The row that is best on validation rows, all of whose runs ended well; and a sentence about it."""
    candidates = [row for row in rows if not row["failed"]]
    if not candidates:
        return None, "No best is named: at every point some run diverged or has no finite metric."
    if any(row["validation"] is None for row in candidates):
        return None, UNJUDGED
    names = sorted({row["metric_name"] for row in candidates})
    if len(names) > 1:
        return None, f"No best is named: points have different metrics, {' and '.join(names)}."
    sign = 1 if candidates[0]["higher_is_better"] else -1
    ranking = sorted(candidates, key=lambda row: -sign * row["validation"]["ours"])
    best, metric = ranking[0], ranking[0]["metric_name"]
    sentence = f"Best on validation rows: {best['row']}, {metric} {show_score(best['validation'], metric)}"
    if best["part"] != "validation":
        sentence += f" ({best['part']} rows: {show_score(best['metric'], metric)})"
    if len(ranking) > 1:
        scale = sign * (100 if is_percentage(metric) else 1)
        lead = score_row("", compare(best["validation"]["each"], ranking[1]["validation"]["each"], scale))
        unit = "points" if is_percentage(metric) else metric
        over = format_count(best["seeds"], "seed")
        sentence += f"; ahead of {ranking[1]['row']} by {show_interval(lead, sign='+')} {unit}, paired over {over}"
    return best, f"{sentence}."


def show_score(score: Row | None, metric: str) -> str:
    """A mean with its interval over seeds, as a reader wants it: within what a share can be.

    >>> show_score({"ours": 0.9, "interval": [0.78, 1.02]}, "accuracy"), show_score(None, "mse")
    ('90.0% [78.0%, 100.0%]', '-')
    """
    if score is None:
        return "-"
    ends = score["interval"]
    if ends is not None and is_percentage(metric):
        ends = [min(max(end, 0.0), 1.0) for end in ends]
    interval = "" if ends is None else f" [{', '.join(format_metric(end, metric) for end in ends)}]"
    return f"{format_metric(score['ours'], metric)}{interval}"
