"""Theorem 8 of Mishchenko et al. 2023 on least squares: FFGG under every attack with every aggregator.

Client m has rows (A_m, B_m), normal, and targets y_m = A_m theta* + B_m w_m*: one theta* suits all, each needs its own
w_m*, and the problem is overpersonalised. With the squared error F_m(theta) = J_m (theta - theta*), J_m = 2 A_m^T (I -
B_m B_m^+) A_m / n, so all constants of the theorem are known: mu is the least eigenvalue of any J_m, L the largest,
and l_sim the largest of mean of (J_m - J)^2 relative to J. Mixing with nearest neighbours before the trimmed mean is
robust with a known constant (Allouah et al. 2023): kappa = 8 f / (M - f) (1 + 6 f / (M - 2 f) (1 + f / (M - 2 f))),
which is c delta of Definition 2 times 2 G / (G - 1). The step size is the largest of condition (23) for it, and the
theorem then says ||theta^R - theta*||^2 <= (1 - gamma mu / 2)^R ||theta^0 - theta*||^2, under any attack.

The same rows with nothing personal have no such solution: there the same aggregator is run for comparison.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.experiments import Cell, Cells, Experiment, Page, Results, Row, Section, count_verdicts
from moiety_recipes.claims import RULE, decide_claim, show_claims
from moiety_recipes.ffgg_byzantine import NONE, build_aggregators, build_attacks

if TYPE_CHECKING:
    import numpy as np

ROBUST = "mixing, trimmed mean"
"""The aggregator whose constant is known."""
TOGETHER = "nothing personal"
MARKS = {"holds": "below", "does not hold": "above", "not decided at this scale": "open"}


@dataclass(frozen=True)
class Plan:
    """Sizes: M clients with n rows, d shared and e personal dimensions, a share of which attacks."""

    clients: int = 20
    rows: int = 400
    shared: int = 10
    personal: int = 5
    rounds: int = 150
    seeds: int = 6
    points: int = 30
    share: float = 0.2
    margin: float = 3.0
    """How many decades a personal part must gain at least."""
    attacks: tuple[str, ...] = field(default_factory=lambda: tuple(build_attacks()))
    aggregators: tuple[str, ...] = field(default_factory=lambda: tuple(build_aggregators(clients=20, byzantine=4)))

    @property
    def byzantine(self) -> int:
        """The number of attackers."""
        return round(self.share * self.clients)


def plan(scale: str) -> Plan:
    """The sizes of a scale."""
    if scale == "ci":
        small: dict[str, Any] = {"attacks": (NONE, "sign flip"), "aggregators": ("mean", ROBUST)}
        return Plan(clients=10, rows=60, shared=3, personal=2, rounds=20, seeds=2, points=10, **small)
    return Plan(seeds=2) if scale == "laptop" else Plan()


@dataclass(frozen=True)
class Problem:
    """Rows x = (A, B) [clients, n, d + e], targets y [clients, n], theta*, and the constants of Theorem 8."""

    x: np.ndarray
    y: np.ndarray
    theta: np.ndarray
    operators: np.ndarray
    """J_m."""

    def constants(self, byzantine: int) -> dict[str, float]:
        """mu, L, l_sim over all clients; c delta, the step size of (23), and whether (22) holds (at least 1)."""
        import numpy as np

        values = np.linalg.eigvalsh(self.operators)
        mean = self.operators.mean(0)
        deviations = self.operators - mean
        root = np.linalg.inv(np.linalg.cholesky(mean))
        similar = float(np.linalg.eigvalsh(root @ (deviations @ deviations).mean(0) @ root.T).max())
        m, f = len(self.x), byzantine
        g = m - f
        kappa = 8 * f / g * (1 + 6 * f / (m - 2 * f) * (1 + f / (m - 2 * f)))
        spread = kappa * (g - 1) / (2 * g) * (1 + 1 / (g - 1)) * similar
        mu, top = float(values.min()), float(values.max())
        step = 1 / (4 * (top + 2 * spread))
        room = mu / (2 * spread) if spread else math.inf
        return {"mu": mu, "L": top, "l_sim": similar, "step": step, "room": room, "rate": 1 - step * mu / 2}


def draw_problem(plan: Plan, seed: int) -> Problem:
    """The problem of a seed."""
    import numpy as np

    d, n = plan.shared, plan.rows
    draw = mo.random.generator(seed, "ffgg-theorem8")
    x = draw.standard_normal((plan.clients, n, d + plan.personal))
    theta, w = draw.standard_normal(d), draw.standard_normal((plan.clients, plan.personal))
    a, b = x[..., :d], x[..., d:]
    y = a @ theta + np.einsum("mni,mi->mn", b, w)
    rest = a - b @ np.linalg.solve(b.transpose(0, 2, 1) @ b, b.transpose(0, 2, 1) @ a)
    return Problem(x, y, theta, 2 * rest.transpose(0, 2, 1) @ rest / n)


def build_model(plan: Plan) -> Any:
    """y = A theta + B w, in float64, both 0 at first."""
    from torch import Tensor, nn

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta = nn.Linear(plan.shared, 1, bias=False)
            self.w = nn.Linear(plan.personal, 1, bias=False)
            for layer in (self.theta, self.w):
                nn.init.zeros_(layer.weight)

        def forward(self, x: Tensor) -> Tensor:
            """The prediction."""
            total: Tensor = self.theta(x[:, : plan.shared]) + self.w(x[:, plan.shared :])
            return total.squeeze(-1)

    return Sum().double()


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """One run for each attack, aggregator and seed; and those with nothing personal."""
    runs = itertools.product(plan.attacks, [*plan.aggregators, TOGETHER], seeds)
    yield [Cell(key=(s, attack, name), work=partial(run_one, plan, attack, name, s)) for attack, name, s in runs]


def run_one(plan: Plan, attack: str, name: str, seed: int) -> Row:
    """The squared distance to the solution along one run, relative to the first."""
    import numpy as np

    problem = draw_problem(plan, seed)
    step = problem.constants(plan.byzantine)["step"]
    ids = np.repeat([f"client-{m:02d}" for m in range(plan.clients)], plan.rows)
    columns = {"x": problem.x.reshape(len(ids), -1), "y": problem.y.reshape(-1)}
    fed = mo.data.from_arrays(columns, ids, test=0.0, seed=seed)
    model, together = build_model(plan), name == TOGETHER
    every, path = max(1, plan.rounds // plan.points), [build_point(plan, model)]

    def follow(run: mo.Run, record: Any) -> None:
        if record.round % every == 0:
            shared = run.shared_parameters()
            path.append(np.concatenate([shared[key].numpy().ravel() for key in sorted(shared)]))

    aggregators = build_aggregators(clients=plan.clients, byzantine=plan.byzantine)
    forge = mo.attack.label_flip() if attack == "label flip" else build_attacks()[attack]
    run = mo.fit(
        model,
        fed,
        mo.fedavg(shared=mo.sgd(step, steps=1, batch_size="all"), weighting="uniform")
        if together
        else mo.ffgg(shared=step, personal=mo.solver.exact()),
        split=mo.split.nothing(model) if together else mo.split.by_name(model, personal=["w.*"]),
        rounds=plan.rounds,
        seed=seed,
        loss="mse",
        callbacks=[follow],
        progress=False,
        engine="vectorised",
        settings=mo.Settings(
            on_divergence="warn",
            evaluate_on="train",
            evaluate_every=plan.rounds,
            aggregator=aggregators[ROBUST if together else name],
            attack=forge,
            attackers=None if forge is None else plan.share,
        ),
    )
    attackers = run.config["run"].get("attackers") or []
    end = solve_together(plan, problem, [int(c.split("-")[1]) for c in attackers]) if together else problem.theta
    gaps = [float(np.sum((at[: len(end)] - end) ** 2)) for at in path]
    return {"rounds": [every * i for i in range(len(path))], "path": [gap / gaps[0] for gap in gaps]}


def build_point(plan: Plan, model: Any) -> np.ndarray:
    """The first parameters, theta before w."""
    import numpy as np

    return np.concatenate([p.detach().numpy().ravel() for _, p in sorted(model.named_parameters())])


def solve_together(plan: Plan, problem: Problem, attackers: Sequence[int]) -> np.ndarray:
    """(theta, w) of one model for all honest clients, by least squares."""
    import numpy as np

    honest = [m for m in range(plan.clients) if m not in attackers]
    rows = problem.x[honest].reshape(-1, problem.x.shape[2])
    return np.asarray(np.linalg.lstsq(rows, problem.y[honest].reshape(-1), rcond=None)[0])


def _take_log(value: float) -> float:
    return math.log10(max(value, 1e-32)) if math.isfinite(value) else 300.0


def judge(plan: Plan, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """For each attack and aggregator: is the error below the theorem's bound, and by how much?"""
    bounds = {s: plan.rounds * math.log10(_find_constants(plan, s)["rate"]) for s in seeds}
    for attack, name in itertools.product(plan.attacks, plan.aggregators):
        each = [bounds[s] - _take_log(results[s, attack, name]["path"][-1]) for s in seeds]
        text = f"{attack}: {name} ends below the bound of Theorem 8"
        row = decide_claim(text, {"least squares": each}, unit="decades", paper="proved" if name == ROBUST else None)
        ends = [_take_log(results[s, attack, name]["path"][-1]) for s in seeds]
        yield {**row, "attack": attack, "aggregator": name, "error": fmean(ends)}


