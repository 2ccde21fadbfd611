"""Asynchronous FFGG and FedAvg under constant, exponential and heavy-tailed speeds: who pays for being slow?

Theorem 7 of Mishchenko et al. 2023 says that asynchronous FFGG converges exactly under any delays, and section 1.3 that
asynchronous methods without personal parts are biased: clients that take part less often count less. All clients work
all the time here, and whoever arrives begins anew (section 2.2), so that fast clients are heard more often. Clients
differ in speed by a factor exp(z), z standard normal, and in labels. The synchronous form waits for all in each round.
Both forms make the same number of client updates. ``ffgg-async`` draws clients anew instead, which removes that bias.

The bias is how far the fastest quarter of clients is ahead of the slowest, in the asynchronous form less in the
synchronous one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import fmean
from typing import Any

import moiety as mo
from moiety.experiments import Cell, Cells, Experiment, Page, Results, Row, Section, count_verdicts, score_row
from moiety.experiments import show_interval as show
from moiety_recipes.claims import RULE, decide_claim, show_claims
from moiety_recipes.ffgg_async import FORMS, METHODS, find_time, keep
from moiety_recipes.pictures import Pictures, deal_digits
from moiety_recipes.tuning import MORE_VALUES, is_end, widen

LADDER = (0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4, 0.8, 1.0, 1.6, 3.2, 6.4)
"""The rates that a search can go on with."""
SPEEDS = {"constant": "constant", "exponential": "exponential", "pareto": "heavy-tailed"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of one scale; ``rounds`` are those of the synchronous form. Rates are chosen on the seeds ``pilots``."""

    pictures: Pictures
    rounds: int
    seeds: int
    inner_lr: float = 0.5
    steps: int = 10
    ffgg_rates: tuple[float, ...] = (0.2, 0.4, 0.8, 1.6)
    fedavg_rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    shape: float = 1.5
    spread: float = 1.0
    share: float = 0.95
    margin: float = 0.02
    points: int = 25
    pilots: tuple[int, ...] = (100, 101)
    more_rates: int = MORE_VALUES

    def rates(self, method: str) -> tuple[float, ...]:
        """The rates that are tried first."""
        return self.ffgg_rates if method == "ffgg" else self.fedavg_rates


def plan(scale: str) -> Plan:
    """The sizes of a scale."""
    if scale == "ci":
        small: dict[str, Any] = {"ffgg_rates": (0.5,), "fedavg_rates": (0.1, 0.3), "steps": 3, "points": 4}
        small |= {"pilots": (100,), "more_rates": 0}
        return Plan(pictures=replace(deal_digits(4), rows=12, validation=0.2), rounds=4, seeds=1, **small)
    pictures = Pictures(
        source="fashion_mnist",
        clients=20,
        rows=75,
        validation=0.2,
        test=100,
        alpha=0.1,
        pixels=196,
        hidden=(32, 16),
        small=True,
    )
    return (
        Plan(pictures=pictures, rounds=40, seeds=3)
        if scale == "laptop"
        else Plan(pictures=pictures, rounds=200, seeds=24)
    )


def work_times(plan: Plan, speed: str) -> Any:
    """The times of local work: each client has its own factor exp(spread z)."""
    if speed == "constant":
        return mo.clock.constant(1.0, spread=plan.spread)
    if speed == "exponential":
        return mo.clock.exponential(1.0, spread=plan.spread)
    return mo.clock.pareto(1.0, shape=plan.shape, spread=plan.spread)


