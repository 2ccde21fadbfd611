"""``tune``: searches values of a file with Optuna, by validation rows, and stops trials that fall behind.

When a search continues, Optuna's sampler has the same seed and is told the same scores. So it proposes the same trials
again, whose results are read instead of computed. Nothing of Optuna needs to be stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.data.sources.provenance import note_files
from moiety.errors import SEED, is_real, is_whole, kind, must, number, refuse, whole
from moiety.experiments.config import Config, make_parts, read_value
from moiety.experiments.grid import Point, configure, fit_arguments, name_folder, name_point
from moiety.experiments.records import Cell, Row, Watch, watch_nothing
from moiety.experiments.runner import Runner
from moiety.experiments.sweep import OnResult, begin_folder, prepare_folder, read_tables
from moiety.files import lock_folder
from moiety.loop.divergence import DivergenceError
from moiety.reports.versus import higher_is_better
from moiety.reports.words import format_count, format_metric
from moiety.run.folder import read_history
from moiety.run.protocol import Callback, Callbacks
from moiety.seals import CONFIG, TABLE, TABLE_FORMAT, write_sealed

if TYPE_CHECKING:
    import optuna

    from moiety.run.result import Run
    from moiety.types import RoundRecord

FORM = "section.key=LOW..HIGH, section.key=LOW..HIGH:log or section.key=value,value"


class _Behind(Exception):  # noqa: N818 - to stop is no error
    """A trial has fallen behind the others."""


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, whole where both are; ``log`` searches by their logarithms."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        """Check the ends."""
        for name in ("low", "high"):
            number(name, getattr(self, name), "a finite number", lambda x: abs(x) < float("inf"))
        must(self.low < self.high, "high", f"> {self.low}, the low end", self.high)
        must(not self.log or self.low > 0, "low", "> 0 for log", self.low)


@dataclass(frozen=True)
class Tuning:
    """What a search gives.

    ``rows`` has a row for each trial: its values (``point``), its ``score`` on validation rows, its ``state``
    (``ended``, ``pruned`` or ``failed``), and ``reports``: its rounds and scores, signed such that less is better.
    ``best`` is the row with the best score of those that ended, or None; ``sentence`` says which it is.
    """

    rows: list[Row]
    best: Row | None
    sentence: str
    folder: Path | None


def read_space(assignments: Sequence[str]) -> dict[str, Range | list[Any]]:
    """The ranges and lists of values to search.

    >>> read_space(["algorithm.shared=0.01..1:log", "run.cohort=2..8", "algorithm.name=fedavg,fedalt"])
    {'algorithm.shared': Range(low=0.01, high=1, log=True), 'run.cohort': Range(low=2, high=8, log=False), \
'algorithm.name': ['fedavg', 'fedalt']}
    """
    space: dict[str, Range | list[Any]] = {}
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        must(bool(name and equals and text), "--space", f"of the form {FORM}", assignment or "nothing")
        must(name not in space, "--space", "given once for each key", name)
        ends = re.fullmatch(r"(.+)\.\.(.+?)(:log)?", text)
        if ends is None:
            space[name] = [read_value(part) for part in text.split(",")]
            continue
        low, high = read_value(ends[1]), read_value(ends[2])
        must(is_real(low) and is_real(high), "--space", f"of the form {FORM}", assignment)
        space[name] = Range(low, high, bool(ends[3]))
    return space


def tune(
    target: str | os.PathLike[str] | Mapping[str, Any],
    space: Mapping[str, str | Range | Sequence[Any]],
    *,
    trials: int = 20,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    watch: Watch = watch_nothing,
    on_result: OnResult | None = None,
) -> Tuning:
    """Search values of a file with Optuna: ``pip install "moiety[tune]"``.

    Runs are evaluated on validation rows, and never on test rows; data without validation rows is refused. A trial
    whose score falls below the median of earlier trials at the same round is stopped (pruned). A search that was
    stopped goes on when it is called again with the same folder.

    Args:
        target: a TOML file as for ``moiety run``, or its tables.
        space: what to search, by places in the file: a range as text, ``"0.01..1"`` or ``"0.01..1:log"`` (whole numbers
            between whole numbers), or a list of values.
        trials: how many trials, with those that are in the folder already.
        seed: ``run.seed`` of all trials, and the seed of the search.
        out: a folder for runs and results; nothing is written without one.
        watch: called before each run; gives what is called after every round.
        on_result: called when a trial has ended.
    """
    whole("trials", trials, 1)
    must(len(space) > 0, "space", "at least one key to search", "none", f"Give it as {FORM}.")
    whole("seed", seed, 0, SEED)
    ranges = {name: values for name, values in space.items() if isinstance(values, str)}
    choices = {**space, **read_space([f"{name}={text}" for name, text in ranges.items()])}
    study, tables = _make_study(seed), read_tables(target)
    first = _propose(study, choices)
    _check_validation(configure(tables, first[1], seed, "--space"))
    folder = prepare_folder(out, "tune")
    plan = [tables, {name: str(values) for name, values in choices.items()}, seed]
    rows: list[Row] = []
    with lock_folder(folder), note_files() as files:
        runner = Runner(folder, files=files, watch=watch, id=begin_folder(folder, "tune", plan))
        for at in range(trials):
            trial, point = first if at == 0 else _propose(study, choices)
            config = configure(tables, point, seed, "--space")
            row = runner.run(_make_cell(runner, config, at, point, trial))
            _tell(study, trial, row)
            rows.append({"trial": at, "point": point, **row})
            if on_result is not None:
                on_result(f"trial {at}, {name_point(point)}", rows[-1], at + 1, trials)
        best, sentence = _choose_best(rows)
        if folder is not None:
            write_sealed(folder / TABLE, {"rows": rows, "best": best}, runner.id, format=TABLE_FORMAT, private=False)
    return Tuning(rows, best, sentence, folder)


def _make_study(seed: int) -> optuna.Study:
    try:
        import optuna
    except ImportError:
        refuse("tune", "run where optuna is installed", "none", "As in: pip install 'moiety[tune]'.")
    sampler = optuna.samplers.TPESampler(seed=seed % 2**32)
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would say that there is a study
    try:
        return optuna.create_study(sampler=sampler, pruner=optuna.pruners.MedianPruner())
    finally:
        optuna.logging.set_verbosity(before)


def _propose(study: optuna.Study, space: Mapping[str, Any]) -> tuple[optuna.Trial, Point]:
    """A new trial, and its values."""
    trial, point = study.ask(), {}
    for name, values in space.items():
        if not isinstance(values, Range):
            kind("space", values, (list, tuple), "ranges as text, or lists of values", "As in '0.01..1:log'.")
            must(len(values) > 0, "space", f"at least one value of {name}", "none")
            point[name] = values[trial.suggest_categorical(name, list(range(len(values))))]
        elif is_whole(values.low) and is_whole(values.high):
            point[name] = trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
        else:
            point[name] = trial.suggest_float(name, values.low, values.high, log=values.log)
    return trial, point


def _check_validation(config: Config) -> None:
    """Refuse data without validation rows: test rows must not choose."""
    data = make_parts(config).data
    hint = "Test rows must not choose. As in --set data.validation=0.2."
    must(bool(data.sizes("validation").any()), "data", "of some validation rows", "none", hint)


class _Prune(Callback):
    """Shows a trial as ``show`` does, and ends it where ``report`` says that it has fallen behind."""

    def __init__(self, show: Callback | None, report: Callable[[Mapping[str, Any]], bool]) -> None:
        self.shown, self.report = Callbacks([] if show is None else [show]), report

    def on_start(self, run: Run) -> None:
        self.shown.tell("on_start", run)

    def on_round(self, run: Run, record: RoundRecord) -> None:
        self.shown.tell("on_round", run, record)

    def on_evaluate(self, run: Run, row: Row) -> None:
        self.shown.tell("on_evaluate", run, row)
        if self.report(row):
            raise _Behind

    def on_end(self, run: Run) -> None:
        self.shown.tell("on_end", run)


def _make_cell(runner: Runner, config: Config, at: int, point: Point, trial: optuna.Trial) -> Cell:
    """The cell that runs a trial, reports its scores by rounds, and ends it where it falls behind."""
    key = (f"trial-{at}", name_folder(point))
    arguments = partial(fit_arguments, config, None, evaluate_on="validation")
    inner = Cell(key=key, fit=arguments, keep=_keep_last, engine=config.options.engine)
    reports: list[tuple[int, float]] = []

    def report(row: Mapping[str, Any]) -> bool:
        """Tell the study the score of an evaluation; whether the trial has fallen behind."""
        if row["metric"] is None or row["round"] in dict(reports):
            return False
        value = _sign(row["metric_name"]) * row["metric"]
        reports.append((row["round"], value))
        trial.report(value, row["round"])
        return row["round"] < (config.options.rounds or 0) and bool(trial.should_prune())

    runner_watch = runner.watch

    def watch(name: str, folder: Path | None) -> Callback:
        return _Prune(runner_watch(name, folder), report)

    def work() -> Row:
        folder = None if runner.out is None else runner.out / inner.place
        row: Row = {"state": "pruned", "score": None, "metric": None}
        runner.watch = watch
        try:
            if folder is None or not (folder / CONFIG).is_file() or not any(map(report, read_history(folder))):
                row = runner.fit(inner)
        except _Behind:
            pass
        except DivergenceError as error:
            row = {"state": "failed", "score": None, "metric": None, "failed": str(error)}
        finally:
            runner.watch = runner_watch
        return {**row, "reports": reports}

    return Cell(key=key, work=work)


def _keep_last(run: Run) -> Row:
    """Keep the last score; a run that has no finite one failed."""
    last = run.history[-1]
    state = "failed" if last["metric"] is None else "ended"
    return {"state": state, "score": last["metric"], "metric": last["metric_name"]}


def _sign(metric: str) -> int:
    """The study minimises."""
    return -1 if higher_is_better(metric) else 1


def _tell(study: optuna.Study, trial: optuna.Trial, row: Row) -> None:
    """Tell the study how a trial ended, and what it was not told yet: all scores of one that was read."""
    from optuna.trial import TrialState

    for at, value in row["reports"]:
        if at not in study.trials[trial.number].intermediate_values:
            trial.report(value, at)
    if row["state"] == "ended":
        study.tell(trial, _sign(row["metric"]) * row["score"])
    else:
        study.tell(trial, state=TrialState.PRUNED if row["state"] == "pruned" else TrialState.FAIL)


def _choose_best(rows: Sequence[Row]) -> tuple[Row | None, str]:
    """The best of the trials that ended, and a sentence about all."""
    trials = [row for row in rows if row["state"] == "ended"]
    if not trials:
        return None, f"No best is named: none of {format_count(len(rows), 'trial')} ended."
    metric = trials[0]["metric"]
    best = min(trials, key=lambda row: _sign(row["metric"]) * row["score"])
    counts = [f"{sum(row['state'] == state for row in rows)} {state}" for state in ("ended", "pruned", "failed")]
    score = format_metric(best["score"], metric)
    sentence = f"Best on validation rows: {name_point(best['point'])}, {metric} {score}, one seed"
    return best, f"{sentence}; of {format_count(len(rows), 'trial')} {', '.join(counts)}."
