"""Figure 2 and S1 to S6 of Kotelevskii et al. 2022: a shared linear representation from clients with few examples.

Client i has x ~ N(0, I_k) and y ~ N(z_i . (phi' x), s^2), with an orthonormal phi [k, d] and z_i ~ N(0, I_d) drawn once
for each seed. 90% of the clients have few examples, the others 10. FedSOUL (``moiety.fedpop`` with Langevin steps) is
set against its two limits, FedRep and FedAvg, by the principal angle distance between the learned and the true space
(Collins et al. 2021, Definition 1) and by the distance of clients' vectors.

The paper writes the noise as N(., 0.1), which is a variance of 0.1; its authors' program has a deviation of 0.1. Both
are run. What is decided here stands on the page (``fedpop_toy_report.NOTES``).
"""

from __future__ import annotations

import json
import math
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.errors import whole
from moiety.recipes.base import Outcome, Watch, unwatched
from moiety.recipes.partial_table import asked_for, keep_asked

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from moiety.data import FederatedData
    from moiety.run.train import OnRound
    from moiety.types import Algorithm, RoundRecord

NAME = "fedpop-toy"
METHODS = ("FedSOUL", "FedRep", "FedAvg")
HEAD_STEPS = 10
"""Steps of a round in the personal part, for FedSOUL and FedRep alike."""
SAMPLES = 5
FIRST_SEED = 100
"""Settings were found on seeds below it; what is reported comes from others."""


@dataclass(frozen=True, kw_only=True)
class Toy:
    """One problem: b ``clients``, dimensions k ``raw`` and d ``latent``, examples of most clients, deviation s."""

    name: str
    shown: str
    clients: int = 100
    raw: int = 20
    latent: int = 2
    few: int = 5
    many: int = 10
    noise: float = 0.1


@dataclass(frozen=True)
class Plan:
    """Problems, seeds and rounds of one scale."""

    toys: tuple[Toy, ...]
    seeds: int
    rounds: int


NOISY = math.sqrt(0.1)
TOYS = (
    Toy(name="figure-2", shown="Figure 2, S6: variance 0.1", noise=NOISY),
    Toy(name="figure-2-quiet", shown="Figure 2, S6: deviation 0.1"),
    Toy(name="fewer", shown="2 examples, deviation 0.1", few=2),
    Toy(name="s1", shown="S1: 50 clients", clients=50, noise=NOISY),
    Toy(name="s2", shown="S2: 200 clients", clients=200, noise=NOISY),
    Toy(name="s3", shown="S3: 50 raw dimensions", raw=50, noise=NOISY),
    Toy(name="s4", shown="S4: 5 raw dimensions", raw=5, noise=NOISY),
    Toy(name="s5", shown="S5: 5 latent dimensions", latent=5, noise=NOISY),
)
PLANS = {
    "ci": Plan((Toy(name="figure-2", shown="10 clients", clients=10, raw=6, noise=NOISY),), seeds=2, rounds=5),
    "laptop": Plan(TOYS, seeds=20, rounds=150),
    "paper": Plan(TOYS, seeds=20, rounds=500),
}


