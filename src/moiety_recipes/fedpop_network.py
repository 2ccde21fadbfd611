"""One check of FedSOUL (Kotelevskii et al. 2022) with the authors' own network on whole pictures of CIFAR-10.

One seed: it shows whether what smaller networks say is far from what the authors' says. Clients have fewer pictures
than in the paper, so that it ends within half an hour.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import nn

import moiety as mo
from moiety.experiments import Cell, Cells, Experiment, Page, Results, Row, Section
from moiety_recipes import fedpop_images as images
from moiety_recipes.fedpop_full import PAPER
from moiety_recipes.fedpop_images import DIGITS, FEDSOUL, PERSONAL_HEAD, Deal, deal_cifar10, keep_accuracy

METHODS = ("FedAvg", "FedRep", FEDSOUL)


@dataclass(frozen=True, kw_only=True)
class Plan(images.Plan):
    """Sizes of one scale. ``factors`` of all rates are tried on the pilot seed, in the last deal alone."""

    factors: tuple[float, ...] = (1 / 3, 1.0, 3.0)
    pilot: int = 100
    pilot_rounds: int = 100


def plan(scale: str) -> Plan:
    """Both deals of Table 2; a fifth of a client's rows is for validation."""
    if scale == "ci":
        deal = replace(DIGITS, scarce=None, validation=0.2)
        return Plan(deals=(deal,), methods=METHODS, seeds=1, rounds=2, cohort=2, factors=(1.0, 3.0), pilot_rounds=1)
    rows = {"laptop": 25, "night": 60, "paper": 500}[scale]
    sizes = {"rows": rows, "test_rows": 50, "halved": 0, "validation": 0.2}
    deals = tuple(deal_cifar10(False, name=f"{classes}-classes", classes=classes, **sizes) for classes in (2, 5))
    return Plan(deals=deals, methods=METHODS, seeds=1, rounds=100, cohort=10)


def build_network(image: Sequence[int], seed: int) -> nn.Module:
    """Two 5 x 5 convolutions of 64 channels with pooling, then 120, 64 and 10 units; small pictures are padded.

    >>> network = build_network((3, 32, 32), seed=0)
    >>> sum(p.numel() for name, p in network.named_parameters() if not name.startswith("head"))
    307192
    >>> sum(p.numel() for p in network.head.parameters())
    650
    """
    channels, *sides = image
    padding = 0 if min(sides) >= 16 else 4
    height, width = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in sides)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 64, 5, padding=padding),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(64, 64, 5),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                hidden1=nn.Linear(64 * height * width, 120),
                relu3=nn.ReLU(),
                hidden2=nn.Linear(120, 64),
                relu4=nn.ReLU(),
                head=nn.Linear(64, 10),
            )
        )


def build_fedsoul(factor: float) -> mo.Algorithm:
    """A turn as the authors have it: 10 steps of the chain, 5 of them kept; 5 steps of the shared part; a fixed prior.

    ``factor`` multiplies both step sizes.
    """
    return mo.fedpop(
        shared=factor * 0.005,
        personal=mo.kernel.langevin(step=factor * 0.003),
        prior=mo.prior.gaussian(mean=0.0, scale=1.0),
        learn_prior=False,
        loss_weight=1.0,
        samples=5,
        turn_burn_in=5,
        shared_steps=5,
    )


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """Choose the rates of each method on validation rows of the pilot seed, then run every deal."""
    trials = list(itertools.product(plan.methods, plan.factors))
    last = plan.deals[-1]
    fed = last.load(plan.pilot)
    rows = yield [
        build_cell(plan, ("pilot", last.name, f"{method}, {factor:.3g}"), last, fed, method, plan.pilot, factor)
        for method, factor in trials
    ]
    choices: dict[str, Row] = {}
    for (method, factor), row in zip(trials, rows, strict=True):
        own = choices.setdefault(method, {"factor": factor, "scores": {}})
        own["scores"][f"{factor:.3g}"] = row["accuracy"]
        if row["accuracy"] > max(list(own["scores"].values())[:-1], default=-1.0):
            own["factor"] = factor
    yield Cell(key=("chosen",), work=lambda: {"chosen": choices})
    runs = []
    for deal, seed in itertools.product(plan.deals, seeds):
        fed = deal.load(seed)
        runs += [
            build_cell(plan, (deal.name, seed, method), deal, fed, method, seed, choices[method]["factor"])
            for method in plan.methods
        ]
    yield runs


