"""Five labelled windows a person: FedPop on human activities, for people in the federation and for new ones.

UCI HAR: 30 people, six activities, windows of a phone's movements as 108 statistics. Some people are held out and come
when training is over, with five labelled windows of their own. Kotelevskii et al. 2022 do not have this experiment; it
is what their abstract promises: models for clients with few examples and for new ones that know what they do not know.

The head of a small network is personal. FedPop averages its predictions over draws of the head; the others (FedRep,
FedAvg with the head finetuned, FedAvg, models trained alone) have one model each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import moiety as mo
from moiety.experiments import Cell, Cells, Experiment, Page, Results, Row, Section, compare
from moiety_recipes.fedpop_pages import build_page, count_intervals, judge, measure_row, pool_bins, widen

METHODS = ("FedPop", "FedRep", "finetuning", "FedAvg", "alone")
PERSONAL_HEAD = ("FedPop", "FedRep", "finetuning")
"""The methods with a personal last layer."""
ONE_ROUND = ("finetuning", "alone")
"""The methods that train once, for many epochs."""
PASSES = {"FedRep": 5}
"""How often a new person makes the pass of a round; once where it is not said."""
GROUPS = {"known": "people of the federation", "new": "new people"}
LABELLED = 5
BINS = 10
MEASURES = {
    "accuracy": "accuracy (%)",
    "worst": "worst person (%)",
    "ece": "calibration error (%)",
    "nll": "negative log-likelihood",
    "brier": "Brier score",
    "covered": "90% sets hold (%)",
    "mass": "mass of these sets (%)",
    "gap": "sets are off by (%)",
    "size": "classes in a set",
}
CLAIMS = {
    "accuracy": (1, "is more accurate"),
    "nll": (-1, "has less log-loss"),
    "ece": (-1, "is better calibrated"),
    "gap": (-1, "has sets that hold nearer to their mass"),
}
"""By measure: the sign of what is better, and how a claim says so."""
Rows = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of one scale: seeds, people held out, test windows of a person, rounds, hidden units, labelled windows.

    ``digits``, where given, is the number of clients with handwritten digits that take the place of people; no file of
    data is needed then.
    """

    seeds: int
    held_out: int
    test: int
    rounds: int
    hidden: int
    classes: int = 6
    labelled: int = LABELLED
    digits: int | None = None


def plan(scale: str) -> Plan:
    """The sizes of a scale."""
    if scale == "ci":
        return Plan(seeds=2, held_out=2, test=10, rounds=3, hidden=4, classes=10, digits=5)
    if scale == "paper":
        return Plan(seeds=20, held_out=6, test=250, rounds=500, hidden=64)
    return Plan(seeds=10, held_out=6, test=100, rounds=150, hidden=32)


def load_windows(plan: Plan) -> mo.FederatedData:
    """All windows of all people, as training rows."""
    if plan.digits is not None:
        return mo.data.load("digits", clients=plan.digits, partition=mo.data.dirichlet(1.0), test=0.0)
    return mo.data.load("uci_har", features="statistics", test=0.0)


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """One run for each seed and method; finetuning starts from FedAvg's model."""
    fed = load_windows(plan)
    for seed in seeds:
        members, new = draw_people(plan, fed, seed)
        for method in build_algorithms():
            yield Cell(
                key=(seed, method),
                fit=partial(fit_options, plan, members, method, seed),
                keep=partial(keep_scores, members, new, PASSES.get(method, 1)),
                start=(seed, "FedAvg") if method == "finetuning" else None,
                stored=method == "FedAvg",
            )


def build_algorithms() -> dict[str, mo.Algorithm]:
    """The methods, in the order of their runs."""
    return {
        "FedPop": mo.fedpop(
            shared=1.0,
            prior_lr=1.0,
            loss_weight=1.0,
            personal=mo.kernel.langevin(step=0.01),
            server=mo.server.adam(lr=0.01),
            prior=mo.prior.gaussian(scale=0.3),
            samples=20,
            thinning=2,
            burn_in=5,
        ),
        "FedRep": mo.fedrep(
            shared=mo.sgd(0.05, batch_size=LABELLED), personal=mo.sgd(0.05, epochs=10, batch_size=LABELLED)
        ),
        "FedAvg": mo.fedavg(shared=mo.sgd(0.05, epochs=5, batch_size=LABELLED)),
        "finetuning": mo.finetune(personal=mo.sgd(0.05, epochs=50, batch_size=LABELLED)),
        "alone": mo.local_only(personal=mo.sgd(0.05, epochs=100, batch_size=LABELLED)),
    }


