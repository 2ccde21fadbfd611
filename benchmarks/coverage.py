"""Do FedPop's intervals hold what they say, at its defaults, on populations whose posterior is known exactly?

    y = a . u + b . z_i + noise of deviation s,   z_i ~ N(mu, sigma^2 I),   3 to 14 rows a client

``mo.fedpop()`` learns u, mu, sigma and s from 200 clients. Then clients of the run, and as many new ones, draw
(``run.predictive(client, x, draws=...)``; here in blocks, with the same random numbers), and intervals of level 50, 80
and 90% are compared with the truth: intervals of the function with a . u + b . z_i, intervals of observations by the
probability of a new y between their ends. Beside the coverage stands the mean width divided by that of the exact
posterior, which knows u, mu, sigma and s: wide intervals would cover, and show there.

    python -m benchmarks.coverage --out coverage.json

The seeds are ``SEEDS``, fixed before any of them was run (docs/fedpop-plan.md). What the file holds already is not
computed again, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from torch import nn

import moiety as mo
from moiety.engines.base import RoundInfo
from moiety.engines.problem import to_tensors
from moiety.engines.vectorised import Vectorised
from moiety.loop.evaluate import adapt_phases, client_functions
from moiety.run.draws import draw_enough
from moiety.run.predict import newcomer_key, predict_draws

LEVELS = (0.5, 0.8, 0.9)
SEEDS = range(2000, 2028)
"""Of the populations that are reported; none of them was run while the defaults were chosen."""
POINTS = 8
"""Places x at which each client is predicted."""


class Shape(NamedTuple):
    """A kind of population: numbers in u and in z, sigma, s, the correlation of b's columns, whether b is 1."""

    shared: int
    personal: int
    sigma: float
    noise: float
    correlation: float = 0.0
    constant: bool = False


SHAPES = {
    "intercepts": Shape(2, 1, 1.0, 0.5, constant=True),
    "slopes": Shape(2, 2, 0.7, 0.5),
    "correlated": Shape(3, 4, 0.4, 0.3, correlation=0.6),
}


class Population(NamedTuple):
    """Clients, their own z, and the parameters that they are from."""

    clients: list[dict[str, np.ndarray]]
    z: np.ndarray
    u: np.ndarray
    mu: np.ndarray
    shape: Shape


class Additive(nn.Module):
    """a . u + b . z, where z is the layer ``head``."""

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Linear(shape.shared, 1, bias=False, dtype=torch.float64)
            self.head = nn.Linear(shape.personal, 1, bias=False, dtype=torch.float64)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The output for each row."""
        return self.body(a) + self.head(b)


def draw_rows(shape: Shape, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Columns a and b of some rows."""
    b = rng.normal(size=(count, shape.personal))
    common = rng.normal(size=(count, 1))
    b = math.sqrt(1 - shape.correlation) * b + math.sqrt(shape.correlation) * common
    return rng.normal(size=(count, shape.shared)), np.ones_like(b) if shape.constant else b


def draw_population(shape: Shape, clients: int, seed: int) -> tuple[Population, Population]:
    """The clients of a run, and as many new ones of the same population."""
    rng = np.random.default_rng([seed, 4])
    u, mu = rng.normal(size=shape.shared), 0.5 * rng.normal(size=shape.personal)
    groups = []
    for _ in range(2):
        z = mu + shape.sigma * rng.normal(size=(clients, shape.personal))
        made = []
        for each in z:
            a, b = draw_rows(shape, int(rng.integers(3, 15)), rng)
            y = a @ u + b @ each + shape.noise * rng.normal(size=len(a))
            made.append({"a": a, "b": b, "y": y[:, None]})
        groups.append(Population(made, z, u, mu, shape))
    return groups[0], groups[1]


