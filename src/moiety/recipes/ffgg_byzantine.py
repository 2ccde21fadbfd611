"""Byzantine clients against FFGG (Mishchenko et al. 2023, Algorithm 5): every attack against every aggregator.

The paper proves that FFGG with a robust aggregator converges linearly where the problem is overpersonalised, and has no
experiment with Byzantine clients. Here the output layer is personal, a fifth of the clients attack, and what counts is
the accuracy of the honest clients' personal models on their own test rows. An attack that the model shrugs off says
little of an aggregator, so the plain mean is among them.

At scale ``laptop`` the data are Fashion-MNIST, averaged to 14 x 14 pixels, on 20 clients whose label ratios are drawn
from Dirichlet(0.3); at scale ``paper`` they are whole, on 100 clients with the CNN of McMahan et al. (2017). Scale
``ci`` has other data and fewer of all, and shows that everything runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.errors import whole
from moiety.recipes.base import Outcome, Watch, is_run, unwatched
from moiety.recipes.partial_table import asked_for, keep_asked
from moiety.recipes.running import Ended, read, write

if TYPE_CHECKING:
    from torch import nn

    from moiety.data import FederatedData
    from moiety.server.attacks import Attack
    from moiety.server.robust import Aggregator
    from moiety.types import Algorithm

NAME = "ffgg-byzantine"
NONE = "none"
"""The row without an attack."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is attacked and how, at one scale.

    ``data(seed)`` and ``model(seed)`` make them, ``share`` is the part of clients that attack, and a cell holds
    where honest clients lose less than ``margin`` against the mean of the honest alone.
    """

    title: str
    data: Callable[[int], FederatedData]
    model: Callable[[int], nn.Module]
    algorithm: Algorithm
    rounds: int
    seeds: int
    attacks: Mapping[str, Attack | None]
    aggregators: Mapping[str, Aggregator]
    share: float = 0.2
    margin: float = 0.03
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One attack against one aggregator: for each seed the honest clients' rows, and the time it took in all."""

    attack: str
    aggregator: str
    rows: list[list[dict[str, Any]]]
    seconds: float

    def scores(self) -> list[float]:
        """The mean accuracy of honest clients, weighted by their test rows, for each seed."""
        from moiety.evaluation import summarise

        return [float(summarise(rows, higher_is_better=True)["metric"]) for rows in self.rows]


