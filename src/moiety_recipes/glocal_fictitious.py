"""Figures 3 and 4 of the Glocal paper: Glocal.SGD and Glocal.ERM find the best pair, fictitious play gets stuck.

Appendix C: one client, x^g = (a + e, b), x^l = (1 - a, 1 - b) with a and b standard normal and e of variance 0.25,
y = 1; both sides start at (1, 0), and (0, 1) for both has no loss. 50 rollouts of 20,000 steps, all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import moiety as mo
from moiety.experiments import (
    HOLDS,
    Cell,
    Cells,
    Experiment,
    Page,
    Results,
    Row,
    Section,
    claim,
    score_row,
    show_interval,
)
from moiety_recipes.glocal_trials import REFUSED, build_point

LABELS = {"sgd": "Glocal.SGD", "erm": "Glocal.ERM", "fictitious": "fictitious play"}
START = (1.0, 0.0)
ABOUT = (
    '"Global and Local Learning for Distributed Personalization", appendix C. One client whose shared part must go from'
    " (1, 0) to (0, 1) together with its personal part, without delay. *Glocal.SGD* (Algorithm 5) steps along both"
    " gradients, *Glocal.ERM* (Algorithm 6) refits either side on all examples so far with the newest values of the"
    " other, *fictitious play* (Algorithm 7) keeps the other side's values of each time. {} rollouts; in brackets is"
    " the 95% interval of the mean over rollouts (Student's t)."
)
NOTES = (
    "Glocal.SGD has Adagrad (footnote 5) with the paper's rate 1.0; plain SGD at that rate diverges, since a step of 2"
    " x x^T is longer than what the loss allows.",
    "N(0, 0.25) is read as a variance. Where examples are too few to determine a refit, the solution nearest to the"
    " present value is taken.",
    "The paper prints no numbers for these figures.",
)
Stream = tuple[Any, Any, Any]
"""Global features, local features [rollouts, rounds, 1, 2] and targets [rollouts, rounds, 1]."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of one scale. A method has found the best pair where it is ``near`` it, by the distance."""

    rollouts: int = 50
    rounds: int = 20_000
    near: float = 0.05


def plan(scale: str) -> Plan:
    """The sizes of a scale."""
    return Plan(rollouts=3, rounds=300) if scale == "ci" else Plan()


def draw_rollouts(seed: int, count: int, rounds: int) -> Stream:
    """The examples of appendix C.1."""
    draw = mo.random.generator(seed, "appendix C")
    a, b = draw.normal(size=(2, count, rounds, 1))
    noise = draw.normal(scale=0.5, size=a.shape)
    return np.stack([a + noise, b], axis=-1), np.stack([1 - a, 1 - b], axis=-1), np.ones_like(a)


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """A cell for each method, all on the same examples."""
    stream = draw_rollouts(seeds[0], plan.rollouts, plan.rounds)
    works = {
        "sgd": partial(run_sgd, stream),
        "erm": partial(run_refits, stream, mo.glocal_erm),
        "fictitious": partial(run_refits, stream, mo.fictitious_play),
    }
    for method, work in works.items():
        yield Cell(key=(method,), work=work)


def run_sgd(stream: Stream) -> Row:
    """Every rollout is a trial of one client, whose global features are the first two and local ones the others."""
    import torch

    from moiety_recipes.glocal_block import Block, Trials, run_block

    g, own, y = (torch.from_numpy(each).float() for each in stream)
    count, rounds = y.shape[:2]
    x = torch.cat([g, own], dim=-1).movedim(1, 2)
    rows = torch.arange(rounds).reshape(1, -1, 1).expand(count, rounds, 1)
    first = torch.tensor([1.0, 1, 0, 0]).expand(count, 4)
    block = Block(
        torch.arange(count),
        torch.ones(count),
        torch.zeros(count, dtype=torch.int64),
        globally=first,
        locally=1 - first,
    )
    start = torch.tensor([[*START, 0.0, 0.0], [0.0, 0.0, *START]])[..., None]
    outcome = run_block(
        Trials(x, y.movedim(1, 2)[..., None], rows), block, start=(start[0], start[1]), keep_course=True
    )
    shared = torch.stack(outcome.course, dim=1)[:, :, :2, 0]
    return keep_points(outcome.losses.double().numpy(), shared.double().numpy())


