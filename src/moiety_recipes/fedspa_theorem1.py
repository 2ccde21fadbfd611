"""The quantities of FedSpa's Theorem 1 (Huang et al. 2022, section 4.3), measured along runs.

The theorem bounds the error of personal models by (d - beta) G^2, where G is the largest difference between clients'
gradients in any coordinate (Assumption 1), by beta B^2, where B is the largest gradient (Assumption 4), and by
distances of masks. ``fedspa_tasks`` says what is trained at which scale.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import moiety as mo
from moiety.experiments import Cell, Cells, Experiment, Page, Results, Row, Section, compare, score_row, show_interval
from moiety_recipes.claims import RULE, show_claims
from moiety_recipes.fedspa_page import PAPER, TaskResults
from moiety_recipes.fedspa_tasks import DST, IID, RSM, B, Plan, Task, build_fedspa, fit_options, plan_resnet
from moiety_recipes.pages import Part, join_parts

METHODS = {DST: "dst", RSM: "rsm"}
MEASURES = {
    "dissimilarity": "G: largest difference of a client's gradient from the mean, in any coordinate",
    "largest": "B: largest gradient of any client, in any coordinate",
    "spread": "mean squared norm of the difference from the mean gradient",
    "apart": "distance of the masks of two clients, as a share of the weights",
    "moved": "distance of a client's mask from the one it ends with",
}
AXES = {
    "dissimilarity": "G",
    "largest": "B",
    "spread": "squared distance",
    "apart": "share of weights",
    "moved": "share of weights",
}
"""What stands beside the figures; the measure is their title."""
WHEN = {"moved": "at the first look"}
"""When a measure is taken for the tables, where not at the end."""


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """A run of each search in each setting, measured every so many rounds."""
    for task, seed in itertools.product(plan.tasks, seeds):
        for setting in task.settings:
            fed = task.load(setting, seed)
            yield [
                Cell(key=(task.name, setting, seed, method), work=partial(measure_run, task, fed, search, seed))
                for method, search in METHODS.items()
            ]


def measure_run(task: Task, fed: mo.FederatedData, search: str, seed: int) -> Row:
    """Train, and measure at the server's weights and the clients' masks at every evaluation."""
    course: list[Row] = []
    masks: list[list[Any]] = []

    def measure(run: mo.Run, record: Any) -> None:
        if record.evaluation is None:
            return
        course.append({"round": record.round, **measure_gradients(task, fed, run)})
        masks.append(read_masks(fed, run))

    mo.fit(
        **fit_options(task, fed, build_fedspa(task, search=search), seed),
        engine="vectorised",
        callbacks=[measure],
        progress=False,
    )
    for row, own in zip(course, masks, strict=True):
        row["apart"] = mean_distance(itertools.pairwise(own))
        row["moved"] = mean_distance(zip(own, masks[-1], strict=True))
    return {"course": course}


def measure_gradients(task: Task, fed: mo.FederatedData, run: mo.Run) -> Row:
    """Gradients of all clients' losses on their training rows, at the dense weights of the server."""
    import torch
    from torch.nn.functional import cross_entropy

    model = task.model(0)
    model.load_state_dict(run.shared_parameters())
    gradients = []
    for client in range(len(fed)):
        rows = fed.client(client, "train")
        loss = cross_entropy(model(torch.as_tensor(rows["x"])), torch.as_tensor(rows["y"]))
        gradients.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))]))
    each = torch.stack(gradients)
    gap = each - each.mean(0)
    return {
        "dissimilarity": float(gap.abs().max()),
        "largest": float(each.abs().max()),
        "spread": float(gap.square().sum(1).mean()),
    }


def read_masks(fed: mo.FederatedData, run: mo.Run) -> list[Any]:
    """Which weights of a client's personal model are not 0, for every client."""
    import torch

    models = (run.parameters(fed.ids[client]) for client in range(len(fed)))
    return [torch.cat([p.reshape(-1) != 0 for p in model.values() if p.dim() > 1]) for model in models]


def mean_distance(pairs: Any) -> float:
    """The mean over pairs of masks of the share of weights that they differ in."""
    shares = [float((one != other).float().mean()) for one, other in pairs]
    return sum(shares) / len(shares)


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """What was measured at the end of the runs, and along them."""
    return join_parts(ABOUT, [show_task(TaskResults(task, seeds, results, plan.rates)) for task in plan.tasks])


def show_task(results: TaskResults) -> Part:
    """The tables, claims and figures of one task."""
    task = results.task
    rows = [
        {
            "task": task.name,
            "setting": setting,
            "measure": measure,
            **score_row(f"{method}, {setting}", last(results, setting, method, measure)),
            "verdict": None,
        }
        for measure in MEASURES
        for method in METHODS
        for setting in task.settings
    ]
    claims = [
        results.claim(
            f"{MEASURES[measure].partition(':')[0]} is larger in B than in IID ({DST})",
            compare(last(results, B, DST, measure), last(results, IID, DST, measure)),
            unit="",
        )
        for measure in ("dissimilarity", "spread", "apart")
    ]
    tables = [
        Section(
            title=MEASURES[measure],
            rows=[
                {"": row["row"], WHEN.get(measure, "at the end"): show_interval(row, digits=4)}
                for row in rows
                if row["measure"] == measure
            ],
            level=3,
        )
        for measure in MEASURES
    ]
    lines = [
        {"claim": row["row"], "difference": show_interval(row, digits=4), "verdict": row["verdict"]} for row in claims
    ]
    section = Section(title="Claims", rows=lines, level=3)
    if results.rates:
        section = show_claims("Claims", claims, text=RULE, level=3)
    sections = [Section(title=task.name, text=task.title), *tables, section]
    figures = {
        f"{task.name}-{measure}.png": (f"{title}, along the rounds", partial(draw, results, measure))
        for measure, title in MEASURES.items()
    }
    return Part([*rows, *claims], sections, figures)


def last(results: TaskResults, setting: str, method: str, measure: str) -> list[float]:
    """What was measured last, for every seed; of ``moved`` the first, for the last is 0."""
    place = 0 if measure == "moved" else -1
    return [course["course"][place][measure] for course in results.courses(setting, method)]


def draw(results: TaskResults, measure: str) -> Any:
    """A panel for each setting; the mean over seeds."""

    def points(setting: str, method: str) -> list[Row]:
        courses = [course["course"] for course in results.courses(setting, method)]
        return [
            {"x": rows[0]["round"], "mean": sum(row[measure] for row in rows) / len(rows)}
            for rows in zip(*courses, strict=True)
        ]

    panels = {
        results.task.describe(setting): {method: points(setting, method) for method in METHODS}
        for setting in results.task.settings
    }
    return mo.reports.bands(panels, x="round", y=AXES[measure])


ABOUT = (
    f"{PAPER}: the quantities that Theorem 1's bound is made of, measured at every evaluation. G and B are maxima over"
    " clients and coordinates at the weights that were met, where the theorem asks for bounds over all weights. The"
    " theorem's optimal masks are not known; the masks that a run ends with stand in for them."
)

fedspa_theorem1 = Experiment(
    name="fedspa-theorem1",
    summary="Gradient dissimilarity and distances of masks along runs (Theorem 1 of Huang et al. 2022).",
    plan=plan_resnet,
    cells=cells,
    page=page,
    refused={"engine": "Its runs are measured as they go, on the vectorised engine."},
    night=True,
)