def judge_all(plan: Plan, seeds: Sequence[int], results: Results) -> Iterator[Row]:
    """The claims of section 2.2: over all attacks, the worst of which counts in each seed."""
    attacks = [attack for attack in plan.attacks if attack != NONE]
    bounds = {s: plan.rounds * math.log10(_find_constants(plan, s)["rate"]) for s in seeds}

    def find_worst(name: str, seed: int) -> float:
        return max(_take_log(results[seed, attack, name]["path"][-1]) for attack in attacks)

    text = (
        "with a robust aggregator FFGG converges linearly, at the rate of Theorem 8 or faster, under the worst attack"
    )
    each = [bounds[s] - find_worst(ROBUST, s) for s in seeds]
    yield decide_claim(text, {"least squares": each}, unit="decades below the bound", paper="proved", headline=True)
    text = "the plain mean does not: it ends above that bound under the worst attack"
    each = [find_worst("mean", s) - bounds[s] for s in seeds]
    yield decide_claim(text, {"least squares": each}, unit="decades above the bound", paper="fails", headline=True)
    text = f"with nothing personal that aggregator ends at least {plan.margin:g} decades higher, under the worst attack"
    each = [find_worst(TOGETHER, s) - find_worst(ROBUST, s) for s in seeds]
    options: dict[str, Any] = {"unit": "decades", "paper": "impossible", "headline": True}
    yield decide_claim(text, {"least squares": each}, above=plan.margin, **options)


