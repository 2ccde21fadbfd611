"""Does ``moiety.diagnose_split`` pick a good split? Its advice against training with every split.

Section 2.4 of Mishchenko et al. 2023 leaves the right split open and names ||F_m|| as what to measure; the function
measures it, with the accuracy of finetuned models on validation rows. Here it is asked for a model that FedAvg trained,
and its advice is compared with what Local FFGG and finetuning make of each split, on test rows: the advice is good
where it is within one point of the best split.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import moiety as mo
from moiety.experiments import Cell, Cells, Experiment, Page, Results, Row, Section, count_verdicts, score_row
from moiety.experiments import show_interval as show
from moiety_recipes.claims import RULE, decide_claim, show_claims
from moiety_recipes.ffgg_settings import SETTINGS
from moiety_recipes.ffgg_stages import (
    COMMUNICATION,
    EVERYTHING,
    FEDAVG,
    NOTHING,
    Arm,
    Sizes,
    build_split,
    describe_choice,
    load,
    plan_sizes,
    run_pilot,
    run_seeds,
)

SPLITS = ("input", "output", "adapter", EVERYTHING)
ARMS = tuple(Arm(split, fresh=False) for split in SPLITS)
SOLVERS = ("L-BFGS", "SGD")
ADVICE = {"best": "the best on validation rows", "best_that_shares": "the best of those that leave something to share"}
MARGIN = 1.0
"""How far from the best split, in points, is near enough."""


def plan(scale: str) -> Sizes:
    """The sizes of a scale; at scale ``ci`` one rate, since ``ffgg-splits`` chooses among several there."""
    sizes = plan_sizes(scale, seeds=5)
    return replace(sizes, rates=sizes.rates[-1:], pilots=sizes.pilots[:1]) if scale == "ci" else sizes


def cells(plan: Sizes, seeds: Sequence[int]) -> Cells:
    """Choose on the pilot seed, train every split for all seeds, and ask for advice."""
    choices = yield from run_pilot(plan, ARMS)
    yield from run_seeds(plan, seeds, ARMS, choices)
    yield [
        Cell(key=(s, n, "advice"), work=partial(ask, plan, n, s, choices[n]))
        for n, s in itertools.product(plan.settings, seeds)
    ]


def ask(plan: Sizes, name: str, seed: int, choice: Row) -> Row:
    """The advice by each solver, for a model that FedAvg trained on training rows without validation rows."""
    from moiety_recipes.ffgg_stages import fedavg, list_options

    algorithm = fedavg(plan, choice["rates"][FEDAVG], first=True)
    arguments = list_options(plan, name, seed, algorithm, NOTHING, choice["rounds"])
    run = mo.fit(**{**arguments, "data": load(name, seed), "engine": "vectorised"}, progress=False)
    model = run.export(load(name, seed).ids[0])
    splits = {split: build_split(name, model, split) for split in (NOTHING, *SPLITS)}
    rates = [choice["rates"][f"{split}, finetuning"] for split in SPLITS]
    sgd = mo.sgd(sorted(rates)[len(rates) // 2], epochs=plan.epochs, batch_size=plan.batch_size)
    advice = {}
    for solver in SOLVERS:
        options: Row = {"solver": sgd} if solver == "SGD" else {}
        diagnosis = mo.diagnose_split(model, load(name, seed), splits=splits, clients=30, seed=seed, **options)
        table = [{key: row[key] for key in ("split", "left", "metric", "verdict")} for row in diagnosis.rows]
        picks = {kind: getattr(diagnosis, kind) for kind in ADVICE}
        advice[solver] = {"rows": table} | {kind: row and row.split for kind, row in picks.items()}
    return advice


def score_split(results: Results, seed: int, name: str, split: str) -> float:
    """The test accuracy of a split after training; with nothing personal FedAvg goes on instead."""
    method = COMMUNICATION if split == NOTHING else f"{split}, then finetuning"
    return float(results[seed, name, method]["score"])


def page(plan: Sizes, seeds: Sequence[int], results: Results) -> Page:
    """Claims, every split's accuracy beside how often it was advised, and what was measured."""
    claims = list(judge(plan, seeds, results))
    headline, single = ([row for row in claims if row["pooled"] == pooled] for pooled in (True, False))
    table = list(tabulate(plan, seeds, results))
    measures = list(show_measured(plan, seeds, results))
    choices = results["chosen",]["chosen"]
    return Page(
        about=ABOUT,
        rows=[*table, *claims],
        sections=[
            show_claims("Claims", headline, text=CLAIMS),
            Section(title="Splits", text=TABLE, rows=[{k: v for k, v in row.items() if k in SHOWN} for row in table]),
            *([show_claims("Setting by setting", single)] if len(plan.settings) > 1 else []),
            Section(title="What was measured", text=MEASURED, rows=measures),
            Section(title="Settings", rows=[{"setting": n, "data": SETTINGS[n].title} for n in plan.settings]),
            Section(title="Rates and rounds", rows=describe_choice(plan, choices)),
            Section(title="Notes", text=RULE, notes=NOTES),
        ],
        sentence=count_verdicts(headline),
        figures={
            "advice.png": ("Accuracy of each split, best and advised marked", partial(draw, plan, seeds, results))
        },
    )


