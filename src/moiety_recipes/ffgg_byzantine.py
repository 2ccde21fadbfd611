"""Byzantine clients against FFGG (Mishchenko et al. 2023, Algorithm 5): every attack against every aggregator.

The paper proves that FFGG with a robust aggregator converges linearly where the problem is overpersonalised, and has no
experiment with Byzantine clients. Here the output layer is personal, a fifth of the clients attack, and what counts is
the accuracy of the honest clients' personal models on their own test rows. An attack that the model shrugs off says
little of an aggregator, so the plain mean is among them.

At scale ``laptop`` the data are Fashion-MNIST, averaged to 14 x 14 pixels, on 20 clients whose label ratios are drawn
from Dirichlet(0.3); at scale ``paper`` they are whole, on 100 clients with the CNN of McMahan et al. (2017). Scale
``night`` has a smaller network than ``laptop``, more rounds and more seeds, and its claims decide. Scale ``ci`` has
other data and fewer of all, and shows that everything runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import moiety as mo
from moiety.experiments import (
    UNDECIDED,
    Cell,
    Cells,
    Experiment,
    Page,
    Results,
    Row,
    Section,
    claim,
    compare,
    score_row,
    show_interval,
)
from moiety_recipes.claims import DECIDED, RULE, decide_claim, show_claims, show_needed
from moiety_recipes.pages import show_mean
from moiety_recipes.pictures import Pictures, deal_clothes, deal_digits

NONE = "none"
"""The row without an attack."""
REFERENCE = ("not finite", "mean")
"""The cell that all are compared with: what attackers send is dropped, so it is the mean of the honest alone."""
MARKS = {"holds": "holds", "does not hold": "fails", "not decided at this scale": "open"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of one scale.

    ``share`` is the part of clients that attack. A cell holds where honest clients lose less than ``margin`` against
    the mean of the honest alone. Attacks and aggregators are those of ``build_attacks`` and ``build_aggregators``.
    """

    pictures: Pictures
    lr: float
    inner_lr: float
    inner_steps: int
    rounds: int
    seeds: int
    attacks: tuple[str, ...]
    aggregators: tuple[str, ...]
    share: float = 0.2
    margin: float = 0.03
    strict: bool = False
    """Whether claims are decided by the rule of scale ``night``, and every seed deals the data anew."""