def run_refits(stream: Stream, rule: Callable[..., Any]) -> Row:
    """A method that refits both sides in every round."""
    trajectory = rule(*stream, shared=START, personal=START)
    return keep_points(trajectory.losses[..., 0], trajectory.shared[:, 1:])


def keep_points(losses: Any, shared: Any) -> Row:
    """Average losses and parameters at rounds that a logarithmic axis shows evenly, of every rollout."""
    rounds = losses.shape[1]
    ticks = np.unique(np.geomspace(1, rounds, 60).astype(int))
    averages = np.cumsum(losses, axis=1) / np.arange(1, rounds + 1)
    return {
        "shown": ticks.tolist(),
        "losses": averages[:, ticks - 1].tolist(),
        "shared": shared[:, ticks - 1].tolist(),
    }


def describe_end(label: str, result: Row) -> Row:
    """Where a method ends: the distance of the shared part from the best; itself and the average loss, as text."""
    distances = [float(np.linalg.norm(np.array(course[-1]) - [0, 1])) for course in result["shared"]]
    ends = {axis: [course[-1][k] for course in result["shared"]] for k, axis in enumerate(("first", "second"))}
    ends["loss"] = [course[-1] for course in result["losses"]]
    texts = {key: show_interval(score_row(key, values), digits=4) for key, values in ends.items()}
    return {"row": label, "ours": float(np.mean(distances)), "each": distances, **texts, "paper": None}


def judge(end: Row, near: float) -> Row:
    """Whether a method is there for certain: the whole interval of its mean distance is below ``near``."""
    row = score_row(f"{end['row']} reaches (0, 1) on the shared side", end["each"])
    verdict = claim(row["row"], [near - distance for distance in row.pop("each")]).verdict
    return {**row, "verdict": verdict, "shown": show_interval(row, digits=4), "claimed": f"< {near}"}


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """Where each method ends, the claims, and the two figures."""
    courses = {label: results[(method,)] for method, label in LABELS.items()}
    rows = [describe_end(label, own) for label, own in courses.items()]
    claims = [judge(row, plan.near) for row in rows]
    names = [label for label, claim in zip(courses, claims, strict=True) if claim["verdict"] == HOLDS]
    return Page(
        about=ABOUT.format(plan.rollouts),
        rows=[*rows, *claims],
        sections=[
            Section(
                title=f"After {plan.rounds:,} steps",
                rows=rows,
                columns={
                    "row": "",
                    "first": "w^g, first (best: 0)",
                    "second": "w^g, second (best: 1)",
                    "loss": "average loss",
                },
            ),
            Section(
                title="Claims",
                rows=claims,
                columns={"row": "claim", "verdict": "verdict", "shown": "distance to (0, 1)", "claimed": "claimed"},
            ),
            Section(title="Notes", notes=NOTES),
        ],
        sentence=f"Within {plan.rounds:,} steps (0, 1) is reached by {' and '.join(names) or 'none'}.",
        figures={
            "figure3.png": ("Average loss", partial(draw_losses, courses)),
            "figure4.png": ("The shared part on its way", partial(draw_course, courses)),
        },
        more={"notes": NOTES},
    )


def draw_losses(courses: dict[str, Row]) -> Any:
    """Figure 3: the average loss so far."""
    lines = {
        label: list(zip(own["shown"], np.mean(own["losses"], axis=0).tolist(), strict=True))
        for label, own in courses.items()
    }
    return mo.reports.log_panels({"mean over rollouts": lines}, x="steps", y="average loss so far", columns=1)


def draw_course(courses: dict[str, Row]) -> Any:
    """Figure 4: both components of the shared part, with their intervals over rollouts."""
    curves = {
        label: {
            f"{word} component": [
                build_point(float(np.log10(t)), score_row("", [course[k][axis] for course in own["shared"]]))
                for k, t in enumerate(own["shown"])
            ]
            for axis, word in enumerate(("first", "second"))
        }
        for label, own in courses.items()
    }
    return mo.reports.bands(curves, x="steps (log10)", y="shared weights w^g")


glocal_fictitious = Experiment(
    name="glocal-fictitious",
    summary="Glocal.SGD and Glocal.ERM find the best pair of models, fictitious play does not (Figures 3 and 4).",
    plan=plan,
    cells=cells,
    page=page,
    refused={**REFUSED, "seeds": "One seed draws all rollouts. Use --set rollouts=NUMBER."},
)
