"""Figures 1, 5 and 7 of the Glocal paper: accuracy against the number of clients, with all and with divided features.

Scale ``ci`` has the digits of scikit-learn and shows that everything runs. The others have the paper's sizes, ten
trials each. The paper shows curves and no numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.experiments import Cell, Cells, Experiment, Page, Results, Row, Section, compare, show_interval
from moiety_recipes.glocal_trials import (
    METHODS,
    RATES,
    REFUSED,
    SOURCES,
    Masks,
    build_page,
    build_point,
    compare_methods,
    count_holding,
    count_steps,
    judge,
    list_numbers,
    load_tasks,
    score,
    show_claims,
)

if TYPE_CHECKING:
    from torch import Tensor

GAINS = {"central": "Central over Indep", "glocal": "Glocal over Indep"}
DIVIDED = (
    "A random half of the features, drawn for each trial, is for the shared model, the other half for the personal"
    " ones; both have a constant. Indep sees all features, Central the global ones alone."
)
NOTES = (
    "10 examples of either class a client, {length}, {seeds} trials, each with tasks and rows of its own; learning rates"
    " ({rates}) by validation for every point. Tasks differ more between trials than methods do, so what more clients"
    " are worth is judged by the gain on Indep, trial by trial.",
    "The paper prints no numbers for these figures.",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of one scale. A seed is a trial; a run has so many ``passes``, unless ``rounds`` is above 0.

    ``divided``: whether the shared model sees one half of the features and the personal ones the other.
    """

    divided: bool
    sources: tuple[str, ...] = SOURCES
    clients: tuple[int, ...] = (2, 5, 10, 20, 30, 40)
    passes: int = 15
    rates: tuple[float, ...] = RATES
    rounds: int = 0
    seeds: int = 10


def plan(scale: str, *, divided: bool) -> Plan:
    """The sizes of a scale."""
    if scale == "ci":
        return Plan(divided=divided, sources=("digits",), clients=(2, 4), passes=2, seeds=2)
    return Plan(divided=divided)


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """A cell for each data set and number of clients. The first data set is looked at before anything is written."""
    load_tasks(plan.sources[0], 1, seeds[:1])
    for source in plan.sources:
        for clients in plan.clients:
            yield Cell(key=(source, f"{clients} clients"), work=partial(run_point, plan, source, clients, seeds))


def run_point(plan: Plan, source: str, clients: int, seeds: Sequence[int]) -> Row:
    """All methods with so many clients."""
    data = load_tasks(source, clients, seeds)
    masks = build_masks(data, seeds) if plan.divided else None
    return compare_methods(data, plan.rounds or count_steps(data, plan.passes), seeds, plan.rates, masks)


def build_masks(data: Sequence[mo.FederatedData], seeds: Sequence[int]) -> dict[str, Masks]:
    """What each method sees of divided features."""
    some, others = draw_halves(int(data[0].columns["x"].shape[1]), seeds)
    return {"independent": (None, None), "central": (some, None), "glocal": (some, others)}


