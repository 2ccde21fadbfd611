"""Figures 2 and 6 of the Glocal paper in every reading of what it leaves open, decided at scale night.

Two things can be read in two ways. Labels are 0 and 1 (as section 4 says) or -1/2 and 1/2, which is the same as models
that predict 1/2 before the first step. The delay tau is each way (as section 2 says: the client's own step is 2 tau
late) or there and back. All four readings are judged, by Adagrad and by the normalised rule of Vowpal Wabbit, with a
doubling grid of rates chosen for every delay; also as if the grid began at the paper's 0.002. The two rules of section
3.2.1 stand beside the paper's for labels 0 and 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from moiety.experiments import Cell, Cells, Experiment, Page, Results, Row, compare, count_verdicts
from moiety_recipes.claims import RULE, decide_claim, show_claims
from moiety_recipes.glocal_delay import FIGURE_2, PIXELS
from moiety_recipes.glocal_delay import RULES as ALIGNMENTS
from moiety_recipes.glocal_trials import (
    ABOUT_RULES,
    RATES,
    REFUSED,
    SOURCES,
    build_page,
    choose_rate,
    draw_scores,
    list_numbers,
    load_tasks,
    score,
    show_scores,
    try_rates,
)

LABELS = {"labels 0 and 1": 0.0, "labels -1/2 and 1/2": 0.5}
"""What models predict before the first step, in labels of 0 and 1."""
WAYS = {"tau each way": 1, "tau there and back": 2}
"""By how much tau is divided to have the delay each way."""
RULES = {"adagrad": "Adagrad", "normalised": "normalised"}
GRIDS = {"all": "", "printed": ", rates of the paper's grid"}
PRINTED = "paper's grid"
NOTES = (
    "T = {plan.rounds} rounds; {plan.clients_figure2} clients on mnist, covtype and letter (Figure 2),"
    " {plan.clients_figure6} on the others (Figure 6); {seeds} random partitions. What is under way in the end is"
    " lost.",
    "For every delay, reading, rule and alignment the rate with the best mean accuracy on validation rows over the"
    " partitions: of {adagrad} for Adagrad and of {normalised} for the normalised rule, as many for each. *Rates of the"
    " paper's grid* are those of them from 0.002 to 0.128.",
    "mnist and usps have Adagrad alone, and tau = {pixels}: pixels take most of the time.",
    "Asymmetric and misaligned updates have labels 0 and 1 alone.",
    "The paper prints no numbers for these figures. It says: quite robust, with only slight variation, from 0 to T/6.",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of one scale. A seed is a partition.

    ``taus`` are even, so that they can be halved; data sets of pixels have ``pixel_taus``. The claim that a delay does
    no harm has a ``margin`` in points.
    """

    sources: tuple[str, ...] = SOURCES
    clients_figure2: int = 30
    clients_figure6: int = 20
    taus: tuple[int, ...] = (0, 10, 50, 100, 200)
    pixel_taus: tuple[int, ...] = (0, 50, 200)
    adagrad_rates: tuple[float, ...] = tuple(0.002 * 2.0**k for k in range(-6, 5))
    normalised_rates: tuple[float, ...] = tuple(0.002 * 2.0**k for k in range(-3, 8))
    rounds: int = 1200
    seeds: int = 10
    margin: float = 2.0

    def rates(self, rule: str) -> tuple[float, ...]:
        """The grid of a rule."""
        return self.adagrad_rates if rule == "adagrad" else self.normalised_rates

    def taus_of(self, source: str) -> tuple[int, ...]:
        """The delays that a data set is run with."""
        return self.pixel_taus if source in PIXELS else self.taus

    def rules_of(self, source: str) -> tuple[str, ...]:
        """The rules that a data set is run with."""
        return ("adagrad",) if source in PIXELS else tuple(RULES)


def plan(scale: str) -> Plan:
    """The paper's sizes with ten partitions; two at scale ``laptop``."""
    if scale == "ci":
        small: dict[str, Any] = {"adagrad_rates": (0.004, 0.032), "normalised_rates": (0.032, 0.256)}
        return Plan(sources=("digits",), clients_figure6=3, taus=(0, 4), rounds=12, seeds=2, **small)
    return Plan(seeds=2) if scale == "laptop" else Plan()


