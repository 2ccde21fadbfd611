"""Figure 1 of Mishchenko et al. 2023: FFGG on quadratics, and against SCAFFOLD, Local GD and L2GD.

Panel (a) is section 3.1: FFGG whose inner problem is solved by 10, 20, 30 or 40 steps of conjugate gradients. Panels
(b) to (d) are section 3.2: FFGG with 100, 200 or 500 gradient steps in w (Algorithm 2) beside the others with as many
local steps. Sizes are the paper's at scales ``laptop`` and ``paper`` alike. Step sizes, with M clients and tau local
steps:

    SCAFFOLD    outer 0.5, inner 1 / (L_f tau)      Local GD    1 / (L_f tau)
    L2GD        lambda = 0.1, p = 1 / tau, alpha = (M / 2) / max(L_f / (1 - p), lambda / p)

For L2GD the paper prints alpha = max(L / (1 - p), lambda / p) / (2 M), the inverse of which L2GD's own theory asks for;
as printed, local steps diverge here. What the paper leaves out and is decided here stands on the page (``NOTES``).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from moiety.errors import MoietyError, message, whole
from moiety.recipes.base import Outcome, Watch, unwatched
from moiety.recipes.partial_table import asked_for, keep_asked

if TYPE_CHECKING:
    from moiety.local.solvers import Solver
    from moiety.recipes.ffgg_figure1_problem import Quadratics
    from moiety.types import Algorithm

NAME = "ffgg-figure1"
PULL = 0.1
"""lambda of L2GD."""
OTHERS = ("SCAFFOLD", "Local GD", "L2GD")


@dataclass(frozen=True)
class Size:
    """Clients, rows n of each, shared dimensions d and personal dimensions e."""

    clients: int
    rows: int
    shared: int
    personal: int


@dataclass(frozen=True)
class Plan:
    """The size of the problem, the rounds of panel (a) and of the others, and the numbers of inner and local steps."""

    size: Size
    first_rounds: int
    rounds: int
    inner: tuple[int, ...] = (10, 20, 30, 40)
    local: tuple[int, ...] = (100, 200, 500)
    points: int = 40
    """How often in a run errors are looked at."""

    def with_rounds(self, rounds: int | None) -> Plan:
        """The plan with other rounds for panels (b) to (d); panel (a) keeps its ratio to them."""
        if rounds is None:
            return self
        whole("rounds", rounds, 1)
        return replace(self, rounds=rounds, first_rounds=max(1, self.first_rounds * rounds // self.rounds))


FULL = Plan(Size(clients=32, rows=10_000, shared=100, personal=50), first_rounds=1200, rounds=200)
PLANS = {
    "ci": Plan(Size(clients=4, rows=60, shared=6, personal=4), 30, 20, inner=(1, 2, 4), local=(5, 15), points=5),
    "laptop": FULL,
    "paper": FULL,
}


@dataclass(frozen=True)
class Line:
    """One line of the figure: a method with tau steps."""

    name: str
    method: str
    tau: int
    algorithm: Algorithm
    personal: bool
    """Whether w is each client's own."""
    rounds: int
    curvature: bool = False


