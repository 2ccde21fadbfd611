"""Methods on pictures dealt by classes, for the recipes of Kotelevskii et al. 2022 on CIFAR-10: runs, tables, claims.

The network is LeNet-5, a convolutional network of five layers as the paper's; its last layer is personal where a method
has a personal part. FedSOUL is ``moiety.fedpop`` with Langevin steps, Adam at the server and a normal prior.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import moiety as mo
from moiety.experiments import Cell, Cells, Page, Results, Row, Section, compare, table_row
from moiety_recipes.fedpop_pages import build_page, count_intervals, judge
from moiety_recipes.pictures import average_pixels, replace_pictures

FEDSOUL = "FedSOUL"
PERSONAL_HEAD = ("FedRep", FEDSOUL)
"""The methods with a personal last layer."""
NOISE = "noise"
"""Numbers drawn in the place of pictures."""
TUNED = (
    "Rates: for each method the best of two or three, for FedSOUL of five, by the test accuracy of one run of 60 rounds"
    " with 5 classes a client, on another deal of the same pictures and another seed (50)."
)


@dataclass(frozen=True, kw_only=True)
class Scarce:
    """A share of the clients is left with so many training pictures each."""

    share: float
    pictures: int


@dataclass(frozen=True, kw_only=True)
class Deal:
    """Pictures dealt to clients by classes.

    Args:
        name: its folder and its name in ``table.json``.
        title: its name on the page, filled in from the other fields.
        source: a data set of ``moiety.data``.
        clients: how many.
        classes: of each client, which is tested on the same classes.
        rows: the most rows a client has; they are drawn.
        test_rows: test rows of each client, where the data set has a test set.
        test_share: the share of a client's rows that are test rows, where it has none.
        validation: the share of a client's training rows that is kept for validation.
        halved: how often every 2 x 2 pixels are averaged.
        hidden: the hidden layers of a perceptron; without any the network is LeNet-5.
        scarce: which clients are left with fewer training rows.
        strange: where pictures come from that no client has seen: a data set, or ``noise``.
    """

    name: str
    title: str
    source: str
    clients: int
    classes: int
    rows: int
    test_rows: int | None = None
    test_share: float | None = None
    validation: float = 0.0
    halved: int = 0
    hidden: tuple[int, ...] = ()
    scarce: Scarce | None = None
    strange: str = ""

    @property
    def heading(self) -> str:
        """Its name on the page."""
        return self.title.format(self)

    def load(self, seed: int) -> mo.FederatedData:
        """The data: pictures whose numbers lie around 0."""
        fed = mo.data.load(
            self.source,
            clients=self.clients,
            partition=mo.data.classes_per_client(self.classes),
            per_client=self.rows,
            test=self.test_share,
            test_per_client=self.test_rows,
            validation=self.validation,
            seed=seed,
        )
        digits = self.source == "digits"  # rows of 64 numbers, standardised
        fed = replace_pictures(fed, lambda x: np.repeat(x.reshape(-1, 1, 8, 8), 3, axis=1)) if digits else fed
        for _ in range(self.halved):
            fed = average_pixels(fed)
        fed = fed if digits else replace_pictures(fed, lambda x: (x - 0.5) * 4)
        return shrink(fed, self.scarce, seed) if self.scarce else fed

    def load_strange(self, seed: int) -> mo.FederatedData | None:
        """The same clients with pictures that they have not seen; None where the deal has none."""
        if self.strange == NOISE:
            rng = mo.random.generator(seed, NOISE)
            return replace_pictures(self.load(seed), lambda x: rng.normal(size=x.shape).astype("float32"))
        return replace(self, source=self.strange).load(seed) if self.strange else None


DIGITS = Deal(
    name="digits",
    title="Digits, {0.classes} classes a client",
    source="digits",
    clients=4,
    classes=5,
    rows=20,
    test_share=0.4,
    scarce=Scarce(share=0.5, pictures=5),
)
"""Small enough to end in seconds, for scale ``ci``."""


def deal_cifar10(paper: bool, **fields: Any) -> Deal:
    """CIFAR-10 on 100 clients: whole pictures at scale ``paper``, else few of them, averaged to 16 x 16 pixels."""
    rows, test_rows = (500, 100) if paper else (50, 50)
    sizes = {"clients": 100, "rows": rows, "test_rows": test_rows, "halved": 0 if paper else 1}
    return Deal(**{"title": "CIFAR-10, {0.classes} classes a client", "source": "cifar10", **sizes, **fields})


def shrink(fed: mo.FederatedData, scarce: Scarce, seed: int) -> mo.FederatedData:
    """The data with a share of the clients, drawn, left with fewer training rows each, drawn as well."""
    rng = mo.random.generator(seed, "shrunk")
    clients = rng.permutation(len(fed))[: round(scarce.share * len(fed))]
    rows, sizes = [np.arange(start, stop) for start, stop in fed.bounds[:, [0, 3]]], np.diff(fed.bounds, axis=1)
    for client in clients:
        start, stop = fed.rows(int(client), "train")
        train = start + rng.permutation(stop - start)[: scarce.pictures]
        rows[client], sizes[client, 0] = np.concatenate([train, rows[client][stop - start :]]), len(train)
    ends = np.cumsum(sizes).reshape(sizes.shape)
    bounds = np.column_stack([ends[:, 0] - sizes[:, 0], ends])
    columns = {name: column[np.concatenate(rows)] for name, column in fed.columns.items()}
    return replace(fed, columns=columns, bounds=bounds, spec={})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Deals, methods and sizes of one scale."""

    deals: tuple[Deal, ...]
    methods: tuple[str, ...]
    seeds: int
    rounds: int
    cohort: int
    batch_size: int = 10


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """One run for each deal, seed and method; one deal of the data serves all seeds."""
    for deal in plan.deals:
        fed = deal.load(seeds[0])
        yield from deal_cells(plan, deal, fed, seeds, keep_accuracy)


