"""The runs of ``recommend``: each is a cell that runs once, and goes through validation rows alone until the end."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from moiety import task as tasks
from moiety.algorithms import fedavg, local_only
from moiety.analysis.advise import advise
from moiety.analysis.candidates import Candidate
from moiety.analysis.diagnose_split import diagnose_split
from moiety.analysis.versus import average
from moiety.data import FederatedData
from moiety.errors import MoietyError, must
from moiety.evaluation.paired import RowScores
from moiety.experiments.halving import Plan
from moiety.experiments.records import Cell, Row
from moiety.experiments.runner import Runner
from moiety.local import Optimiser
from moiety.local.solvers import lbfgs
from moiety.loop.divergence import DivergenceError
from moiety.run.build import split_from
from moiety.run.callbacks import EarlyStopping
from moiety.run.fit import fit
from moiety.run.result import Run
from moiety.run.settings import Settings
from moiety.split import Split
from moiety.types import Algorithm

EVALUATIONS = 6
"""How often a run is evaluated: the best of these is its score, and its models are those of that round."""
MEASURED = 20
"""The most rounds that are measured; more would not fit into a small share of the budget where the model is large."""
CAREFUL = 0.8
"""The share of the measured speed that is counted on: other runs may be slower than the one measured."""
STEPS, CLIENTS = 10, 10
"""Of the diagnosis: steps of its solver, and clients."""
ADVICE: dict[str, Any] = {"clients": 4, "points": 1, "examples": 64}
PRODUCTS = 200
"""About how many gradients a row has in the estimates of ``advise``."""
SMALL = 0.05
"""The largest share of the budget that the measurement, the diagnosis and the advice may each take."""

log = logging.getLogger("moiety.cells")


class Trial(NamedTuple):
    """How a candidate is trained: lengths in rounds of FedAvg, learning rates, and the seed."""

    rounds: int
    rate: float
    start_rounds: int
    start_rate: float
    seed: int


def name_start(local: bool) -> str:
    """The name of the run that candidates start from."""
    return "start of local training" if local else "common start"


@dataclass
class Search:
    """Trains candidates on one problem. ``evaluations`` counts gradient evaluations, those of ended cells included."""

    model: nn.Module
    data: FederatedData
    work: Optimiser
    runner: Runner
    cohort: int
    seed: int
    loss: tasks.Loss | None
    metric: tasks.Metrics | None
    settings: Settings
    metric_name: str
    higher_is_better: bool
    engine: str = "vectorised"
    evaluations: float = 0.0
    seconds: float = 0.0
    """What the cells took, those that were read included."""
    measuring: float = 0.0
    """What of it went into the measurement of the speed."""
    starts: dict[tuple[bool, int, int, float], Run] = field(default_factory=dict)
    """The starts that are in memory; one that is not is trained again."""
    counted_starts: set[tuple[bool, int, int, float]] = field(default_factory=set)

    @property
    def rows(self) -> float:
        """Training rows of a cohort of mean clients."""
        return self.cohort * float(self.data.sizes("train").mean())

    def at(self, rate: float) -> Optimiser:
        """Local work with that learning rate."""
        return replace(self.work, lr=rate)

    def fit(
        self,
        name: str,
        algorithm: Algorithm,
        rounds: int,
        seed: int,
        *,
        split: Split | None = None,
        start: Run | None = None,
        best: bool = True,
    ) -> Run:
        """One run, which ends with the models of its ``best`` round on validation rows, or of its last."""
        every = max(1, math.ceil(rounds / EVALUATIONS)) if best else rounds
        callbacks: list[Any] = [EarlyStopping(patience=rounds + 1)] if best else []
        callback = self.runner.watch(name, None)
        return fit(
            self.model,
            self.data,
            algorithm,
            split=split,
            rounds=rounds,
            cohort=self.cohort,
            seed=seed,
            start=start,
            loss=self.loss,
            metric=self.metric,
            engine=self.engine,
            callbacks=callbacks if callback is None else [*callbacks, callback],
            progress=False,
            settings=replace(self.settings, evaluate_on="validation", evaluate_every=every),
        )

    def begin(self, local: bool, seed: int, rounds: int, rate: float) -> Run:
        """What candidates continue from: FedAvg for so many rounds; for local training, clients that trained alone."""
        key = (local, seed, rounds, rate)
        if key not in self.starts:
            if any(each[1] != seed for each in self.starts):  # those of other seeds are not needed again
                self.starts = {}
            algorithm = local_only(personal=self.at(rate)) if local else fedavg(shared=self.at(rate))
            self.starts[key] = self.fit(f"{name_start(local)}, rate {rate:g}", algorithm, rounds, seed, best=False)
        return self.starts[key]

    def run_start(self, local: bool, rounds: int, rate: float) -> Row:
        """What a start scores on validation rows."""

        def work() -> Row:
            with catch_failure() as row:
                row["score"] = _score(self.begin(local, self.seed, rounds, rate).clients)
            return row

        self.evaluations += rounds * self.rows
        return self._run(Cell(key=("start", "alone" if local else "shared", f"rate-{rate:g}"), work=work))

    def run_candidate(self, rung: int, candidate: Candidate, trial: Trial) -> Row:
        """What a candidate scores on validation rows, client by client, and what it costs."""

        def work() -> Row:
            with catch_failure() as row:
                run, start = self._train(candidate, trial)
                row |= {"score": _score(run.clients), "clients": _keep_rows(run.clients), **_count_costs(run, start)}
                row["best_round"] = run.last["round"]
            return {**row, "rate": trial.rate, "rounds": candidate.rounds(trial.rounds)}

        self._count(candidate, trial)
        return self._run(Cell(key=(f"rung-{rung}", candidate.place, f"rate-{trial.rate:g}"), work=work))

    def run_final(self, candidate: Candidate, trial: Trial) -> Row:
        """Test rows of one of the two candidates that are compared in the end, trained with a seed of its own."""

        def work() -> Row:
            with catch_failure() as row:
                run, _ = self._train(candidate, trial)
                scores = {c: [s.metric.tolist(), s.weight.tolist()] for c, s in run.score_rows("test").items()}
                row |= {"clients": _keep_rows(run.evaluate("test")), "scores": scores, "best_round": run.last["round"]}
            return row

        self._count(candidate, trial)
        return self._run(Cell(key=("final", candidate.place, trial.seed), work=work))

    def _count(self, candidate: Candidate, trial: Trial) -> None:
        self.evaluations += candidate.cost(trial.rounds) * self.rows
        start = (candidate.local, trial.seed, trial.start_rounds, trial.start_rate)
        if start not in self.counted_starts:
            self.counted_starts.add(start)
            self.evaluations += trial.start_rounds * self.rows

    def _train(self, candidate: Candidate, trial: Trial) -> tuple[Run, Run]:
        start = self.begin(candidate.local, trial.seed, trial.start_rounds, trial.start_rate)
        algorithm, name = candidate.build(trial.rate, trial.start_rate), f"{candidate.name}, rate {trial.rate:g}"
        rounds = candidate.rounds(trial.rounds)
        return self.fit(name, algorithm, rounds, trial.seed, split=candidate.split, start=start), start

    def measure(self, budget: float | int, example: Candidate) -> Row:
        """The budget in gradient evaluations, measured where it is a time, and the engine that can run the model."""

        def work() -> Row:
            for engine in dict.fromkeys((self.engine, "sequential")):
                self.engine = engine
                try:
                    seconds = self._measure_seconds(example, 1)
                except MoietyError as error:
                    if engine == "sequential" or "engine" not in str(error):
                        raise
                    continue
                break
            if isinstance(budget, int):
                return {"budget": budget, "engine": self.engine}
            rounds = max(1, min(MEASURED, int(SMALL * budget / seconds)))
            speed = CAREFUL * 2 * rounds * self.rows / self._measure_seconds(example, rounds)
            return {"budget": int(float(f"{budget * speed:.2g}")), "engine": self.engine, "speed": speed}

        row = self._run(Cell(key=("budget",), work=work))
        self.engine, self.measuring = row["engine"], row["seconds"]
        return row

    def foresee(self, rounds: float) -> float:
        """The seconds of the search after as many more evaluations as rounds of FedAvg take, at the pace so far."""
        pace = (self.seconds - self.measuring) / self.evaluations if self.evaluations else 0.0
        return self.seconds + pace * rounds * self.rows

    def _measure_seconds(self, example: Candidate, rounds: int) -> float:
        """The seconds of some rounds of FedAvg, and of as much of a candidate."""
        self.starts, began = {}, time.perf_counter()
        self._train(example, Trial(rounds, self.work.lr, rounds, self.work.lr, self.seed))
        return time.perf_counter() - began

    def diagnose(self, splits: Mapping[str, Split], plan: Plan, rate: float, budget: int) -> Row:
        """How good the splits are when some clients finetune them, from the common start; where it is cheap.

        ``metric`` is by split, None where it is not finite; FedSim comes first where ``better`` says so.
        """
        clients, rows = min(CLIENTS, len(self.data)), float(self.data.sizes("train").mean())
        cost = len(splits) * clients * rows * (STEPS + 3)
        advice_cost = ADVICE["clients"] * min(rows, ADVICE["examples"]) * PRODUCTS

        def work() -> Row:
            with catch_failure() as start:
                start["module"] = self.begin(False, self.seed, plan.start, rate).shared_module()
            hint = "Try smaller ones."  # the runs that told this rate were shorter
            must("failed" not in start, "rates", "ones that do not diverge", f"{rate:g}, the best of short runs", hint)
            module = start["module"]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # said where the splits were made
                copies = {name: split_from(split.spec, module) for name, split in splits.items()}
            row: Row = {"metric": {}, "better": "", "advice": ""}
            inputs = tuple(self.settings.inputs or ("x",))
            common: dict[str, Any] = {"loss": self.loss, "inputs": inputs, "seed": self.seed}
            common["device"] = self.settings.device
            if cost <= SMALL * budget and len(copies) > 1:
                with contextlib.suppress(MoietyError):  # finetuning that is not finite
                    result = diagnose_split(
                        module, self.data, splits=copies, solver=lbfgs(steps=STEPS), clients=clients, **common
                    )
                    row["metric"] = {each.split: each.metric for each in result.splits}
            if advice_cost <= SMALL * budget and copies:
                first = next(iter(self.order(copies, row["metric"])))
                try:
                    advice = advise(
                        module, self.data, split=copies[first], cohort=self.cohort, rounds=plan.full, **ADVICE, **common
                    )
                    row |= {"better": advice.better, "advice": f"{first}: {advice.sentence}"}
                except (MoietyError, RuntimeError) as error:  # BatchNorm; a loss without a second derivative
                    row["advice"] = f"No advice: {error}"
            return row

        self.evaluations += cost * (cost <= SMALL * budget and len(splits) > 1)
        self.evaluations += advice_cost * (advice_cost <= SMALL * budget)
        return self._run(Cell(key=("diagnosis",), work=work))

    def order(self, splits: Mapping[str, Split], metric: Mapping[str, float | None]) -> dict[str, Split]:
        """The splits, the best metric first; those without one stay in their order, behind the others."""
        sign = -1 if self.higher_is_better else 1

        def rank(name: str) -> tuple[bool, float]:
            value = metric.get(name)
            return value is None, 0.0 if value is None else sign * value

        return {name: splits[name] for name in sorted(splits, key=rank)}

    def _run(self, cell: Cell) -> Row:
        row = self.runner.run(cell)
        self.seconds += row["seconds"]
        log.info("%s: %s", cell.label, row.get("failed") or f"{row['seconds']:.1f} s")
        return row


@contextlib.contextmanager
def catch_failure() -> Iterator[Row]:
    """A row to fill in; where training diverges it says so, and has no score. Warnings of rounds are not shown."""
    row: Row = {"score": None}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield row
    except DivergenceError as error:
        row |= {"score": None, "failed": str(error)}


def _score(clients: Sequence[Row]) -> float | None:
    value = average(clients)
    return value if math.isfinite(value) else None


def _keep_rows(clients: Sequence[Row]) -> list[Row]:
    """What is compared of each client."""
    keys = ("client", "n", "n_test", "metric", "weight")
    return [{key: row[key] for key in keys if key in row} for row in clients if row["n_test"]]


def _count_costs(run: Run, start: Run) -> Row:
    """Bytes both ways of a client's turn, over the whole training, and the memory of a device."""
    ledgers = [run.ledger, start.ledger]
    total = sum(ledger["down_payload"] + ledger["up_payload"] for ledger in ledgers)
    turns = sum(ledger["client_updates"] for ledger in ledgers)
    return {"bytes": total / turns, "memory": max(ledger["device_memory"] for ledger in ledgers)}


def read_scores(row: Row) -> dict[str, RowScores]:
    """The scores of test rows by client, as they were kept."""
    return {
        client: RowScores(np.zeros(len(metric)), np.array(metric), np.array(weight))
        for client, (metric, weight) in row["scores"].items()
    }


def check_data(data: FederatedData, cohort: int | None) -> int:
    """The cohort; refuse data that cannot be judged."""
    must(len(data) >= 4, "data", "those of at least 4 clients", len(data), "With fewer, chance decides.")
    for part in ("validation", "test"):
        hint = f"As in {part}=0.2 where the data are made." + (
            " Test rows must not choose." if part == "validation" else ""
        )
        count = int((data.sizes(part) > 0).sum())
        must(count > 0, "data", f"of some {part} rows", "none", hint)
        must(count >= 4, "data", f"of {part} rows for at least 4 clients", f"some for {count}", hint)
    return len(data) if cohort is None else cohort
