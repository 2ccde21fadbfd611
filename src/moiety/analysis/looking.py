"""A look at a problem: the constants of Assumptions 1 to 3 of Pillutla et al. (2022) at a few points, for some clients.

The first point is the one where training begins; the others lie along a few rounds of alternating gradient steps
over the clients looked at, with the theorems' learning rates 1/L_u and 1/L_v. A client's loss F_i is taken over a
sample of its rows, and scaled by n alpha_i, as under (4), where clients weigh differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moiety.analysis.curvature import Blocks, Spread, block_norms, gradient_spread
from moiety.analysis.theory import Constants
from moiety.engines.problem import Problem
from moiety.local.verbs import autograd_gradient
from moiety.random import generator, torch_seed
from moiety.types import Batch, Names, Params

STEPS = 5
"""Rounds of alternating steps between two points."""


@dataclass(frozen=True)
class Look:
    """What was found: arrays [points, clients], one Gram matrix of the clients' shared gradients for each point."""

    L_u: np.ndarray
    L_v: np.ndarray
    L_uv: np.ndarray
    sigma_u2: np.ndarray
    sigma_v2: np.ndarray
    gram: np.ndarray
    excess: np.ndarray
    """How much of a client's squared distance in ``gram`` is due to having looked at some of its rows only."""
    loss: np.ndarray
    clients: int
    """The number of all clients."""

    def diversity(self, point: int, chosen: np.ndarray) -> float:
        """An unbiased estimate of the left side of Assumption 3 over all clients, exact where all were looked at.

        The sample variance of the chosen clients' gradients estimates that of all clients (with n - 1 below), and holds
        besides it the variance that comes from sampled rows.
        """
        gram = self.gram[point][np.ix_(chosen, chosen)]
        count = len(chosen)
        squares = float(np.trace(gram) - gram.sum() / count)
        within = float(self.excess[point][chosen].mean())
        return max(0.0, (squares / (count - 1) - within) * (self.clients - 1) / self.clients)

    def constants(self, points: list[int], chosen: np.ndarray, cohort: int) -> Constants:
        """The largest of each constant over some points and clients."""
        at = np.ix_(np.array(points), chosen)
        names = ("L_u", "L_v", "L_uv", "sigma_u2", "sigma_v2")
        most = {name: float(getattr(self, name)[at].max()) for name in names}
        delta2 = max(self.diversity(point, chosen) for point in points)
        return Constants(**most, delta2=delta2, clients=self.clients, cohort=cohort)


@dataclass(frozen=True)
class Client:
    """A client that is looked at: its number, a sample of its rows, how many it has, and how much its loss counts."""

    number: int
    batch: Batch
    size: int
    scale: float

    @property
    def rows(self) -> int:
        """How many rows were sampled."""
        return len(next(iter(self.batch.values())))

    def of_mean(self, variance: float, count: int) -> float:
        """The variance of the scaled mean over ``count`` rows drawn without replacement, from that of one row."""
        return self.scale**2 * variance / count * (1 - count / self.size) if count < self.size else 0.0


def sampled(problem: Problem, number: int, examples: int, scale: float) -> Client:
    """A client with at most ``examples`` of its training rows."""
    start, stop = problem.data.rows(number, "train")
    rows = np.arange(start, stop)
    if len(rows) > examples:
        rows = np.sort(generator(problem.seed, "advise", "rows", number).choice(rows, examples, replace=False))
    index = torch.from_numpy(rows)
    batch = {name: column.index_select(0, index) for name, column in problem.columns.items()}
    return Client(number, batch, stop - start, scale)


def look(problem: Problem, clients: Sequence[Client], *, points: int, batch_size: int, tolerance: float) -> Look:
    """Look at some clients at a number of points."""
    shared, statistics = problem.first_shared()
    models = [problem.compose(shared | statistics, problem.first_personal()) for _ in clients]
    seen: list[list[tuple[Spread, Blocks]]] = []
    for point in range(points):
        if point:
            scale = np.array([client.scale for client in clients])
            L_u, L_v = (max(scale * [getattr(b, part) for _, b in seen[-1]]) for part in ("u", "v"))
            models = _train(problem, models, clients, 1 / L_u if L_u else 0.0, 1 / L_v if L_v else 0.0)
        seen.append([_look(problem, m, c, point, tolerance) for m, c in zip(models, clients, strict=True)])

    def table(value: Callable[[Client, Spread, Blocks], float]) -> np.ndarray:
        return np.array([[value(c, *s) for c, s in zip(clients, at, strict=True)] for at in seen])

    return Look(
        L_u=table(lambda c, s, b: c.scale * b.u),
        L_v=table(lambda c, s, b: c.scale * b.v),
        L_uv=table(lambda c, s, b: c.scale * b.uv),
        sigma_u2=table(lambda c, s, b: c.of_mean(s.variance_u, batch_size)),
        sigma_v2=table(lambda c, s, b: c.of_mean(s.variance_v, batch_size)),
        gram=np.stack([_gram([c.scale * s.mean_u for c, (s, _) in zip(clients, at, strict=True)]) for at in seen]),
        excess=table(lambda c, s, b: c.of_mean(s.variance_u, c.rows)),
        loss=table(lambda c, s, b: c.scale * s.loss),
        clients=len(problem.data),
    )


def _gram(vectors: Sequence[Tensor]) -> np.ndarray:
    rows = torch.stack(list(vectors))
    # About the mean first: the distances between gradients may be small beside the gradients.
    rows = rows - rows.mean(0)
    return (rows @ rows.T).numpy()


def _look(problem: Problem, model: Params, client: Client, point: int, tolerance: float) -> tuple[Spread, Blocks]:
    loss, u, v = problem.task.loss, problem.split.trained_shared, problem.split.trained_personal
    words = ("advise", point, client.number)
    with torch_seed(problem.seed, *words):  # dropout draws from it
        spread = gradient_spread(loss, model, client.batch, u, v)
        start = generator(problem.seed, *words)
        return spread, block_norms(loss, model, client.batch, u, v, tolerance=tolerance, start=start)


def _train(
    problem: Problem, models: Sequence[Params], clients: Sequence[Client], rate_u: float, rate_v: float
) -> list[Params]:
    """A few rounds of Algorithm 2 with full gradients and one step for each block, all clients taking part."""
    u, v = problem.split.trained_shared, problem.split.trained_personal
    models = [dict(model) for model in models]
    for step in range(STEPS):
        with torch_seed(problem.seed, "advise", "train", step):
            for model, client in zip(models, clients, strict=True):
                own = _gradient(problem, model, client, v)
                model.update({name: model[name] - rate_v * g for name, g in own.items()})
            found = [_gradient(problem, model, client, u) for model, client in zip(models, clients, strict=True)]
        for name in u:
            moved = models[0][name] - rate_u * torch.stack([g[name] for g in found]).mean(0)
            for model in models:
                model[name] = moved
    return models


def _gradient(problem: Problem, model: Params, client: Client, names: Names) -> Params:
    """The gradient of a client's scaled loss in some parameters."""

    def objective(block: Params) -> tuple[Tensor, Params]:
        losses, changed = problem.task.loss({**model, **block}, client.batch)
        return client.scale * losses.mean(), changed

    return autograd_gradient(objective, {name: model[name] for name in names})[0]