def deal_cells(
    plan: Plan, deal: Deal, fed: mo.FederatedData, seeds: Sequence[int], keep: Callable[[mo.Run], Row]
) -> Cells:
    """The cells of one deal."""
    for seed, method in itertools.product(seeds, plan.methods):
        fit = partial(fit_options, plan, deal, fed, method, seed)
        yield Cell(key=(deal.name, seed, method), fit=fit, keep=keep, stored=False)


def fit_options(
    plan: Plan,
    deal: Deal,
    fed: mo.FederatedData,
    method: str,
    seed: int,
    *,
    factor: float = 1.0,
    rounds: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """The arguments of ``moiety.fit``; ``factor`` multiplies the rates of the method."""
    shape, length = fed.columns["x"].shape[1:], rounds or plan.rounds
    if deal.hidden:
        model = mo.models.mlp(int(np.prod(shape)), 10, hidden=deal.hidden, seed=seed)
    else:
        model = mo.models.lenet5(image=shape, classes=10, padding=4, seed=seed)
    split = mo.split.output_layer(model) if method in PERSONAL_HEAD else None
    if method == "LG-FedAvg":
        split = mo.split.by_name(model, personal=["hidden*" if deal.hidden else "conv*"])
    return {
        "model": model,
        "data": fed,
        "algorithm": build_algorithms(plan, seed, factor)[method],
        "split": split,
        "rounds": length,
        "cohort": plan.cohort,
        "seed": seed,
        "settings": mo.Settings(evaluate_every=length, **settings),
    }


def build_algorithms(plan: Plan, seed: int, factor: float = 1.0) -> dict[str, mo.Algorithm]:
    """All methods; ``TUNED`` says how their rates were found, and ``factor`` multiplies them.

    FedSOUL has Langevin steps for a personal last layer; ``factor`` is of its Adam and of these steps. L2GD makes about
    ten steps on all rows a round, and 0.3 of the way to the mean.
    """

    def work(lr: float, epochs: int = 5, **more: Any) -> Any:
        return mo.sgd(factor * lr, epochs=epochs, batch_size=plan.batch_size, **more)

    return {
        "local": mo.local_only(personal=work(0.15)),
        "FedAvg": mo.fedavg(shared=work(0.05)),
        "SCAFFOLD": mo.scaffold(shared=work(0.05)),
        "LG-FedAvg": mo.lg_fedavg(shared=work(0.05)),
        "Per-FedAvg": mo.per_fedavg(shared=work(0.02), personal=mo.sgd(factor * 0.02, steps=5), form="first_order"),
        "L2GD": mo.l2gd(personal=mo.sgd(factor * 0.15, pull=0.2 / factor), probability=0.1, coins=seed),
        "APFL": mo.apfl(shared=work(0.05), alpha=0.5),
        "Ditto": mo.ditto(shared=work(0.05), personal=work(0.05, pull=0.5)),
        "FedRep": mo.fedrep(shared=work(0.15, 1), personal=work(0.15, 10)),
        FEDSOUL: mo.fedpop(
            shared=1.0,
            prior_lr=1.0,
            loss_weight=1.0,
            personal=mo.kernel.langevin(step=factor * 0.0005),
            server=mo.server.adam(lr=factor * 0.003),
            prior=mo.prior.gaussian(scale=0.3),
            samples=10,
            thinning=2,
        ),
    }


def keep_accuracy(run: mo.Run) -> Row:
    """The mean over clients of their accuracy."""
    return {"accuracy": float(run.history[-1]["metric_unweighted"])}


def score(
    plan: Plan, seeds: Sequence[int], results: Results, paper: Mapping[str, Mapping[str, float]]
) -> tuple[list[Row], list[Row]]:
    """A row for each deal and method; and the claims that FedSOUL is more accurate than each of the others."""
    rows, claims = [], []
    for deal, method in itertools.product(plan.deals, plan.methods):
        ours, own = ([results[deal.name, seed, m]["accuracy"] for seed in seeds] for m in (FEDSOUL, method))
        number = paper.get(deal.name, {}).get(method)
        row = table_row(f"{deal.heading}, {method}", own, paper=number, scale=100)
        rows.append({"setting": deal.name, "method": method, **row})
        if method != FEDSOUL:
            title = f"{deal.heading}: {FEDSOUL} is more accurate than {method}"
            claims.append(judge(title, compare(ours, own), scale=100, setting=deal.name, against=method))
    return rows, claims


def page(
    about: str,
    notes: Sequence[str],
    paper: Mapping[str, Mapping[str, float]],
    plan: Plan,
    seeds: Sequence[int],
    results: Results,
) -> Page:
    """A table for each deal, the paper's numbers beside ours, and the claims.

    Args:
        about: the first paragraph.
        notes: what the reader should know.
        paper: what the paper prints by deal and method, in per cent.
        plan: sizes.
        seeds: all seeds.
        results: of all cells.
    """
    rows, claims = score(plan, seeds, results, paper)
    return build_page(
        about=about,
        size=f"{plan.rounds} rounds, {plan.cohort} clients a round, batches of {plan.batch_size}, {len(seeds)} seeds.",
        tables=[
            Section(
                title=deal.heading,
                text="Mean accuracy over clients, per cent.",
                rows=[{**row, "row": row["method"]} for row in rows if row["setting"] == deal.name],
            )
            for deal in plan.deals
        ],
        rows=rows,
        claims=claims,
        notes=notes,
        sentence=f"{FEDSOUL} is {count_intervals(claims)}.",
        unit="difference (points)",
        digits=2,
    )
