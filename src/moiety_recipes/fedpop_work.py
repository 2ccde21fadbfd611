"""Table 2 and Figure 3 of Kotelevskii et al. 2022 with equal work, and with equal rounds.

A round of FedSOUL makes one gradient of the shared layers and twenty steps of a chain on the last layer; most others
make five passes over a client's rows. So rounds alone do not compare them. Here a pilot seed measures the operations of
a round of each method, and every method has rounds until it has computed as much as the others. Equal rounds stand
beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

import moiety as mo
from moiety.experiments import (
    Cell,
    Cells,
    Experiment,
    Page,
    Results,
    Row,
    Section,
    count_verdicts,
    score_row,
    show_interval,
)
from moiety_recipes import fedpop_images as images
from moiety_recipes.claims import RULE, decide_claim, show_claims
from moiety_recipes.fedpop_full import PAPER as PRINTED
from moiety_recipes.fedpop_full import TABLE2
from moiety_recipes.fedpop_images import DIGITS, FEDSOUL, Deal, Scarce, deal_cifar10, fit_options
from moiety_recipes.fedpop_small import METHODS as FEW
from moiety_recipes.tuning import MORE_VALUES, is_end, widen

REFERENCE = "FedAvg"
"""Equal work is that of this method in all rounds of the plan."""
WORK, ROUNDS = "equal work", "equal rounds"
LADDER = tuple(3.0**power for power in range(-6, 7))
"""The factors that a search takes where it goes beyond its grid."""
KEPT = f"{FEDSOUL}, draws as training left them"
PAPER = {method: f"{two:g}, {five:g}" for method, (two, five) in TABLE2.items()}


@dataclass(frozen=True, kw_only=True)
class Plan(images.Plan):
    """Sizes of one scale. Deals with few pictures have the methods of Figure 3, the others those of Table 2."""

    factors: tuple[float, ...] = (1 / 3, 1.0, 3.0, 9.0)
    more_factors: int = MORE_VALUES
    pilot: int = 100

    def methods_of(self, deal: Deal) -> tuple[str, ...]:
        """The methods that are compared on a deal; the one that says how much work is equal comes first."""
        methods = FEW if deal.scarce else self.methods
        return (REFERENCE, *(each for each in methods if each != REFERENCE))


def plan(scale: str) -> Plan:
    """Table 2's deals and three of Figure 3; at scale ``ci`` handwritten digits."""
    if scale == "ci":
        deal = replace(DIGITS, name="few", scarce=Scarce(share=0.5, pictures=3), validation=0.25, hidden=(8,))
        return Plan(deals=(deal,), methods=FEW, seeds=1, rounds=2, cohort=2, factors=(1.0, 3.0), more_factors=0)
    form: dict[str, Any] = {"halved": 2, "hidden": (64, 32)}
    deals = [
        deal_cifar10(False, name=f"{classes}-classes", classes=classes, validation=0.2, **form) for classes in (2, 5)
    ]
    for share in (10, 50, 90):
        scarce = Scarce(share=share / 100, pictures=5)
        title = "{0.scarce.share:.0%} of the clients with {0.scarce.pictures} pictures"
        sizes: dict[str, Any] = {"classes": 5, "rows": 30, "validation": 1 / 6, "scarce": scarce, **form}
        deals.append(deal_cifar10(False, name=f"few-{share}", title=title, **sizes))
    seeds, rounds = (2, 100) if scale == "laptop" else (5, 300)
    return Plan(deals=tuple(deals), methods=tuple(TABLE2), seeds=seeds, rounds=rounds, cohort=10)


Keep = Callable[[Deal, int, str, mo.Run], Row]
"""What is kept of a run on a deal and seed, scored on a part of the rows: ``score`` and ``flops`` at least."""


@cache
def load(deal: Deal, seed: int) -> mo.FederatedData:
    """The rows as a seed deals them; kept, since many short runs need them."""
    return deal.load(seed)