def fit_options(plan: Plan, members: mo.FederatedData, method: str, seed: int) -> dict[str, Any]:
    """The arguments of ``moiety.fit``."""
    model = mo.models.mlp(members.columns["x"].shape[1], plan.classes, hidden=(plan.hidden,), seed=seed)
    rounds = 1 if method in ONE_ROUND else plan.rounds
    return {
        "model": model,
        "data": members,
        "algorithm": build_algorithms()[method],
        "split": mo.split.output_layer(model) if method in PERSONAL_HEAD else None,
        "rounds": rounds,
        "seed": seed,
        "settings": mo.Settings(evaluate_every=rounds),
    }


def draw_people(plan: Plan, fed: mo.FederatedData, seed: int) -> tuple[mo.FederatedData, list[dict[str, Any]]]:
    """The federation, and the windows of the new people: first the labelled ones, then the others.

    Everybody has some labelled windows, drawn, and is tested on others. Columns are standardised by the labelled
    windows of the federation alone.
    """
    rng = mo.random.generator(seed, "people")
    people: list[dict[str, Any]] = []
    for i in rng.permutation(len(fed)).tolist():
        rows = fed.at(i)
        order = rng.permutation(len(rows["y"]))[: plan.labelled + plan.test]
        people.append({"name": str(fed.ids[i]), **{name: column[order] for name, column in rows.items()}})
    new, members = people[: plan.held_out], people[plan.held_out :]
    inputs = np.concatenate([person["x"][: plan.labelled] for person in members])
    mean, spread = inputs.mean(0), inputs.std(0) + 1e-3
    for person in people:
        person["x"] = ((person["x"] - mean) / spread).astype(np.float32)
    sizes = np.array([len(person["y"]) for person in members])
    start = np.cumsum(sizes) - sizes
    bounds = np.stack([start, start + plan.labelled, start + plan.labelled, start + sizes], axis=1)
    columns = {name: np.concatenate([person[name] for person in members]) for name in ("x", "y")}
    return mo.FederatedData(columns, bounds, [person["name"] for person in members]), new


def keep_scores(members: mo.FederatedData, new: Sequence[Mapping[str, Any]], passes: int, run: mo.Run) -> Row:
    """Scores and reliability for both groups."""
    tests: dict[str, list[tuple[Any, Rows]]] = {
        "known": [(name, members.client(name, "test")) for name in members.ids],
        "new": [(_cut(person, stop=LABELLED), _cut(person, start=LABELLED)) for person in new],
    }
    return {
        group: score_people(
            [(run.predictive(who, rows["x"], passes=passes).probabilities, rows["y"]) for who, rows in people]
        )
        for group, people in tests.items()
    }


def _cut(person: Mapping[str, Any], start: int | None = None, stop: int | None = None) -> Rows:
    return {name: person[name][start:stop] for name in ("x", "y")}


def score_people(predictions: Sequence[tuple[np.ndarray, np.ndarray]]) -> Row:
    """Scores of all windows of a group, the accuracy of its worst-served person, and the bins of reliability.

    Args:
        predictions: for each person the probabilities and the labels.
    """
    calibration = mo.evaluation.calibration
    p, y = (np.concatenate(parts) for parts in zip(*predictions, strict=True))
    worst = min(float((each.argmax(1) == labels).mean()) for each, labels in predictions)
    scores = {**calibration.scores(p, y, bins=BINS), "worst": worst, **calibration.set_coverage(p, y, level=0.9)}
    scores["gap"] = abs(scores["covered"] - scores["mass"])
    return {"scores": scores, "bins": calibration.reliability(p, y, bins=BINS)}


