"""FedAvg, then Local FFGG by split, then finetuning, each at the rate and for the rounds that pilot seeds chose.

Pilot seeds, which are not reported, choose on validation rows. Each method has the same rates: the first pilot seed
tries them all, the next those that did best there. The rounds of FedAvg are the first from which on its mean curve is
flat (``find_flat``), at a rate at which it is. All of stage two has the rounds that its slowest method needs by the
same test. Reported seeds train on training and validation rows, and are scored on test rows. Every seed deals the rows
anew. The server has momentum in stage one alone.

Local FFGG (Algorithm 4) makes one epoch on the personal part, then one in turns on both: three passes in all, where a
round of FedAvg makes one. So FedAvg with equal communication goes on for as many rounds, with equal computation for
three times as many.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from statistics import fmean, stdev
from typing import Any

import moiety as mo
from moiety.experiments import Cell, Row
from moiety_recipes.ffgg_settings import NIGHT, SETTINGS

PASSES = 3
"""Gradients of a batch in a round of Local FFGG, where FedAvg has one."""
FRESH = "fresh"
FEDAVG, COMMUNICATION, COMPUTATION = "fedavg", "equal communication", "equal computation"
NOTHING, EVERYTHING = "nothing", "everything"
Steps = Generator["Cell | list[Cell]", Any, Any]


@dataclass(frozen=True)
class Sizes:
    """Sizes of one scale. Rounds are the most of each stage; pilot seeds are scored at so many ``points``."""

    settings: tuple[str, ...]
    seeds: int
    rounds: int
    personal_rounds: int
    cohort: int = 30
    batch_size: int = 16
    rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    finalists: int = 3
    """So many rates, the best on the first pilot seed, are tried on the other pilot seeds."""
    momentum: float = 0.9
    """The server's in stage one; later it takes the plain mean."""
    epochs: int = 5
    points: int = 24
    """Scores of FedAvg along the pilots' runs; methods with a personal part, whose scores cost more, have half."""
    flat: float = 0.005
    """What a flat curve may still gain, and by how much a smaller rate may be worse than the best."""
    pilots: tuple[int, ...] = (100, 101)

    def with_rounds(self, rounds: int) -> Any:
        """Other rounds of FedAvg, and of the rest in the same ratio."""
        return replace(self, rounds=rounds, personal_rounds=max(1, self.personal_rounds * rounds // self.rounds))


def plan_sizes(scale: str, *, seeds: int) -> Sizes:
    """The sizes of a scale, with so many seeds at ``night`` and ``paper``."""
    if scale == "ci":
        small: dict[str, Any] = {"cohort": 2, "batch_size": 8, "rates": (0.1, 0.3), "epochs": 1, "points": 2}
        return Sizes(("digits",), seeds=1, rounds=4, personal_rounds=2, finalists=1, **small)
    if scale == "laptop":
        return Sizes(("speakers", "clothes"), seeds=3, rounds=200, personal_rounds=40)
    return Sizes(NIGHT, seeds=seeds, rounds=1200, personal_rounds=80, points=48)


@dataclass(frozen=True)
class Arm:
    """A method of stage two: Local FFGG with a split, from a fresh start or from FedAvg's values."""

    split: str
    fresh: bool

    @property
    def name(self) -> str:
        """As in keys: ``output`` or ``output, fresh``."""
        return f"{self.split}, {FRESH}" if self.fresh else self.split


@cache
def load(name: str, seed: int) -> mo.FederatedData:
    """A setting's rows as a seed deals them; kept, since each of many short runs needs them."""
    return SETTINGS[name].load(seed)


def build_split(name: str, model: Any, split: str) -> mo.Split:
    """A split of a setting's model, with nothing and everything among them."""
    if split in (NOTHING, EVERYTHING):
        return getattr(mo.split, split)(model)  # type: ignore[no-any-return]
    return SETTINGS[name].splits(model)[split]


def list_options(
    sizes: Sizes, name: str, seed: int, algorithm: mo.Algorithm, split: str, rounds: int, **more: Any
) -> Row:
    """The arguments of ``moiety.fit``; pilot seeds are scored on validation rows, along the way too."""
    model, fed, pilot = SETTINGS[name].model(seed), load(name, seed), seed in sizes.pilots
    every = max(1, rounds // (sizes.points if split == NOTHING else sizes.points // 2)) if pilot else rounds
    part = "validation" if pilot else "test"
    return {
        "model": model,
        "data": fed if pilot else fed.with_validation_in_train(),
        "algorithm": algorithm,
        "split": build_split(name, model, split),
        "rounds": rounds,
        "cohort": min(sizes.cohort, len(fed)),
        "seed": seed,
        "settings": mo.Settings(on_divergence="warn", evaluate_every=every, evaluate_on=part),
        **more,
    }


def keep_course(run: mo.Run) -> Row:
    """The score, and its course; a run without a finite score has 0."""
    course = [(row["round"], row["metric"] or 0.0) for row in run.history]
    return {"score": course[-1][1], "course": course}


def build_cell(sizes: Sizes, key: tuple[str | int, ...], name: str, seed: int, *args: Any, **options: Any) -> Cell:
    """A cell of one run."""
    start = options.pop("start", None)
    fit = partial(list_options, sizes, name, seed, *args, **options)
    return Cell(key=key, fit=fit, keep=keep_course, start=start, engine="vectorised")


def work(sizes: Sizes, lr: float, epochs: int = 1) -> Any:
    """Local SGD in the batches of all stages."""
    return mo.sgd(lr, epochs=epochs, batch_size=sizes.batch_size)


def fedavg(sizes: Sizes, lr: float, *, first: bool = False) -> mo.Algorithm:
    """One epoch a round; in the ``first`` stage the server has momentum."""
    server: Row = {"server": mo.server.sgd(momentum=sizes.momentum)} if first else {}
    return mo.fedavg(shared=work(sizes, lr), **server)


def local_ffgg(sizes: Sizes, arm: Arm, lr: float) -> mo.Algorithm:
    """Algorithm 4 as in section 3.3: one epoch on the personal part, then one in turns on both, all at one rate."""
    if arm.split == NOTHING:
        return fedavg(sizes, lr)
    start = FRESH if arm.fresh else None
    return mo.local_ffgg(shared=work(sizes, lr), personal=lr, solver=work(sizes, lr), random_start=start)


def finetune(sizes: Sizes, arm: Arm, lr: float) -> mo.Algorithm:
    """Stage three: the personal part alone; a fresh start has the epoch of FFGG's solver besides."""
    if arm.fresh:
        return mo.finetune(personal=work(sizes, lr, sizes.epochs + 1), random_start=FRESH)
    return mo.finetune(personal=work(sizes, lr, sizes.epochs))


def find_flat(course: Sequence[Sequence[float]], flat: float) -> int | None:
    """The first round from which on a curve is flat up to its end; None where it is not.

    At round R it is flat where the mean score over (3 R / 4, R] is above that over (R / 2, 3 R / 4] by less than
    ``flat``, or by less than two standard errors of such a difference by the scatter of the last quarter. Each mean is
    of at least two scores.

    >>> find_flat([(10 * i, min(i, 4) / 4) for i in range(1, 13)], 0.01)
    70
    """
    first = None
    for last, _ in reversed(course):
        before = [score for at, score in course if last / 2 < at <= 3 * last / 4]
        after = [score for at, score in course if 3 * last / 4 < at <= last]
        if min(len(before), len(after)) < 2:
            break
        noise = 2 * stdev(after) * math.sqrt(1 / len(before) + 1 / len(after))
        if fmean(after) - fmean(before) >= max(flat, noise):
            break
        first = int(last)
    return first


def choose(rows: Mapping[float, Sequence[Row]], close: float) -> float:
    """The smallest rate with a flat mean curve whose score is within ``close`` of the best; the smallest if none is.

    The score of a rate is the mean of its curve over the last quarter of the rounds that it would be given: up to where
    it is flat. A rate that has less than half of the best score on some pilot seed has failed there, and is left out.
    """
    best = [max(row["score"] for row in seed) for seed in zip(*rows.values(), strict=True)]
    sound = {
        lr: own
        for lr, own in rows.items()
        if all(row["score"] >= most / 2 for row, most in zip(own, best, strict=True))
    }
    curves = {lr: average(own) for lr, own in (sound or rows).items()}
    ends = {lr: find_flat(curve, close) for lr, curve in curves.items()}
    scores = {lr: score_end(curve, ends[lr] or curve[-1][0]) for lr, curve in curves.items()}
    near = [lr for lr, score in scores.items() if score >= max(scores.values()) - close]
    return min([lr for lr in near if ends[lr]] or near)


def score_end(curve: Sequence[tuple[int, float]], last: int) -> float:
    """The mean of a curve over the last quarter of the rounds up to ``last``."""
    return fmean(score for at, score in curve if 3 * last / 4 < at <= last)


def average(rows: Sequence[Row]) -> list[tuple[int, float]]:
    """The mean curve of several seeds."""
    return [
        (points[0][0], fmean(score for _, score in points)) for points in zip(*(r["course"] for r in rows), strict=True)
    ]


@dataclass(frozen=True)
class Step:
    """One choice of the pilot seeds: a method of a setting, to be run at several rates.

    ``start`` is the key of the run that a seed begins from.
    """

    setting: str
    method: str
    split: str
    rounds: int
    build: Callable[[float], mo.Algorithm]
    start: Callable[[int], tuple[str | int, ...]] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def key(self, seed: int, lr: float) -> tuple[str | int, ...]:
        """The cell of a seed and rate."""
        return ("pilot", seed, self.setting, f"{self.method}, {lr:g}")

    def cell(self, sizes: Sizes, seed: int, lr: float) -> Cell:
        """The run of a seed and rate."""
        options: Row = {"start": self.start(seed) if self.start else None, **self.more}
        algorithm, key = self.build(lr), self.key(seed, lr)
        return build_cell(sizes, key, self.setting, seed, algorithm, self.split, self.rounds, **options)


def try_rates(sizes: Sizes, steps: Sequence[Step]) -> Steps:
    """The chosen rate and the mean curve at it, for each step."""
    tables: list[dict[float, list[Row]]] = [{lr: [] for lr in sizes.rates} for _ in steps]
    for seed in sizes.pilots:
        jobs = [(step, lr) for step, table in zip(steps, tables, strict=True) for lr in table]
        rows = iter((yield [step.cell(sizes, seed, lr) for step, lr in jobs]))
        for table in tables:
            for own in table.values():
                own.append(next(rows))
        if seed == sizes.pilots[0] and len(sizes.pilots) > 1:
            tables = [_keep_best(table, sizes.finalists) for table in tables]
    rates = [choose(table, sizes.flat) for table in tables]
    return [(rate, average(table[rate])) for rate, table in zip(rates, tables, strict=True)]


def _keep_best(table: dict[float, list[Row]], count: int) -> dict[float, list[Row]]:
    best = sorted(sorted(table), key=lambda lr: -table[lr][0]["score"])[:count]
    return {lr: table[lr] for lr in table if lr in best}


def run_pilot(sizes: Sizes, arms: Sequence[Arm]) -> Steps:
    """Choose rates and rounds for every setting on the pilot seeds; what was chosen, by setting."""
    names = sizes.settings
    for name, seed in itertools.product(names, sizes.pilots):
        load(name, seed)
    train = partial(fedavg, sizes, first=True)
    steps = [Step(n, FEDAVG, NOTHING, sizes.rounds, train) for n in names]
    choices: dict[str, Row] = {}
    for step, (rate, course) in zip(steps, (yield from try_rates(sizes, steps)), strict=True):
        flat = find_flat(course, sizes.flat)
        choices[step.setting] = {"rates": {FEDAVG: rate}, "rounds": flat or sizes.rounds, "flat": {FEDAVG: flat}}
    yield [
        build_cell(sizes, base_key(s, n), n, s, train(own["rates"][FEDAVG]), NOTHING, own["rounds"])
        for s, (n, own) in itertools.product(sizes.pilots, choices.items())
    ]
    steps = [
        Step(n, a.name, a.split, sizes.personal_rounds, partial(local_ffgg, sizes, a), partial(base_key, name=n))
        for n, a in itertools.product(names, (*arms, Arm(NOTHING, fresh=False)))
    ]
    starts = {}
    for step, (rate, course) in zip(steps, (yield from try_rates(sizes, steps)), strict=True):
        own = choices[step.setting]
        own["rates"][step.method] = rate
        own["flat"][step.method] = find_flat(course, sizes.flat)
        starts[step.setting, step.method] = partial(step.key, lr=rate)
    for own in choices.values():
        own["personal_rounds"] = max(flat or sizes.personal_rounds for m, flat in own["flat"].items() if m != FEDAVG)
    everyone = {"cohort": None}
    steps = [
        Step(n, name_finetuning(a), a.split, 1, partial(finetune, sizes, a), starts[n, a.name], everyone)
        for n, a in itertools.product(names, arms)
    ]
    for step, (rate, _) in zip(steps, (yield from try_rates(sizes, steps)), strict=True):
        choices[step.setting]["rates"][step.method] = rate
    yield Cell(key=("chosen",), work=lambda: {"chosen": choices})
    return choices


def base_key(seed: int, name: str) -> tuple[str | int, ...]:
    """The run of FedAvg that a pilot seed's stage two begins from."""
    return ("pilot", seed, name, FEDAVG)


def name_finetuning(arm: Arm) -> str:
    """The name of a method's finetuning among the rates."""
    return f"{arm.name}, finetuning"


def run_seeds(sizes: Sizes, seeds: Sequence[int], arms: Sequence[Arm], choices: Mapping[str, Row]) -> Steps:
    """All reported runs, stage by stage."""
    pairs = list(itertools.product(sizes.settings, seeds))
    for name, seed in pairs:
        load(name, seed)
    train = partial(fedavg, sizes, first=True)
    yield [
        build_cell(sizes, (s, n, FEDAVG), n, s, train(choices[n]["rates"][FEDAVG]), NOTHING, choices[n]["rounds"])
        for n, s in pairs
    ]
    stage = []
    for n, s in pairs:
        rates, rounds = choices[n]["rates"], choices[n]["personal_rounds"]
        for method, times in ((COMMUNICATION, 1), (COMPUTATION, PASSES)):
            algorithm = fedavg(sizes, rates[NOTHING])
            stage.append(
                build_cell(sizes, (s, n, method), n, s, algorithm, NOTHING, times * rounds, start=(s, n, FEDAVG))
            )
        for arm in arms:
            algorithm = local_ffgg(sizes, arm, rates[arm.name])
            key = (s, n, arm.name)
            stage.append(build_cell(sizes, key, n, s, algorithm, arm.split, rounds, start=(s, n, FEDAVG)))
    yield stage
    finals = []
    for (n, s), arm in itertools.product(pairs, arms):
        algorithm = finetune(sizes, arm, choices[n]["rates"][name_finetuning(arm)])
        key, start = (s, n, f"{arm.name}, then finetuning"), (s, n, arm.name)
        finals.append(build_cell(sizes, key, n, s, algorithm, arm.split, 1, start=start, cohort=None))
        if not arm.fresh:
            key, start = (s, n, f"{arm.name}, finetuning alone"), (s, n, COMMUNICATION)
            finals.append(build_cell(sizes, key, n, s, algorithm, arm.split, 1, start=start, cohort=None))
    yield finals


def describe_choice(sizes: Sizes, choices: Mapping[str, Row]) -> list[Row]:
    """Rates, rounds and whether curves were flat, a row for each setting and method."""
    rows = []
    for name, own in choices.items():
        for method, rate in own["rates"].items():
            if "finetuning" in method:
                continue
            flat = own["flat"].get(method)
            final = own["rates"].get(f"{method}, finetuning")
            rounds = own["rounds"] if method == FEDAVG else own["personal_rounds"]
            edge = rate in (min(sizes.rates), max(sizes.rates))
            rows.append(
                {
                    "setting": name,
                    "method": {NOTHING: "FedAvg, longer"}.get(method, method),
                    "rate": f"{rate:g}{' (end of the grid)' if edge else ''}",
                    "rate of finetuning": "-" if final is None else f"{final:g}",
                    "flat at round": flat or "not within the most rounds",
                    "rounds": rounds,
                }
            )
    return rows