def fedpop_toy(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """FedSOUL against FedRep and FedAvg where clients have a handful of examples of a linear model.

    Args:
        out: a folder for what is left of each run, the table and the figure; nothing is written without one.
        rounds: instead of the scale's.
        seed: the first of the seeds, counted from ``FIRST_SEED``; 0 by default.
        engine: as in ``moiety.fit``, of each run; ``vectorised`` by default. Seeds are served by all cores at once.
        resume: problems of a seed that have ended in ``out`` are not run again.
        watch: called when the runs of a problem and a seed have ended; what it gives is called with their last rounds.
        scale: ``ci``, ``laptop`` (by default) or ``paper``, which differ in rounds, and ``ci`` in the problem too.
    """
    from moiety.engines.auto import check_engine
    from moiety.recipes.fedpop_toy_report import report

    asked = asked_for(out, {"recipe": NAME, "scale": scale, "rounds": rounds, "seed": seed}, resume)
    plan = PLANS[asked["scale"]]
    if asked["rounds"] is not None:
        whole("rounds", asked["rounds"], 1)
        plan = replace(plan, rounds=asked["rounds"])
    check_engine(engine or "vectorised")
    keep_asked(out, asked)
    began = time.perf_counter()
    found = _found(plan, asked["seed"] + FIRST_SEED, out, engine or "vectorised", watch)
    text, sentence = report(asked, plan, found, time.perf_counter() - began, out)
    return Outcome({}, sentence, text)


def _found(plan: Plan, first: int, out: Path | None, engine: str, watch: Watch) -> dict[str, list[dict[str, Any]]]:
    """The errors by problem and seed; each core serves a seed at a time, for one run has too little work to share."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from moiety.engines.processes import cores

    found: dict[str, list[dict[str, Any]]] = {toy.name: [] for toy in plan.toys}
    pool = ProcessPoolExecutor(cores(), get_context("fork"), initializer=_worker)
    try:
        asked = [(toy, seed) for toy in plan.toys for seed in range(first, first + plan.seeds)]
        each = [pool.submit(_seed, toy, seed, plan.rounds, out, engine) for toy, seed in asked]
        for (toy, seed), future in zip(asked, each, strict=True):
            errors, rounds = future.result()
            found[toy.name].append(errors)
            for method, record in rounds.items():
                if seen := watch(f"{toy.name} {seed} {method}", None):
                    seen(record, plan.rounds)
    finally:
        pool.shutdown(cancel_futures=True)
    return found


def _worker() -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: what runs then is still kept
    torch.set_num_threads(1)


def _seed(
    toy: Toy, seed: int, rounds: int, out: Path | None, engine: str
) -> tuple[dict[str, Any], dict[str, RoundRecord]]:
    """The errors of all methods on one problem, read where they are known, else after running them; and last rounds."""
    from moiety.files import write_file

    file = None if out is None else out / toy.name / f"seed-{seed}.json"
    if file is not None and file.is_file():
        return json.loads(file.read_text()), {}
    last: dict[str, RoundRecord] = {}

    def errors(method: str) -> dict[str, float]:
        return run(toy, method, seed, rounds, engine, lambda record, _: last.update({method: record}))

    found = {method: errors(method) for method in METHODS}
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, json.dumps(found).encode())
    return found, last


def run(
    toy: Toy, method: str, seed: int, rounds: int, engine: str, on_round: OnRound | None = None
) -> dict[str, float]:
    """One method on one problem: the distance of the space, and the mean distance of clients' vectors.

    For FedSOUL also that of the means of the clients' posteriors (``exact``), known in closed form here.
    """
    import numpy as np

    import moiety as mo

    data, phi, z = drawn(toy, seed)
    net = model(toy, seed)
    split = mo.split.nothing(net) if method == "FedAvg" else mo.split.by_name(net, personal=["head"])
    # What crosses is counted and evaluated once: all that is asked of a run is its last models.
    options: dict[str, Any] = {"rounds": rounds, "seed": seed, "engine": engine}
    options["settings"] = mo.Settings(evaluate_every=rounds)
    found = mo.fit(net, data, algorithm(toy, method), split=split, on_round=on_round, **options)
    models = [found.parameters(i) for i in range(toy.clients)]
    body = models[0]["body.weight"].numpy().T
    errors = {
        "space": subspace_distance(body, phi),
        "vectors": vector_error(body, [m["head.weight"].numpy()[0] for m in models], phi, z),
    }
    if method == "FedSOUL":
        mean, scale = (found.broadcast()[f"prior:{name}"].numpy() for name in ("mean", "log_scale"))
        each = [data.client(i) for i in range(toy.clients)]
        exact = [posterior_mean(c["x"] @ body, c["y"][:, 0], toy.noise, mean, float(np.exp(scale))) for c in each]
        errors["exact"] = vector_error(body, exact, phi, z)
    return errors


def posterior_mean(a: np.ndarray, y: np.ndarray, noise: float, mean: np.ndarray, scale: float) -> np.ndarray:
    """The mean of z ~ N(mean, scale^2 I) given y ~ N(a z, noise^2 I)."""
    import numpy as np

    precision = a.T @ a / noise**2 + np.eye(a.shape[1]) / scale**2
    return np.asarray(np.linalg.solve(precision, a.T @ y / noise**2 + mean / scale**2))


def algorithm(toy: Toy, method: str) -> Algorithm:
    """A method with its steps: those of FedSOUL scale with the noise, as its log-likelihood does."""
    import moiety as mo

    if method == "FedAvg":
        return mo.fedavg(shared=mo.sgd(0.01, steps=HEAD_STEPS, batch_size=toy.many), weighting="uniform")
    if method == "FedRep":
        return mo.fedrep(
            shared=mo.sgd(0.02 * toy.few, steps=1, batch_size=toy.many),
            personal=mo.sgd(0.02 * toy.few, steps=HEAD_STEPS, batch_size=toy.many),
        )
    variance = toy.noise**2
    return mo.fedpop(
        shared=0.4 * variance / toy.few,
        personal=mo.kernel.langevin(step=0.2 * variance / toy.many),
        prior_lr=0.02,
        prior=mo.prior.gaussian(scale=1.0, mean=0.0),
        loss_weight=1 / (2 * variance),
        samples=SAMPLES,
        thinning=HEAD_STEPS // SAMPLES,
    )


def drawn(toy: Toy, seed: int) -> tuple[FederatedData, np.ndarray, np.ndarray]:
    """Data, and the phi [k, d] and z [clients, d] that they are from."""
    import numpy as np

    import moiety as mo
    from moiety.random import generator

    rng = generator(seed, "toy")
    phi = np.linalg.qr(rng.normal(size=(toy.raw, toy.latent)))[0]
    z = rng.normal(size=(toy.clients, toy.latent))
    clients = {}
    for i in range(toy.clients):
        n = toy.few if i < round(0.9 * toy.clients) else toy.many
        x = rng.normal(size=(n, toy.raw))
        y = x @ phi @ z[i] + toy.noise * rng.normal(size=n)
        clients[f"client-{i}"] = {"x": x, "y": y[:, None]}
    return mo.data.from_clients(clients, test=0.0), phi, z


def model(toy: Toy, seed: int) -> nn.Module:
    """Two linear layers without biases: the representation, and the vector of a client."""
    from collections import OrderedDict

    from torch import nn

    from moiety.random import torch_seed

    with torch_seed(seed, "toy"):
        body, head = nn.Linear(toy.raw, toy.latent, bias=False), nn.Linear(toy.latent, 1, bias=False)
        nn.init.orthogonal_(body.weight)
    return nn.Sequential(OrderedDict(body=body, head=head)).double()


def subspace_distance(one: np.ndarray, other: np.ndarray) -> float:
    """The sine of the largest principal angle between the spaces of the columns: 0 where they are one, at most 1."""
    import numpy as np

    a, b = np.linalg.qr(one)[0], np.linalg.qr(other)[0]
    return float(np.linalg.norm(b - a @ (a.T @ b), 2))


def vector_error(body: np.ndarray, vectors: list[np.ndarray], phi: np.ndarray, z: np.ndarray) -> float:
    """The mean over clients of |phi_hat z_hat - phi z|: as |z_hat - z|, and the same in every basis of the space."""
    import numpy as np

    return float(np.mean([np.linalg.norm(body @ v - phi @ w) for v, w in zip(vectors, z, strict=True)]))
