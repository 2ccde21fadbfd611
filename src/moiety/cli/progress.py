"""What is seen while a run goes on: a bar on a terminal, else a line for each evaluation, or nothing."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from moiety.cli.folders import part_name
from moiety.cli.output import NARROW, console, on_terminal, say
from moiety.errors import MoietyError
from moiety.reports.words import format_metric, format_score, make_printable
from moiety.run.folder import read_config
from moiety.run.pipeline import Watch
from moiety.run.train import OnRound
from moiety.types import RoundRecord

BARS = 8


def watch_lines(name: str, folder: Path | None) -> OnRound:
    """Print a line when a run begins and one for each evaluation."""
    announce_once = functools.cache(lambda: say(heading(name, folder)))

    def on_round(record: RoundRecord, rounds: int) -> None:
        announce_once()
        if record.evaluation is not None:
            at = f"round {record.round:>{len(str(rounds))}}/{rounds}"
            say(f"{at}  {status(record.train_loss, record.evaluation)}")

    return on_round


class Bars:
    """A bar for each run; the last few stay where they are when the run has ended."""

    def __init__(self, shown_on: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10 if shown_on.width < NARROW else 20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            console=shown_on,
        )
        self.newest: TaskID | None = None

    def watch(self, name: str, folder: Path | None) -> OnRound:
        """What is called after every round of one run."""
        for old in self.progress.task_ids[: 1 - BARS]:  # more than fit on a screen would hide the newest
            self.progress.remove_task(old)
        bar = self.progress.add_task(make_printable(name), total=None, status="preparing")
        self.newest = bar
        announce_once = functools.cache(lambda: self.progress.console.print(heading(name, folder)))
        evaluation, dropped = dict[str, Any](), 0

        def on_round(record: RoundRecord, rounds: int) -> None:
            nonlocal evaluation, dropped
            announce_once()
            evaluation = dict(record.evaluation) if record.evaluation is not None else evaluation
            dropped += len(record.dropped)
            shown = status(record.train_loss, {**evaluation, "dropped": [""] * dropped}, short=True)
            self.progress.update(bar, completed=record.round, total=rounds, status=shown)

        return on_round

    @contextmanager
    def tell_stage(self) -> Iterator[None]:
        """Show on the newest bar what moiety logs, such as that it measures engines."""
        handler = logging.Handler(logging.INFO)
        handler.emit = lambda record: self._show_stage(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("moiety")
        level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)

    def _show_stage(self, text: str) -> None:
        if self.newest is not None:
            self.progress.update(self.newest, status=text)


@contextmanager
def show_progress(quiet: bool) -> Iterator[Watch]:
    """Show how runs go on, in the way that suits where the output goes; ``watch`` of each run is to be called."""
    if quiet:
        yield lambda name, folder: None
    elif not on_terminal():
        yield watch_lines
    else:
        bars = Bars(console())
        with bars.progress, bars.tell_stage():
            try:
                yield bars.watch
            except MoietyError:  # it never began: the one line that says why is enough
                for bar in bars.progress.task_ids:
                    bars.progress.remove_task(bar)
                raise


def status(train_loss: float, evaluation: Mapping[str, Any], *, short: bool = False) -> str:
    """Losses and metric in one line.

    >>> row = {"part": "test", "loss": 0.5, "metric": 0.25, "metric_name": "accuracy", "dropped": ["2:ann"]}
    >>> status(1.25, row)
    'train loss 1.2500  test loss 0.5000  accuracy 25.0%  1 dropped'
    >>> status(1.25, row, short=True)
    'loss 1.2500  test 0.5000  accuracy 25.0%  1 dropped'
    >>> status(1.25, {"part": "test", "loss": None, "metric": None, "metric_name": "mse"})  # not finite
    'train loss 1.2500  test loss -  mse -'
    >>> status(2.6e46, {})
    'train loss 2.6e+46'
    """
    words = [f"{'' if short else 'train '}loss {format_score(train_loss)}"]
    if "metric" in evaluation:
        metric, part = evaluation["metric_name"], str(evaluation["part"])
        part = "train-set" if part == "train" else part  # not the loss of the cohort while it trains
        words.append(f"{part} {'' if short else 'loss '}{format_score(evaluation['loss'])}")
        words.append(f"{metric} {format_metric(evaluation['metric'], metric)}")
    if evaluation.get("dropped"):
        words.append(f"{len(evaluation['dropped'])} dropped")
    return "  ".join(words)


def heading(name: str, folder: Path | None) -> str:
    """What the run is and where it goes, as its folder says."""
    if folder is None:
        return name
    config = read_config(folder)
    run = config["run"]
    algorithm, data, split = (make_printable(part_name(config, section)) for section in ("algorithm", "data", "split"))
    what = f"{'' if name == algorithm else f'{make_printable(name)}: '}{algorithm} on {data}"
    how = [f"split {split}", f"{run['cohort']} clients a round", f"seed {run['seed']}"]
    return ", ".join([what, *how, f"engine {run['engine']}", f"in {folder}"])
