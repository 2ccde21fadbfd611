"""The problem of section 3.1 of Mishchenko et al. 2023, with what its theory says of it.

    f_m(theta, w) = ||H_m theta - b_m||^2 / 2 + ||A_m theta + B_m w - y_m||^2 / 2

H_m and A_m have n rows and d columns, B_m has n rows and e columns, all uniform on [0, 1] and divided by the number
of columns. There is one theta* and for each client a w_m*, uniform on [0, 1], with b_m = H_m theta* and
y_m = A_m theta* + B_m w_m*, so that the problem is overpersonalised (Assumption 2) and the least loss is 0.

Then f_m(x) = (x - x_m*)^T G_m (x - x_m*) / 2 for x = (theta, w), and the matrix G_m of d + e columns is all that is
needed of the n rows. It is made once, from all rows, and is a client's only example.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

import moiety as mo

if TYPE_CHECKING:
    from torch import Tensor

THETA, W = "theta", "w"
Values = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Size:
    """Clients, rows n of each, shared dimensions d and personal dimensions e."""

    clients: int
    rows: int
    shared: int
    personal: int


@dataclass(frozen=True)
class Quadratics:
    """G_m [clients, d + e, d + e], theta* and w_m*, and the constants that step sizes are made of."""

    gram: np.ndarray
    theta: np.ndarray
    w: np.ndarray

    @property
    def d(self) -> int:
        """The number of shared dimensions."""
        return len(self.theta)

    def operators(self) -> np.ndarray:
        """F_m(theta) = J_m (theta - theta*): the Schur complements J_m of G_m in w."""
        d, g = self.d, self.gram
        return np.asarray(g[:, :d, :d] - g[:, :d, d:] @ np.linalg.solve(g[:, d:, d:], g[:, d:, :d]))

    def cocoercive(self) -> float:
        """L of Assumption 1: F_m is linear with a symmetric matrix, whose norm it is."""
        return float(np.linalg.norm(self.operators(), 2, axis=(1, 2)).max())

    def smooth(self) -> float:
        """L_f, the largest curvature of any f_m."""
        return float(np.linalg.norm(self.gram, 2, axis=(1, 2)).max())

    def smooth_in_w(self) -> float:
        """The largest curvature of any f_m in w."""
        return float(np.linalg.norm(self.gram[:, self.d :, self.d :], 2, axis=(1, 2)).max())

    def stars(self) -> np.ndarray:
        """x_m* = (theta*, w_m*), where f_m is 0."""
        return np.hstack([np.tile(self.theta, (len(self.w), 1)), self.w])

    def distance(self, theta: np.ndarray) -> tuple[float, float]:
        """||F(theta)||^2 and ||theta - theta*||^2."""
        gap = np.asarray(theta) - self.theta
        return float(np.sum((self.operators().mean(0) @ gap) ** 2)), float(np.sum(gap**2))


@dataclass(frozen=True)
class OwnStars(Quadratics):
    """The same where each client has its own theta_m* (``own``), so that no theta suits all.

    Then F(theta) is the mean of J_m (theta - theta_m*), and ``theta`` is where it is 0.
    """

    own: np.ndarray

    def stars(self) -> np.ndarray:
        """x_m* = (theta_m*, w_m*), where f_m is least."""
        return np.hstack([self.own, self.w])


@lru_cache(maxsize=1)
def draw_problem(size: Size, seed: int) -> Quadratics:
    """The problem of a seed, from all of its rows."""
    grams = [_draw_rows(size, seed, m)[0] for m in range(size.clients)]
    stars = mo.random.generator(seed, "ffgg-figure1", "stars")
    return Quadratics(np.stack(grams), stars.random(size.shared), stars.random((size.clients, size.personal)))


def draw_uniform(size: Size, seed: int) -> OwnStars:
    """The same matrices with b_m and y_m uniform on [0, 1]: clients then differ in where their loss is least."""
    d = size.shared
    grams, slopes = zip(*(_draw_rows(size, seed, m) for m in range(size.clients)), strict=True)
    gram = np.stack(grams)
    stars = np.linalg.solve(gram, np.stack(slopes)[..., None])[..., 0]
    problem = OwnStars(gram, np.zeros(d), stars[:, d:], stars[:, :d])
    jacobians = problem.operators()
    theta = np.linalg.solve(jacobians.mean(0), np.einsum("mij,mj->mi", jacobians, stars[:, :d]).mean(0))
    return replace(problem, theta=theta)


def _draw_rows(size: Size, seed: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """What is needed of a client's rows: G_m, and the gradient at 0 less its sign for b_m and y_m uniform."""
    d, e = size.shared, size.personal
    draw = mo.random.generator(seed, "ffgg-figure1", m)
    h, a = (draw.random((size.rows, d)) / d for _ in range(2))
    both = np.hstack([a, draw.random((size.rows, e)) / e])
    b, y = draw.random(size.rows), draw.random(size.rows)
    gram, slope = both.T @ both, both.T @ y
    gram[:d, :d] += h.T @ h
    slope[:d] += h.T @ b
    return gram, slope


def deal(problem: Quadratics) -> mo.FederatedData:
    """Each client with one example: its matrix, and where its loss is 0."""
    count = len(problem.gram)
    ends = np.arange(1, count + 1)
    bounds = np.stack([ends - 1, ends, ends, ends], axis=1)
    columns = {"gram": problem.gram, "star": problem.stars()}
    return mo.FederatedData(columns, bounds, [f"client-{m}" for m in range(count)])


def build_task(problem: Quadratics, *, curvature: bool) -> mo.Task:
    """f_m as a function of theta and w, both 0 at first, in float64.

    The same numbers in two ways. With ``curvature`` f_m is written block by block, so that a product with the Hessian
    in w has no part of the other blocks. Without, autograd is told that the slope G (x - x*) is a constant: f_m and its
    gradient come from one product with G instead of two, but no second derivative can be had.
    """
    import torch

    d = problem.d

    def times(vector: Tensor, matrix: Tensor) -> Tensor:
        return (vector.unsqueeze(-2) @ matrix).squeeze(-2)

    def by_blocks(params: Values, batch: Values) -> Tensor:
        gram, star = batch["gram"], batch["star"]
        t, w = params[THETA] - star[..., :d], params[W] - star[..., d:]
        slope = times(w, gram[..., d:, d:]) / 2 + times(t, gram[..., :d, d:])
        return (times(t, gram[..., :d, :d]) * t).sum(-1) / 2 + (slope * w).sum(-1)

    def by_slope(params: Values, batch: Values) -> Tensor:
        gap = torch.cat([params[THETA], params[W]]) - batch["star"]
        constant = gap.detach()
        return (times(constant, batch["gram"]) * (gap - constant / 2)).sum(-1)

    zeros = {THETA: torch.zeros(d, dtype=torch.float64), W: torch.zeros(problem.w.shape[1], dtype=torch.float64)}
    return mo.task.from_functions(zeros, by_blocks if curvature else by_slope)


def build_split(problem: Quadratics, *, personal: bool) -> mo.Split:
    """w of each client's own, or all of the model shared."""
    sizes = {THETA: problem.d, W: problem.w.shape[1]}
    return mo.Split((THETA,) if personal else (THETA, W), (W,) if personal else (), (), frozenset(), sizes)
