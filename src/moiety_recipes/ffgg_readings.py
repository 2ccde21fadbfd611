"""Figure 1 of Mishchenko et al. 2023 under every reading of what the paper leaves open.

The paper prints neither how b_m and y_m are drawn, nor what the error is, nor how many rounds there are. So there are
two draws (``planted``: one theta* and w_m* solve everything; ``uniform``: b_m and y_m are uniform on [0, 1], as the
matrices are) and two measures (||F||^2, and the mean loss of the models that clients would use), and every claim is
judged in all four readings, after 1,200 rounds. Panel (a) is drawn at the printed 10,000 rows a client, where a few
steps of conjugate gradients are exact, and at 100 rows, where the lines part. Step sizes are those of
``ffgg-figure1``. Rounds are computed by linear algebra (``ffgg_figure1_rounds``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import moiety as mo
from moiety.experiments import Cell, Cells, Experiment, Page, Results, Row, Section, count_verdicts
from moiety_recipes.claims import RULE, decide_claim, show_claims
from moiety_recipes.ffgg_figure1_problem import Quadratics, Size, draw_problem, draw_uniform

DRAWS: Mapping[str, Callable[[Size, int], Quadratics]] = {"planted": draw_problem, "uniform": draw_uniform}
MEASURES = {"operator": "the squared norm of F", "loss": "the loss of the clients' models"}
OTHERS = ("SCAFFOLD", "Local GD", "L2GD")
EXACT = "exact"
LEAST = 1e-32
"""What is smaller is rounding."""


@dataclass(frozen=True)
class Plan:
    """Sizes. ``few`` are the rows a client at which the lines of panel (a) part."""

    clients: int = 32
    rows: int = 10_000
    few: int = 100
    shared: int = 100
    personal: int = 50
    rounds: int = 1200
    seeds: int = 10
    inner: tuple[int, ...] = (10, 20, 30, 40)
    local: tuple[int, ...] = (100, 200, 500)
    points: int = 60
    pull: float = 0.1

    def size(self, rows: int) -> Size:
        """The size of a problem with so many rows a client."""
        return Size(clients=self.clients, rows=rows, shared=self.shared, personal=self.personal)


def plan(scale: str) -> Plan:
    """The paper's sizes, with ten problems at scales ``night`` and ``paper``, and three at ``laptop``."""
    if scale == "ci":
        small: dict[str, Any] = {"clients": 4, "rows": 60, "few": 12, "shared": 6, "personal": 4}
        return Plan(**small, rounds=20, seeds=2, inner=(1, 2, 4), local=(5, 15), points=10)
    return Plan(seeds=3) if scale == "laptop" else Plan()


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """One cell for each problem and draw."""
    yield [
        Cell(key=(seed, draw), work=partial(run_problem, plan, draw, seed))
        for seed, draw in itertools.product(seeds, DRAWS)
    ]


def run_problem(plan: Plan, draw: str, seed: int) -> Row:
    """All lines of one problem: panel (a) at both sizes, then panels (b) to (d)."""
    lines: Row = {}
    for rows in (plan.rows, plan.few):
        problem = DRAWS[draw](plan.size(rows), seed)
        for name, states in list_inner(plan, problem):
            lines[f"{name}, {rows} rows"] = follow(plan, problem, states, gap=True)
        if rows == plan.rows:
            for name, states in list_local(plan, problem, seed):
                lines[name] = follow(plan, problem, states, gap=False)
    return {"lines": lines}


def list_inner(plan: Plan, problem: Quadratics) -> Iterator[tuple[str, Any]]:
    """The lines of panel (a)."""
    from moiety_recipes import ffgg_figure1_rounds as rounds

    step = 1 / problem.cocoercive()
    for tau in plan.inner:
        yield f"{tau} CG steps", rounds.ffgg_by_cg(problem, step, tau)
    yield EXACT, rounds.ffgg_exact(problem, step)


def list_local(plan: Plan, problem: Quadratics, seed: int) -> Iterator[tuple[str, Any]]:
    """The lines of panels (b) to (d)."""
    from moiety_recipes import ffgg_figure1_rounds as rounds

    step, top, pull = 1 / problem.cocoercive(), problem.smooth(), plan.pull
    for tau in plan.local:
        p, lr = 1 / tau, 1 / (top * tau)
        alpha = 1 / (2 * max(top / (1 - p), pull / p))
        coins = mo.random.generator(seed, "ffgg-readings", "coins", tau)
        lengths = list(zip(coins.geometric(1 - p, plan.rounds), coins.geometric(p, plan.rounds), strict=True))
        yield f"FFGG {tau}", rounds.ffgg(problem, step, tau)
        yield f"SCAFFOLD {tau}", rounds.scaffold(problem, lr, tau, 0.5)
        yield f"Local GD {tau}", rounds.local_gd(problem, lr, tau)
        yield f"L2GD {tau}", rounds.l2gd(problem, alpha, pull, p, lengths)