def values(seeds: Sequence[int], results: Results, group: str, method: str, measure: str) -> list[float]:
    """The scores of a method, one for each seed."""
    return [results[seed, method][group]["scores"][measure] for seed in seeds]


def score(seeds: Sequence[int], results: Results) -> list[Row]:
    """A row for each group, method and measure."""
    return [
        measure_row(
            f"{title}, {method}, {heading}",
            values(seeds, results, group, method, measure),
            measure,
            group=group,
            method=method,
        )
        for group, title in GROUPS.items()
        for method in METHODS
        for measure, heading in MEASURES.items()
    ]


def judge_methods(seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """That FedPop is better than each of the others, by accuracy, log-loss, calibration and sets, for both groups."""
    for group, other, measure in itertools.product(GROUPS, METHODS[1:], CLAIMS):
        sign, words = CLAIMS[measure]
        ours, theirs = (values(seeds, results, group, method, measure) for method in ("FedPop", other))
        row = f"{GROUPS[group]}: FedPop {words} than {other}"
        yield judge(row, compare(ours, theirs, scale=sign), group=group, against=other, measure=measure)


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """A table for each group, the claims, and the reliability for new people."""
    rows, claims = score(seeds, results), list(judge_methods(seeds, results))
    return build_page(
        about=ABOUT,
        size=f"{plan.rounds} rounds, {len(seeds)} seeds.",
        tables=[
            Section(
                title=title.capitalize(),
                rows=widen([row for row in rows if row["group"] == group], line="method", column="measure"),
                columns={"method": "", **MEASURES},
            )
            for group, title in GROUPS.items()
        ],
        rows=rows,
        claims=claims,
        notes=build_notes(plan),
        sentence=f"For new people, FedPop is {count_intervals([row for row in claims if row['group'] == 'new'])}.",
        figures={"reliability.png": ("Reliability for new people", partial(draw, seeds, results))},
    )


def draw(seeds: Sequence[int], results: Results) -> Any:
    """A reliability diagram for each method, of new people."""
    bins = {method: pool_bins([results[seed, method]["new"]["bins"] for seed in seeds]) for method in METHODS}
    return mo.reports.reliability_diagram(bins, title="New people, all seeds together")


def build_notes(plan: Plan) -> list[str]:
    """What the reader should know."""
    return [
        f"Each seed draws anew who is held out ({plan.held_out} people), which {LABELLED} windows of a person are"
        f" labelled, and up to {plan.test} others to test on. Windows of one person overlap in time: test windows are"
        " not independent of the labelled ones.",
        f"The network has one hidden layer of {plan.hidden} units; its last layer is personal, for FedAvg nothing is."
        f" {plan.rounds} rounds, all people in each. Columns are standardised by the labelled windows of the"
        " federation.",
        "FedPop: 40 Langevin steps of 0.01 a round, 20 of them kept; Adam of 0.01 at the server for the shared layer"
        " and the prior. New people: a chain from the learned prior, five rounds' steps of burn-in.",
        "FedRep: ten epochs on the head and one on the rest, at 0.05; new people train a head for 50 epochs."
        " Finetuning: the head of FedAvg's model for 50 epochs. Alone: 100 epochs from the same first model. Rates"
        " were not tuned.",
        "Calibration is over all windows of a group, seed by seed; the figure has those of all seeds together, whose"
        " errors are smaller. A 90% set has the fewest classes that hold at least 90% of the"
        " probability, which is more than 90% since classes are not divided: its mass. Sets should hold the label in as"
        " many of the windows as their mass says on average, not in 90%, and have few classes; they are off by the"
        " distance of the two, seed by seed.",
    ]


ABOUT = (
    "Human activities by people with phones (UCI HAR). The method is that of Kotelevskii et al. 2022, who do not have"
    " this experiment: there is no number of a paper beside ours. In brackets is the 95% interval of the mean over"
    " seeds (Student's t); differences are of the same seed."
)

fedpop_people = Experiment(
    name="fedpop-people",
    summary="FedPop against FedRep, finetuning, FedAvg and local models, with five labelled windows a person.",
    plan=plan,
    cells=cells,
    page=page,
    engine="vectorised",
)