def cells(plan: Plan, seeds: Sequence[int], *, keep: Keep | None = None) -> Cells:
    """Measure work, choose rates on the pilot seed, then run all seeds with equal work and with equal rounds."""
    build_cell = partial(make_cell, keep=keep or keep_accuracy)
    for deal in plan.deals:
        load(deal, plan.pilot)
    pairs = [(deal, method) for deal in plan.deals for method in plan.methods_of(deal)]
    first = yield [
        build_cell(plan, ("pilot", deal.name, f"one round, {method}"), deal, method, plan.pilot, 1.0, 1)
        for deal, method in pairs
    ]
    flops = {(deal.name, method): row["flops"] for (deal, method), row in zip(pairs, first, strict=True)}
    rounds = {key: max(1, round(plan.rounds * flops[key[0], REFERENCE] / own)) for key, own in flops.items()}
    scores: dict[tuple[str, str], dict[float, float]] = {}
    trials = list(itertools.product(pairs, plan.factors))
    most = len(plan.factors) + plan.more_factors
    while trials:
        rows = yield [
            build_cell(
                plan,
                ("pilot", deal.name, f"{method}, {factor:.3g}"),
                deal,
                method,
                plan.pilot,
                factor,
                rounds[deal.name, method],
            )
            for (deal, method), factor in trials
        ]
        for ((deal, method), factor), row in zip(trials, rows, strict=True):
            scores.setdefault((deal.name, method), {})[factor] = row["score"]
        tries = {(deal, method): scores[deal.name, method] for deal, method in pairs}
        trials = [(pair, more) for pair, own in tries.items() if len(own) < most for more in widen(own, LADDER)]
    choices: Row = {
        f"{name}/{method}": {
            "factor": max(sorted(own), key=own.__getitem__),
            "rounds": rounds[name, method],
            "scores": {f"{factor:.3g}": score for factor, score in sorted(own.items())},
        }
        for (name, method), own in scores.items()
    }
    yield Cell(key=("chosen",), work=lambda: {"chosen": choices})
    runs = []
    for (deal, method), seed in itertools.product(pairs, seeds):
        load(deal, seed)
        own = choices[f"{deal.name}/{method}"]
        for regime, length in ((WORK, own["rounds"]), (ROUNDS, plan.rounds)):
            key = (seed, deal.name, f"{method}, {regime}")
            runs.append(build_cell(plan, key, deal, method, seed, own["factor"], length))
    yield runs


def make_cell(
    plan: Plan, key: tuple[str | int, ...], deal: Deal, method: str, seed: int, factor: float, rounds: int, keep: Keep
) -> Cell:
    """A run; the pilot seed is scored on validation rows."""
    part = "validation" if seed == plan.pilot else "test"
    settings: Row = {"factor": factor, "rounds": rounds, "evaluate_on": part, "on_divergence": "warn"}
    fit = partial(fit_options, plan, deal, load(deal, seed), method, seed, **settings)
    return Cell(key=key, fit=fit, keep=partial(keep, deal, seed, part), stored=False, engine="vectorised")


def keep_accuracy(deal: Deal, seed: int, part: str, run: mo.Run) -> Row:
    """The mean accuracy over clients, by draws made anew where there are draws; and the operations of the run."""
    last, row = run.history[-1], {"flops": float(run.ledger["flops"])}
    score = float(last["metric_unweighted"] or 0.0)
    if "effective_draws" not in run.clients[0]:
        return {"score": score, **row}
    fed, shares = load(deal, seed), []
    for client in range(len(fed)):
        rows = fed.client(client, part)
        if len(rows["y"]):
            prediction = predict_anew(run, client, rows["x"], classes=count_classes(fed))
            shares.append(float((prediction.probabilities.argmax(axis=1) == rows["y"]).mean()))
    return {"score": fmean(shares), "kept": score, **row}


class Guess(NamedTuple):
    """What is known of a client's examples by a posterior, or without one."""

    probabilities: np.ndarray
    entropy: np.ndarray
    mutual_information: np.ndarray


def predict_anew(run: mo.Run, client: int, x: np.ndarray, *, classes: int) -> Guess:
    """A client's prediction by draws made anew; that of a model that diverged is equal probabilities."""
    try:
        prediction = run.predictive(client, x, fresh=True)
    except mo.MoietyError as error:
        if "finite" not in str(error):
            raise
        rows = len(x)
        return Guess(np.full((rows, classes), 1 / classes), np.full(rows, np.log(classes)), np.zeros(rows))
    return Guess(prediction.probabilities, prediction.entropy, prediction.mutual_information)


def count_classes(fed: mo.FederatedData) -> int:
    """The number of classes in the rows of all clients."""
    return int(fed.columns["y"].max()) + 1


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """Claims, scores with equal work and with equal rounds, what the pilot chose."""
    claims = list(judge(plan, seeds, results))
    scores = list(tabulate(plan, seeds, results))
    pooled, single = ([row for row in claims if (row["settings"] > 1) == many] for many in (True, False))
    tables = []
    for regime in (WORK, ROUNDS):
        rows = [row for row in scores if row["regime"] == regime]
        lines = [
            {"method": method, "paper (2, 5 classes)": PAPER.get(method, "-")}
            | {row["setting"]: show_interval(row, digits=1) for row in rows if row["method"] == method}
            for method in dict.fromkeys(row["method"] for row in rows)
        ]
        tables.append(Section(title=f"Accuracy (%), {regime}", text=SCORES, rows=lines))
    return Page(
        about=ABOUT,
        rows=[*scores, *claims],
        sections=[
            show_claims("Claims over all deals", pooled or single, text=CLAIMS),
            *tables,
            *([show_claims("Deal by deal", single)] if pooled else []),
            Section(title="Rates and rounds", text=CHOSEN, rows=list(describe(plan, results["chosen",]["chosen"]))),
            Section(title="Notes", text=RULE, notes=NOTES),
        ],
        sentence=count_verdicts(pooled or single),
    )


