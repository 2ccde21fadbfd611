"""Figures 1, 5 and 7 of the Glocal paper: accuracy against the number of clients, with all and with divided features.

Scale ``ci`` has the digits of scikit-learn and shows that everything runs. The others have the paper's sizes, ten
trials each; at scale ``night`` the claims are decided, pooled over data sets too. The paper shows curves and no
numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import moiety as mo
from moiety.experiments import Cell, Cells, Experiment, Page, Results, Row, compare
from moiety_recipes import claims as decided
from moiety_recipes.glocal_trials import (
    METHODS,
    RATES,
    REFUSED,
    SOURCES,
    Masks,
    build_page,
    compare_methods,
    count_holding,
    draw_scores,
    judge,
    judge_best,
    list_numbers,
    load_tasks,
    score,
    score_methods,
    show_claims,
    show_scores,
)

GAINS = {"central": "Central over Indep", "glocal": "Glocal over Indep"}
DIVIDED = (
    "A random half of the features, drawn for each trial, is for the shared model, the other half for the personal"
    " ones; both have a constant. Indep sees all features, Central the global ones alone."
)
NOTES = (
    "10 examples of either class a client, {length}, {plan.seeds} trials, each with tasks and rows of its own; learning"
    " rates ({rates}) by validation for every point. Tasks differ more between trials than methods do, so what more"
    " clients are worth is judged by the gain on Indep, trial by trial.",
    "The paper prints no numbers for these figures.",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of one scale. A seed is a trial.

    A run makes ``passes`` over the training rows, unless ``rounds`` is above 0. ``divided`` says whether the shared
    model sees one half of the features and the personal ones the other. ``decide`` says whether claims are judged by
    the rule of scale ``night``, where "as good as" is within ``margin`` points.
    """

    divided: bool
    decide: bool = False
    margin: float = 2.0
    sources: tuple[str, ...] = SOURCES
    clients: tuple[int, ...] = (2, 5, 10, 20, 30, 40)
    passes: int = 15
    rates: tuple[float, ...] = RATES
    rounds: int = 0
    seeds: int = 10


def plan(scale: str, *, divided: bool) -> Plan:
    """The sizes of a scale."""
    small = Plan(divided=divided, sources=("digits",), clients=(2, 4), passes=2, seeds=2)
    return small if scale == "ci" else Plan(divided=divided, decide=scale == "night")


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """A cell for each data set and number of clients. The first data set is looked at before anything is written."""
    load_tasks(plan.sources[0], 1, seeds[:1])
    for source, clients in itertools.product(plan.sources, plan.clients):
        yield Cell(key=(source, f"{clients} clients"), work=partial(run_point, plan, source, clients, seeds))


def run_point(plan: Plan, source: str, clients: int, seeds: Sequence[int]) -> Row:
    """All methods with so many clients."""
    data = load_tasks(source, clients, seeds)
    masks = draw_masks(int(data[0].columns["x"].shape[1]), seeds) if plan.divided else None
    return compare_methods(data, seeds, plan.rates, passes=plan.passes, rounds=plan.rounds, masks=masks)