def follow(plan: Plan, problem: Quadratics, states: Any, *, gap: bool) -> Row:
    """Both measures at the points of a line.

    The loss is above what each client could have alone; with ``gap`` above what one theta allows, which FFGG seeks.
    """
    from moiety_recipes.ffgg_figure1_limits import error

    floor = _find_least_loss(problem) if gap else 0.0
    every = max(1, plan.rounds // plan.points)
    operators = problem.operators().mean(0)
    row: dict[str, list[float]] = {"rounds": [], "operator": [], "loss": []}
    for r, (theta, models) in enumerate(itertools.islice(states, plan.rounds + 1)):
        if r % every == 0 or r == plan.rounds:
            slope = operators @ (theta - problem.theta)
            row["rounds"].append(r)
            row["operator"].append(float(slope @ slope))
            row["loss"].append(error(problem, models) - floor)
    return row


def _find_least_loss(problem: Quadratics) -> float:
    """The mean loss at the theta where F is 0, each client with its best w for it."""
    import numpy as np

    gap = problem.theta - problem.stars()[:, : problem.d]
    return float(np.einsum("mi,mij,mj->m", gap, problem.operators(), gap).mean() / 2)


def mean_of_last(line: Row, measure: str) -> float:
    """The mean decimal logarithm over the last quarter of the points: L2GD's coin makes a single one luck."""
    values = line[measure]
    return fmean(_take_log(value) for value in values[-max(1, len(values) // 4) :])


def _take_log(value: float) -> float:
    return math.log10(max(value, LEAST))


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """The lines' ends, the claims in each reading, and a figure for each."""
    lines = {(seed, draw): results[seed, draw]["lines"] for seed, draw in itertools.product(seeds, DRAWS)}
    readings = list(itertools.product(DRAWS, MEASURES))
    claims = {r: list(judge(plan, seeds, lines, *r)) for r in readings}
    every = [row for rows in claims.values() for row in rows]
    ends = [_end_row(seeds, lines, draw, name) for draw in DRAWS for name in lines[seeds[0], draw]]
    columns = {
        "row": "",
        "operator": "squared norm of F",
        "loss": "loss",
        "ahead": "FFGG ahead from round, by F / by loss",
    }
    summary = [_count(draw, measure, claims[draw, measure]) for draw, measure in readings]
    return Page(
        about=ABOUT,
        rows=[*ends, *every],
        sections=[
            Section(title="The four readings", text=READINGS, rows=summary),
            *(
                show_claims(f"b and y {draw}, by {MEASURES[measure]}", rows, level=3)
                for (draw, measure), rows in claims.items()
            ),
            Section(title="After the last round", text=ENDS, rows=ends, columns=columns),
            Section(title="Notes", text=RULE, notes=NOTES),
        ],
        sentence=count_verdicts(every),
        figures={
            f"{draw}-{measure}.png": (
                f"b and y {draw}: {MEASURES[measure]} over rounds",
                partial(draw_reading, plan, seeds, lines, draw, measure),
            )
            for draw, measure in readings
        },
    )


def judge(plan: Plan, seeds: Sequence[int], lines: Any, draw: str, measure: str) -> Iterator[Row]:
    """What sections 3.1 and 3.2 say, in one reading; differences are in decades."""
    head = f"b and y {draw}, by {MEASURES[measure]}"

    def compare(text: str, low: str, high: str, **options: Any) -> Row:
        """How many decades ``low`` is below ``high`` at the end."""
        each = [mean_of_last(lines[s, draw][high], measure) - mean_of_last(lines[s, draw][low], measure) for s in seeds]
        return decide_claim(f"{head}: {text}", {draw: each}, unit="decades", **options)

    least, most = plan.inner[0], plan.inner[-2:]
    for rows in (plan.rows, plan.few):
        name, where = f"{least} CG steps, {rows} rows", f"({rows:,} rows a client)"
        each = [-4 - _take_log(lines[s, draw][name][measure][-1]) for s in seeds]
        text = f"{head}: (a) {least} CG steps reach an error of 1e-4 {where}"
        yield decide_claim(text, {draw: each}, unit="decades", paper="below 1e-4", headline=rows == plan.rows)
        for tau in most:
            text = f"(a) {tau} CG steps are as good as exact solutions, by 1% {where}"
            names = f"{tau} CG steps, {rows} rows", f"{EXACT}, {rows} rows"
            yield compare(text, *names, above=-math.log10(1.01), paper="exact")
        text = f"(a) {most[0]} CG steps are ahead of {least} by 1% {where}"
        yield compare(text, f"{most[0]} CG steps, {rows} rows", name, above=math.log10(1.01), paper="ahead")
    for tau, method in itertools.product(plan.local, OTHERS):
        text = f"(b-d) FFGG is ahead of {method}, {tau} local steps"
        yield compare(text, f"FFGG {tau}", f"{method} {tau}", paper="ahead", headline=True)
    for fewer, more in itertools.pairwise(plan.local):
        text = f"(b-d) FFGG gains by local steps: {more} instead of {fewer}"
        yield compare(text, f"FFGG {more}", f"FFGG {fewer}", paper="gains")


def _count(draw: str, measure: str, claims: Sequence[Row]) -> Row:
    """A reading in one line: how often FFGG is ahead of each, and how the rest came out."""
    row: Row = {"b and y": draw, "measure": MEASURES[measure]}
    for method in OTHERS:
        own = [c["verdict"] for c in claims if f"FFGG is ahead of {method}" in c["row"]]
        row[f"FFGG ahead of {method}"] = f"{own.count('holds')} of {len(own)}"
    rest = [c["verdict"] for c in claims if "FFGG is ahead of" not in c["row"]]
    return {**row, "other claims that hold": f"{rest.count('holds')} of {len(rest)}"}


def _end_row(seeds: Sequence[int], lines: Any, draw: str, name: str) -> Row:
    """Where a line ends: geometric means over problems; and from which round on FFGG is below it in most of them."""
    own = [lines[seed, draw][name] for seed in seeds]
    row: Row = {"row": f"{draw}: {name}", "line": name, "draw": draw, "paper": None, "verdict": None}
    for measure in MEASURES:
        row[measure] = f"{10 ** fmean(_take_log(line[measure][-1]) for line in own):.2g}"
    method, _, tau = name.rpartition(" ")
    if method not in OTHERS:
        return {**row, "ahead": ""}
    ffgg = [lines[seed, draw][f"FFGG {tau}"] for seed in seeds]
    return {**row, "ahead": " / ".join(_lead(ffgg, own, measure) for measure in MEASURES)}


def _lead(ours: Sequence[Row], others: Sequence[Row], measure: str) -> str:
    """The round from which on ours is below in most problems; a dash where it is not at the end."""
    rounds, first = ours[0]["rounds"], None
    for at in reversed(range(len(rounds))):
        count = sum(a[measure][at] < b[measure][at] for a, b in zip(ours, others, strict=True))
        if 2 * count <= len(ours):
            break
        first = rounds[at]
    return "-" if first is None else str(first)


def draw_reading(plan: Plan, seeds: Sequence[int], lines: Any, draw: str, measure: str) -> Any:
    """The panels of one reading; a line is the geometric mean over problems."""

    def points(name: str) -> list[tuple[float, float]]:
        own = [lines[seed, draw][name] for seed in seeds]
        means = [10 ** fmean(map(_take_log, values)) for values in zip(*(line[measure] for line in own), strict=True)]
        return list(zip(own[0]["rounds"], means, strict=True))

    panels = {
        f"(a) {rows:,} rows a client": {
            name: points(f"{name}, {rows} rows") for name in (*(f"{tau} CG steps" for tau in plan.inner), EXACT)
        }
        for rows in (plan.rows, plan.few)
    }
    for letter, tau in zip("bcdefgh", plan.local, strict=False):
        panels[f"({letter}) {tau} local steps"] = {method: points(f"{method} {tau}") for method in ("FFGG", *OTHERS)}
    return mo.reports.log_panels(panels, y=MEASURES[measure], columns=2)


ABOUT = (
    'Mishchenko et al. 2023, "Partially Personalized Federated Learning: Breaking the Curse of Data Heterogeneity",'
    " Figure 1, which the paper shows without numbers; what it leaves open is read in every way."
)
READINGS = (
    "The paper does not say how b and y are drawn (*planted*: one theta* and every client's w* solve everything;"
    " *uniform* on [0, 1], as the matrices are), nor what its error is (||F||^2, or the loss of the models that clients"
    " would use). Every claim stands in all four readings. Differences are in decades (decimal logarithms), of the last"
    " quarter of the points."
)
ENDS = (
    "Geometric means over problems. The loss of panels (b) to (d) is above what each client could have alone, that of"
    " panel (a) above what one theta allows."
)
NOTES = (
    "F is taken at the shared theta, for L2GD at the mean of all models.",
    "Step sizes: FFGG 1 / L and 1 / L_w, SCAFFOLD 0.5 and 1 / (L_f tau), Local GD 1 / (L_f tau), L2GD the largest that"
    " its own theory has (the inverse of what section 3.2 prints, with which local steps diverge), lambda = 0.1,"
    " p = 1 / tau. A round of L2GD is one communication.",
    "Seeds draw matrices, stars, b and y, and L2GD's coin. All starts are 0.",
    "Rounds are computed by linear algebra, in float64; tests compare each method with `moiety.fit`.",
)

ffgg_readings = Experiment(
    name="ffgg-readings",
    summary="Figure 1 of FFGG in every reading: two ways to draw b and y, two measures, two sizes of panel (a).",
    plan=plan,
    cells=cells,
    page=page,
    night=True,
    refused={"engine": "It trains by linear algebra.", "device": "It trains by linear algebra."},
)