@cache
def load(pictures: Pictures, seed: int) -> mo.FederatedData:
    """The rows as a seed deals them."""
    return pictures.load(seed)


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """Choose a rate for each method and form on the pilot seeds, then run everything."""
    for seed in (*plan.pilots, *seeds):
        load(plan.pictures, seed)
    scores_by_rate: dict[tuple[str, str], dict[float, float]] = {each: {} for each in itertools.product(METHODS, FORMS)}
    while trials := [(m, f, lr) for (m, f), own in scores_by_rate.items() for lr in list_next_rates(plan, m, own)]:
        runs = list(itertools.product(trials, plan.pilots))
        rows = yield [
            build_cell(plan, ("pilot", seed, m, f, f"{lr:g}"), "exponential", m, f, lr, seed)
            for (m, f, lr), seed in runs
        ]
        scores = dict(zip(runs, map(score_end, rows), strict=True))
        for m, f, lr in trials:
            scores_by_rate[m, f][lr] = fmean(scores[(m, f, lr), seed] for seed in plan.pilots)
    rates = {f"{m} {f}": max(sorted(own), key=own.__getitem__) for (m, f), own in scores_by_rate.items()}
    score_table = {f"{m} {f}": {f"{lr:g}": own[lr] for lr in sorted(own)} for (m, f), own in scores_by_rate.items()}
    yield Cell(key=("chosen",), work=lambda: {"rates": rates, "tried": score_table})
    yield [
        build_cell(plan, (s, speed, m, f), speed, m, f, rates[f"{m} {f}"], s)
        for s, speed, m, f in itertools.product(seeds, SPEEDS, METHODS, FORMS)
    ]


def list_next_rates(plan: Plan, method: str, scores: Mapping[float, float]) -> Sequence[float]:
    """The rates to try next: first those of the plan, then one beyond the end at which the best is."""
    if not scores:
        return plan.rates(method)
    return widen(scores, LADDER) if len(scores) < len(plan.rates(method)) + plan.more_rates else ()


