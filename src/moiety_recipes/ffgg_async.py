"""Asynchronous FFGG (Mishchenko et al. 2023, Algorithm 3) against rounds that wait: accuracy in virtual time.

The paper proves that asynchronous FFGG converges exactly under arbitrary delays and has no experiment with it. Here
clients differ in speed and every turn's time is drawn from a heavy-tailed distribution. The synchronous form asks a
cohort in each round and waits for its slowest client; the asynchronous form has as many clients at work at a time, and
steps at each arrival. Both make the same number of client updates, and a turn of a client takes the same time in both.
FedAvg, with the same local work and nothing personal, is run for comparison: asynchronous, it hears fast clients more
often.

At scale ``laptop`` the data are Fashion-MNIST, averaged to 14 x 14 pixels, on 20 clients whose label ratios are drawn
from Dirichlet(0.3); at scale ``paper`` they are whole, on 100 clients with the CNN of McMahan et al. (2017). Scale
``ci`` has other data and fewer of all, and shows that everything runs.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import moiety as mo
from moiety.experiments import FAILS, Cell, Cells, Experiment, Page, Results, Row, Section, claim, compare, table_row
from moiety_recipes.pages import judge_row
from moiety_recipes.pictures import Pictures, deal_clothes, deal_digits

METHODS = {"ffgg": "FFGG", "fedavg": "FedAvg"}
FORMS = ("synchronous", "asynchronous")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of one scale.

    ``active`` clients are at work at a time, in both forms; ``rounds`` are those of the synchronous form, so that both
    have rounds * active updates. ``shape`` and ``spread`` are those of the Pareto distribution of work times,
    ``link`` is the mean time of a link. A time to accuracy is the virtual time until ``share`` of what the synchronous
    form has in the end; ``margin`` is how much accuracy counts as the same.
    """

    pictures: Pictures
    lr: float
    inner_lr: float
    inner_steps: int
    active: int
    rounds: int
    seeds: int
    shape: float = 1.5
    spread: float = 0.7
    link: float = 0.1
    share: float = 0.95
    margin: float = 0.02


def plan(scale: str) -> Plan:
    """The sizes of a scale."""
    if scale == "ci":
        return Plan(pictures=deal_digits(6), lr=0.5, inner_lr=0.5, inner_steps=3, active=3, rounds=4, seeds=2)
    active, rounds = (20, 1000) if scale == "paper" else (10, 120)
    pictures = deal_clothes(scale == "paper")
    return Plan(pictures=pictures, lr=0.7, inner_lr=0.5, inner_steps=10, active=active, rounds=rounds, seeds=5)


def work_times(plan: Plan) -> Any:
    """The times of local work."""
    return mo.clock.pareto(1.0, shape=plan.shape, spread=plan.spread)


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """One run for each method, form and seed; one deal of the data serves all seeds."""
    fed = plan.pictures.load(seeds[0])
    for seed, method, form in itertools.product(seeds, METHODS, FORMS):
        fit = partial(fit_options, plan, fed, method, form, seed)
        engine = "sequential" if form == "asynchronous" else "vectorised"
        yield Cell(key=(seed, method, form), fit=fit, keep=keep, engine=engine)


