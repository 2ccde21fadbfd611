"""Figures 2 and 6 of the Glocal paper: accuracy against the delay, by its rule and by the two of section 3.2.1.

Scale ``ci`` has the digits of scikit-learn and shows that everything runs. The others have the paper's sizes, ten
trials each. The paper shows curves and no numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from moiety.experiments import Experiment, Page, Results, Row, compare
from moiety_recipes.glocal_trials import (
    REFUSED,
    SOURCES,
    build_page,
    count_holding,
    draw_scores,
    judge,
    list_numbers,
    load_tasks,
    score,
    show_claims,
    show_scores,
    source_cells,
    tune,
)

FIGURE_2 = ("mnist", "covtype", "letter")
"""The data sets of Figure 2; Figure 6 has the others."""
RULES = ("aligned", "asymmetric", "misaligned")
Rules = Mapping[str, Sequence[Row]]
"""By rule a row for each delay."""
PIXELS = ("mnist", "usps")
"""Data sets of hundreds of features. They have half as many trials, to save time."""
NOTES = (
    "T = {plan.rounds} rounds; tau rounds each way, so that the client's own step is 2 tau rounds late in the aligned"
    " rule. What is under way in the end is lost. {plan.clients_figure2} clients on mnist, covtype and letter (Figure"
    " 2), {plan.clients_figure6} on the others (Figure 6).",
    "For every delay and rule the learning rate with the best mean accuracy on validation rows, of {rates}. The paper's"
    " grid doubles too and begins at 0.002; `glocal-readings` shows what that alone gives. {plan.seeds} trials, half as"
    " many on mnist and usps.",
    "The paper prints no numbers for these figures, and shows no curves for the other two rules.",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of one scale. A seed is a trial.

    ``rates`` double, from lower ones than those of the other recipes, since long delays ask for shorter steps. A claim
    that a delay does no harm has a ``margin`` in points.
    """

    sources: tuple[str, ...] = SOURCES
    clients_figure2: int = 30
    clients_figure6: int = 20
    delays: tuple[int, ...] = (0, 10, 25, 50, 100, 200)
    rates: tuple[float, ...] = tuple(0.002 * 2.0**k for k in range(-6, 5))
    rounds: int = 1200
    seeds: int = 10
    margin: float = 2.0


def plan(scale: str) -> Plan:
    """The sizes of a scale."""
    if scale != "ci":
        return Plan()
    rates = tuple(0.002 * 4.0**k for k in range(-2, 3))
    return Plan(
        sources=("digits",), clients_figure2=4, clients_figure6=3, delays=(0, 4), rates=rates, rounds=24, seeds=2
    )


def run_source(plan: Plan, source: str, seeds: Sequence[int]) -> Row:
    """All rules and delays on one data set."""
    clients = plan.clients_figure2 if source in FIGURE_2 else plan.clients_figure6
    seeds = seeds[: (len(seeds) + 1) // 2] if source in PIXELS else seeds
    data = load_tasks(source, clients, seeds)
    rules = {rule: tune(data, plan.rounds, seeds, plan.rates, delays=plan.delays, alignment=rule) for rule in RULES}
    return {"clients": clients, "rounds": plan.rounds, "rules": rules}


def judge_source(plan: Plan, source: str, rules: Rules) -> list[Row]:
    """Whether the aligned rule does as well with each delay as without, and is the best at the longest."""
    first, *late = rules["aligned"]
    harmless = [
        judge(
            f"{source}: Glocal with tau = {point['delay']} is as without delay",
            compare(point["each"], first["each"], scale=100),
            within=plan.margin,
        )
        for point in late
    ]
    best = [
        judge(
            f"{source}: aligned beats {other} at tau = {plan.delays[-1]}",
            compare(rules["aligned"][-1]["each"], rules[other][-1]["each"], scale=100),
        )
        for other in RULES[1:]
    ]
    return [*harmless, *best]


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """The claims, a table for each data set, and the curves."""
    rules: dict[str, Rules] = {source: results[(source,)]["rules"] for source in plan.sources}
    scores = {
        source: {
            tau: {rule: score(f"{source}, tau {tau}: {rule}", own[rule][k]) for rule in RULES}
            for k, tau in enumerate(plan.delays)
        }
        for source, own in rules.items()
    }
    rows = [own[tau][rule] for own in scores.values() for rule in RULES for tau in own]
    claims = {source: judge_source(plan, source, own) for source, own in rules.items()}
    every = [claim for own in claims.values() for claim in own]
    by_delay = zip(plan.delays[1:], zip(*claims.values(), strict=True), strict=False)
    counts = ", ".join(f"{count_holding(own)} of {len(own)} at {tau}" for tau, own in by_delay)
    panels = {f"{source}, {results[(source,)]['clients']} clients": own for source, own in scores.items()}
    axes = "delay tau, each way (rounds)", "test accuracy (%)"
    return build_page(
        rows + every,
        [show_claims(every), *(show_scores(source, "tau", own, {}) for source, own in scores.items())],
        f"Accuracy is within {plan.margin:g} points of that without delay, by delay and data sets: {counts}.",
        [note.format(plan=plan, rates=list_numbers(plan.rates)) for note in NOTES],
        results,
        {"delay.png": ("Test accuracy", partial(draw_scores, panels, {rule: rule for rule in RULES}, *axes))},
    )


glocal_delay = Experiment(
    name="glocal-delay",
    summary="Accuracy against the delay, by the paper's rule and by the two of section 3.2.1 (Figures 2 and 6).",
    plan=plan,
    cells=partial(source_cells, run=run_source),
    page=page,
    refused=REFUSED,
)
