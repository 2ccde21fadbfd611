"""Figures 4 and S9 of Kotelevskii et al. 2022: are probabilities calibrated, and are strange pictures noticed?

Calibration: CIFAR-10, 2 or 5 classes a client, reliability diagrams of FedSOUL, FedRep and FedAvg. Strange pictures:
clients that trained on MNIST see Fashion-MNIST; the entropy of their predictions should be larger there (AUROC).
Methods have equal work, and beside it equal rounds, as in ``fedpop_work``; rates are chosen on validation rows of a
pilot seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

import moiety as mo
from moiety.experiments import Cells, Experiment, Page, Results, Row, Section, count_verdicts
from moiety_recipes import fedpop_work as work
from moiety_recipes.claims import RULE, decide_claim, show_claims
from moiety_recipes.fedpop_images import DIGITS, FEDSOUL, NOISE, Deal, deal_cifar10
from moiety_recipes.fedpop_pages import measure_row, pool_bins, widen
from moiety_recipes.fedpop_work import REFERENCE, ROUNDS, WORK, load

OTHERS = ("FedRep", REFERENCE)
METHODS = (FEDSOUL, *OTHERS)
BINS, CURVES = 10, 4
CALIBRATED = 5.0
"""A method is called calibrated where its error is below so many points."""
MEASURES = {
    "accuracy": "accuracy (%)",
    "ece": "calibration error (%)",
    "client_ece": "mean of the clients' own (%)",
    "nll": "negative log-likelihood",
    "brier": "Brier score",
    "auroc": "AUROC of entropy (%)",
    "auroc_information": "AUROC of mutual information (%)",
}


@dataclass(frozen=True, kw_only=True)
class Plan(work.Plan):
    """Sizes of one scale. ``inspected`` is the number of clients whose predictions are looked at."""

    inspected: int


def plan(scale: str) -> Plan:
    """Three deals; at scale ``ci`` handwritten digits, and noise as what is strange."""
    if scale == "ci":
        deal = replace(DIGITS, scarce=None, validation=0.25, hidden=(8,), strange=NOISE)
        sizes: dict[str, Any] = {
            "seeds": 2,
            "rounds": 2,
            "cohort": 2,
            "inspected": 3,
            "factors": (1.0, 3.0),
            "more_factors": 0,
        }
        return Plan(deals=(deal,), methods=METHODS, **sizes)
    paper = scale == "paper"
    form: dict[str, Any] = {"validation": 0.2} if paper else {"validation": 0.2, "halved": 2, "hidden": (64, 32)}
    two, five = (deal_cifar10(paper, name=f"cifar10-{classes}", classes=classes, **form) for classes in (2, 5))
    title = "MNIST, {0.classes} classes a client, shown Fashion-MNIST"
    mnist = replace(five, name="mnist-5", title=title, source="mnist", strange="fashion_mnist")
    mnist = mnist if paper else replace(mnist, halved=1)
    seeds, rounds, inspected = {"laptop": (2, 50, 40), "night": (5, 150, 50), "paper": (5, 1000, 100)}[scale]
    return Plan(deals=(two, five, mnist), methods=METHODS, seeds=seeds, rounds=rounds, cohort=10, inspected=inspected)


@cache
def load_strange(deal: Deal, seed: int) -> mo.FederatedData | None:
    """The strange pictures of a deal; kept, since many short runs need them."""
    return deal.load_strange(seed)


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """Those of equal work and equal rounds; rates are chosen by the log-loss."""
    return work.cells(plan, seeds, keep=partial(keep_scores, plan.inspected))


def keep_scores(inspected: int, deal: Deal, seed: int, part: str, run: mo.Run) -> Row:
    """The log-loss, by which rates are chosen, and the operations; on test rows also all scores."""
    fed, flops = load(deal, seed), float(run.ledger["flops"])
    row = keep_predictions(fed, load_strange(deal, seed) if part == "test" else None, inspected, run, part=part)
    return {"score": -row["scores"]["nll"], "flops": flops, **(row if part == "test" else {})}


def keep_predictions(
    fed: mo.FederatedData, strange: mo.FederatedData | None, inspected: int, run: mo.Run, *, part: str = "test"
) -> Row:
    """Scores over all inspected clients and their mean over clients, the bins of reliability, entropies."""
    calibration = mo.evaluation.calibration
    predictions: dict[str, Any] = {}
    pairs: dict[str, list[Any]] = {"auroc": [], "auroc_information": []}
    for client in range(min(inspected, len(fed))):
        rows, others = fed.client(client, part), None if strange is None else strange.client(client, "test")["x"]
        own = len(rows["y"])
        x = rows["x"] if others is None else np.concatenate([rows["x"], others])
        predictive = work.predict_anew(run, client, x, classes=work.count_classes(fed))  # once: one set of draws
        predictions[str(fed.ids[client])] = (predictive.probabilities[:own], rows["y"])
        if others is not None:
            for measure, each in (("auroc", predictive.entropy), ("auroc_information", predictive.mutual_information)):
                pairs[measure].append((each[:own], each[own:]))
    by_client, pooled = calibration.calibration_rows(predictions, bins=BINS)
    p, y = (np.concatenate(parts) for parts in zip(*predictions.values(), strict=True))
    scores = {key: pooled[key] for key in ("accuracy", "ece", "nll", "brier")}
    scores["client_ece"] = float(np.mean([row["ece"] for row in by_client]))
    for measure, both in pairs.items():
        if both:
            scores[measure] = float(np.mean([calibration.out_of_distribution_auroc(a, b) for a, b in both]))
    entropies = [{"its own": a.tolist(), "strange": b.tolist()} for a, b in pairs["auroc"][:CURVES]]
    return {"scores": scores, "bins": calibration.reliability(p, y, bins=BINS), "entropies": entropies}


def values(results: Results, seeds: Sequence[int], deal: Deal, method: str, regime: str, measure: str) -> list[float]:
    """A measure of a method, one a seed; shares in per cent."""
    rows = [results[seed, deal.name, f"{method}, {regime}"]["scores"] for seed in seeds]
    scale = 1 if measure in ("nll", "brier") else 100
    return [scale * float(row[measure]) for row in rows]


def tabulate(plan: Plan, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """A row for each deal, regime, method and measure."""
    for deal, regime, method in itertools.product(plan.deals, (WORK, ROUNDS), METHODS):
        rows = [results[seed, deal.name, f"{method}, {regime}"]["scores"] for seed in seeds]
        for measure in (measure for measure in MEASURES if measure in rows[0]):
            name = f"{deal.heading}, {regime}, {method}, {MEASURES[measure]}"
            labels = {"setting": deal.name, "method": method, "regime": regime}
            yield measure_row(name, [row[measure] for row in rows], measure, **labels)


def judge(plan: Plan, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """Is FedSOUL calibrated, better than others; and does it notice strange pictures, better than others and chance?"""
    groups = [("all deals", plan.deals)] if len(plan.deals) > 1 else []
    groups += [(deal.heading, (deal,)) for deal in plan.deals]
    for regime in (WORK, ROUNDS):
        get = partial(values, results, seeds, regime=regime)
        first = regime == WORK
        for (title, deals), other in itertools.product(groups, OTHERS):
            gains = {d.name: subtract(get(d, other, measure="ece"), get(d, FEDSOUL, measure="ece")) for d in deals}
            text = f"{title}, {regime}: {FEDSOUL} is better calibrated than {other}"
            yield decide_claim(text, gains, unit="points", headline=first and deals == plan.deals)
        for deal in plan.deals:
            text = f"{deal.heading}, {regime}: the calibration error of {FEDSOUL} is below {CALIBRATED:g} points"
            gaps = [CALIBRATED - error for error in get(deal, FEDSOUL, measure="ece")]
            yield decide_claim(text, {deal.name: gaps}, unit="points to spare", headline=first)
        for deal in (deal for deal in plan.deals if deal.strange):
            ours = {name: get(deal, FEDSOUL, measure=name) for name in ("auroc", "auroc_information")}
            words = f"{deal.heading}, {regime}: {FEDSOUL} tells strange pictures"
            claims = {
                f"{words} better than chance, by entropy": [each - 50 for each in ours["auroc"]],
                f"{words} better than chance, by mutual information": [e - 50 for e in ours["auroc_information"]],
                f"{words} better by mutual information than by entropy": subtract(
                    ours["auroc_information"], ours["auroc"]
                ),
                **{
                    f"{words} better than {other}, by entropy": subtract(
                        ours["auroc"], get(deal, other, measure="auroc")
                    )
                    for other in OTHERS
                },
            }
            for text, gain in claims.items():
                yield decide_claim(text, {deal.name: gain}, unit="points", headline=first)


def subtract(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """The differences, seed by seed."""
    return [a - b for a, b in zip(one, other, strict=True)]


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """The claims, a table for each deal and regime, what the pilot chose, reliability diagrams and entropies."""
    rows, claims = list(tabulate(plan, seeds, results)), list(judge(plan, seeds, results))
    main = [row for row in claims if row["headline"]]
    rest = [row for row in claims if not row["headline"]]
    count = mo.reports.format_count
    size = (
        f"{count(plan.rounds, 'round')} of {REFERENCE} or as much work, {plan.cohort} clients a round,"
        f" {count(len(seeds), 'seed')}; {plan.inspected} clients inspected."
    )
    choices: Mapping[str, Row] = results["chosen",]["chosen"]
    trials = list(work.describe(plan, choices, score="log-loss", scale=-1.0))
    return Page(
        about=ABOUT,
        rows=[*rows, *claims],
        sections=[
            Section(text=size),
            show_claims("Claims", main),
            *(make_table(deal, regime, rows) for deal in plan.deals for regime in (WORK, ROUNDS)),
            show_claims("Other claims", rest),
            Section(title="Rates and rounds", text=CHOSEN, rows=trials),
            Section(title="Notes", text=RULE, notes=NOTES),
        ],
        sentence=count_verdicts(main),
        figures=draw_figures(plan, seeds, results),
    )


def make_table(deal: Deal, regime: str, rows: Sequence[Row]) -> Section:
    """All measures of a deal, a line for each method."""
    own = [row for row in rows if (row["setting"], row["regime"]) == (deal.name, regime)]
    columns = {"method": "", **{row["measure"]: MEASURES[row["measure"]] for row in own}}
    return Section(title=f"{deal.heading}, {regime}", rows=widen(own, line="method", column="measure"), columns=columns)


def draw_figures(plan: Plan, seeds: Sequence[int], results: Results) -> dict[str, Any]:
    """Of runs with equal work: a reliability diagram of each deal, and the entropies of the first seed."""
    figures = {}
    for deal in plan.deals:
        reliability = partial(draw_reliability, deal, seeds, results)
        figures[f"reliability-{deal.name}.png"] = (f"Reliability: {deal.heading}", reliability)
        if curves := results[seeds[0], deal.name, f"{FEDSOUL}, {WORK}"]["entropies"]:
            figures[f"entropy-{deal.name}.png"] = (f"Entropy: {deal.heading}", partial(draw_entropies, deal, curves))
    return figures


def draw_reliability(deal: Deal, seeds: Sequence[int], results: Results) -> Any:
    """A reliability diagram for each method, all seeds together."""
    bins = {
        method: pool_bins([results[seed, deal.name, f"{method}, {WORK}"]["bins"] for seed in seeds])
        for method in METHODS
    }
    return mo.reports.reliability_diagram(bins, title=deal.heading)


def draw_entropies(deal: Deal, curves: Sequence[Row]) -> Any:
    """The entropies of the first clients on their own and on strange pictures."""
    clients = {f"client {i}": kinds for i, kinds in enumerate(curves, start=1)}
    return mo.reports.densities(clients, title=f"{deal.heading}: {FEDSOUL}")


ABOUT = (
    'Kotelevskii et al. 2022, "FedPop: A Bayesian Approach for Personalised Federated Learning", Figures 4 and S9,'
    " which the paper shows for single clients, without numbers and without other methods. In brackets is the 95%"
    " interval of the mean over seeds (Student's t)."
)
CHOSEN = (
    "Every method begins with the same factors, with equal work, by the log-loss on validation rows of a pilot seed"
    " that is not reported. Where the best is at an end, the search goes on there, by at most three factors. A factor"
    " multiplies all rates of a method; for FedSOUL that of the server's Adam and the step of the chains. The same"
    " factor serves equal rounds."
)
NOTES = (
    "Predictions of FedSOUL are averaged over its samples, drawn anew at the parameters that training ended with;"
    " FedRep has one model a client, that of its last turn, and FedAvg one for all.",
    "The calibration error is over all pictures of the clients inspected; a client's own, of few pictures, is larger by"
    " chance. AUROC is the mean over clients: 50 is chance. Mutual information is 0 where there is one model.",
    f"Equal work is what {REFERENCE} needs for all rounds of the plan, in operations of the clients. Every seed deals"
    " the pictures anew.",
    "Below scale paper pictures are averaged to 8 x 8 (CIFAR-10) or 14 x 14 pixels (MNIST), clients have 50 of them,"
    " and the network is a perceptron with hidden layers of 64 and 32.",
    "A prediction that is not finite, of a model that diverged, counts as equal probabilities.",
    "CIFAR-10 against SVHN (Figure S8) is left out: the file of SVHN was not at hand.",
)

fedpop_uncertainty = Experiment(
    name="fedpop-uncertainty",
    summary="Calibration on CIFAR-10, and the entropy of MNIST's clients on Fashion-MNIST.",
    plan=plan,
    cells=cells,
    page=page,
    night=True,
)