def draw_masks(features: int, seeds: Sequence[int]) -> dict[str, Masks]:
    """What each method sees of divided features.

    For every trial a random half of the features is for the shared model, and the other half for the personal ones. The
    constant, which comes last, is in both.
    """
    import torch

    shared = torch.zeros(len(seeds), features + 1)
    for k, seed in enumerate(seeds):
        half = mo.random.generator(seed, "data", "features").permutation(features)[: features // 2]
        shared[k, torch.from_numpy(half)] = 1
    others = 1 - shared
    shared[:, -1] = others[:, -1] = 1
    return {"independent": (None, None), "central": (shared, None), "glocal": (shared, others)}


def list_gains(point: Row, method: str) -> list[float]:
    """By trial, in points over Independent, which has the same tasks and knows of no other client."""
    return compare(point["methods"][method]["each"], point["methods"]["independent"]["each"], scale=100)


def score_point(source: str, clients: int, point: Row) -> dict[str, Row]:
    """By label a row for each method, and for what two of them gain on Independent."""
    name = f"{source}, {clients} clients"
    gains = {
        label: score(f"{name}: {label}", {"each": [gain / 100 for gain in list_gains(point, method)]})
        for method, label in GAINS.items()
    }
    return {**score_methods(name, point["methods"]), **gains}


def judge_source(plan: Plan, source: str, points: Mapping[int, Row]) -> list[Row]:
    """Whether methods gain more on Independent with more clients, and whether Glocal is the best with the most."""
    few, many = plan.clients[0], plan.clients[-1]
    growth = [
        judge(
            f"{source}: {METHODS[method]} gains more on Indep with {many} clients than with {few}",
            compare(list_gains(points[many], method), list_gains(points[few], method)),
        )
        for method in GAINS
    ]
    return [*growth, *judge_best(f"{source}, {many} clients", points[many]["methods"])]


WEAK = ("letter", "pendigits")
"""Where the paper finds the global half of the features weak, and Glocal only close to Independent."""


def decide_all(plan: Plan, points: Mapping[str, Mapping[int, Row]]) -> Iterator[Row]:
    """The claims of scale ``night``: of every data set, and pooled."""
    few, many = plan.clients[0], plan.clients[-1]
    grow = {
        method: {s: compare(list_gains(own[many], method), list_gains(own[few], method)) for s, own in points.items()}
        for method in GAINS
    }
    for method, each in grow.items():
        text = f"{METHODS[method]} gains more on Indep with {many} clients than with {few}"
        yield from _decide(text, each, paper="in most cases" if not plan.divided else "-")
    best = {
        other: {
            s: compare(own[many]["methods"]["glocal"]["each"], own[many]["methods"][other]["each"], scale=100)
            for s, own in points.items()
        }
        for other in ("independent", "central")
    }
    yield from _decide(f"Glocal beats Central with {many} clients", best["central"], paper="+")
    independent = best["independent"]
    weak = {s: each for s, each in independent.items() if plan.divided and s in WEAK}
    yield from _decide(
        f"Glocal beats Indep with {many} clients", {s: e for s, e in independent.items() if s not in weak}, paper="+"
    )
    if weak:
        text = f"Glocal is close to Indep with {many} clients (within {plan.margin:g})"
        yield from _decide(text, weak, within=plan.margin, paper="close")


def _decide(
    text: str, each: Mapping[str, Sequence[float]], *, paper: str, within: float | None = None
) -> Iterator[Row]:
    yield decided.decide_claim(f"{text}, pooled", each, within=within, paper=paper, unit="points", headline=True)
    for source, own in each.items():
        yield decided.decide_claim(f"{text}, {source}", {source: own}, within=within, paper=paper, unit="points")


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """The claims, a table for each data set, and the curves."""
    points = {s: {clients: results[s, f"{clients} clients"] for clients in plan.clients} for s in plan.sources}
    scores = {s: {clients: score_point(s, clients, own[clients]) for clients in own} for s, own in points.items()}
    if plan.decide:
        claims = list(decide_all(plan, points))
    else:
        claims = [claim for source, own in points.items() for claim in judge_source(plan, source, own)]
    section = decided.show_claims("Claims", claims, text=decided.RULE) if plan.decide else show_claims(claims)
    single = [claim for claim in claims if not claim["row"].endswith(", pooled")]
    growth, best = ([claim for claim in single if text in claim["row"]] for text in ("Glocal gains", "Glocal beats"))
    sentence = (
        f"More clients help Glocal for certain on {count_holding(growth)} of {len(growth)} data sets; with the most"
        f" of them it beats a baseline for certain in {count_holding(best)} of {len(best)} comparisons."
    )
    length = f"{plan.rounds} rounds" if plan.rounds else f"{plan.passes} passes"
    tables = [show_scores(s, "clients", own, dict.fromkeys(GAINS.values(), "+")) for s, own in scores.items()]
    accuracy = {label: label for label in METHODS.values()}
    gains = {label: GAINS.get(method, "") for method, label in METHODS.items()}
    figures = {
        "clients.png": ("Test accuracy", partial(draw_scores, scores, accuracy, "clients", "test accuracy (%)")),
        "gains.png": ("Points over Indep", partial(draw_scores, scores, gains, "clients", "points over Indep")),
    }
    rows = [row for own in scores.values() for by_label in own.values() for row in by_label.values()]
    notes = [
        note.format(plan=plan, length=length, rates=list_numbers(plan.rates))
        for note in ((DIVIDED, *NOTES) if plan.divided else NOTES)
    ]
    return build_page(rows + claims, [section, *tables], sentence, notes, results, figures)


glocal_clients = Experiment(
    name="glocal-clients",
    summary="Accuracy against the number of clients, each with the same number of examples (Figures 1 and 5).",
    plan=partial(plan, divided=False),
    cells=cells,
    page=page,
    night=True,
    refused=REFUSED,
)
glocal_features = Experiment(
    name="glocal-features",
    summary="Accuracy against clients with half of the features shared and half of them personal (Figure 7).",
    plan=partial(plan, divided=True),
    cells=cells,
    page=page,
    night=True,
    refused=REFUSED,
)
