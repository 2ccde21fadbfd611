"""Figures 4 and S9 of Kotelevskii et al. 2022: are clients' probabilities calibrated, and is the strange noticed?

Calibration: CIFAR-10, 2 or 5 classes a client, reliability diagrams of FedSOUL beside FedRep. Elsewhere: clients that
trained on MNIST see Fashion-MNIST; the entropy of their predictions should be larger there (AUROC).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.errors import whole
from moiety.recipes.base import Outcome, Watch, unwatched
from moiety.recipes.fedpop_images import FEDPOP, METHODS, network, pictures
from moiety.recipes.fedpop_images import Plan as ImagePlan
from moiety.recipes.partial_table import asked_for, keep_asked

if TYPE_CHECKING:
    from moiety.data import FederatedData
    from moiety.run.result import Run

NAME = "fedpop-uncertainty"
SHOWN = (FEDPOP, "FedRep")
BINS, CURVES = 10, 4


@dataclass(frozen=True)
class Setting:
    """One deal of the data, and where the strange pictures come from, if any are shown."""

    name: str
    shown: str
    data: Callable[[int], FederatedData]
    strange: Callable[[int], FederatedData] | None = None


@dataclass(frozen=True)
class Plan:
    """Sizes of one scale; so many clients are looked at."""

    settings: tuple[Setting, ...]
    seeds: int
    rounds: int
    cohort: int
    looked_at: int


def fedpop_uncertainty(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """Calibration on CIFAR-10, and the entropy of MNIST's clients on Fashion-MNIST.

    Args:
        out: a folder for what is left of each run, the table and the figures; nothing is written without one.
        rounds: instead of the scale's.
        seed: the first of the seeds, and the seed of the data; 0 by default.
        engine: as in ``moiety.fit``.
        resume: what has ended in ``out`` is not run again.
        watch: called before each run; gives what is to be called after every round.
        scale: ``ci``, ``laptop`` (by default) or ``paper``.
    """
    from moiety.engines.auto import check_engine
    from moiety.recipes.fedpop_uncertainty_report import report

    asked = asked_for(out, {"recipe": NAME, "scale": scale, "rounds": rounds, "seed": seed}, resume)
    plan = plans(asked["scale"])
    if asked["rounds"] is not None:
        whole("rounds", asked["rounds"], 1)
        plan = replace(plan, rounds=asked["rounds"])
    check_engine(engine or "auto")
    began = time.perf_counter()
    found: dict[str, list[dict[str, Any]]] = {}
    for setting in plan.settings:
        fed = setting.data(asked["seed"])
        other = None if setting.strange is None else setting.strange(asked["seed"])
        keep_asked(out, asked)
        seeds = range(asked["seed"], asked["seed"] + plan.seeds)
        found[setting.name] = [_seed(plan, setting, fed, other, each, out, engine, watch) for each in seeds]
    text, sentence = report(asked, plan, found, time.perf_counter() - began, out)
    return Outcome({}, sentence, text)


def plans(scale: str) -> Plan:
    """Three settings; at scale ``ci`` handwritten digits, and noise as what is strange."""
    if scale == "ci":
        one = Setting("digits", "Digits, 5 classes a client", digits, noise)
        return Plan((one,), seeds=2, rounds=2, cohort=2, looked_at=3)
    paper = scale == "paper"
    rows, test = (500, 100) if paper else (50, 50)
    sizes: dict[str, Any] = {"clients": 100, "rows": rows, "test": test, "halved": not paper}

    def deal(source: str, classes: int) -> Callable[[int], FederatedData]:
        return lambda seed: pictures(source, classes=classes, seed=seed, **sizes)

    settings = (
        Setting("cifar10-2", "CIFAR-10, 2 classes a client", deal("cifar10", 2)),
        Setting("cifar10-5", "CIFAR-10, 5 classes a client", deal("cifar10", 5)),
        Setting(
            "mnist-5", "MNIST, 5 classes a client, shown Fashion-MNIST", deal("mnist", 5), deal("fashion_mnist", 5)
        ),
    )
    return Plan(settings, 5 if paper else 3, 1000 if paper else 100, cohort=10, looked_at=100 if paper else 40)


def _seed(
    plan: Plan,
    setting: Setting,
    fed: FederatedData,
    other: FederatedData | None,
    seed: int,
    out: Path | None,
    engine: str | None,
    watch: Watch,
) -> dict[str, Any]:
    """What both methods' clients say of their own pictures and of strange ones: read, or found by running them."""
    import moiety as mo
    from moiety.files import write_file

    file = None if out is None else out / setting.name / f"seed-{seed}.json"
    if file is not None and file.is_file():
        return dict(json.loads(file.read_text()))
    found = {}
    for method in SHOWN:
        net = network(fed, seed)
        algorithm, split = METHODS[method](ImagePlan(settings=(), seeds=1, rounds=1, cohort=1), net)
        options: dict[str, Any] = {"rounds": plan.rounds, "cohort": plan.cohort}
        options["settings"] = mo.Settings(evaluate_every=plan.rounds)
        on_round = watch(f"{setting.name} seed {seed} {method}", None)
        run = mo.fit(net, fed, algorithm, split=split, seed=seed, engine=engine or "auto", on_round=on_round, **options)
        found[method] = looked_at(run, fed, other, plan.looked_at)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, json.dumps(found).encode())
    return found


def looked_at(run: Run, fed: FederatedData, other: FederatedData | None, count: int) -> dict[str, Any]:
    """Scores over all looked-at clients and their mean over clients, the bins of reliability, entropies."""
    import numpy as np

    from moiety.evaluation import calibration

    predictions, inside, outside = {}, [], []
    for client in range(min(count, len(fed))):
        rows = fed.client(client, "test")
        seen = run.predictive(client, rows["x"], refresh=True)
        predictions[str(fed.ids[client])] = (seen.probabilities, rows["y"])
        inside.append(seen.entropy)
        if other is not None:
            outside.append(run.predictive(client, other.client(client, "test")["x"], refresh=True).entropy)
    each, heap = calibration.calibration_rows(predictions, bins=BINS)
    p, y = (np.concatenate(parts) for parts in zip(*predictions.values(), strict=True))
    scores = {key: heap[key] for key in ("accuracy", "ece", "nll", "brier")}
    scores["client_ece"] = float(np.mean([row["ece"] for row in each]))
    found: dict[str, Any] = {"scores": scores, "bins": calibration.reliability(p, y, bins=BINS)}
    if outside:
        auroc = [calibration.out_of_distribution_auroc(a, b) for a, b in zip(inside, outside, strict=True)]
        scores["auroc"] = float(np.mean(auroc))
        found["entropies"] = [
            {"its own": a.tolist(), "strange": b.tolist()} for a, b in list(zip(inside, outside, strict=True))[:CURVES]
        ]
    return found


def digits(seed: int) -> FederatedData:
    """Small enough to end in seconds."""
    from moiety.recipes.fedpop_small import digits as dealt

    return dealt(seed)


def noise(seed: int) -> FederatedData:
    """The same clients with noise in the place of pictures."""
    from moiety.random import generator

    fed = digits(seed)
    x = generator(seed, "noise").normal(size=fed.columns["x"].shape).astype("float32")
    return replace(fed, columns={**fed.columns, "x": x}, spec={})
