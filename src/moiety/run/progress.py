"""What is seen while runs go on: a bar for each on a terminal or in a notebook, else a line for each evaluation."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from moiety.errors import MoietyError, kind
from moiety.evaluation import Row
from moiety.reports.console import NARROW, console, in_notebook, on_terminal
from moiety.reports.result import part_name
from moiety.reports.words import format_metric, format_score, make_printable
from moiety.run.protocol import Callback
from moiety.seals import PIPELINE
from moiety.types import RoundRecord

if TYPE_CHECKING:
    from moiety.run.result import Run

BARS = 8
WIDTH = 48
"""How much of a message a bar shows, where the terminal is not narrow."""
OTHERS = 18
"""The width of the other parts of a bar: the count of rounds, the time and the gaps."""


@contextmanager
def show_progress(progress: bool | None, name: str) -> Iterator[list[Callback]]:
    """The callbacks that show on stderr how one run goes on; ``progress`` as for ``fit``."""
    kind("progress", progress, (bool, type(None)), "True, False or None")
    terminal, notebook = on_terminal(stderr=True), in_notebook()
    if progress is False or (progress is None and not terminal and not notebook):
        yield []
        return
    if terminal or notebook:
        bars = Bars(console(stderr=True) if terminal else Console(markup=False, highlight=False, emoji=False))
        with bars.show():
            yield [bars.watch(name)]
    else:
        yield [Lines(name, lambda text: print(text, file=sys.stderr, flush=True))]


class Lines(Callback):
    """Says a line when a run begins and one for each evaluation."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self.name, self.say = name, say
        self.announced: Run | None = None

    def on_round(self, run: Run, record: RoundRecord) -> None:
        """Say how the round went, if it was evaluated."""
        if self.announced is not run:
            self.say(heading(name_of(self.name, run), run))
            self.announced = run
        if record.evaluation is not None:
            rounds = run._loop.rounds
            at = f"round {record.round:>{len(str(rounds))}}/{rounds}"
            self.say(f"{at}  {status(record.train_loss, record.evaluation)}")


class Bars:
    """A bar for each run; the bars of the last few runs stay when these have ended."""

    def __init__(self, shown_on: Console) -> None:
        self.narrow = shown_on.width < NARROW
        bar, self.room = (10, 28) if self.narrow else (20, WIDTH)
        self.longest_name = max(shown_on.width - bar - self.room - OTHERS, 12)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=bar, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=Column(no_wrap=True)),
            console=shown_on,
        )
        self.newest: TaskID | None = None

    def watch(self, name: str) -> Bar:
        """A bar for the run of this name, or for each stage of the pipeline."""
        return Bar(self, name)

    def add(self, name: str) -> TaskID:
        """A new bar at the bottom."""
        for old in self.progress.task_ids[: 1 - BARS]:  # more than fit on a screen would hide the newest
            self.progress.remove_task(old)
        self.newest = self.progress.add_task(self.shorten(name), total=None, status="preparing")
        return self.newest

    def shorten(self, name: str) -> str:
        """The name as far as it fits before a bar; its end tells it from others."""
        text = make_printable(name)
        return text if len(text) <= self.longest_name else f"…{text[1 - self.longest_name :]}"

    @contextmanager
    def show(self) -> Iterator[None]:
        """Show the bars, and on the newest what moiety logs, such as that it measures engines."""
        handler = logging.Handler(logging.INFO)
        handler.emit = lambda record: self._show_stage(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("moiety")
        level = logger.level
        logger.setLevel(min(level, logging.INFO) if level else logging.INFO)
        logger.addHandler(handler)
        try:
            with self.progress:
                try:
                    yield
                except MoietyError:  # it never began: the one line that says why is enough
                    for bar in self.progress.task_ids:
                        self.progress.remove_task(bar)
                    raise
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)

    def _show_stage(self, text: str) -> None:
        if self.newest is None:  # cells side by side have no bars
            self.progress.console.print(text)
        else:
            self.progress.update(self.newest, status=text.splitlines()[0][: self.room])


class Bar(Callback):
    """The bar of one run; a pipeline gets one for each stage."""

    def __init__(self, bars: Bars, name: str) -> None:
        self.bars, self.name = bars, name
        self.bar, self.ended = bars.add(name), False
        self.evaluation: dict[str, Any] = {}
        self.dropped = 0
        self.announced: Run | None = None

    def on_start(self, run: Run) -> None:
        """Begin the bar where the run begins."""
        name = name_of(self.name, run)
        if self.ended:
            self.bar = self.bars.add(name)
        self.ended, self.evaluation, self.dropped = False, {}, 0
        loop, progress = run._loop, self.bars.progress
        progress.reset(self.bar, total=loop.rounds, completed=loop.progress.round, description=self.bars.shorten(name))

    def on_evaluate(self, run: Run, row: Row) -> None:
        """Note the newest scores."""
        self.evaluation = dict(row)

    def on_round(self, run: Run, record: RoundRecord) -> None:
        """Move the bar."""
        if self.announced is not run:
            self.bars.progress.console.print(heading(name_of(self.name, run), run))
            self.announced = run
        self.dropped += len(record.dropped)
        # A narrow terminal has no room for both losses.
        loss = None if self.bars.narrow and self.evaluation else record.train_loss
        text = status(loss, {**self.evaluation, "dropped": [""] * self.dropped}, short=True)
        self.bars.progress.update(self.bar, completed=record.round, status=text)

    def on_end(self, run: Run) -> None:
        """Leave the bar as it is."""
        self.ended = True
        if run.stopped:
            self.bars.progress.stop_task(self.bar)


def name_of(name: str, run: Run) -> str:
    """The name of a run that is watched: its own folder's where it is a stage of a pipeline."""
    in_pipeline = run.folder is not None and (run.folder.parent / PIPELINE).is_file()
    return run.folder.name if in_pipeline and run.folder is not None else name


def status(train_loss: float | None, evaluation: Mapping[str, Any], *, short: bool = False) -> str:
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
    words = [] if train_loss is None else [f"{'' if short else 'train '}loss {format_score(train_loss)}"]
    if "metric" in evaluation:
        metric, part = evaluation["metric_name"], str(evaluation["part"])
        part = "train-set" if part == "train" else part  # so that it is not taken for the training loss of the cohort
        words.append(f"{part} {'' if short else 'loss '}{format_score(evaluation['loss'])}")
        words.append(f"{metric} {format_metric(evaluation['metric'], metric)}")
    if evaluation.get("dropped"):
        words.append(f"{len(evaluation['dropped'])} dropped")
    return "  ".join(words)


def heading(name: str, run: Run) -> str:
    """What the run is and where it goes."""
    config, options = run.config, run.config["run"]
    algorithm, data, split = (make_printable(part_name(config, section)) for section in ("algorithm", "data", "split"))
    what = f"{'' if name == algorithm else f'{make_printable(name)}: '}{algorithm} on {data}"
    details = [f"split {split}", f"{options['cohort']} clients a round", f"seed {options['seed']}"]
    return ", ".join([what, *details, f"engine {options['engine']}", *([f"in {run.folder}"] if run.folder else [])])
