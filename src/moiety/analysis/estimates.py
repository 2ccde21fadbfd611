"""Estimates of the constants of Assumptions 1 to 3 of Pillutla et al. (2022), at a few points and for some clients.

The first point is the one where training begins; the others lie along a few rounds of alternating gradient steps over
the sampled clients, with the theorems' learning rates 1/L_u and 1/L_v. A client's loss F_i is taken over a sample of
its rows, and scaled by n alpha_i, as under (4), where clients weigh differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from moiety.analysis.theory import Constants
from moiety.engines.problem import Problem
from moiety.local.verbs import autograd_gradient
from moiety.random import generator, torch_seed
from moiety.types import Batch, LossFunction, Names, Params

PER_CLIENT = ("L_u", "L_v", "L_uv", "sigma_u2", "sigma_v2")
"""The constants that are estimated client by client."""
STEPS = 5
"""Rounds of alternating steps between two points."""
ITERATIONS = 100
"""The most steps of power iteration. An estimate that has not settled by then is still a lower bound."""


@dataclass(frozen=True)
class Estimates:
    """Arrays [points, clients], and a Gram matrix of the clients' shared gradients for each point."""

    L_u: np.ndarray
    L_v: np.ndarray
    L_uv: np.ndarray
    sigma_u2: np.ndarray
    sigma_v2: np.ndarray
    gram: np.ndarray
    excess: np.ndarray
    """How much of a client's squared distance in ``gram`` comes from sampling its rows."""
    loss: np.ndarray
    clients: int
    """The number of all clients."""

    def diversity(self, point: int, clients: np.ndarray) -> float:
        """An unbiased estimate of the left side of Assumption 3 over all clients, exact where all were sampled.

        The sample variance of the gradients of ``clients`` (with n - 1 below) estimates that of all clients plus the
        variance that comes from sampling rows.
        """
        gram = self.gram[point][np.ix_(clients, clients)]
        count = len(clients)
        squares = float(np.trace(gram) - gram.sum() / count)
        within = float(self.excess[point][clients].mean())
        return max(0.0, (squares / (count - 1) - within) * (self.clients - 1) / self.clients)

    def constants(self, points: Sequence[int], clients: np.ndarray, cohort: int) -> Constants:
        """The largest of each constant over some points and clients."""
        at = np.ix_(np.array(points), clients)
        most = {name: float(getattr(self, name)[at].max()) for name in PER_CLIENT}
        delta2 = max(self.diversity(point, clients) for point in points)
        return Constants(**most, delta2=delta2, clients=self.clients, cohort=cohort)

    def medians(self) -> dict[str, float]:
        """The median of each constant over points and clients."""
        medians = {name: float(np.median(getattr(self, name))) for name in PER_CLIENT}
        points, clients = self.L_u.shape
        diversities = [self.diversity(point, np.arange(clients)) for point in range(points)]
        return {**medians, "delta2": float(np.median(diversities))}


@dataclass(frozen=True)
class Client:
    """A sampled client: its number, a sample of its rows, how many it has, and how much its loss counts."""

    number: int
    batch: Batch
    size: int
    scale: float

    @property
    def rows(self) -> int:
        """How many rows were sampled."""
        return len(next(iter(self.batch.values())))

    def variance_of_mean(self, variance: float, count: int) -> float:
        """The variance of the scaled mean over ``count`` rows drawn without replacement, from that of one row."""
        return self.scale**2 * variance / count * (1 - count / self.size) if count < self.size else 0.0


def sample_clients(problem: Problem, count: int, purpose: str) -> np.ndarray:
    """The positions of all clients, or of a random sample where there are more than ``count``."""
    every = np.arange(len(problem.data))
    if len(every) <= count:
        return every
    return np.sort(generator(problem.seed, purpose, "clients").choice(every, count, replace=False))


def sample_rows(problem: Problem, number: int, examples: int, scale: float) -> Client:
    """A client with at most ``examples`` of its training rows."""
    start, stop = problem.data.rows(number, "train")
    rows = np.arange(start, stop)
    if len(rows) > examples:
        rows = np.sort(generator(problem.seed, "advise", "rows", number).choice(rows, examples, replace=False))
    index = torch.from_numpy(rows)
    batch = {name: column.index_select(0, index) for name, column in problem.columns.items()}
    return Client(number, batch, stop - start, scale)


def estimate(
    problem: Problem, clients: Sequence[Client], *, points: int, batch_size: int, tolerance: float
) -> Estimates:
    """Estimate the constants for some clients at a number of points."""
    shared, statistics = problem.first_shared()
    models = [problem.compose(shared | statistics, problem.first_personal()) for _ in clients]
    measures: list[list[tuple[Spread, Blocks]]] = []
    for point in range(points):
        if point:
            scale = np.array([client.scale for client in clients])
            L_u, L_v = (max(scale * [getattr(b, part) for _, b in measures[-1]]) for part in ("u", "v"))
            models = _train(problem, models, clients, 1 / L_u if L_u else 0.0, 1 / L_v if L_v else 0.0)
        measures.append([_measure(problem, m, c, point, tolerance) for m, c in zip(models, clients, strict=True)])

    def table(value: Callable[[Client, Spread, Blocks], float]) -> np.ndarray:
        return np.array([[value(c, *s) for c, s in zip(clients, at, strict=True)] for at in measures])

    return Estimates(
        L_u=table(lambda c, s, b: c.scale * b.u),
        L_v=table(lambda c, s, b: c.scale * b.v),
        L_uv=table(lambda c, s, b: c.scale * b.uv),
        sigma_u2=table(lambda c, s, b: c.variance_of_mean(s.variance_u, batch_size)),
        sigma_v2=table(lambda c, s, b: c.variance_of_mean(s.variance_v, batch_size)),
        gram=np.stack(
            [_make_gram([c.scale * s.mean_u for c, (s, _) in zip(clients, at, strict=True)]) for at in measures]
        ),
        excess=table(lambda c, s, b: c.variance_of_mean(s.variance_u, c.rows)),
        loss=table(lambda c, s, b: c.scale * s.loss),
        clients=len(problem.data),
    )


