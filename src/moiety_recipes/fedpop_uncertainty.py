"""Figures 4 and S9 of Kotelevskii et al. 2022: are probabilities calibrated, and are strange pictures noticed?

Calibration: CIFAR-10, 2 or 5 classes a client, reliability diagrams of FedSOUL and FedRep. Strange pictures: clients
that trained on MNIST see Fashion-MNIST; the entropy of their predictions should be larger there (AUROC).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import moiety as mo
from moiety.experiments import Cells, Experiment, Page, Results, Row, Section, count_verdicts
from moiety_recipes import fedpop_images as images
from moiety_recipes.fedpop_images import DIGITS, FEDSOUL, NOISE, TUNED, Deal, deal_cifar10
from moiety_recipes.fedpop_pages import build_page, judge, measure_row, pool_bins, widen

OTHER = "FedRep"
METHODS = (FEDSOUL, OTHER)
BINS, CURVES = 10, 4
MEASURES = {
    "accuracy": "accuracy (%)",
    "ece": "calibration error (%)",
    "client_ece": "mean of the clients' own (%)",
    "nll": "negative log-likelihood",
    "brier": "Brier score",
    "auroc": "AUROC of entropy (%)",
    "auroc_information": "AUROC of mutual information (%)",
}
CLAIMS = {"ece": (-1, "is better calibrated than"), "auroc": (1, "tells strange pictures better than")}
"""By measure: the sign of what is better, and how a claim says so."""


@dataclass(frozen=True, kw_only=True)
class Plan(images.Plan):
    """Sizes of one scale. ``inspected`` is the number of clients whose predictions are looked at."""

    inspected: int


def plan(scale: str) -> Plan:
    """Three deals; at scale ``ci`` handwritten digits, and noise as what is strange."""
    if scale == "ci":
        deal = replace(DIGITS, strange=NOISE)
        return Plan(deals=(deal,), methods=METHODS, seeds=2, rounds=2, cohort=2, inspected=3)
    paper = scale == "paper"
    seeds, rounds, inspected = (5, 1000, 100) if paper else (3, 100, 40)
    five = deal_cifar10(paper, name="cifar10-5", classes=5)
    title = "MNIST, {0.classes} classes a client, shown Fashion-MNIST"
    mnist = replace(five, name="mnist-5", title=title, source="mnist", strange="fashion_mnist")
    deals = (replace(five, name="cifar10-2", classes=2), five, mnist)
    return Plan(deals=deals, methods=METHODS, seeds=seeds, rounds=rounds, cohort=10, inspected=inspected)


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """One run for each deal, seed and method; one deal of the data serves all seeds."""
    for deal in plan.deals:
        fed, strange = deal.load(seeds[0]), deal.load_strange(seeds[0])
        keep = partial(keep_predictions, fed, strange, plan.inspected)
        yield from images.deal_cells(plan, deal, fed, seeds, keep)


def keep_predictions(fed: mo.FederatedData, strange: mo.FederatedData | None, inspected: int, run: mo.Run) -> Row:
    """Scores over all inspected clients and their mean over clients, the bins of reliability, entropies."""
    calibration = mo.evaluation.calibration
    predictions, pairs, informed = {}, [], []
    for client in range(min(inspected, len(fed))):
        rows = fed.client(client, "test")
        predictive = run.predictive(client, rows["x"], fresh=True)
        predictions[str(fed.ids[client])] = (predictive.probabilities, rows["y"])
        if strange is not None:
            elsewhere = run.predictive(client, strange.client(client, "test")["x"], fresh=True)
            pairs.append((predictive.entropy, elsewhere.entropy))
            informed.append((predictive.mutual_information, elsewhere.mutual_information))
    by_client, pooled = calibration.calibration_rows(predictions, bins=BINS)
    p, y = (np.concatenate(parts) for parts in zip(*predictions.values(), strict=True))
    scores = {key: pooled[key] for key in ("accuracy", "ece", "nll", "brier")}
    scores["client_ece"] = float(np.mean([row["ece"] for row in by_client]))
    for measure, both in (("auroc", pairs), ("auroc_information", informed)):
        if both:
            scores[measure] = float(np.mean([calibration.out_of_distribution_auroc(a, b) for a, b in both]))
    entropies = [{"its own": a.tolist(), "strange": b.tolist()} for a, b in pairs[:CURVES]]
    return {"scores": scores, "bins": calibration.reliability(p, y, bins=BINS), "entropies": entropies}


def score(plan: Plan, seeds: Sequence[int], results: Results) -> tuple[list[Row], list[Row]]:
    """A row for each deal, method and measure; and the claims.

    That FedSOUL is better calibrated than FedRep, and tells strange pictures better than FedRep and than chance.
    """
    rows, claims = [], []
    for deal in plan.deals:
        scores = {method: [results[deal.name, seed, method]["scores"] for seed in seeds] for method in METHODS}
        known = {measure: heading for measure, heading in MEASURES.items() if measure in scores[FEDSOUL][0]}
        for method, measure in itertools.product(METHODS, known):
            values = [score[measure] for score in scores[method]]
            row = f"{deal.heading}, {method}, {known[measure]}"
            rows.append(measure_row(row, values, measure, setting=deal.name, method=method))
        ahead = {
            f"{words} {OTHER}": [sign * (a[key] - b[key]) for a, b in zip(*scores.values(), strict=True)]
            for key, (sign, words) in CLAIMS.items()
            if key in known
        }
        for measure, by in (("auroc", "entropy"), ("auroc_information", "mutual information")):
            if measure in known:
                gains = [score[measure] - 0.5 for score in scores[FEDSOUL]]
                ahead[f"tells strange pictures better than chance, by {by}"] = gains
        claims += [judge(f"{deal.heading}: {FEDSOUL} {words}", d, setting=deal.name) for words, d in ahead.items()]
    return rows, claims


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """A table for each deal, the claims, reliability diagrams and entropies."""
    rows, claims = score(plan, seeds, results)
    tables, figures = [], {}
    for deal in plan.deals:
        deal_rows = [row for row in rows if row["setting"] == deal.name]
        columns = {"method": "", **{row["measure"]: MEASURES[row["measure"]] for row in deal_rows}}
        wide = widen(deal_rows, line="method", column="measure")
        tables.append(Section(title=deal.heading, rows=wide, columns=columns))
        reliability = partial(draw_reliability, deal, seeds, results)
        figures[f"reliability-{deal.name}.png"] = (f"Reliability: {deal.heading}", reliability)
        if curves := results[deal.name, seeds[0], FEDSOUL]["entropies"]:
            figures[f"entropy-{deal.name}.png"] = (f"Entropy: {deal.heading}", partial(draw_entropies, deal, curves))
    return build_page(
        about=ABOUT,
        size=f"{plan.rounds} rounds, {plan.cohort} clients a round, {len(seeds)} seeds;"
        f" {plan.inspected} clients inspected.",
        tables=tables,
        rows=rows,
        claims=claims,
        notes=NOTES,
        sentence=count_verdicts(claims),
        figures=figures,
    )


def draw_reliability(deal: Deal, seeds: Sequence[int], results: Results) -> Any:
    """A reliability diagram for each method, all seeds together."""
    bins = {method: pool_bins([results[deal.name, seed, method]["bins"] for seed in seeds]) for method in METHODS}
    return mo.reports.reliability_diagram(bins, title=deal.heading)


def draw_entropies(deal: Deal, curves: Sequence[Row]) -> Any:
    """The entropies of the first clients on their own and on strange pictures."""
    named = {f"client {i}": kinds for i, kinds in enumerate(curves, start=1)}
    return mo.reports.densities(named, title=f"{deal.heading}: {FEDSOUL}")


ABOUT = (
    'Kotelevskii et al. 2022, "FedPop: A Bayesian Approach for Personalised Federated Learning", Figures 4 and S9,'
    " which the paper shows for single clients and without others beside them. In brackets is the 95% interval of the"
    " mean over seeds (Student's t); a claim is judged by the differences of the same seed."
)
NOTES = (
    "Predictions of FedSOUL are averaged over its samples, drawn anew at the parameters that training ended with;"
    " FedRep has one model a client, that of its last turn.",
    "The calibration error is over all pictures of the clients inspected; a client's own, of few pictures, is larger by"
    " chance. AUROC is the mean over clients: 50 is chance.",
    TUNED,
    "At scale laptop pictures are averaged to half their side, clients have 50 of them, and rounds are few.",
    "CIFAR-10 against SVHN (Figure S8) is left out: SVHN is not among the sources.",
)

fedpop_uncertainty = Experiment(
    name="fedpop-uncertainty",
    summary="Calibration on CIFAR-10, and the entropy of MNIST's clients on Fashion-MNIST.",
    plan=plan,
    cells=cells,
    page=page,
)