def build_cell(
    plan: Plan,
    key: tuple[str | int, ...],
    deal: Deal,
    fed: mo.FederatedData,
    method: str,
    seed: int,
    factor: float,
) -> Cell:
    """A run; that of the pilot seed is shorter, and scored on validation rows."""
    part, rounds = ("validation", plan.pilot_rounds) if seed == plan.pilot else ("test", plan.rounds)
    fit = partial(fit_options, plan, deal, fed, method, seed, factor=factor, rounds=rounds, evaluate_on=part)
    return Cell(key=key, fit=fit, keep=partial(keep, fed, part, method), stored=False)


def fit_options(
    plan: Plan, deal: Deal, fed: mo.FederatedData, method: str, seed: int, *, factor: float, **settings: Any
) -> dict[str, Any]:
    """The arguments of ``moiety.fit``: those of the other recipes, with the authors' network and turns."""
    options = images.fit_options(plan, deal, fed, method, seed, factor=factor, on_divergence="warn", **settings)
    model = build_network(fed.columns["x"].shape[1:], seed)
    algorithm = build_fedsoul(factor) if method == FEDSOUL else options["algorithm"]
    split = mo.split.output_layer(model) if method in PERSONAL_HEAD else None
    return {**options, "model": model, "split": split, "algorithm": algorithm}


def keep(fed: mo.FederatedData, part: str, method: str, run: mo.Run) -> Row:
    """The mean over clients of their accuracy; of FedSOUL with draws made anew, as in section 5."""
    if method != FEDSOUL:
        return keep_accuracy(run)
    shares = []
    for client in range(len(fed)):
        rows = fed.client(client, part)
        answer = run.predictive(client, rows["x"], fresh=True).probabilities.argmax(axis=1)
        shares.append(float((answer == rows["y"]).mean()))
    return {"accuracy": fmean(shares)}


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """The page of the other recipes, and what the pilot chose."""
    whole = images.page(ABOUT, NOTES, PAPER, plan, seeds, results)
    choices: Mapping[str, Row] = results["chosen",]["chosen"]
    rows = [
        {
            "method": method,
            "factor of the rates": f"{own['factor']:.3g}",
            "accuracy on validation rows": ", ".join(f"{k}: {100 * v:.1f}" for k, v in own["scores"].items()),
        }
        for method, own in choices.items()
    ]
    text = f"{plan.pilot_rounds} rounds of seed {plan.pilot}, which is not reported; {plan.deals[-1].heading}."
    return replace(whole, sections=[*whole.sections, Section(title="Rates", text=text, rows=rows)])


ABOUT = (
    'Kotelevskii et al. 2022, "FedPop: A Bayesian Approach for Personalised Federated Learning", Table 2, CIFAR-10: a'
    " check with the authors' network (307,192 shared and 650 personal parameters) on whole pictures, 100 rounds of 10"
    " clients, one seed. A single seed decides nothing. Clients have few of the paper's 500 pictures, so its numbers"
    " are not to be reached."
)
NOTES = (
    "FedSOUL: in a turn 10 Langevin steps, of which the last 5 are kept, and 5 steps of the shared layers on all rows"
    " of the client, with the 5 draws; the prior is fixed, N(0, 1). It predicts with draws made anew at the end.",
    "FedAvg makes five passes over a client's rows in a round; FedRep ten on the head and one on the rest. So FedSOUL"
    " and FedAvg take as many gradients of the convolutions per row, FedAvg in batches of 10.",
    "A fifth of a client's rows is kept for choosing rates: three factors of all rates of each method.",
)

fedpop_network = Experiment(
    name="fedpop-network",
    summary="FedSOUL, FedRep and FedAvg with the authors' network, one seed (Kotelevskii et al. 2022).",
    plan=plan,
    cells=cells,
    page=page,
    night=True,
)
