"""Table 1 of the Glocal paper: Independent, Central and Glocal without delay, on eight of its ten data sets.

Scale ``ci`` has the digits of scikit-learn and shows that everything runs. ``paper`` has the paper's sizes: 30 clients,
10 examples of either class, 15 passes, five random partitions; spoken letters (isolet) in 100 principal components, two
passes. ``laptop`` is the same with 20 partitions, so that more can be decided: a minute or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import moiety as mo
from moiety.experiments import Experiment, Page, Results, Row, Section, show_interval
from moiety_recipes.glocal_trials import (
    RATES,
    REFUSED,
    SOURCES,
    build_page,
    compare_methods,
    count_holding,
    judge_best,
    list_numbers,
    load_tasks,
    score_methods,
    show_claims,
    source_cells,
)

PAPER = {
    "mnist": (91.1, 90.06, 92.6),
    "covtype": (84.1, 87.42, 88.17),
    "satimage": (96.08, 94.96, 97.01),
    "usps": (93.84, 92.88, 94.89),
    "shuttle": (92.29, 95.55, 96.04),
    "pendigits": (92.89, 88.03, 93.67),
    "letter": (86.83, 80.88, 87.32),
    "isolet": (91.77, 94.44, 94.15),
}
"""Table 1; sensorless and femnist are not at hand."""
DEPARTURES = (
    "The paper splits each client's rows at random and does not say how many of the 2 M = 20 are left to train on. Here"
    " clients train on 20 and have 20 more for validation and 20 for testing. With 12, 4 and 4 of 20 instead,"
    " tried on four data sets, Indep and Glocal score lower and Glocal is still the best of the three.",
    "The paper's isolet has 150 speakers in 5 groups, which are its 5 clients; here are the 30 speakers of one group,"
    " a client each, with 32 rows to train on, so its numbers are those of another problem.",
    "covtype is here a balanced sample of 15,120 rows; in the paper two of its seven classes have 85% of the rows.",
    "Features of tables are standardised over all clients' training rows; pixels are from 0 to 1. The paper does not"
    " say how it scaled features, nor what else of Vowpal Wabbit's defaults it kept.",
)
NOTES = (
    "Learning rates {rates}; for each data set and method the one with the best mean accuracy on validation rows over"
    " the partitions, the same for all of them.",
    "A partition draws the merged classes, the clients' tasks and the rows anew: intervals hold how tasks differ, and"
    " differences between methods are partition by partition. The paper has five partitions; here {seeds} are run.",
    *DEPARTURES,
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of one scale.

    A seed is a partition. A run makes ``passes`` over the training rows, unless ``rounds`` is above 0. ``clients`` and
    ``passes`` are those of all data sets but isolet, which has its 30 speakers and two passes.
    """

    sources: tuple[str, ...] = (*SOURCES, "isolet")
    clients: int = 30
    passes: int = 15
    rates: tuple[float, ...] = RATES
    rounds: int = 0
    seeds: int = 5


def plan(scale: str) -> Plan:
    """The sizes of a scale."""
    small = Plan(sources=("digits",), clients=4, passes=3, rates=RATES[3:6], seeds=2)
    return {"ci": small, "paper": Plan()}.get(scale, Plan(seeds=20))


def load_partitions(source: str, clients: int, seeds: Sequence[int]) -> list[mo.FederatedData]:
    """The data of every partition; isolet has its own clients."""
    if source != "isolet":
        return load_tasks(source, clients, seeds)
    partitions = [mo.data.load(source, seed=seed, test=0.2, validation=0.2) for seed in seeds]
    return [mo.data.principal_components(fed, 100) for fed in partitions]


def run_source(plan: Plan, source: str, seeds: Sequence[int]) -> Row:
    """All methods on one data set."""
    data = load_partitions(source, plan.clients, seeds)
    passes = 2 if source == "isolet" else plan.passes
    return compare_methods(data, seeds, plan.rates, passes=passes, rounds=plan.rounds)


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """The table with the paper's numbers, the claims, and the learning rates."""
    methods = {source: results[(source,)]["methods"] for source in plan.sources}
    scores = {source: score_methods(source, own, PAPER.get(source, ())) for source, own in methods.items()}
    claims = [claim for source, own in methods.items() for claim in judge_best(source, own, PAPER.get(source, ()))]
    lines: list[Row] = []
    for source, own in scores.items():
        lines.append({"": source})
        for label, row in own.items():
            lines[-1] |= {label: show_interval(row), f"{label}, paper": row["paper"]}
    rates = [{"": source, **{label: row["lr"] for label, row in own.items()}} for source, own in scores.items()]
    sentence = (
        f"Glocal beats a baseline for certain in {count_holding(claims)} of {len(claims)} comparisons on"
        f" {len(plan.sources)} data sets, and has the lower mean in {sum(claim['ours'] < 0 for claim in claims)}."
    )
    notes = [note.format(rates=list_numbers(plan.rates), seeds=plan.seeds) for note in NOTES]
    rows = [row for own in scores.values() for row in own.values()]
    return build_page(
        rows + claims,
        [
            Section(title="Test accuracy in per cent", rows=lines, columns={k: k.split(", ")[-1] for k in lines[0]}),
            show_claims(claims),
            Section(title="Learning rates", text="Chosen on validation rows.", rows=rates, digits=3),
        ],
        sentence,
        notes,
        results,
    )


glocal_table1 = Experiment(
    name="glocal-table1",
    summary="Independent, Central and Glocal on eight data sets, the paper's numbers beside ours.",
    plan=plan,
    cells=partial(source_cells, run=run_source),
    page=page,
    refused=REFUSED,
)
