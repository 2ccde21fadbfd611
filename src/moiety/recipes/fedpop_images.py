"""Methods on pictures dealt by classes, for the recipes of Kotelevskii et al. 2022 on CIFAR-10: runs, tables, claims.

The network is LeNet-5, a convolutional network of five layers as the paper's; its last layer is personal where a method
has a personal part. FedSOUL is ``moiety.fedpop`` with Langevin steps, Adam at the server and a normal prior.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.errors import whole
from moiety.recipes.base import Outcome, Watch
from moiety.recipes.partial_table import asked_for, keep_asked

if TYPE_CHECKING:
    from torch import nn

    from moiety.data import FederatedData

FEDPOP = "FedSOUL"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One deal of the data, what the paper prints for it by method (per cent), and the methods to run."""

    name: str
    shown: str
    data: Callable[[int], FederatedData]
    methods: tuple[str, ...]
    paper: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of one scale with their sizes."""

    settings: tuple[Setting, ...]
    seeds: int
    rounds: int
    cohort: int
    batch_size: int = 10
    seed: int = 0
    """Of one run, for methods that draw by a seed of their own."""


def image_table(
    name: str,
    plans: Callable[[str], Plan],
    about: str,
    notes: Sequence[str],
    *,
    scale: str | None,
    out: Path | None,
    rounds: int | None,
    seed: int | None,
    engine: str | None,
    resume: bool,
    watch: Watch,
) -> Outcome:
    """Run what has not ended yet, then write and return the tables; the arguments are a recipe's."""
    from moiety.engines.auto import check_engine
    from moiety.recipes.fedpop_images_report import report

    asked = asked_for(out, {"recipe": name, "scale": scale, "rounds": rounds, "seed": seed}, resume)
    plan = plans(asked["scale"])
    if asked["rounds"] is not None:
        whole("rounds", asked["rounds"], 1)
        plan = replace(plan, rounds=asked["rounds"])
    check_engine(engine or "auto")
    found: dict[str, list[dict[str, float]]] = {}
    began = time.perf_counter()
    for setting in plan.settings:
        fed = setting.data(asked["seed"])  # before anything is written: it may not be at hand
        keep_asked(out, asked)
        seeds = range(asked["seed"], asked["seed"] + plan.seeds)
        found[setting.name] = [_seed(plan, setting, fed, each, out, engine, watch) for each in seeds]
    text, sentence = report(name, asked, plan, found, about, notes, time.perf_counter() - began, out)
    return Outcome({}, sentence, text)


def _seed(
    plan: Plan, setting: Setting, fed: FederatedData, seed: int, out: Path | None, engine: str | None, watch: Watch
) -> dict[str, float]:
    """The mean accuracy over clients of every method: read where it is known, else after running it."""
    from moiety.files import write_file

    file = None if out is None else out / setting.name / f"seed-{seed}.json"
    found: dict[str, float] = json.loads(file.read_text()) if file is not None and file.is_file() else {}
    for method in setting.methods:
        if method not in found:
            seen = watch(f"{setting.name} seed {seed} {method}", None)
            found[method] = accuracy(plan, method, fed, seed, engine, seen)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_file(file, json.dumps(found).encode())
    return found


def accuracy(plan: Plan, method: str, fed: FederatedData, seed: int, engine: str | None, on_round: Any = None) -> float:
    """The mean over clients of their accuracy after one method's training."""
    import moiety as mo

    net = network(fed, seed)
    algorithm, split = METHODS[method](replace(plan, seed=seed), net)
    run = mo.fit(
        net,
        fed,
        algorithm,
        split=split,
        rounds=plan.rounds,
        cohort=plan.cohort,
        seed=seed,
        engine=engine or "auto",
        settings=mo.Settings(evaluate_every=plan.rounds),
        on_round=on_round,
    )
    return float(run.history[-1]["metric_unweighted"])


def network(fed: FederatedData, seed: int) -> nn.Module:
    """LeNet-5 for the pictures at hand."""
    import moiety as mo

    return mo.models.lenet5(image=fed.columns["x"].shape[1:], classes=10, padding=4, seed=seed)


def _head(make: Callable[[Plan], Any]) -> Callable[[Plan, nn.Module], tuple[Any, Any]]:
    def built(plan: Plan, net: nn.Module) -> tuple[Any, Any]:
        import moiety as mo

        return make(plan), mo.split.output_layer(net)

    return built


