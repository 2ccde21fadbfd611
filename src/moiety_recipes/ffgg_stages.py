"""FedAvg, then Local FFGG by split, then finetuning, each at the rate and for the rounds that a pilot seed chose.

A pilot seed, which is not reported, chooses on validation rows. Each method has the same four rates. The rounds of
FedAvg are the first from which on its curve is flat (``find_flat``). All of stage two has the rounds that its slowest
method needs by the same test. Reported seeds train on training and validation rows, and are scored on test rows. Every
seed deals the rows anew.

Local FFGG (Algorithm 4) makes one epoch on the personal part, then one in turns on both: three passes in all, where a
round of FedAvg makes one. So FedAvg with equal communication goes on for as many rounds, with equal computation for
three times as many.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """Sizes of one scale. Rounds are the most of each stage; the pilot seed is scored at so many ``points``."""

    settings: tuple[str, ...]
    seeds: int
    rounds: int
    personal_rounds: int
    cohort: int = 10
    batch_size: int = 16
    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    epochs: int = 5
    points: int = 24
    """Scores of FedAvg along the pilot's runs; methods with a personal part, whose scores cost more, have half."""
    flat: float = 0.005
    pilot: int = 100

    def with_rounds(self, rounds: int) -> Any:
        """Other rounds of FedAvg, and of the rest in the same ratio."""
        return replace(self, rounds=rounds, personal_rounds=max(1, self.personal_rounds * rounds // self.rounds))


def plan_sizes(scale: str, *, seeds: int) -> Sizes:
    """The sizes of a scale, with so many seeds at ``night`` and ``paper``."""
    if scale == "ci":
        few: dict[str, Any] = {"cohort": 2, "batch_size": 8, "rates": (0.1, 0.3), "epochs": 1, "points": 2}
        return Sizes(("digits",), seeds=1, rounds=4, personal_rounds=2, **few)
    if scale == "laptop":
        return Sizes(("speakers", "clothes"), seeds=3, rounds=150, personal_rounds=60)
    return Sizes(NIGHT, seeds=seeds, rounds=600, personal_rounds=120)


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


def options(sizes: Sizes, name: str, seed: int, algorithm: mo.Algorithm, split: str, rounds: int, **more: Any) -> Row:
    """The arguments of ``moiety.fit``; the pilot seed is scored on validation rows, along the way too."""
    model, fed, pilot = SETTINGS[name].model(seed), load(name, seed), seed == sizes.pilot
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


def build_cell(sizes: Sizes, key: tuple[str | int, ...], name: str, seed: int, *args: Any, **options_: Any) -> Cell:
    """A cell of one run."""
    start = options_.pop("start", None)
    fit = partial(options, sizes, name, seed, *args, **options_)
    return Cell(key=key, fit=fit, keep=keep_course, start=start, engine="vectorised")


def work(sizes: Sizes, lr: float, epochs: int = 1) -> Any:
    """Local SGD in the batches of all stages."""
    return mo.sgd(lr, epochs=epochs, batch_size=sizes.batch_size)


def fedavg(sizes: Sizes, lr: float) -> mo.Algorithm:
    """One epoch a round."""
    return mo.fedavg(shared=work(sizes, lr))


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


def choose(rows: Mapping[float, Row]) -> float:
    """The rate with the best score on validation rows; of equals the smallest."""
    return max(sorted(rows), key=lambda lr: rows[lr]["score"])


def run_pilot(sizes: Sizes, arms: Sequence[Arm]) -> Steps:
    """Choose rates and rounds for every setting on the pilot seed; what was chosen, by setting."""
    names, seed, rates = sizes.settings, sizes.pilot, sizes.rates
    for name in names:
        load(name, seed)

    def ask(step: str, jobs: Mapping[tuple[str, str], Any], starts: Mapping[str, Any], rounds: Any) -> Steps:
        """Run every method of every setting at every rate; the rows by setting, method and rate."""
        cells, keys = [], []
        for (name, method), (build, split) in jobs.items():
            for lr in rates:
                key = ("pilot", name, f"{step}, {method}, {lr:g}")
                how: Row = {"start": starts.get(f"{name}/{method}", starts.get(name))}
                how |= {"cohort": None} if step == "finetuning" else {}
                cells.append(build_cell(sizes, key, name, seed, build(lr), split, rounds(name), **how))
                keys.append((name, method, lr))
        rows = yield cells
        table: dict[tuple[str, str], dict[float, Row]] = {}
        for (name, method, lr), row in zip(keys, rows, strict=True):
            table.setdefault((name, method), {})[lr] = row
        return table

    first = yield from ask(
        "FedAvg", {(n, FEDAVG): (partial(fedavg, sizes), NOTHING) for n in names}, {}, lambda n: sizes.rounds
    )
    chosen: dict[str, Row] = {n: {"rates": {FEDAVG: choose(first[n, FEDAVG])}, "flat": {}} for n in names}
    for n in names:
        best = first[n, FEDAVG][chosen[n]["rates"][FEDAVG]]
        flat = find_flat(best["course"], sizes.flat)
        chosen[n] |= {"rounds": flat or sizes.rounds, "flat": {FEDAVG: flat}}
    bases = [
        build_cell(
            sizes,
            ("pilot", n, FEDAVG),
            n,
            seed,
            fedavg(sizes, chosen[n]["rates"][FEDAVG]),
            NOTHING,
            chosen[n]["rounds"],
        )
        for n in names
    ]
    yield bases
    starts: dict[str, Any] = {n: ("pilot", n, FEDAVG) for n in names}
    methods = {a.name: (partial(local_ffgg, sizes, a), a.split) for a in (*arms, Arm(NOTHING, fresh=False))}
    jobs = {(n, m): how for n, (m, how) in itertools.product(names, methods.items())}
    second = yield from ask("stage two", jobs, starts, lambda n: sizes.personal_rounds)
    for (n, method), rows in second.items():
        rate = chosen[n]["rates"][method] = choose(rows)
        chosen[n]["flat"][method] = find_flat(rows[rate]["course"], sizes.flat)
        starts[f"{n}/{method}"] = ("pilot", n, f"stage two, {method}, {rate:g}")
    for n in names:
        flats = [chosen[n]["flat"][method] or sizes.personal_rounds for method in methods]
        chosen[n]["personal_rounds"] = max(flats)
    tuned = {a.name: (partial(finetune, sizes, a), a.split) for a in arms}
    jobs = {(n, m): how for n, (m, how) in itertools.product(names, tuned.items())}
    third = yield from ask("finetuning", jobs, starts, lambda n: 1)
    for (n, method), rows in third.items():
        chosen[n]["rates"][f"{method}, finetuning"] = choose(rows)
    yield Cell(key=("chosen",), work=lambda: {"chosen": chosen})
    return chosen


def run_seeds(sizes: Sizes, seeds: Sequence[int], arms: Sequence[Arm], chosen: Mapping[str, Row]) -> Steps:
    """All reported runs, stage by stage."""
    pairs = list(itertools.product(sizes.settings, seeds))
    for name, seed in pairs:
        load(name, seed)
    yield [
        build_cell(sizes, (s, n, FEDAVG), n, s, fedavg(sizes, chosen[n]["rates"][FEDAVG]), NOTHING, chosen[n]["rounds"])
        for n, s in pairs
    ]
    stage = []
    for n, s in pairs:
        rates, rounds = chosen[n]["rates"], chosen[n]["personal_rounds"]
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
        algorithm = finetune(sizes, arm, chosen[n]["rates"][f"{arm.name}, finetuning"])
        key, start = (s, n, f"{arm.name}, then finetuning"), (s, n, arm.name)
        finals.append(build_cell(sizes, key, n, s, algorithm, arm.split, 1, start=start, cohort=None))
        if not arm.fresh:
            key, start = (s, n, f"{arm.name}, finetuning alone"), (s, n, COMMUNICATION)
            finals.append(build_cell(sizes, key, n, s, algorithm, arm.split, 1, start=start, cohort=None))
    yield finals


def describe_choice(sizes: Sizes, chosen: Mapping[str, Row]) -> list[Row]:
    """Rates, rounds and whether curves were flat, a row for each setting and method."""
    rows = []
    for name, own in chosen.items():
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
