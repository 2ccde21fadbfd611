"""What the recipes of the Glocal paper have in common: learning rates by validation, and rows, claims and notes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import moiety as mo
from moiety.experiments import (
    HOLDS,
    Cell,
    Cells,
    Page,
    Results,
    Row,
    Section,
    claim_row,
    compare,
    score_row,
    show_interval,
)

ABOUT = (
    '"Global and Local Learning for Distributed Personalization". Linear regression on labels 0 and 1 with a constant,'
    " one versus all for more classes, from 0, by Adagrad (footnote 5), one example of every client a round. *Indep*:"
    " every client alone; *Central*: one model, along the sum of all clients' gradients; *Glocal*: a shared and a"
    " personal model whose predictions are added, one learning rate for both. All runs of a data set are one block of"
    " tensors with the arithmetic of `mo.independent`, `mo.central` and `mo.glocal_sgd`; a test holds it to `mo.fit`."
    " In brackets is the 95% interval of the mean over trials (Student's t), and of differences trial by trial."
)
ABOUT_RULES = ABOUT.replace("by Adagrad (footnote 5)", "by Adagrad (footnote 5) or by Vowpal Wabbit's normalised rule")
REFUSED = {
    "engine": "Its runs are one block of tensors.",
    "device": "Its runs are one block of tensors in main memory.",
}
RATES = tuple(0.002 * 2**k for k in range(7))
"""From 0.002 to 0.2 by doubling (section 4)."""
LONG_RATES = tuple(0.002 * 2.0**k for k in range(-8, 10))
"""The same, from 256 times lower to 8 times higher."""
SOURCES = ("mnist", "covtype", "satimage", "usps", "shuttle", "pendigits", "letter")
METHODS = {"independent": "Indep", "central": "Central", "glocal": "Glocal"}
GROUP_FLOATS = 1_000_000
"""A block has at most this many personal parameters, so that it stays in the cache."""
MOST_GROUPS = 400
"""A block has at most this many groups: it keeps a number for every client and round of each."""
Scores = Mapping[int, Mapping[str, Row]]
"""Rows by what is to the right in a figure (clients, delay) and by label."""
Masks = tuple[Any, Any]
"""Which features the shared and the personal models see: tensors [trials, features] of 0 and 1; None is all of them."""


def load_tasks(source: str, clients: int, seeds: Sequence[int]) -> list[mo.FederatedData]:
    """A trial for every seed: tasks and rows are drawn anew."""
    return [mo.data.binary_tasks(source, clients=clients, seed=seed) for seed in seeds]


def source_cells(plan: Any, seeds: Sequence[int], *, run: Callable[[Any, str, Sequence[int]], Row]) -> Cells:
    """A cell for each data set of the plan. The first is looked at before anything is written."""
    load_tasks(plan.sources[0], 1, seeds[:1])
    for source in plan.sources:
        yield Cell(key=(source,), work=partial(run, plan, source, seeds))


def compare_methods(
    data: Sequence[mo.FederatedData],
    seeds: Sequence[int],
    rates: Sequence[float],
    *,
    passes: int,
    rounds: int = 0,
    masks: Mapping[str, Masks] | None = None,
) -> Row:
    """All methods, each at the learning rate that is best for it.

    A run makes ``passes`` over a client's training rows, unless ``rounds`` is above 0.
    """
    rounds = rounds or passes * int(data[0].sizes("train")[0])
    views = masks or dict.fromkeys(METHODS, (None, None))
    methods = {method: tune(data, rounds, seeds, rates, method=method, masks=views[method])[0] for method in METHODS}
    return {"rounds": rounds, "methods": methods}


def tune(
    data: Sequence[mo.FederatedData],
    rounds: int,
    seeds: Sequence[int],
    rates: Sequence[float],
    *,
    delays: Sequence[int] = (0,),
    **options: Any,
) -> list[Row]:
    """For every delay: the rate with the best mean validation accuracy, and its test accuracy in every trial.

    ``options`` are those of ``try_rates``.
    """
    scores = try_rates(data, rounds, seeds, rates, delays=delays, **options)
    return [{"delay": delay, **choose_rate(scores, rates, at)} for at, delay in enumerate(delays)]


def try_rates(
    data: Sequence[mo.FederatedData],
    rounds: int,
    seeds: Sequence[int],
    rates: Sequence[float],
    *,
    method: str = "glocal",
    delays: Sequence[int] = (0,),
    alignment: str = "aligned",
    masks: Masks = (None, None),
    rule: str = "adagrad",
    first: float = 0.0,
) -> dict[str, Any]:
    """Accuracies on validation and on test rows, tensors [delays, rates, trials].

    ``first`` is what models predict before the first step.
    """
    import torch

    from moiety_recipes.glocal_block import Block, run_block, score_block, stack_trials

    trials = stack_trials(data, rounds, seeds)
    cases = list(itertools.product(range(len(delays)), range(len(rates)), range(len(data))))
    scores = {part: torch.zeros(len(delays), len(rates), len(data)) for part in ("validation", "test")}
    size = max(1, min(MOST_GROUPS, GROUP_FLOATS // (trials.x[0, :, 0].numel() * trials.y.shape[-1])))
    zero = torch.zeros(trials.x.shape[-1], trials.y.shape[-1])
    start = zero.clone()
    start[-1] = first
    for at in range(0, len(cases), size):
        delay, rate, trial = torch.tensor(cases[at : at + size]).T
        block = Block(
            trial, torch.tensor(rates)[rate], torch.tensor(delays)[delay], method, alignment, *masks, rule=rule
        )
        outcome = run_block(trials, block, start=(zero, start) if method == "independent" else (start, zero))
        for part, values in scores.items():
            values[delay, rate, trial] = score_block(data, part, block, outcome)
    return scores


def choose_rate(scores: Mapping[str, Any], rates: Sequence[float], at: int, grid: Sequence[float] = ()) -> Row:
    """The rate with the best mean validation accuracy at delay number ``at``, of those in ``grid`` or of all."""
    # Rounded, so that the last digits of a sum decide no tie: the lowest rate has it.
    means = [round(float(mean), 6) for mean in scores["validation"][at].mean(1)]
    best = max((k for k, rate in enumerate(rates) if not grid or rate in grid), key=lambda k: (means[k], -k))
    return {"lr": rates[best], "validation": means, "each": scores["test"][at, best].tolist()}


def score(row: str, result: Mapping[str, Any], *, paper: float | None = None) -> Row:
    """A row in per cent with its interval over trials, and its learning rate where it has one."""
    return {**score_row(row, result["each"], paper=paper, scale=100), "lr": result.get("lr")}


def judge(row: str, differences: Sequence[float], *, within: float | None = None, paper: float | None = None) -> Row:
    """A claim on differences in points, trial by trial: that they are above 0, or within a margin of it."""
    decision = claim_row(row, differences, within=within, paper=paper)
    decision["claimed"] = "> 0" if within is None else f"within ±{within:g}"
    return {key: value for key, value in decision.items() if key != "each"}


def count_holding(claims: Sequence[Row]) -> int:
    """How many claims hold."""
    return sum(claim["verdict"] == HOLDS for claim in claims)


def score_methods(name: str, methods: Mapping[str, Row], paper: Sequence[float] = ()) -> dict[str, Row]:
    """By label the row of each method; ``paper`` are its numbers, in that order."""
    numbers = dict(zip(METHODS, paper, strict=bool(paper)))
    return {label: score(f"{name}: {label}", methods[m], paper=numbers.get(m)) for m, label in METHODS.items()}


def judge_best(name: str, methods: Mapping[str, Row], paper: Sequence[float] = ()) -> list[Row]:
    """Whether Glocal beats the others, and by how much it does in the paper."""
    return [
        judge(
            f"{name}: Glocal beats {METHODS[other]}",
            compare(methods["glocal"]["each"], methods[other]["each"], scale=100),
            paper=paper[-1] - paper[k] if paper else None,
        )
        for k, other in enumerate(("independent", "central"))
    ]


def show_scores(title: str, across: str, scores: Scores, signs: Mapping[str, str]) -> Section:
    """A table of scores; ``signs`` are ``+`` for those that are differences."""
    lines = [
        {across: str(x), **{label: show_interval(row, sign=signs.get(label, "")) for label, row in own.items()}}
        for x, own in scores.items()
    ]
    return Section(title=title, rows=lines)


def draw_scores(panels: Mapping[str, Scores], lines: Mapping[str, str], x: str, y: str) -> Any:
    """Scores as curves with their intervals, a panel for each data set. ``lines`` gives labels of scores by name.

    A label without scores is a line at 0, with which others are compared.
    """
    curves = {
        panel: {
            name: [build_point(at, own.get(label, {"ours": 0.0, "interval": None})) for at, own in scores.items()]
            for name, label in lines.items()
        }
        for panel, scores in panels.items()
    }
    return mo.reports.bands(curves, x=x, y=y)


def build_point(x: float, row: Row) -> Row:
    """A point of a curve with its interval."""
    low, high = row["interval"] or (None, None)
    return {"x": x, "mean": row["ours"], "low": low, "high": high}


def show_claims(claims: Sequence[Row]) -> Section:
    """The claims with their verdicts, as a section."""
    rows = [
        {
            **claim,
            "verdict": f"**{claim['verdict']}**",
            "shown": show_interval(claim, sign="+"),
            "paper": "-" if claim["paper"] is None else f"{claim['paper']:+.2f}",
        }
        for claim in claims
    ]
    columns = {"row": "claim", "verdict": "verdict", "shown": "difference in points", "claimed": "claimed"}
    has_paper = any(claim["paper"] is not None for claim in claims)
    return Section(title="Claims", rows=rows, columns=columns | ({"paper": "paper"} if has_paper else {}))


VALIDATED = (
    "A departure from the rules of these pages: rates are chosen on validation rows of the partitions that are"
    " reported, not on partitions of their own. Test rows choose nothing, and every method has as many rates to choose"
    " from."
)


def build_page(
    rows: Sequence[Row],
    sections: Sequence[Section],
    sentence: str,
    notes: Sequence[str],
    results: Results,
    figures: Mapping[str, Any] | None = None,
    about: str = ABOUT,
) -> Page:
    """A page with its notes; what was kept of every cell stands in ``table.json`` too."""
    notes = [*notes, VALIDATED]
    return Page(
        about=about,
        rows=rows,
        sections=[*sections, Section(title="Notes", notes=notes)],
        sentence=sentence,
        figures=figures or {},
        more={"notes": notes, "cells": {Cell(key=key).label: row for key, row in results.items()}},
    )


def list_numbers(values: Sequence[float]) -> str:
    """Numbers as a note shows them.

    >>> list_numbers((0.002, 0.004, 30))
    '0.002, 0.004, 30'
    """
    return ", ".join(f"{value:g}" for value in values)