def draw_halves(features: int, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """For every trial a random half of the features, and the other half; the constant, the last one, is in both."""
    import torch

    some = torch.zeros(len(seeds), features + 1)
    for k, seed in enumerate(seeds):
        half = mo.random.generator(seed, "data", "features").permutation(features)[: features // 2]
        some[k, torch.from_numpy(half)] = 1
    others = 1 - some
    some[:, -1] = others[:, -1] = 1
    return some, others


def list_gains(point: Row, method: str) -> list[float]:
    """By trial, in points over Independent, which has the same tasks and knows of no other client."""
    return compare(point["methods"][method]["each"], point["methods"]["independent"]["each"], scale=100)


def score_point(source: str, clients: int, point: Row) -> dict[str, Row]:
    """By label a row for each method, and for what two of them gain on Independent."""
    name = f"{source}, {clients} clients"
    rows = {label: score(f"{name}: {label}", point["methods"][method]) for method, label in METHODS.items()}
    for method, label in GAINS.items():
        rows[label] = score(f"{name}: {label}", {"each": [gain / 100 for gain in list_gains(point, method)]})
    return rows


def judge_source(plan: Plan, source: str, points: Mapping[int, Row]) -> tuple[list[Row], list[Row]]:
    """Whether more clients help on a data set, and whether Glocal is the best with the most of them."""
    few, many = plan.clients[0], plan.clients[-1]
    growth = [
        judge(
            f"{source}: {METHODS[method]} gains more on Indep with {many} clients than with {few}",
            compare(list_gains(points[many], method), list_gains(points[few], method)),
        )
        for method in GAINS
    ]
    each = {method: tuned["each"] for method, tuned in points[many]["methods"].items()}
    best = [
        judge(
            f"{source}, {many} clients: Glocal beats {METHODS[other]}",
            compare(each["glocal"], each[other], scale=100),
        )
        for other in ("independent", "central")
    ]
    return growth, best


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """The claims, a table for each data set, and the curves."""
    rows: list[Row] = []
    claims: list[Row] = []
    growths: list[Row] = []
    tables: list[Section] = []
    accuracy: dict[str, Any] = {}
    gains: dict[str, Any] = {}
    for source in plan.sources:
        points = {clients: results[source, f"{clients} clients"] for clients in plan.clients}
        scores = {clients: score_point(source, clients, point) for clients, point in points.items()}
        rows += [row for own in scores.values() for row in own.values()]
        growth, best = judge_source(plan, source, points)
        claims += [*growth, *best]
        growths.append(growth[-1])
        tables.append(show_source(source, scores))
        curves = {
            label: [build_point(clients, own[label]) for clients, own in scores.items()]
            for label in (*METHODS.values(), *GAINS.values())
        }
        accuracy[source] = {label: curves[label] for label in METHODS.values()}
        gains[source] = {METHODS["independent"]: [{"x": clients, "mean": 0.0} for clients in plan.clients]}
        gains[source] |= {METHODS[method]: curves[label] for method, label in GAINS.items()}
    best = [claim for claim in claims if "beats" in claim["row"]]
    sentence = (
        f"More clients help Glocal for certain on {count_holding(growths)} of {len(growths)} data sets; with the most"
        f" of them it beats a baseline for certain in {count_holding(best)} of {len(best)} comparisons."
    )
    length = f"{plan.rounds} rounds" if plan.rounds else f"{plan.passes} passes"
    sizes = {"length": length, "seeds": plan.seeds, "rates": list_numbers(plan.rates)}
    notes = [*([DIVIDED] if plan.divided else []), *(note.format(**sizes) for note in NOTES)]
    figures = {
        "clients.png": ("Test accuracy against clients", partial(draw, accuracy, "test accuracy (%)")),
        "gains.png": ("Points over Indep against clients", partial(draw, gains, "points over Indep")),
    }
    return build_page(rows + claims, [show_claims(claims), *tables], sentence, notes, results, figures)


def show_source(source: str, scores: Mapping[int, Mapping[str, Row]]) -> Section:
    """The table of one data set."""
    lines = [
        {
            "clients": str(clients),
            **{label: show_interval(row, sign="+" if label in GAINS.values() else "") for label, row in own.items()},
        }
        for clients, own in scores.items()
    ]
    return Section(title=source, rows=lines, columns={key: key for key in lines[0]})


def draw(curves: Mapping[str, Any], label: str) -> Any:
    """Curves against the number of clients, a panel for each data set."""
    return mo.reports.bands(curves, x="clients", y=label)


glocal_clients = Experiment(
    name="glocal-clients",
    summary="Accuracy against the number of clients, each with the same number of examples (Figures 1 and 5).",
    plan=partial(plan, divided=False),
    cells=cells,
    page=page,
    refused=REFUSED,
)
glocal_features = Experiment(
    name="glocal-features",
    summary="Accuracy against clients with half of the features shared and half of them personal (Figure 7).",
    plan=partial(plan, divided=True),
    cells=cells,
    page=page,
    refused=REFUSED,
)