def values(results: Results, seeds: Sequence[int], name: str, method: str, regime: str) -> list[float]:
    """The accuracies of a method, one a seed."""
    row, measure = (FEDSOUL, "kept") if method == KEPT else (method, "score")
    return [float(results[seed, name, f"{row}, {regime}"][measure]) for seed in seeds]


def tabulate(plan: Plan, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """A row for each deal, method and regime."""
    for regime, deal in itertools.product((WORK, ROUNDS), plan.deals):
        for method in (*plan.methods_of(deal), KEPT):
            row = score_row(f"{deal.heading}, {method}", values(results, seeds, deal.name, method, regime), scale=100)
            yield {**row, "setting": deal.name, "method": method, "regime": regime, "verdict": None}


def judge(plan: Plan, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """FedSOUL against each other method, over the deals of Table 2, over those of Figure 3, and in each."""
    table2, figure3 = ([deal for deal in plan.deals if bool(deal.scarce) == few] for few in (False, True))
    groups = [("Table 2", table2), ("Figure 3", figure3)] if len(plan.deals) > 1 else []
    groups += [(deal.heading, [deal]) for deal in plan.deals]
    for (title, deals), regime in itertools.product(groups, (WORK, ROUNDS)):
        for other in plan.methods_of(deals[0]):
            if other != FEDSOUL:
                yield compare(f"{title}, {regime}: FedSOUL beats {other}", deals, other, regime, seeds, results)


def compare(text: str, deals: Sequence[Deal], other: str, regime: str, seeds: Sequence[int], results: Results) -> Row:
    """The claim that FedSOUL is more accurate than another method."""
    gains: Mapping[str, list[float]] = {
        deal.name: [
            ours - theirs
            for ours, theirs in zip(
                values(results, seeds, deal.name, FEDSOUL, regime),
                values(results, seeds, deal.name, other, regime),
                strict=True,
            )
        ]
        for deal in deals
    }
    headline = len(deals) > 1 and regime == WORK
    differences = [PRINTED[d.name][FEDSOUL] - PRINTED[d.name][other] for d in deals if d.name in PRINTED]
    paper = f"{fmean(differences):+.1f}" if differences else None
    return decide_claim(text, gains, scale=100, unit="points", paper=paper, headline=headline)


def describe(plan: Plan, choices: Mapping[str, Row], *, score: str = "accuracy", scale: float = 100.0) -> Iterator[Row]:
    """What the pilot seed chose, by a score on validation rows."""
    for deal in plan.deals:
        for method in plan.methods_of(deal):
            own = choices[f"{deal.name}/{method}"]
            end = " (end of the grid)" if is_end(own["factor"], own["scores"]) else ""
            yield {
                "deal": deal.name,
                "method": method,
                "rounds with equal work": own["rounds"],
                "factor of the rates": f"{own['factor']:.3g}{end}",
                f"{score} on validation rows": ", ".join(f"{k}: {scale * v:.3g}" for k, v in own["scores"].items()),
            }


ABOUT = (
    'Kotelevskii et al. 2022, "FedPop: A Bayesian Approach for Personalised Federated Learning", Table 2 and Figure 3'
    " (5 pictures), in a reduced form: CIFAR-10 averaged to 8 x 8 pixels, 100 clients of 50 pictures, a perceptron with"
    " hidden layers of 64 and 32. The order of the methods can be judged so, the paper's accuracies cannot."
)
CLAIMS = "Differences in points of accuracy, the mean over clients."
SCORES = (
    "Means over seeds, with 95% intervals. FedSOUL predicts with the mean of probabilities over draws made anew at the"
    " parameters that training ended with; the line below it has the draws of each client's last turn."
)
CHOSEN = (
    "Every method begins with the same factors, with equal work, on validation rows of a pilot seed that is not"
    " reported. Where the best factor is at an end, the search goes on there, by at most three factors. A factor"
    " multiplies all rates of a method; for FedSOUL that of the server's Adam and the step of the chains."
)
NOTES = (
    "Work is counted in floating-point operations of the clients, by the ledger of one round of the pilot seed. Equal"
    f" work is what {REFERENCE} needs for all rounds of the plan.",
    "Every seed deals the pictures anew. Personal is the last layer for FedRep and FedSOUL; LG-FedAvg shares it.",
    "The other methods are scored with the models that training left, as their papers have it.",
)

fedpop_work = Experiment(
    name="fedpop-work",
    summary="FedSOUL against nine methods with equal work, and with equal rounds, on small pictures.",
    plan=plan,
    cells=cells,
    page=page,
    night=True,
)