def solve_posterior(population: Population, at: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a client's z given its rows and all true parameters."""
    shape, rows = population.shape, population.clients[at]
    precision = rows["b"].T @ rows["b"] / shape.noise**2 + np.eye(shape.personal) / shape.sigma**2
    pull = rows["b"].T @ (rows["y"][:, 0] - rows["a"] @ population.u) / shape.noise**2
    covariance = np.linalg.inv(precision)
    return covariance @ (pull + population.mu / shape.sigma**2), covariance


def fit_population(
    population: Population, rounds: int, seed: int, *, start: np.ndarray | None = None, **options: Any
) -> mo.Run:
    """A run of ``mo.fedpop()`` on the clients, with ``start`` as the first u."""
    net = Additive(population.shape, seed)
    if start is not None:
        with torch.no_grad():
            net.body.weight.copy_(torch.from_numpy(start))
    data = mo.data.from_clients({f"c{i}": rows for i, rows in enumerate(population.clients)}, test=0.0)
    split = mo.split.by_name(net, personal=["head"])
    settings = mo.Settings(inputs=("a", "b"), evaluate_every=rounds)
    how = {"split": split, "rounds": rounds, "seed": seed, "engine": "vectorised", "settings": settings, "loss": "mse"}
    return mo.fit(net, data, mo.fedpop(**options), **how)


def predict_group(run: mo.Run, group: Population, draws: int, seed: int, *, new: bool) -> list[Any]:
    """What ``run.predictive(client, x, draws=draws)`` gives for every client of a group, and the places x."""
    loop = run._loop
    problem, algorithm, now = loop.problem, loop.algorithm, loop.progress
    clients, keys = list(range(len(group.clients))), None
    if new:
        data = mo.data.from_clients({f"c{i}": rows for i, rows in enumerate(group.clients)}, test=0.0)
        problem = replace(problem, data=data, columns=to_tensors(data.columns, problem.task, problem.device))
        keys = [newcomer_key(problem.seed, data.at(i)) for i in clients]
    engine = Vectorised(problem, client_functions(problem, algorithm))
    received = problem.broadcast(algorithm, now.server)
    states = [problem.first_state(algorithm)] * len(clients) if new else now.store.get(clients)
    words = ("onboard", 0) if new else ("adapt", now.round)
    jobs = problem.make_jobs(adapt_phases(algorithm), clients, states, *words, part="train")
    if keys is not None:
        jobs = [job._replace(key=key) for job, key in zip(jobs, keys, strict=True)]
    states = list(engine.map("adapt", jobs, received, RoundInfo(now.round)))
    found = draw_enough(problem, algorithm, engine, received, clients, states, draws, round=now.round, keys=keys)
    rng = np.random.default_rng([seed, 5, new])
    predictions = []
    for each in found:
        a, b = draw_rows(group.shape, POINTS, rng)
        columns = {"a": torch.from_numpy(a), "b": torch.from_numpy(b)}
        predictions.append((replace(predict_draws(loop, each, columns), loss="mse"), a, b))
    return predictions


def measure_group(group: Population, predictions: Sequence[Any]) -> dict[str, Any]:
    """Coverage and relative width at each level, client by client, of function and observations."""
    shape, rows = group.shape, {}
    short = sum(p.effective is not None and p.effective < len(p.outputs) for p, *_ in predictions)
    for level in LEVELS:
        each: dict[str, list[float]] = {
            "function": [],
            "function_width": [],
            "observations": [],
            "observations_width": [],
        }
        far = 2 * float(ndtri((1 + level) / 2))
        for at, (prediction, a, b) in enumerate(predictions):
            truth = a @ group.u + b @ group.z[at]
            _, covariance = solve_posterior(group, at)
            deviation = np.sqrt(np.einsum("nd,de,ne->n", b, covariance, b))
            low, high = (end[:, 0] for end in prediction.interval(level))
            each["function"].append(float(((low <= truth) & (truth <= high)).mean()))
            each["function_width"].append(float((high - low).mean() / (far * deviation.mean())))
            low, high = (end[:, 0] for end in prediction.interval(level, of="observations"))
            held = ndtr((high - truth) / shape.noise) - ndtr((low - truth) / shape.noise)
            each["observations"].append(float(held.mean()))
            wide = far * np.sqrt(deviation**2 + shape.noise**2)
            each["observations_width"].append(float((high - low).mean() / wide.mean()))
        rows[str(level)] = {name: (float(np.mean(v)), float(np.var(v, ddof=1)), len(v)) for name, v in each.items()}
    return {"levels": rows, "short": short}


def measure_population(
    name: str, seed: int, *, clients: int = 200, rounds: int = 100, draws: int = 50, **options: Any
) -> dict[str, Any]:
    """One population: a run, and both groups measured."""
    known, new = draw_population(SHAPES[name], clients, seed)
    run = fit_population(known, rounds, seed, **options)
    sent = run.broadcast()
    learned = {"sigma": float(sent["prior:log_scale"].exp()), "noise": float(sent["noise:log_scale"].exp())}
    groups = {"known": known, "new": new}
    return {
        "shape": name,
        "seed": seed,
        "learned": learned,
        **{
            key: measure_group(group, predict_group(run, group, draws, seed, new=key == "new"))
            for key, group in groups.items()
        },
    }


def summarise_populations(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each shape, group, level and kind: mean coverage, its standard error by client, mean relative width."""
    rows = []
    for name in dict.fromkeys(r["shape"] for r in results):
        some = [r for r in results if r["shape"] == name]
        for group in ("known", "new"):
            for level in LEVELS:
                cells = [r[group]["levels"][str(level)] for r in some]
                for kind in ("function", "observations"):
                    means = np.array([cell[kind][0] for cell in cells])
                    clients = sum(cell[kind][2] for cell in cells)
                    within = float(np.mean([cell[kind][1] for cell in cells]))
                    width = float(np.mean([cell[f"{kind}_width"][0] for cell in cells]))
                    row = {"shape": name, "group": group, "level": level, "of": kind, "coverage": float(means.mean())}
                    spread = float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.nan
                    rows.append(
                        row
                        | {"error": math.sqrt(within / clients), "error_by_population": spread}
                        | {"width": width, "populations": len(cells), "short": sum(r[group]["short"] for r in some)}
                    )
    return rows


def main() -> None:
    """Measure, print a table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--populations", type=int, default=len(SEEDS))
    parser.add_argument("--first", type=int, default=SEEDS.start, help="the first seed")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sizes = {"clients": given.clients, "rounds": given.rounds, "draws": given.draws}
    results: list[dict[str, Any]] = []
    if given.out is not None and given.out.exists():
        results = json.loads(given.out.read_text())["results"]
    known = {(each["shape"], each["seed"]) for each in results}
    for seed in range(given.first, given.first + given.populations):
        for name in given.shapes.split(","):
            if (name, seed) not in known:
                results.append(measure_population(name, seed, **sizes))
            if given.out is not None:
                table = {**sizes, "rows": summarise_populations(results), "results": results}
                given.out.write_text(json.dumps(table, indent=1) + "\n")
    for row in summarise_populations(results):
        of = f"{row['shape']:>12} {row['group']:>6} {row['level']:.0%} {row['of']:>12}"
        off = 100 * (row["coverage"] - row["level"])
        print(f"{of}: covers {row['coverage']:.1%} ({off:+.1f}, se {100 * row['error']:.2f}), width {row['width']:.3f}")


if __name__ == "__main__":
    main()