@dataclass(frozen=True)
class Drawn:
    """What is left of a line: its points (round, error), and at the end ||F||^2 and the squared distance to theta*."""

    method: str
    tau: int
    points: list[tuple[int, float]]
    operator: float
    distance: float
    seconds: float

    @property
    def error(self) -> float:
        """The error after the last round."""
        return self.points[-1][1]

    @property
    def late(self) -> float:
        """The mean error over the last quarter of the points: L2GD's coin makes a single one a matter of luck."""
        return mean(self._last())

    @property
    def noise(self) -> float:
        """Two standard errors of that mean, as if points were independent; 0 where there is only one."""
        last = self._last()
        return 2 * stdev(last) / math.sqrt(len(last)) if len(last) > 1 else 0.0

    def _last(self) -> list[float]:
        return [error for _, error in self.points[-max(1, len(self.points) // 4) :]]


def ffgg_figure1(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """FFGG by its number of inner steps, and against SCAFFOLD, Local GD and L2GD, on quadratics of the paper's size.

    Args:
        out: a folder for what is left of each line, the table and the figure; nothing is written without one.
        rounds: of panels (b) to (d), instead of the scale's; panel (a) keeps its ratio to them.
        seed: of the problem and of L2GD's coin; 0 by default.
        engine: as in ``moiety.fit``; by default ``processes:vectorised``, which is ``vectorised`` on all cores, and at
            scale ``ci`` ``vectorised``.
        resume: lines that have ended in ``out`` are not run again.
        watch: called before each run; gives what is to be called after every round.
        scale: ``ci``, ``laptop`` (by default) or ``paper``; the latter two are the same.
    """
    from moiety.engines.auto import check_engine
    from moiety.recipes.ffgg_figure1_problem import drawn
    from moiety.recipes.ffgg_figure1_report import report

    asked = asked_for(out, {"recipe": NAME, "scale": scale, "rounds": rounds, "seed": seed}, resume)
    engine = engine or ("vectorised" if asked["scale"] == "ci" else "processes:vectorised")
    check_engine(engine)
    plan = PLANS[asked["scale"]].with_rounds(asked["rounds"])
    keep_asked(out, asked)
    found = drawn(plan.size, asked["seed"])
    made = {
        line.name: _line(line, plan, found, asked["seed"], engine, out, watch) for line in lines(plan, found, asked)
    }
    text, sentence = report(asked, plan, found, made, out)
    return Outcome({}, sentence, text)


def lines(plan: Plan, found: Quadratics, asked: dict[str, Any]) -> Iterator[Line]:
    """All lines, panel after panel."""
    import moiety as mo

    step, top = 1 / found.cocoercive(), found.smooth()
    for tau in plan.inner:
        inner = mo.solver.conjugate_gradient(steps=tau, tolerance=0.0)
        algorithm = mo.ffgg(shared=step, personal=inner)
        yield Line(f"cg-{tau}", "FFGG", tau, algorithm, True, plan.first_rounds, curvature=True)
    for tau in plan.local:
        p = 1 / tau
        local: dict[str, Any] = {"lr": 1 / (top * tau), "steps": tau}
        algorithms = {
            "FFGG": mo.ffgg(shared=step, personal=descent(1 / found.smooth_in_w(), tau)),
            "SCAFFOLD": mo.scaffold(**local, batch_size=None, server=mo.server.sgd(lr=0.5)),
            "Local GD": mo.local_gd(**local),
            "L2GD": mo.l2gd(
                personal=mo.sgd(1 / (2 * max(top / (1 - p), PULL / p)), pull=PULL), probability=p, coins=asked["seed"]
            ),
        }
        for method, algorithm in algorithms.items():
            name = f"{method.lower().replace(' ', '-')}-{tau}"
            yield Line(name, method, tau, algorithm, method == "FFGG", plan.rounds)


def descent(lr: float, steps: int) -> Solver:
    """Algorithm 2 as ``moiety.solver.sgd`` has it, with a client's one batch fetched once and not in every step."""
    import moiety as mo

    one = mo.sgd(lr, steps=1)
    return replace(one, solve=lambda work, model, batches: one.solve(work, model, list(batches) * steps))


def _line(line: Line, plan: Plan, found: Quadratics, seed: int, engine: str, out: Path | None, watch: Watch) -> Drawn:
    """What is left of a line: read where it has ended, else run."""
    import moiety as mo
    from moiety.files import report_failure, write_file
    from moiety.recipes.ffgg_figure1_problem import THETA, federated, split, task

    file = None if out is None else out / "lines" / f"{line.name}.json"
    if file is not None and file.is_file():
        return _read(file)
    began = time.perf_counter()
    run = mo.fit(
        task(found, curvature=line.curvature),
        federated(found),
        line.algorithm,
        split=split(found, personal=line.personal),
        rounds=line.rounds,
        seed=seed,
        engine=engine,
        settings=mo.Settings(evaluate_on="train", evaluate_every=max(1, line.rounds // plan.points)),
        on_round=watch(line.name, None),
    )
    points = [(row["round"], row["loss"]) for row in run.history if row["loss"] is not None]
    operator, distance = found.distance(run.shared_parameters()[THETA].numpy())
    made = Drawn(line.method, line.tau, points, operator, distance, time.perf_counter() - began)
    if file is not None:
        with report_failure(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, (json.dumps(asdict(made)) + "\n").encode())
    return made


def _read(file: Path) -> Drawn:
    try:
        known = json.loads(file.read_text())
        return Drawn(**{**known, "points": [(int(r), float(e)) for r, e in known["points"]]})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MoietyError(message(file.name, "as it was written", f"{file}: {error}")) from None