def find_best_split(seeds: Sequence[int], results: Results, name: str) -> str:
    """The split with the best mean accuracy over the seeds shown, which favours it."""
    return max((NOTHING, *SPLITS), key=lambda split: fmean(score_split(results, s, name, split) for s in seeds))


def judge(plan: Sizes, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """Is the advised split within a point of the best, and better than always taking one split?"""
    every = list(plan.settings)
    groups = [(every, True), *(([name], False) for name in every if len(every) > 1)]
    for (names, pooled), solver, kind in itertools.product(groups, SOLVERS, ADVICE):
        losses = {}
        for n in names:
            best = find_best_split(seeds, results, n)
            splits = [results[s, n, "advice"][solver][kind] or NOTHING for s in seeds]
            losses[n] = [
                score_split(results, s, n, split) - score_split(results, s, n, best)
                for s, split in zip(seeds, splits, strict=True)
            ]
        where = "" if pooled else f"{names[0]}: "
        text = f"{where}{ADVICE[kind]}, by {solver}, is within {MARGIN:g} point of the best split"
        row = decide_claim(text, losses, above=-MARGIN, scale=100, unit="points", headline=pooled)
        yield {**row, "pooled": pooled}
    for solver, split in itertools.product(SOLVERS, (NOTHING, *SPLITS)):
        gains = {
            n: [
                score_split(results, s, n, results[s, n, "advice"][solver]["best"] or NOTHING)
                - score_split(results, s, n, split)
                for s in seeds
            ]
            for n in every
        }
        text = f"{ADVICE['best']}, by {solver}, is better than always {split}"
        yield {**decide_claim(text, gains, scale=100, unit="points"), "pooled": True}


def tabulate(plan: Sizes, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """A row for each setting and split."""
    for name, split in itertools.product(plan.settings, (NOTHING, *SPLITS)):
        row = score_row(f"{name}: {split}", [score_split(results, s, name, split) for s in seeds], scale=100)
        mark = " (best)" if split == find_best_split(seeds, results, name) else ""
        counts = {
            f"advised by {solver}, {kind}": Counter(results[s, name, "advice"][solver][kind] for s in seeds)[split]
            for solver, kind in itertools.product(SOLVERS, ADVICE)
        }
        yield {**row, "setting": name, "split": f"{split}{mark}", "accuracy (%)": show(row, digits=1), **counts}


def show_measured(plan: Sizes, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """What the function saw, means over seeds."""
    for name, solver, split in itertools.product(plan.settings, SOLVERS, (NOTHING, *SPLITS)):
        own = [r for s in seeds for r in results[s, name, "advice"][solver]["rows"] if r["split"] == split]
        less = sum(r["verdict"] == "personalise less" for r in own)
        yield {
            "setting": name,
            "solver": solver,
            "split": split,
            "share of the gradient left": f"{fmean(r['left'] for r in own):.2g}",
            "validation (%)": f"{100 * fmean(r['metric'] for r in own):.1f}",
            "personalise less": f"{less} of {len(own)}",
        }


def draw(plan: Sizes, seeds: Sequence[int], results: Results) -> Any:
    """Accuracy by setting and split, with the best and how often each was advised."""
    splits = (NOTHING, *SPLITS)
    rows = {
        n: [100 * fmean(score_split(results, s, n, split) for s in seeds) for split in splits] for n in plan.settings
    }
    marks = {}
    for n in plan.settings:
        best = find_best_split(seeds, results, n)
        counts = Counter(results[s, n, "advice"]["SGD"]["best"] for s in seeds)
        marks[n] = [f"{'best, ' if split == best else ''}advised {counts[split]}x" for split in splits]
    title = f"best: the best split after training; advised: by the diagnosis, in so many of {len(seeds)} seeds"
    return mo.reports.heat_map(
        rows, splits, label="test accuracy (%)", marks=marks, title=title, x="personal part", y="setting"
    )


SHOWN = (
    "setting",
    "split",
    "accuracy (%)",
    *(f"advised by {solver}, {kind}" for solver, kind in itertools.product(SOLVERS, ADVICE)),
)
ABOUT = (
    "`moiety.diagnose_split` judged: the split that it advises for a model trained by FedAvg against the split that is"
    " best after training (Local FFGG from FedAvg's values, then finetuning; with nothing personal FedAvg goes on for"
    " as many rounds)."
)
CLAIMS = (
    "Differences in points of test accuracy. The best split is the one with the best mean over the seeds shown, which"
    " favours it. *By L-BFGS* is the function's default solver, *by SGD* finetuning as it will be done."
)
TABLE = "In how many seeds each split was advised: *best* on validation rows, and *best_that_shares* of its verdicts."
MEASURED = "Means over seeds; 30 clients, or all where there are fewer."
NOTES = (
    "The function is asked after FedAvg on training rows without validation rows; splits are then trained on both.",
    "Where it names no split, nothing is personal.",
)

ffgg_diagnosis = Experiment(
    name="ffgg-diagnosis",
    summary="Does diagnose_split pick a split within one point of the best? Its advice against training every split.",
    plan=plan,
    cells=cells,
    page=page,
    night=True,
)