def _make_gram(vectors: Sequence[Tensor]) -> np.ndarray:
    rows = torch.stack(list(vectors))
    # Centred first: the distances between gradients may be small compared with the gradients.
    rows = rows - rows.mean(0)
    return (rows @ rows.T).numpy()


def _measure(problem: Problem, model: Params, client: Client, point: int, tolerance: float) -> tuple[Spread, Blocks]:
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
                personal = _client_gradient(problem, model, client, v)
                model.update({name: model[name] - rate_v * g for name, g in personal.items()})
            shared = [
                _client_gradient(problem, model, client, u) for model, client in zip(models, clients, strict=True)
            ]
        for name in u:
            value = models[0][name] - rate_u * torch.stack([g[name] for g in shared]).mean(0)
            for model in models:
                model[name] = value
    return models


def _client_gradient(problem: Problem, model: Params, client: Client, names: Names) -> Params:
    """The gradient of a client's scaled loss in some parameters."""
    return _take_gradient(problem.task.loss, model, client.batch, names, lambda rows: client.scale * rows.mean())[0]


def _take_gradient(
    loss: LossFunction, model: Params, batch: Batch, names: Names, reduce: Callable[[Tensor], Tensor]
) -> tuple[Params, Tensor]:
    """The gradient in some parameters of what ``reduce`` makes of the rows' losses, and its value."""

    def objective(block: Params) -> tuple[Tensor, Params]:
        losses, buffers = loss({**model, **block}, batch)
        return reduce(losses), buffers

    gradient, value, _ = autograd_gradient(objective, {name: model[name] for name in names})
    return gradient, value


class Blocks(NamedTuple):
    """The operator norms of the three blocks of a Hessian in two groups of variables."""

    u: float
    v: float
    uv: float


def block_norms(
    loss: LossFunction, model: Params, batch: Batch, u: Names, v: Names, *, tolerance: float, start: np.random.Generator
) -> Blocks:
    """The norms of the blocks of the Hessian of the mean loss over ``batch``, by power iteration.

    For a block B the iteration goes x <- B'Bx / |B'Bx|, and |Bx| for a unit x grows towards the norm of B from below.
    It stops where a step adds less than the share ``tolerance``. It takes B'B and not B, because a symmetric block may
    have eigenvalues of both signs. Products with the Hessian come from a second backward pass, never from a matrix.
    """
    leaves = {name: model[name].detach().requires_grad_() for name in (*u, *v)}
    inner = {"u": [leaves[name] for name in u], "v": [leaves[name] for name in v]}
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        losses, _ = loss({**model, **leaves}, batch)
        first = {part: _gradient(losses.mean(), inner[part], keep=True) for part in ("u", "v")}

    def product(row: str, column: str) -> Callable[[Tensor], Tensor]:
        """The block of the Hessian with these rows and columns, as a function of a vector."""
        return lambda x: _gradient(first[column] @ x, inner[row], keep=False)

    def norm(row: str, column: str) -> float:
        size = len(first[column])
        x = torch.from_numpy(start.standard_normal(size)).to(first[column])
        return _iterate(product(row, column), product(column, row), x, tolerance)

    return Blocks(norm("u", "u"), norm("v", "v"), norm("u", "v"))


def _gradient(value: Tensor, leaves: Sequence[Tensor], *, keep: bool) -> Tensor:
    """The gradient as one vector; zero where no leaf reaches the value."""
    if not value.requires_grad:
        return torch.cat([torch.zeros_like(leaf).flatten() for leaf in leaves])
    gradients = torch.autograd.grad(
        value, leaves, create_graph=keep, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.cat([g.flatten() for g in gradients])


def _iterate(apply: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], x: Tensor, tolerance: float) -> float:
    """The norm of a linear map, from below."""
    best = 0.0
    for _ in range(ITERATIONS):
        x = x / x.norm()
        y = apply(x)
        norm = float(y.norm())
        is_steady = norm <= best * (1 + tolerance)
        best = max(best, norm)
        if is_steady:
            break
        x = back(y)
    return best


class Spread(NamedTuple):
    """The mean gradient of a client's rows in both blocks, and the variance of one row's (with n - 1 below)."""

    mean_u: Tensor
    mean_v: Tensor
    variance_u: float
    variance_v: float
    loss: float


def gradient_spread(loss: LossFunction, model: Params, batch: Batch, u: Names, v: Names) -> Spread:
    """Gradients row by row, summed in double precision."""
    rows = len(next(iter(batch.values())))
    parts = {"u": u, "v": v}
    sums = {k: torch.zeros(sum(model[n].numel() for n in names), dtype=torch.float64) for k, names in parts.items()}
    squares = {"u": 0.0, "v": 0.0}
    total = 0.0
    for i in range(rows):
        row = {name: column[i : i + 1] for name, column in batch.items()}
        gradients, value = _take_gradient(loss, model, row, (*u, *v), torch.sum)
        total += float(value)
        for part, names in parts.items():
            g = torch.cat([gradients[n].flatten().double().cpu() for n in names])
            sums[part] += g
            squares[part] += float(g @ g)
    means = {part: total / rows for part, total in sums.items()}
    excess = {part: squares[part] - rows * float(means[part] @ means[part]) for part in means}
    variance = {part: max(0.0, excess[part]) / max(1, rows - 1) for part in means}
    return Spread(means["u"], means["v"], variance["u"], variance["v"], total / rows)