def _find_constants(plan: Plan, seed: int) -> dict[str, float]:
    return draw_problem(plan, seed).constants(plan.byzantine)


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """The claims, the matrix of errors, the constants and the figure."""
    rows, claims = list(judge(plan, seeds, results)), list(judge_all(plan, seeds, results))
    index = {(row["attack"], row["aggregator"]): row for row in rows}
    matrix = [
        {"attack": attack}
        | {
            name: f"{index[attack, name]['error']:.1f} {MARKS[index[attack, name]['verdict']]}"
            for name in plan.aggregators
        }
        | {TOGETHER: f"{fmean(_take_log(results[s, attack, TOGETHER]['path'][-1]) for s in seeds):.1f}"}
        for attack in plan.attacks
    ]
    constants = {s: _find_constants(plan, s) for s in seeds}
    table = [{"seed": s, **{key: f"{value:.3g}" for key, value in each.items()}} for s, each in constants.items()]
    count = sum(row["verdict"] != "not decided at this scale" for row in rows)
    return Page(
        about=ABOUT,
        rows=[*claims, *rows],
        sections=[
            show_claims("Claims", claims),
            Section(title="Every aggregator under every attack", text=MATRIX.format(count, len(rows)), rows=matrix),
            Section(title="Constants", text=CONSTANTS, rows=table),
            Section(title="Notes", text=RULE, notes=NOTES),
        ],
        sentence=f"{count_verdicts(claims)} {count} of {len(rows)} cells are decided.",
        figures={"paths.png": ("Error over rounds, a panel for each attack", partial(draw, plan, seeds, results))},
    )


def draw(plan: Plan, seeds: Sequence[int], results: Results) -> Any:
    """A panel for each attack: all aggregators, the bound, and nothing personal; geometric means over seeds."""
    rate = fmean(math.log10(_find_constants(plan, s)["rate"]) for s in seeds)

    def average_points(attack: str, name: str) -> list[tuple[float, float]]:
        own = [results[s, attack, name] for s in seeds]
        paths = zip(*(row["path"] for row in own), strict=True)
        means = [10 ** min(6.0, fmean(map(_take_log, values))) for values in paths]
        return list(zip(own[0]["rounds"], means, strict=True))

    panels = {}
    for attack in plan.attacks:
        lines = {name: average_points(attack, name) for name in [*plan.aggregators, TOGETHER]}
        lines["bound of Theorem 8"] = [(r, 10 ** (r * rate)) for r, _ in lines[TOGETHER]]
        panels[f"attack: {attack}"] = lines
    return mo.reports.log_panels(panels, y="error, relative", columns=2, legend_under=True)


ABOUT = (
    'Mishchenko et al. 2023, "Partially Personalized Federated Learning: Breaking the Curse of Data Heterogeneity",'
    " Algorithm 5 and Theorem 8, on least squares where all constants of the theorem are known. The paper has no"
    " experiment with Byzantine clients. The error is ||theta - theta*||^2, relative to the first."
)
MATRIX = (
    "Decimal logarithms of the error after the last round, means over seeds; *below* and *above* the theorem's bound,"
    " or *open*; {} of {} are decided. The last column has nothing personal, with the aggregator of the theorem, and is"
    " the distance to the one model that is best for the honest."
)
CONSTANTS = (
    "mu, L and l_sim of Assumptions 1, 6 and 7 over all clients, the step size of condition (23), how many times the"
    " share of attackers goes into condition (22) (*room*, at least 1 where the theorem applies), and the rate."
)
NOTES = (
    "Only mixing with nearest neighbours before the trimmed mean has a constant that is known to us; all others are run"
    " with its step size. The paper says that Krum and both medians do not satisfy its Definition 2.",
    "Personal parts are solved for exactly (rho_in = 1). Seeds draw the problem and the attackers.",
    "Attacks and aggregators are those of ffgg-byzantine; flipped labels are targets with the other sign.",
    "An error above 1e6 is drawn at 1e6; one that is not finite counts as 1e300.",
)

ffgg_theorem8 = Experiment(
    name="ffgg-theorem8",
    summary="FFGG on least squares under each attack with each aggregator, against the rate of Theorem 8.",
    plan=plan,
    cells=cells,
    page=page,
    night=True,
    refused={"engine": "All clients are small and alike: it is vectorised.", "device": "It runs on the CPU."},
)