def score_end(row: Row) -> float:
    """The mean accuracy over the last quarter of the looks; nothing where it is not a number."""
    accuracy = [value or 0.0 for value in row["accuracy"]]
    return round(fmean(accuracy[-max(1, len(accuracy) // 4) :]), 6)


def build_cell(plan: Plan, key: tuple[Any, ...], speed: str, method: str, form: str, lr: float, seed: int) -> Cell:
    """One run."""
    fit = partial(fit_options, plan, speed, method, form, lr, seed)
    engine = "sequential" if form == "asynchronous" else "vectorised"
    return Cell(key=key, fit=fit, keep=keep, engine=engine, stored=False)


def fit_options(plan: Plan, speed: str, method: str, form: str, lr: float, seed: int) -> dict[str, Any]:
    """The arguments of ``moiety.fit``. One upload moves the server as much as it would as one of all clients'."""
    model, fed, pilot = plan.pictures.model(seed), load(plan.pictures, seed), seed in plan.pilots
    waits, clients, compute = form == "synchronous", len(fed), work_times(plan, speed)
    clock: Any = mo.clock.synchronous(compute=compute)
    if not waits:
        clock = mo.clock.asynchronous(active=clients, compute=compute)
    server, updates = (None, 1) if waits else (mo.server.sgd(lr=1 / clients), clients)
    if method == "ffgg":
        solver = mo.sgd(plan.inner_lr, steps=plan.steps)
        algorithm, split = mo.ffgg(shared=lr, personal=solver, server=server), mo.split.output_layer(model)
    else:
        local = mo.sgd(lr, steps=plan.steps, batch_size=20)
        algorithm, split = mo.fedavg(shared=local, weighting="uniform", server=server), mo.split.nothing(model)
    return {
        "model": model,
        "data": fed if pilot else fed.with_validation_in_train(),
        "algorithm": algorithm,
        "split": split,
        "rounds": plan.rounds * updates,
        "seed": seed,
        "settings": mo.Settings(
            on_divergence="warn",
            clock=clock,
            evaluate_every=max(1, plan.rounds // plan.points) * updates,
            evaluate_on="validation" if pilot else "test",
        ),
    }


def measure_quarters(plan: Plan, speed: str, clients: Sequence[Row], seed: int) -> tuple[float, float]:
    """The accuracy of the fastest and of the slowest quarter of clients, by what their first hundred turns take."""
    import numpy as np

    times = work_times(plan, speed)
    turns = [
        np.mean([times.of(seed, "compute", number, str(row["client"]), turn) for turn in range(100)])
        for number, row in enumerate(clients)
    ]
    order, size = np.argsort(turns), max(1, len(turns) // 4)

    def score(numbers: Any) -> float:
        own = [clients[int(number)] for number in numbers]
        return float(np.average([row["metric"] for row in own], weights=[row["n_test"] for row in own]))

    return score(order[:size]), score(order[-size:])


def measure(plan: Plan, seed: int, results: Results, speed: str, method: str) -> dict[str, float]:
    """What both forms of a method differ in, for one seed: accuracy, the slow, the bias, and how much sooner."""
    sync_run, async_run = (results[seed, speed, method, form] for form in FORMS)
    quarters = (measure_quarters(plan, speed, row["clients"], seed) for row in (sync_run, async_run))
    fast, slow = zip(*quarters, strict=True)
    target = plan.share * sync_run["accuracy"][-1]
    times = [find_time(row, target) for row in (sync_run, async_run)]
    late = async_run["time"][-1] if times[1] is None else times[1]  # a lower bound where it never came so far
    return {
        "change": async_run["accuracy"][-1] - sync_run["accuracy"][-1],
        "slow": slow[1] - slow[0],
        "bias": (fast[1] - slow[1]) - (fast[0] - slow[0]),
        "sooner": math.log2((times[0] or sync_run["time"][-1]) / late),
    }


def judge(plan: Plan, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """Claims over all speeds, then speed by speed."""
    table = {
        (speed, m): [measure(plan, s, results, speed, m) for s in seeds]
        for speed, m in itertools.product(SPEEDS, METHODS)
    }

    def pick(speeds: Sequence[str], method: str, key: str) -> list[float]:
        """One number a seed: the mean over speeds, whose runs share data and first weights."""
        return [fmean(each) for each in zip(*([row[key] for row in table[at, method]] for at in speeds), strict=True)]

    def decide(text: str, values: Sequence[float], **rule: Any) -> Row:
        return {**decide_claim(text, {"clothes": values}, **rule), "pooled": pooled}

    margin = 100 * plan.margin
    for speeds in [list(SPEEDS), *([speed] for speed in SPEEDS)]:
        pooled = len(speeds) > 1
        where = "" if pooled else f"{SPEEDS[speeds[0]]} speeds: "
        points: dict[str, Any] = {"scale": 100, "unit": "points", "headline": pooled}
        text = f"{where}asynchronous FFGG ends as accurate as synchronous, within {margin:g}"
        yield decide(text, pick(speeds, "ffgg", "change"), within=margin, paper="exact", **points)
        text = f"{where}so does its slowest quarter of clients, within {margin:g}"
        yield decide(text, pick(speeds, "ffgg", "slow"), within=margin, paper="exact", **points)
        text = f"{where}asynchronous FedAvg is biased: the fastest quarter gains on the slowest"
        yield decide(text, pick(speeds, "fedavg", "bias"), paper="biased", **points)
        text = f"{where}asynchronous FedAvg loses at its slowest quarter"
        losses = [-value for value in pick(speeds, "fedavg", "slow")]
        yield decide(text, losses, paper="biased", **{**points, "headline": False})
        text = f"{where}FFGG is less biased than FedAvg"
        ours, theirs = pick(speeds, "ffgg", "bias"), pick(speeds, "fedavg", "bias")
        yield decide(text, [b - a for a, b in zip(ours, theirs, strict=True)], paper="less", **points)
        for method, title in METHODS.items():
            text = f"{where}asynchronous {title} reaches {plan.share:.0%} of the synchronous end sooner"
            unit = "doublings of speed"
            yield decide(text, pick(speeds, method, "sooner"), unit=unit, headline=pooled and method == "ffgg")


def tabulate(plan: Plan, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """Accuracy of all clients, of the fastest and of the slowest quarter."""
    for speed, (method, title), form in itertools.product(SPEEDS, METHODS.items(), FORMS):
        runs = [results[s, speed, method, form] for s in seeds]
        both = [measure_quarters(plan, speed, run["clients"], s) for run, s in zip(runs, seeds, strict=True)]
        fast, slow = zip(*both, strict=True)
        row = score_row(f"{SPEEDS[speed]}: {title}, {form}", [run["accuracy"][-1] for run in runs], scale=100)
        texts: Row = {"all": show(row, digits=1)}
        for name, values in {"fastest quarter": fast, "slowest quarter": slow}.items():
            texts[name] = show(score_row("", values, scale=100), digits=1)
        yield {**row, **texts, "virtual seconds": f"{fmean(run['time'][-1] for run in runs):.0f}", "verdict": None}


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """Claims, accuracies, and the curves under each kind of speed."""
    claims, rows = list(judge(plan, seeds, results)), list(tabulate(plan, seeds, results))
    pooled, single = ([row for row in claims if row["pooled"] == pooled] for pooled in (True, False))
    columns = {key: key for key in ("all", "fastest quarter", "slowest quarter", "virtual seconds")}
    choices = results["chosen",]
    rates = [
        {
            "method and form": name,
            "rate": f"{lr:g}" + (" *" if is_end(lr, choices["tried"][name]) else ""),
            "tried": ", ".join(f"{rate}: {100 * score:.1f}%" for rate, score in choices["tried"][name].items()),
        }
        for name, lr in choices["rates"].items()
    ]
    return Page(
        about=ABOUT,
        rows=[*rows, *claims],
        sections=[
            Section(text=f"{plan.pictures.title} {plan.rounds} rounds of all clients, or as many updates one by one."),
            show_claims("Claims over all speeds", pooled),
            Section(title="Accuracy (%)", rows=rows, columns={"row": "", **columns}),
            show_claims("Speed by speed", single),
            Section(title="Rates", text=CHOSEN.format(" and ".join(map(str, plan.pilots))), rows=rates),
            Section(title="Notes", text=RULE, notes=NOTES),
        ],
        sentence=count_verdicts(pooled),
        figures={
            f"{speed}.png": (f"Accuracy along virtual time, {title} speeds", partial(draw, seeds, results, speed))
            for speed, title in SPEEDS.items()
        },
    )


def draw(seeds: Sequence[int], results: Results, speed: str) -> Any:
    """Accuracy along virtual time under one kind of speed, a line for every seed."""
    series: Mapping[str, list[Any]] = {
        f"{title}, {form}": [
            (results[s, speed, method, form]["time"], results[s, speed, method, form]["accuracy"]) for s in seeds
        ]
        for (method, title), form in itertools.product(METHODS.items(), FORMS)
    }
    title = f"{SPEEDS[speed]} speeds"
    return mo.reports.courses(series, across="virtual seconds", label="accuracy (%)", scale=100, title=title)


ABOUT = (
    'Mishchenko et al. 2023, "Partially Personalized Federated Learning: Breaking the Curse of Data Heterogeneity",'
    " Algorithm 3 and Theorem 7; the paper has no experiment with it. All clients work all the time; whoever arrives"
    " begins anew. A score is the mean test accuracy of the clients' models."
)
CHOSEN = (
    "The best for each method and form, by accuracy on validation rows under exponential speeds (the mean over the last"
    " quarter of the looks) on seeds {}, which are not reported. Where the best is at an end, the search goes on there,"
    " by at most three rates; a star marks a rate that is at an end all the same."
)
NOTES = (
    "The bias is how many points the fastest quarter of clients is ahead of the slowest in the asynchronous form, less"
    " in the synchronous form. Clients' speeds are drawn independently of their labels.",
    "The asynchronous server steps with 1 / clients of an upload, so that as many uploads as there are clients move it"
    " as much as their mean would. In FFGG the output layer is personal; FedAvg has nothing personal.",
    "Times are virtual. Where a form never comes to 95% of the synchronous end, its last time stands for it.",
)

ffgg_speeds = Experiment(
    name="ffgg-speeds",
    summary="Asynchronous FFGG and FedAvg under three kinds of speeds: accuracy in virtual time, and who pays.",
    plan=plan,
    cells=cells,
    page=page,
    night=True,
)