def plan(scale: str) -> Plan:
    """The sizes of a scale."""
    if scale == "ci":
        return Plan(
            pictures=deal_digits(10),
            lr=0.5,
            inner_lr=0.5,
            inner_steps=3,
            rounds=3,
            seeds=2,
            attacks=(NONE, "sign flip", "label flip", "not finite"),
            aggregators=("mean", "median", "mixing, trimmed mean"),
        )
    night = scale == "night"
    rounds, seeds = {"paper": (1000, 5), "night": (200, 8)}.get(scale, (60, 3))
    pictures = deal_clothes(scale == "paper")
    if night:
        pictures = replace(pictures, rows=60, hidden=(32, 16))
    return Plan(
        pictures=pictures,
        lr=0.5 if night else 0.7,
        strict=night,
        inner_lr=0.5,
        inner_steps=10,
        rounds=rounds,
        seeds=seeds,
        attacks=tuple(build_attacks()),
        aggregators=tuple(build_aggregators(clients=pictures.clients, byzantine=pictures.clients // 5)),
    )


def build_attacks() -> dict[str, Any]:
    """All attacks, by the names that tables show; the first is none."""
    return {
        NONE: None,
        "sign flip": mo.attack.sign_flip(scale=10.0),
        "inner product": mo.attack.inner_product_manipulation(epsilon=0.5),
        "a little": mo.attack.a_little_is_enough(z=1.5),
        "mimic": mo.attack.mimic(),
        "gaussian": mo.attack.gaussian(std=1.0),
        "label flip": mo.attack.label_flip(classes=10),
        "not finite": mo.attack.not_finite(),
    }


def build_aggregators(*, clients: int, byzantine: int) -> dict[str, Any]:
    """All aggregators for that many Byzantine clients; none needs more uploads than the honest alone send."""
    trimmed_mean = mo.aggregator.trimmed_mean(byzantine=byzantine)
    return {
        "mean": mo.aggregator.mean(),
        "median": mo.aggregator.median(),
        "trimmed mean": trimmed_mean,
        "krum": mo.aggregator.krum(byzantine=byzantine),
        "multi-krum": mo.aggregator.multi_krum(byzantine=byzantine, keep=clients - 2 * byzantine),
        "geometric median": mo.aggregator.geometric_median(),
        "centred clipping": mo.aggregator.centred_clipping(radius=0.5),
        "buckets, geometric median": mo.aggregator.bucketing(size=2, then=mo.aggregator.geometric_median()),
        "mixing, trimmed mean": mo.aggregator.nearest_neighbour_mixing(byzantine=byzantine, then=trimmed_mean),
    }


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """One run for each attack, aggregator and seed; one deal of the data serves all seeds."""
    deals = {seed: plan.pictures.load(seed) for seed in (seeds if plan.strict else seeds[:1])}
    every = [
        Cell(
            key=(s, attack, name),
            fit=partial(fit_options, plan, deals.get(s, deals[seeds[0]]), attack, name, s),
            keep=keep,
        )
        for attack, name, s in itertools.product(plan.attacks, plan.aggregators, seeds)
    ]
    if plan.strict:
        yield every
    else:
        yield from (cell for cell in every)


def fit_options(plan: Plan, fed: mo.FederatedData, attack: str, aggregator: str, seed: int) -> dict[str, Any]:
    """The arguments of ``moiety.fit`` for one run."""
    model = plan.pictures.model(seed)
    aggregators = build_aggregators(clients=len(fed), byzantine=round(plan.share * len(fed)))
    attackers = {} if attack == NONE else {"attack": build_attacks()[attack], "attackers": plan.share}
    return {
        "model": model,
        "data": fed,
        "algorithm": mo.ffgg(shared=plan.lr, personal=mo.sgd(plan.inner_lr, steps=plan.inner_steps)),
        "split": mo.split.output_layer(model),
        "rounds": plan.rounds,
        "seed": seed,
        "settings": mo.Settings(
            on_divergence="warn", aggregator=aggregators[aggregator], evaluate_every=plan.rounds, **attackers
        ),
    }


def keep(run: mo.Run) -> Row:
    """The clients' rows, and who attacked."""
    return {"clients": run.clients, "attackers": run.config["run"].get("attackers")}


def score_honest(seeds: Sequence[int], results: Results, attack: str, aggregator: str) -> list[float]:
    """For each seed the mean accuracy of the honest clients, weighted by their test rows.

    The attackers of a seed are the same under all attacks; they do not count where there is no attack either.
    """
    attackers = {seed: results[seed, *REFERENCE]["attackers"] for seed in seeds}
    honest = [
        [row for row in results[seed, attack, aggregator]["clients"] if row["client"] not in attackers[seed]]
        for seed in seeds
    ]
    return [float(mo.evaluation.summarise(clients, higher_is_better=True)["metric"]) for clients in honest]


def judge(plan: Plan, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """A row for each cell, in per cent: what honest clients score, what they lose, and whether that is too much.

    The loss is against the mean of the honest alone, which a robust aggregator is to come near (equation 17), in the
    same seed and on the same clients.
    """
    best = score_honest(seeds, results, *REFERENCE)
    for attack, aggregator in itertools.product(plan.attacks, plan.aggregators):
        each = score_honest(seeds, results, attack, aggregator)
        changes, name = compare(each, best, scale=100), f"{aggregator} holds under {attack}"
        row = {**score_row(f"{attack}: {aggregator}", each, scale=100), "attack": attack, "aggregator": aggregator}
        if plan.strict:
            decision = decide_claim(name, {"clothes": changes}, above=-100 * plan.margin)
            change = {key: decision[key] for key in ("mean", "low", "high", "needed")}
            yield {**row, "change": change, "verdict": decision["verdict"]}
        else:
            answer = claim(name, changes, above=-100 * plan.margin)
            yield {**row, "change": asdict(answer.interval), "verdict": answer.verdict}


def judge_worst(plan: Plan, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """For each aggregator, does it hold under the attack that is worst for it in each seed?"""
    best, attacks = score_honest(seeds, results, *REFERENCE), [a for a in plan.attacks if a != NONE]
    for name in plan.aggregators:
        changes = [compare(score_honest(seeds, results, attack, name), best, scale=100) for attack in attacks]
        text = f"{name}: honest clients lose less than {100 * plan.margin:g} points under the worst attack"
        worst, paper = [min(each) for each in zip(*changes, strict=True)], "fails" if name == "mean" else None
        options: dict[str, Any] = {"unit": "points", "headline": name in ("mean", "mixing, trimmed mean")}
        yield decide_claim(text, {"clothes": worst}, above=-100 * plan.margin, paper=paper, **options)


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """The matrix, a summary by aggregator, and every cell."""
    rows = list(judge(plan, seeds, results))
    worst = list(judge_worst(plan, seeds, results)) if plan.strict else []
    count = sum(row["verdict"] != UNDECIDED for row in rows)
    matrix = [
        {
            "attack": attack,
            **{
                row["aggregator"]: f"{row['ours']:.1f} {MARKS[row['verdict']]}"
                for row in rows
                if row["attack"] == attack
            },
        }
        for attack in plan.attacks
    ]
    summary = [
        {"aggregator": name, **{mark: ", ".join(attacks) or "-" for mark, attacks in marks.items()}}
        for name, marks in summarise(plan, rows).items()
    ]
    every = [
        {
            "attack": row["attack"],
            "aggregator": row["aggregator"],
            "accuracy": show_interval(row),
            "against the mean of the honest": show_mean(row["change"], sign="+"),
            "verdict": row["verdict"],
            **({DECIDED["needed"]: show_needed({**row["change"], **row, "seeds": len(seeds)})} if plan.strict else {}),
        }
        for row in rows
    ]
    reference = results[seeds[0], *REFERENCE]
    return Page(
        about=_describe_plan(plan, honest=len(reference["clients"]) - len(reference["attackers"]), seeds=len(seeds)),
        rows=[*rows, *worst],
        sections=[
            Section(text=plan.pictures.title),
            *([show_claims("Claims", worst, text=WORST.format(count, len(rows)))] if plan.strict else []),
            Section(title="Accuracy of honest clients", text=VERDICTS.format(100 * plan.margin), rows=matrix),
            Section(title="Which aggregators hold", rows=summary),
            Section(title="Every cell", rows=every),
            Section(
                title="Notes", text=RULE if plan.strict else "", notes=[*DEALT, *NOTES[2:]] if plan.strict else NOTES
            ),
        ],
        sentence=write_sentence(plan, rows),
        figures={"matrix.png": ("Accuracy of honest clients by attack and aggregator", partial(draw, plan, rows))},
        more={"title": plan.pictures.title, "margin": plan.margin, "notes": NOTES},
    )


def summarise(plan: Plan, rows: Sequence[Row]) -> dict[str, dict[str, list[str]]]:
    """For each aggregator the attacks under which it holds, fails, or is open."""
    return {
        aggregator: {
            mark: [
                row["attack"]
                for row in rows
                if row["aggregator"] == aggregator and row["attack"] != NONE and MARKS[row["verdict"]] == mark
            ]
            for mark in MARKS.values()
        }
        for aggregator in plan.aggregators
    }


def write_sentence(plan: Plan, rows: Sequence[Row]) -> str:
    """Which aggregators hold under all attacks, in one line."""
    summary = summarise(plan, rows)
    attacks = len(plan.attacks) - (NONE in plan.attacks)
    whole = [name for name, marks in summary.items() if len(marks["holds"]) == attacks]
    failures = sum(bool(marks["fails"]) for marks in summary.values())
    names, hold = "; ".join(whole) or "no aggregator", "hold" if len(whole) > 1 else "holds"
    return (
        f"{names} {hold} under all {attacks} attacks; {failures} of {len(summary)} aggregators fail under one or more."
    )


def draw(plan: Plan, rows: Sequence[Row]) -> Any:
    """The matrix as a heat map."""
    groups = {attack: [row for row in rows if row["attack"] == attack] for attack in plan.attacks}
    numbers = {attack: [row["ours"] for row in own] for attack, own in groups.items()}
    marks = {attack: [MARKS[row["verdict"]] for row in own] for attack, own in groups.items()}
    title = f"holds: honest clients lose less than {100 * plan.margin:g} points; fails: more; open: not decided"
    label = "accuracy of honest clients (%)"
    return mo.reports.heat_map(
        numbers, plan.aggregators, label=label, marks=marks, title=title, x="aggregator", y="attack"
    )


def _describe_plan(plan: Plan, *, honest: int, seeds: int) -> str:
    return (
        'Mishchenko et al. 2023, "Partially Personalized Federated Learning: Breaking the Curse of Data Heterogeneity",'
        " Algorithm 5; the paper has a theorem on it (Theorem 8) and no experiment, so no number of its own stands"
        f" here. The output layer is personal; FFGG, all clients in every of {plan.rounds} rounds. A share of"
        f" {plan.share:.0%} of the clients, drawn for each seed, attacks in every round. A score is the mean test"
        f" accuracy of the {honest} honest clients' personal models in per cent, over {seeds} seeds; in brackets"
        " is the 95% interval of that mean (Student's t)."
    )


VERDICTS = (
    "An aggregator *holds* under an attack where honest clients certainly lose less than {:g} points against the mean"
    " of the honest alone (the whole interval of the difference, seed by seed, says so), *fails* where they certainly"
    " lose more, and else is *open*. The mean of the honest alone, which no server knows, is the plain mean under *not"
    " finite*: what is not finite is dropped. The row *none* has no attack, so that there all clients help: an"
    " aggregator that loses there pays for its caution."
)
WORST = "In each seed the attack counts that is worst for the aggregator. Of the cells below {} of {} are decided."
DEALT = (
    "Every seed deals the data anew.",
    "Rate, rounds, network and the number of seeds were set on seeds that are not reported (100 and above).",
)
NOTES = (
    "One deal of the data serves all seeds; they differ in first weights and in who attacks.",
    "Rates, rounds and the radius of centred clipping were set by looking at runs without an attack.",
    "A personal output layer can turn labels back: attackers with flipped labels then send what helps the shared layers"
    " nearly as honest labels would. The row *label flip* says more of the split than of aggregators.",
    "Once what is not finite is dropped, no Byzantine client is left: the trimmed mean is then the mean of the honest,"
    " up to rounding. Rounding grows along these runs (a difference of 1e-7 after one round is 0.3 after sixty,"
    " relative to the largest weight), so that cells which agree on paper can be a few points apart for one seed.",
)

ffgg_byzantine = Experiment(
    name="ffgg-byzantine",
    summary="FFGG under each attack with each aggregator: the accuracy of honest clients' personal models.",
    plan=plan,
    cells=cells,
    page=page,
    engine="vectorised",
    night=True,
)