def list_runs(plan: Plan, source: str) -> Iterator[tuple[str, str, str]]:
    """Rule, labels and alignment of all runs on a data set."""
    for rule, labels, alignment in itertools.product(plan.rules_of(source), LABELS, ALIGNMENTS):
        if alignment == "aligned" or LABELS[labels] == 0:
            yield rule, labels, alignment


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """A cell for each data set, rule, labels and alignment. The first data set is looked at before all."""
    load_tasks(plan.sources[0], 1, seeds[:1])
    for source in plan.sources:
        for key in list_runs(plan, source):
            yield Cell(key=(source, *key), work=partial(run_cell, plan, source, seeds, *key))


def run_cell(plan: Plan, source: str, seeds: Sequence[int], rule: str, labels: str, alignment: str) -> Row:
    """All delays, in both readings of tau, with the rate chosen for each."""
    clients = plan.clients_figure2 if source in FIGURE_2 else plan.clients_figure6
    data, rates = load_tasks(source, clients, seeds), plan.rates(rule)
    each_way = sorted({tau // parts for tau in plan.taus_of(source) for parts in WAYS.values()})
    scores = try_rates(
        data, plan.rounds, seeds, rates, delays=each_way, alignment=alignment, rule=rule, first=LABELS[labels]
    )
    grid = [rate for rate in rates if rate in RATES]
    points = {
        str(delay): {
            "all": choose_rate(scores, rates, at),
            "printed": choose_rate(scores, rates, at, grid),
        }
        for at, delay in enumerate(each_way)
    }
    return {"clients": clients, "rounds": plan.rounds, "points": points}


class Readings:
    """What was kept of all cells, by names."""

    def __init__(self, plan: Plan, results: Results) -> None:
        self.plan, self.results = plan, results

    def has(self, source: str, rule: str, labels: str, alignment: str = "aligned") -> bool:
        """Whether there is such a cell."""
        return (source, rule, labels, alignment) in self.results

    def at(self, source: str, rule: str, labels: str, way: str, tau: int, **more: str) -> Row:
        """The rate and the accuracies at a delay; ``more`` are ``alignment`` and ``grid``."""
        alignment, grid = more.get("alignment", "aligned"), more.get("grid", "all")
        point: Row = self.results[source, rule, labels, alignment]["points"][str(tau // WAYS[way])][grid]
        return point

    def measure_cost(self, source: str, rule: str, labels: str, way: str, tau: int, grid: str) -> list[float]:
        """What a delay costs, partition by partition, against no delay in the same reading."""
        late, prompt = (self.at(source, rule, labels, way, each, grid=grid) for each in (tau, 0))
        return compare(late["each"], prompt["each"])


def judge(plan: Plan, readings: Readings) -> Iterator[Row]:
    """Whether delays do no harm, in every reading, and whether the paper's alignment is the best at the longest."""
    longest = plan.taus[-1]
    for rule, labels, way in itertools.product(RULES, LABELS, WAYS):
        sources = [source for source in plan.sources if readings.has(source, rule, labels)]
        head = f"{RULES[rule]}, {labels}, {way}"
        for grid, tau in itertools.product(GRIDS, plan.taus[1:]):
            own = [source for source in sources if tau in plan.taus_of(source)]
            each = {source: readings.measure_cost(source, rule, labels, way, tau, grid) for source in own}
            text = f"{head}{GRIDS[grid]}: tau = {tau} costs at most {plan.margin:g} points"
            rest: dict[str, Any] = {"above": -plan.margin, "scale": 100, "unit": "points", "paper": "slight variation"}
            yield decide_claim(f"{text}, pooled", each, **rest, headline=tau == longest and grid == "all")
            if grid == "all":
                for source in own:
                    chief = source == "letter" and tau == longest and way == "tau each way" and LABELS[labels] == 0
                    yield decide_claim(f"{text}, {source}", {source: each[source]}, **rest, headline=chief)
    yield from _judge_alignments(plan, readings)


def _judge_alignments(plan: Plan, readings: Readings) -> Iterator[Row]:
    longest, labels = plan.taus[-1], next(iter(LABELS))
    for rule, way, other in itertools.product(RULES, WAYS, ALIGNMENTS[1:]):
        each = {
            source: compare(
                *(
                    readings.at(source, rule, labels, way, longest, alignment=alignment)["each"]
                    for alignment in ("aligned", other)
                )
            )
            for source in plan.sources
            if readings.has(source, rule, labels, other)
        }
        text = f"{RULES[rule]}, {labels}, {way}: aligned beats {other} at tau = {longest}"
        headline = way == "tau each way"
        rest: dict[str, Any] = {"scale": 100, "unit": "points", "paper": "by theory"}
        yield decide_claim(f"{text}, pooled", each, **rest, headline=headline)
        for source, own in each.items():
            yield decide_claim(f"{text}, {source}", {source: own}, **rest)


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """A line for each reading, the claims, the curves and their numbers."""
    readings = Readings(plan, results)
    claims = list(judge(plan, readings))
    scores = {
        (source, rule): collect_scores(plan, readings, source, rule)
        for source in plan.sources
        for rule in plan.rules_of(source)
    }
    pooled = [claim for claim in claims if claim["row"].endswith(", pooled")]
    single = [claim for claim in claims if claim not in pooled]
    rows = [row for panel in scores.values() for own in panel.values() for row in own.values()]
    notes = [
        note.format(
            plan=plan,
            seeds=len(seeds),
            adagrad=list_numbers(plan.adagrad_rates),
            normalised=list_numbers(plan.normalised_rates),
            pixels=list_numbers(plan.pixel_taus),
        )
        for note in NOTES
    ]
    return build_page(
        [*rows, *claims],
        [
            show_claims("Readings, over all data sets", pooled, text=RULE),
            *(show_scores(f"{source}, {RULES[rule]}", "tau", own, {}) for (source, rule), own in scores.items()),
            show_claims("Each data set", single),
        ],
        count_verdicts(claims),
        notes,
        results,
        {
            f"{rule}.png": (
                f"Test accuracy by {name}",
                partial(draw, {source: scores[source, rule] for source in plan.sources if (source, rule) in scores}),
            )
            for rule, name in RULES.items()
        },
        ABOUT_RULES,
    )


def collect_scores(plan: Plan, readings: Readings, source: str, rule: str) -> dict[int, dict[str, Row]]:
    """Rows by tau and line: the readings of the aligned rule, then the other rules, then the paper's grid."""
    first, each_way = next(iter(LABELS)), next(iter(WAYS))
    lines: dict[str, dict[str, Any]] = {
        f"{labels}, {way}": {"labels": labels, "way": way} for labels, way in itertools.product(LABELS, WAYS)
    }
    lines |= {
        f"{other}, {each_way}": {"labels": first, "way": each_way, "alignment": other} for other in ALIGNMENTS[1:]
    }
    lines |= {f"{PRINTED}, {each_way}": {"labels": first, "way": each_way, "grid": "printed"}}
    return {
        tau: {
            name: score(f"{source}, {RULES[rule]}, tau {tau}: {name}", readings.at(source, rule, tau=tau, **options))
            for name, options in lines.items()
        }
        for tau in plan.taus_of(source)
    }


def draw(panels: Mapping[str, Mapping[int, Mapping[str, Row]]]) -> Any:
    """The readings and the other alignments by one rule, a panel for each data set."""
    names = [name for name in next(iter(next(iter(panels.values())).values())) if not name.startswith(PRINTED)]
    return draw_scores(panels, {name: name for name in names}, "delay tau (rounds)", "test accuracy (%)")


glocal_readings = Experiment(
    name="glocal-readings",
    summary="Figures 2 and 6 of the Glocal paper in every reading of labels and delay, by two rules.",
    plan=plan,
    cells=cells,
    page=page,
    night=True,
    refused=REFUSED,
)
