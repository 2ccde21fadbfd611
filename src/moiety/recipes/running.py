"""Steps of a recipe: each is run once, in a folder of its own, and not again once it has ended."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.errors import MoietyError, message
from moiety.recipes.base import Watch, is_run
from moiety.recipes.setting import FULL, Setting
from moiety.recipes.steps import Step

if TYPE_CHECKING:
    from torch import nn

    from moiety.data import FederatedData
    from moiety.run.result import Run
    from moiety.split import Split

Row = dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """What is left of a step: a row per client, and on training rows where asked for; the time it took in all."""

    rows: list[Row]
    train: list[Row] | None
    metric: str
    engine: str
    seconds: float = 0.0

    @property
    def score(self) -> float:
        """The mean metric over clients, weighted by their scored rows (the paper's)."""
        from moiety.evaluation import summarise

        return float(summarise(self.rows, higher_is_better=True)["metric"])


@dataclass
class Runner:
    """Runs the steps of one seed on one part of the data.

    With a folder, a step ``name`` has its run in ``folder/name``, and in ``folder/name.json`` what is left of it once
    it has ended. ``engine`` may be left open: the first step measures, the others use what it chose.
    """

    setting: Setting
    data: FederatedData
    seed: int
    folder: Path | None
    engine: str | None
    watch: Watch
    label: str
    part: str = "test"
    runs: dict[str, Run] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)

    def run(self, step: Step) -> Ended:
        """The step's results: read where it has ended, else after beginning or continuing it."""
        from moiety.engines.auto import OPEN

        file = None if self.folder is None else self.folder / f"{step.name}.json"
        if step.name not in self.ended and file is not None and file.is_file():
            self.ended[step.name] = read(file)
        elif step.name not in self.ended:
            began = time.perf_counter()
            self.ended[step.name] = replace(self._train(step), seconds=time.perf_counter() - began)
            if file is not None:
                write(file, self.ended[step.name])
        if self.engine in (None, *OPEN):
            self.engine = self.ended[step.name].engine
        return self.ended[step.name]

    @property
    def higher_is_better(self) -> bool:
        """The direction of the metric, once a step has ended."""
        from moiety.analysis.versus import higher_is_better

        known = list(self.ended.values())
        return higher_is_better(known[0].metric, *(each.rows for each in known))

    def _train(self, step: Step) -> Ended:
        import moiety as mo

        folder = None if self.folder is None else self.folder / step.name
        more = {} if step.dropout is None else {"dropout": step.dropout}
        model = self.setting.model(self.seed, **more)
        split = None if step.split is None else split_of(self.setting, step.split, model)
        parts: dict[str, Any] = {"model": model, "data": self.data, "algorithm": step.algorithm, "split": split}
        options: dict[str, Any] = {"on_round": self.watch(f"{self.label} {step.name}", folder)}
        if folder is not None and is_run(folder):
            own = {key: self.setting.fit[key] for key in ("loss", "metric") if key in self.setting.fit}
            run = mo.resume(folder, engine=self._engine(step), **parts, **own, **options)
        else:
            run = mo.fit(
                **parts,
                **self.setting.fit,
                **options,
                rounds=step.rounds,
                cohort=step.cohort,
                seed=self.seed,
                engine=self._engine(step) or "auto",
                settings=mo.Settings(
                    partial=not step.dropout, evaluate_on=self.part, evaluate_every=max(10, step.rounds // 8)
                ),
                out=folder,
                start=self._start(step),
            )
        # A run is kept in memory for those that start from it: FedAvg for all, another for the step that follows.
        kept = {name: each for name, each in self.runs.items() if each.config["run"].get("start") is None}
        self.runs = {**kept, step.name: run}
        return _ended(run, run.evaluate(part="train") if step.train and self.part == "test" else None)

    def _engine(self, step: Step) -> str | None:
        """The engine of the others; one client after another where dropout is drawn, which cannot be vectorised."""
        return self.engine.replace("vectorised", "sequential") if self.engine and step.dropout else self.engine

    def _start(self, step: Step) -> Run | Path | None:
        if step.start is None or step.start in self.runs:
            return self.runs.get(step.start or "")
        return None if self.folder is None else self.folder / step.start


def split_of(setting: Setting, name: str, model: nn.Module) -> Split:
    """The split of the model that has this name in the setting, or that keeps all of it personal."""
    import moiety as mo

    return mo.split.everything(model) if name == FULL else setting.splits[name](model)


def _ended(run: Run, train: list[Row] | None) -> Ended:
    last = run.history[-1]
    return Ended(run.clients, train, last["metric_name"], run.engine)


def write(file: Path, ended: Ended) -> None:
    """Keep what is left of a step."""
    from moiety.files import write_file

    write_file(file, json.dumps(vars(ended)).encode())


def read(file: Path) -> Ended:
    """What is left of a step that has ended."""
    try:
        found = json.loads(file.read_text())
        return Ended(**found)
    except (OSError, ValueError, TypeError) as error:
        hint = "Remove the file: the step is then continued from its folder."
        raise MoietyError(message(file.name, "as it was written", f"{file}: {error}", hint)) from None