def _whole(make: Callable[[Plan], Any]) -> Callable[[Plan, nn.Module], tuple[Any, Any]]:
    return lambda plan, net: (make(plan), None)


def fedsoul(plan: Plan) -> Any:
    """FedPop with Langevin steps for a head of 850 numbers."""
    import moiety as mo

    return mo.fedpop(
        shared=1.0,
        personal=mo.kernel.langevin(step=0.0005),
        server=mo.server.adam(lr=0.003),
        prior=mo.prior.gaussian(scale=0.3),
        samples=10,
        thinning=2,
    )


def _moiety(name: str, **options: Any) -> Callable[[Plan], Any]:
    def make(plan: Plan) -> Any:
        import moiety as mo

        return getattr(mo, name)(batch_size=plan.batch_size, **options)

    return make


def _l2gd(plan: Plan) -> Any:
    import moiety as mo

    # About ten steps on all rows a round, and 0.3 of the way to the mean.
    return mo.l2gd(personal=mo.sgd(0.15, pull=0.2), probability=0.1, coins=plan.seed)


def _lg_fedavg(plan: Plan, net: nn.Module) -> tuple[Any, Any]:
    import moiety as mo

    split = mo.split.by_name(net, personal=["conv1", "conv2"])
    return mo.lg_fedavg(shared=mo.sgd(0.05, epochs=5, batch_size=plan.batch_size)), split


METHODS: dict[str, Callable[[Plan, Any], tuple[Any, Any]]] = {
    "local": _whole(_moiety("local_only", lr=0.15, epochs=5)),
    "FedAvg": _whole(_moiety("fedavg", lr=0.05, epochs=5)),
    "SCAFFOLD": _whole(_moiety("scaffold", lr=0.05, epochs=5)),
    "LG-FedAvg": _lg_fedavg,
    "Per-FedAvg": _whole(
        _moiety("per_fedavg", lr=0.02, personal_lr=0.02, personal_steps=5, epochs=5, form="first_order")
    ),
    "L2GD": _whole(_l2gd),
    "APFL": _whole(_moiety("apfl", lr=0.05, alpha=0.5, epochs=5)),
    "Ditto": _whole(_moiety("ditto", lr=0.05, personal_lr=0.05, pull=0.5, epochs=5, personal_epochs=5)),
    "FedRep": _head(_moiety("fedrep", lr=0.15, personal_epochs=10, shared_epochs=1)),
    FEDPOP: _head(fedsoul),
}
"""By name: from the plan and the network to the algorithm and the split; how rates were found, ``TUNED`` says."""
TUNED = (
    "Rates: for each method the best of two or three, for FedSOUL of five, by the test accuracy of one run of 60 rounds"
    " with 5 classes a client, on another deal of the same pictures and another seed (50)."
)


@lru_cache(maxsize=1)
def pictures(
    source: str, *, clients: int, classes: int, rows: int, test: int, seed: int, halved: bool = True
) -> FederatedData:
    """Clients with rows of so many classes each, at most ``rows`` to train on, tested on the same classes.

    Bytes from 0 to 1 become numbers round 0; ``halved`` averages every 2 x 2 pixels.
    """
    import moiety as mo
    from moiety.recipes.fedalt_images import averaged

    how = mo.data.classes_per_client(classes)
    fed = mo.data.load(source, clients=clients, partition=how, per_client=rows, test_per_client=test, seed=seed)
    fed = averaged(fed) if halved else fed
    return replace(fed, columns={**fed.columns, "x": (fed.columns["x"] - 0.5) * 4}, spec={})


def shrunk(fed: FederatedData, share: float, few: int, seed: int) -> FederatedData:
    """The data with a share of the clients, drawn, left with ``few`` training rows each, drawn as well."""
    import numpy as np

    from moiety.random import generator

    rng = generator(seed, "shrunk")
    chosen = rng.permutation(len(fed))[: round(share * len(fed))]
    order, bounds = np.arange(len(fed.columns["y"])), fed.bounds.copy()
    for client in chosen:
        start, stop = fed.rows(int(client), "train")
        order[start:stop] = start + rng.permutation(stop - start)
        bounds[client, 1] = min(stop, start + few)  # what is left over counts as validation rows, which nobody uses
    columns = {name: column[order] for name, column in fed.columns.items()}
    return replace(fed, columns=columns, bounds=bounds, spec={})