def fit_options(plan: Plan, fed: mo.FederatedData, method: str, form: str, seed: int) -> dict[str, Any]:
    """The arguments of ``moiety.fit``. One upload moves the server as much as it would as one of a cohort."""
    model = plan.pictures.model(seed)
    link = mo.clock.exponential(plan.link)
    times: dict[str, Any] = {"compute": work_times(plan), "up": link, "down": link}
    waits = form == "synchronous"
    clock: Any = mo.clock.synchronous(**times) if waits else mo.clock.asynchronous(active=plan.active, **times)
    server, updates = (None, 1) if waits else (mo.server.sgd(lr=1 / plan.active), plan.active)
    if method == "ffgg":
        solver = mo.sgd(plan.inner_lr, steps=plan.inner_steps)
        algorithm, split = mo.ffgg(shared=plan.lr, personal=solver, server=server), mo.split.output_layer(model)
    else:
        lr, steps = plan.lr / 4, plan.inner_steps
        algorithm = mo.fedavg(shared=mo.sgd(lr, steps=steps, batch_size=20), weighting="uniform", server=server)
        split = mo.split.nothing(model)
    return {
        "model": model,
        "data": fed,
        "algorithm": algorithm,
        "split": split,
        "rounds": plan.rounds * updates,
        "settings": mo.Settings(on_divergence="warn", clock=clock, evaluate_every=max(1, plan.rounds // 30) * updates),
        "cohort": plan.active if waits else None,
        "seed": seed,
    }


def keep(run: mo.Run) -> Row:
    """Accuracy and staleness along the virtual time, and a row per client."""
    return {
        "time": [row["time"] for row in run.history],
        "accuracy": [row["metric"] for row in run.history],
        "staleness": [row.get("staleness") or 0.0 for row in run.history],
        "clients": run.clients,
    }


def find_time(course: Row, score: float) -> float | None:
    """The virtual time of the first evaluation with at least that score; None where there is none."""
    return next((t for t, s in zip(course["time"], course["accuracy"], strict=True) if s >= score), None)


def judge(plan: Plan, seeds: Sequence[int], results: Results, method: str) -> list[Row]:
    """The rows of one method: accuracy in the end, of all and of slow clients, and virtual time to accuracy."""
    courses = {form: [results[seed, method, form] for seed in seeds] for form in FORMS}
    name, margin = METHODS[method], 100 * plan.margin
    ends = {form: [course["accuracy"][-1] for course in own] for form, own in courses.items()}
    slow = {
        form: [measure_slow_accuracy(plan, course, seed) for course, seed in zip(own, seeds, strict=True)]
        for form, own in courses.items()
    }
    gaps = {"asynchronous less synchronous (points)": ends, "the same for the slowest quarter": slow}
    rows = [table_row(f"{name}, {form}: accuracy (%)", ends[form], scale=100) for form in FORMS]
    for what, scores in gaps.items():
        gap = compare(scores["asynchronous"], scores["synchronous"], scale=100)
        rows.append(judge_row(f"{name}: {what}, within {margin:g}", gap, within=margin))
    times = {
        form: [find_time(c, plan.share * end) for c, end in zip(courses[form], ends["synchronous"], strict=True)]
        for form in FORMS
    }
    for form in FORMS:
        row = f"{name}, {form}: virtual seconds to {plan.share:.0%} of the synchronous end"
        seconds = [time for time in times[form] if time is not None]
        rows.append(_make_time_row(row, seconds) if seconds else {"row": row, "paper": None, "ours": None, "seeds": 0})
    row = f"{name}: times sooner, above 1"
    ratios = [a / b for a, b in zip(*times.values(), strict=True) if a is not None and b is not None]
    if len(ratios) < len(seeds):  # the asynchronous form never came so far
        return [*rows, {"row": row, "paper": None, "ours": None, "seeds": len(ratios), "verdict": FAILS}]
    verdict = claim(row, [math.log(ratio) for ratio in ratios]).verdict
    return [*rows, _make_time_row(row, ratios, verdict=verdict)]


def _make_time_row(row: str, values: Sequence[float], *, verdict: str | None = None) -> Row:
    """A row of times, or of ratios of times: their geometric mean, with the interval of the mean logarithm."""
    logs = table_row(row, [math.log(value) for value in values], verdict=verdict)
    ends = {key: None if logs[key] is None else math.exp(logs[key]) for key in ("ours", "low", "high")}
    return {**logs, **ends, "std": None}


def measure_slow_accuracy(plan: Plan, course: Row, seed: int) -> float:
    """The mean accuracy of the slowest quarter of clients, by what their first hundred turns would take."""
    import numpy as np

    times, clients = work_times(plan), course["clients"]
    turns = [
        np.mean([times.of(seed, "compute", number, str(row["client"]), turn) for turn in range(100)])
        for number, row in enumerate(clients)
    ]
    slowest = [clients[number] for number in sorted(np.argsort(turns)[-max(1, len(turns) // 4) :])]
    return float(np.average([row["metric"] for row in slowest], weights=[row["n_test"] for row in slowest]))


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """One table, and the curves."""
    rows = [row for method in METHODS for row in judge(plan, seeds, results, method)]
    curves = [
        {"method": method, "form": form, "seed": seed, **{key: row[key] for key in ("time", "accuracy", "staleness")}}
        for (seed, method, form), row in results.items()
    ]
    title = plan.pictures.title
    return Page(
        about=ABOUT,
        rows=rows,
        sections=[
            Section(text=f"{title}\n\n{_describe(plan, results)}"),
            Section(title="Accuracy and virtual time", text=VERDICTS, rows=rows),
            Section(title="Notes", notes=NOTES),
        ],
        sentence=write_sentence(rows),
        figures={"curves.png": ("Accuracy along virtual time, a line for every seed", partial(draw, results))},
        more={"title": title, "margin": plan.margin, "share": plan.share, "notes": NOTES, "curves": curves},
    )


def write_sentence(rows: Sequence[Row]) -> str:
    """How much sooner, in one line."""
    parts = []
    for title in METHODS.values():
        (row,) = [row for row in rows if row["row"].startswith(f"{title}: times sooner")]
        much = "did not get as far" if row["ours"] is None else f"was {row['ours']:.1f} times as fast"
        parts.append(f"asynchronous {title} {much} as rounds that wait ({row['verdict']})")
    return "; ".join(parts) + "."


def draw(results: Results) -> Any:
    """Accuracy along virtual time, a line for every seed."""
    series: dict[str, list[tuple[list[float], list[float]]]] = {}
    for (_, method, form), row in results.items():
        series.setdefault(f"{METHODS[str(method)]}, {form}", []).append((row["time"], row["accuracy"]))
    return mo.reports.courses(series, across="virtual seconds", label="accuracy (%)", scale=100)


def _describe(plan: Plan, results: Results) -> str:
    late = [s for (_, _, form), row in results.items() if form == "asynchronous" for s in row["staleness"]]
    compute, link = (json.dumps(times.spec) for times in (work_times(plan), mo.clock.exponential(plan.link)))
    return (
        f"{plan.active} clients are at work at a time: as a cohort that is waited for in each of {plan.rounds} rounds,"
        f" or one by one as they arrive, {plan.rounds * plan.active} client updates either way. Local work takes a time"
        f" drawn from a Pareto distribution (table `{compute}`), each link one from `{link}`. In FFGG the output layer"
        " is personal; FedAvg has nothing personal. A score is the mean test accuracy of the clients' models. An"
        f" asynchronous update was computed {fmean(late):.1f} steps of the server before it arrived, on average."
    )


ABOUT = (
    'Mishchenko et al. 2023, "Partially Personalized Federated Learning: Breaking the Curse of Data Heterogeneity",'
    " Algorithm 3; the paper has a theorem on it (Theorem 7) and no experiment, so no number of its own stands here."
)
VERDICTS = (
    "Ours is the mean over seeds, with its 95% interval (Student's t). *holds* and *does not hold*: the whole"
    " interval says so. Of times, and of how many times sooner, it is the geometric mean, with the interval of its"
    " logarithm; sooner does not hold where some seed never got so far."
)
NOTES = (
    "One deal of the data serves all seeds; they differ in first weights, speeds, times and cohorts.",
    "The asynchronous server steps with 1 / active of an upload, so that as many uploads as a cohort has move it as"
    " much as that cohort's mean would; rates are those of the synchronous form.",
    "Times are virtual: they are drawn, not measured, and the same in both forms for the same turn of a client. A"
    " Pareto distribution of shape 1.5 has a mean of three times the least and no variance.",
)

ffgg_async = Experiment(
    name="ffgg-async",
    summary="Asynchronous FFGG and FedAvg against rounds that wait for the slowest client, in virtual time.",
    plan=plan,
    cells=cells,
    page=page,
)
