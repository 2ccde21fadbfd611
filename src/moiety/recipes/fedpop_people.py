"""Five labelled windows a person: FedPop on human activities, for people in the federation and for new ones.

UCI HAR: 30 people, six activities, windows of a phone's movements as 108 statistics. Some people are held out and come
when training is over, with five labelled windows of their own. Kotelevskii et al. 2022 do not have this experiment; it
is what their abstract promises: models for clients with few examples and for new ones that know what they do not know.

The head of a small network is personal. FedPop averages its predictions over draws of the head; the others (FedRep,
FedAvg with the head finetuned, FedAvg, models trained alone) have one model each.
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
from moiety.recipes.partial_table import asked_for, keep_asked

if TYPE_CHECKING:
    import numpy as np

    from moiety.data import FederatedData
    from moiety.run.result import Run

NAME = "fedpop-people"
METHODS = ("FedPop", "FedRep", "finetuning", "FedAvg", "alone")
GROUPS = {"known": "people of the federation", "new": "new people"}
LABELLED = 5
BINS = 10


@dataclass(frozen=True)
class Plan:
    """Sizes of one scale: seeds, people held out, test windows of a person, rounds, hidden units."""

    seeds: int
    held_out: int
    test: int
    rounds: int
    hidden: int
    classes: int = 6
    digits: int | None = None
    """So many clients with handwritten digits in the place of people, for a scale that needs no data at hand."""


PLANS = {
    "ci": Plan(seeds=2, held_out=2, test=10, rounds=3, hidden=4, classes=10, digits=5),
    "laptop": Plan(seeds=10, held_out=6, test=100, rounds=150, hidden=32),
    "paper": Plan(seeds=20, held_out=6, test=250, rounds=500, hidden=64),
}


def fedpop_people(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """FedPop against FedRep, finetuning, FedAvg and local models, with five labelled windows a person.

    Args:
        out: a folder for what is left of each seed, the tables and the figure; nothing is written without one.
        rounds: instead of the scale's.
        seed: the first of the seeds; 0 by default.
        engine: as in ``moiety.fit``; ``vectorised`` by default.
        resume: seeds that have ended in ``out`` are not run again.
        watch: called before each run; gives what is to be called after every round.
        scale: ``ci``, ``laptop`` (by default) or ``paper``.
    """
    from moiety.engines.auto import check_engine
    from moiety.recipes.fedpop_people_report import report

    asked = asked_for(out, {"recipe": NAME, "scale": scale, "rounds": rounds, "seed": seed}, resume)
    plan = PLANS[asked["scale"]]
    if asked["rounds"] is not None:
        whole("rounds", asked["rounds"], 1)
        plan = replace(plan, rounds=asked["rounds"])
    check_engine(engine or "vectorised")
    fed = windows(plan)  # before anything is written: it may not be at hand
    keep_asked(out, asked)
    began = time.perf_counter()
    seeds = range(asked["seed"], asked["seed"] + plan.seeds)
    found = {each: _seed(plan, fed, each, out, engine or "vectorised", watch) for each in seeds}
    text, sentence = report(asked, plan, found, time.perf_counter() - began, out)
    return Outcome({}, sentence, text)


def windows(plan: Plan) -> FederatedData:
    """All windows of all people, as training rows."""
    import moiety as mo

    if plan.digits is not None:
        return mo.data.load("digits", clients=plan.digits, partition=mo.data.dirichlet(1.0), test=0.0)
    return mo.data.load("uci_har", features="statistics", test=0.0)


def _seed(plan: Plan, fed: FederatedData, seed: int, out: Path | None, engine: str, watch: Watch) -> dict[str, Any]:
    """Scores and reliability of all methods for both groups: read where they are known, else after running them."""
    from moiety.files import write_file

    file = None if out is None else out / f"seed-{seed}.json"
    if file is not None and file.is_file():
        return dict(json.loads(file.read_text()))
    known, new = people(plan, fed, seed)
    found: dict[str, Any] = {}
    for method, predicted in trained(plan, known, seed, engine, watch).items():
        found[method] = {"known": _known(known, predicted), "new": _new(new, predicted)}
    if file is not None:
        write_file(file, json.dumps(found).encode())
    return found


Predict = Callable[[Any, "np.ndarray"], "np.ndarray"]
"""Probabilities for the windows of a person of the federation (its number) or of a new one (its labelled windows)."""


def trained(plan: Plan, known: FederatedData, seed: int, engine: str, watch: Watch) -> dict[str, Predict]:
    """Every method trained on the people of the federation, as what it predicts."""
    import moiety as mo

    net = mo.models.mlp(known.columns["x"].shape[1], plan.classes, hidden=(plan.hidden,), seed=seed)
    head = mo.split.output_layer(net)

    def fit(name: str, algorithm: Any, split: Any, rounds: int, **options: Any) -> Run:
        options |= {"seed": seed, "engine": engine, "settings": mo.Settings(evaluate_every=rounds)}
        return mo.fit(
            net, known, algorithm, split=split, rounds=rounds, on_round=watch(f"seed {seed} {name}", None), **options
        )

    kernel, server = mo.kernel.langevin(step=0.01), mo.server.adam(lr=0.01)
    prior = mo.prior.gaussian(scale=0.3)
    options: dict[str, Any] = {"samples": 20, "thinning": 2, "burn_in": 5, "prior": prior, "server": server}
    pop = fit("FedPop", mo.fedpop(kernel=kernel, shared_lr=1.0, **options), head, plan.rounds)
    rep = fit(
        "FedRep",
        mo.fedrep(shared=mo.sgd(0.05, batch_size=LABELLED), personal=mo.sgd(0.05, epochs=10, batch_size=LABELLED)),
        head,
        plan.rounds,
    )
    avg = fit("FedAvg", mo.fedavg(shared=mo.sgd(0.05, epochs=5, batch_size=LABELLED)), None, plan.rounds)
    tune = fit("finetuning", mo.finetune(personal=mo.sgd(0.05, epochs=50, batch_size=LABELLED)), head, 1, start=avg)
    own = fit("alone", mo.local_only(personal=mo.sgd(0.05, epochs=100, batch_size=LABELLED)), None, 1)
    runs = {"FedPop": (pop, 1), "FedRep": (rep, 5), "finetuning": (tune, 1), "FedAvg": (avg, 1), "alone": (own, 1)}
    return {name: _predict(run, passes) for name, (run, passes) in runs.items()}


def _predict(run: Run, passes: int) -> Predict:
    return lambda client, x: run.predictive(client, x, passes=passes).probabilities


def people(plan: Plan, fed: FederatedData, seed: int) -> tuple[FederatedData, dict[str, dict[str, Any]]]:
    """The federation, and the new people with their labelled windows and the others.

    Whoever it is has five labelled windows, drawn, and is tested on others. Columns are standardised by the labelled
    windows of the federation alone.
    """
    import numpy as np

    from moiety.data import FederatedData
    from moiety.random import generator

    rng = generator(seed, "people")
    order = rng.permutation(len(fed))
    drawn = {}
    for i in order.tolist():
        rows = fed.at(i)
        some = rng.permutation(len(rows["y"]))[: LABELLED + plan.test]
        drawn[str(fed.ids[i])] = {name: column[some] for name, column in rows.items()}
    new, known = (dict(part) for part in (list(drawn.items())[: plan.held_out], list(drawn.items())[plan.held_out :]))
    labelled = np.concatenate([rows["x"][:LABELLED] for rows in known.values()])
    mean, spread = labelled.mean(0), labelled.std(0) + 1e-3
    for rows in drawn.values():
        rows["x"] = ((rows["x"] - mean) / spread).astype(np.float32)
    sizes = np.array([len(rows["y"]) for rows in known.values()])
    start = np.cumsum(sizes) - sizes
    bounds = np.stack([start, start + LABELLED, start + LABELLED, start + sizes], axis=1)
    columns = {name: np.concatenate([rows[name] for rows in known.values()]) for name in ("x", "y")}
    return FederatedData(columns, bounds, list(known)), new


def _known(known: FederatedData, predict: Predict) -> dict[str, Any]:
    rows = {name: known.client(name, "test") for name in known.ids}
    return scored([(predict(name, each["x"]), each["y"]) for name, each in rows.items()])


def _new(new: dict[str, dict[str, Any]], predict: Predict) -> dict[str, Any]:
    found = []
    for rows in new.values():
        labelled = {name: rows[name][:LABELLED] for name in ("x", "y")}
        found.append((predict(labelled, rows["x"][LABELLED:]), rows["y"][LABELLED:]))
    return scored(found)


def scored(found: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Scores of all windows of a group, the accuracy of its worst-served person, and the bins of reliability."""
    import numpy as np

    from moiety.evaluation import calibration

    p, y = (np.concatenate(parts) for parts in zip(*found, strict=True))
    worst = min(float((each.argmax(1) == labels).mean()) for each, labels in found)
    scores = {**calibration.scores(p, y, bins=BINS), "worst": worst, **calibration.set_coverage(p, y, level=0.9)}
    return {"scores": scores, "bins": calibration.reliability(p, y, bins=BINS)}