def ffgg_byzantine(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """FFGG under each attack with each aggregator: the accuracy of honest clients' personal models, as a matrix.

    Args:
        out: a folder for runs, tables and the figure; nothing is written without one.
        rounds: of each run, instead of the scale's.
        seed: the first of the seeds, and the seed of the data; 0 by default.
        engine: as in ``moiety.fit``; ``vectorised`` by default.
        resume: continue what has begun in ``out``.
        watch: called before each run; gives what is to be called after every round.
        scale: ``ci``, ``laptop`` (by default) or ``paper``.
    """
    from moiety.engines.auto import check_engine
    from moiety.recipes.ffgg_byzantine_report import report

    asked = asked_for(out, {"recipe": NAME, "scale": scale, "rounds": rounds, "seed": seed}, resume)
    engine = engine or "vectorised"
    check_engine(engine)
    made = trial(asked["scale"])
    if asked["rounds"] is not None:
        whole("rounds", asked["rounds"], 1)
        made = replace(made, rounds=asked["rounds"])
    data = made.data(asked["seed"])  # before anything is written: it may not be at hand
    keep_asked(out, asked)
    cells = [
        _cell(made, data, attack, aggregator, asked["seed"], out, engine, watch)
        for attack in made.attacks
        for aggregator in made.aggregators
    ]
    text, sentence = report(asked, made, cells, out)
    return Outcome({}, sentence, text)


def _cell(
    made: Trial,
    data: FederatedData,
    attack: str,
    aggregator: str,
    seed: int,
    out: Path | None,
    engine: str,
    watch: Watch,
) -> Cell:
    """All seeds of one cell."""
    from moiety.run.settings import pick_attackers

    rows, seconds = [], 0.0
    for each in range(seed, seed + made.seeds):
        evil = {str(data.ids[client]) for client in pick_attackers(data, made.share, each)}
        ended = _run(made, data, attack, aggregator, each, sorted(evil), out, engine, watch)
        rows.append([row for row in ended.rows if row["client"] not in evil])
        seconds += ended.seconds
    return Cell(attack, aggregator, rows, seconds)


def _run(
    made: Trial,
    data: FederatedData,
    attack: str,
    aggregator: str,
    seed: int,
    attackers: list[str],
    out: Path | None,
    engine: str,
    watch: Watch,
) -> Ended:
    """One run: read where it has ended, else begun or continued."""
    name = f"{attack}, {aggregator}".replace(", ", "-").replace(" ", "_")
    folder = None if out is None else out / f"seed-{seed}" / name
    file = None if folder is None else folder.with_suffix(".json")
    if file is not None and file.is_file():
        return read(file)
    began = time.perf_counter()
    model = made.model(seed)
    parts: dict[str, Any] = {"model": model, "data": data, "split": mo.split.output_layer(model)}
    on_round = watch(f"seed {seed} {name}", folder)
    if folder is not None and is_run(folder):
        run = mo.resume(folder, **parts, engine=engine, on_round=on_round)
    else:
        chosen = made.attacks[attack]
        how: dict[str, Any] = {} if chosen is None else {"attack": chosen, "attackers": attackers}
        settings = mo.Settings(aggregator=made.aggregators[aggregator], evaluate_every=made.rounds, **how)
        options: dict[str, Any] = {"seed": seed, "engine": engine, "out": folder, "on_round": on_round}
        run = mo.fit(algorithm=made.algorithm, **parts, rounds=made.rounds, settings=settings, **options)
    ended = Ended(run.clients, None, run.history[-1]["metric_name"], run.engine, time.perf_counter() - began)
    if file is not None:
        write(file, ended)
    return ended


def trial(scale: str) -> Trial:
    """What is run at a scale."""
    return _digits() if scale == "ci" else _fashion_mnist(paper=scale == "paper")


def _digits() -> Trial:
    every, some = attacks(), (NONE, "sign flip", "label flip", "not finite")
    joined, few = aggregators(clients=10, byzantine=2), ("mean", "median", "mixing, trimmed mean")
    return Trial(
        title="Handwritten digits (scikit-learn), 8 x 8 pixels; 10 clients, label ratios from Dirichlet(0.5).",
        data=lambda seed: mo.data.load(
            "digits", clients=10, per_client=20, partition=mo.data.dirichlet(0.5), seed=seed
        ),
        model=lambda seed: mo.models.mlp(64, 10, hidden=(16, 8), seed=seed),
        algorithm=mo.ffgg(shared=0.5, personal=mo.sgd(0.5, steps=3)),
        rounds=3,
        seeds=2,
        attacks={name: every[name] for name in some},
        aggregators={name: joined[name] for name in few},
    )


def _fashion_mnist(paper: bool) -> Trial:
    clients, rows, rounds, seeds = (100, 480, 1000, 5) if paper else (20, 100, 60, 3)

    def data(seed: int) -> FederatedData:
        from moiety.recipes.fedalt_images import averaged

        options: dict[str, Any] = {"clients": clients, "per_client": rows, "test_per_client": 100, "seed": seed}
        fed = mo.data.load("fashion_mnist", partition=mo.data.dirichlet(0.3), **options)
        return fed if paper else averaged(fed)

    def model(seed: int) -> nn.Module:
        if paper:
            return mo.models.cnn(classes=10, seed=seed)
        return mo.models.mlp(196, 10, hidden=(64, 16), seed=seed)

    size = "28 x 28 pixels, a CNN" if paper else "14 x 14 pixels, a network with hidden layers of 64 and 16"
    return Trial(
        title=f"Pictures of clothes (Fashion-MNIST), {size}; {clients} clients of {rows} training rows each, label"
        " ratios from Dirichlet(0.3).",
        data=data,
        model=model,
        algorithm=mo.ffgg(shared=0.7, personal=mo.sgd(0.5, steps=10)),
        rounds=rounds,
        seeds=seeds,
        attacks=attacks(),
        aggregators=aggregators(clients=clients, byzantine=clients // 5),
        notes=(
            "One deal of the data serves all seeds; they differ in first weights and in who attacks.",
            "Rates, rounds and the radius of centred clipping were set by looking at runs without an attack.",
            "A personal output layer can turn labels back: attackers with flipped labels then send what helps the"
            " shared layers nearly as honest labels would. The row *label flip* says more of the split than of"
            " aggregators.",
        ),
    )


def attacks() -> dict[str, Attack | None]:
    """All of them, by the names that tables show; the first is none."""
    return {
        NONE: None,
        "sign flip": mo.attack.sign_flip(scale=10.0),
        "inner product": mo.attack.inner_product_manipulation(epsilon=0.5),
        "a little": mo.attack.a_little_is_enough(z=1.5),
        "mimic": mo.attack.mimic(),
        "gaussian": mo.attack.gaussian(std=1.0),
        "label flip": mo.attack.label_flip(classes=10),
        "not finite": mo.attack.not_finite(),
    }


def aggregators(*, clients: int, byzantine: int) -> dict[str, Aggregator]:
    """All of them, for that many Byzantine clients; none needs more uploads than the honest alone send."""
    honest = clients - byzantine
    trimmed = mo.aggregator.trimmed_mean(byzantine=byzantine)
    return {
        "mean": mo.aggregator.mean(),
        "median": mo.aggregator.median(),
        "trimmed mean": trimmed,
        "krum": mo.aggregator.krum(byzantine=byzantine),
        "multi-krum": mo.aggregator.multi_krum(byzantine=byzantine, keep=honest - byzantine),
        "geometric median": mo.aggregator.geometric_median(),
        "centred clipping": mo.aggregator.centred_clipping(radius=0.5),
        "buckets, geometric median": mo.aggregator.bucketing(size=2, then=mo.aggregator.geometric_median()),
        "mixing, trimmed mean": mo.aggregator.nearest_neighbour_mixing(byzantine=byzantine, then=trimmed),
    }
