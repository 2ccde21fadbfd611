"""The lines of Figure 1 round by round, by linear algebra.

On quadratics tau gradient steps are one matrix, x - x* -> (I - lr G)^tau (x - x*), so a round takes as long with 500
local steps as with one. ``tests/recipes/test_ffgg_readings.py`` compares every method here with ``moiety.fit``.

Each function yields, from the start on, the shared theta and the models that the clients would use [clients, d + e].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from moiety_recipes.ffgg_figure1_problem import Quadratics

State = tuple[np.ndarray, np.ndarray]


class Powers:
    """(I - lr G_m)^steps of symmetric matrices G_m, for any number of steps."""

    def __init__(self, matrices: np.ndarray, lr: float) -> None:
        values, self.vectors = np.linalg.eigh(matrices)
        self.factors, self.values = 1 - lr * values, values

    def times(self, steps: int, x: np.ndarray) -> np.ndarray:
        """(I - lr G_m)^steps x_m for each client."""
        return self._scale(self.factors**steps, x)

    def inverse(self, x: np.ndarray) -> np.ndarray:
        """G_m^-1 x_m for each client."""
        return self._scale(1 / self.values, x)

    def _scale(self, factors: np.ndarray, x: np.ndarray) -> np.ndarray:
        return _multiply(self.vectors, factors * _multiply(self.vectors.transpose(0, 2, 1), x))


def _multiply(matrices: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Each client's matrix times its vector."""
    return np.asarray(np.matmul(matrices, x[..., None])[..., 0])


def _join_models(theta: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.hstack([np.broadcast_to(theta, (len(w), len(theta))), w])


def _cut_blocks(problem: Quadratics) -> tuple[np.ndarray, ...]:
    d, g, stars = problem.d, problem.gram, problem.stars()
    return g[:, :d, :d], g[:, :d, d:], g[:, d:, d:], stars[:, :d], stars[:, d:]


def _run_ffgg(problem: Quadratics, step: float, find_w: Callable[[np.ndarray], np.ndarray]) -> Iterator[State]:
    """Algorithm 1, where ``find_w(right)`` solves Q_m w = right_m from 0, exactly or not."""
    top, cross, inner, own, w_star = _cut_blocks(problem)
    theta = np.zeros(problem.d)
    while True:
        gap = theta - own
        right = _multiply(inner, w_star) - _multiply(cross.transpose(0, 2, 1), gap)
        w = find_w(right)
        yield theta, _join_models(theta, w)
        slope = _multiply(top, gap) + _multiply(cross, w - w_star)
        theta = theta - step * slope.mean(0)


def ffgg(problem: Quadratics, step: float, steps: int) -> Iterator[State]:
    """FFGG with so many gradient steps in w (Algorithm 2), from w = 0: w = (I - T_m) w_m*(theta)."""
    inner = Powers(problem.gram[:, problem.d :, problem.d :], 1 / problem.smooth_in_w())

    def descend(right: np.ndarray) -> np.ndarray:
        solution = inner.inverse(right)
        return np.asarray(solution - inner.times(steps, solution))

    return _run_ffgg(problem, step, descend)


def ffgg_exact(problem: Quadratics, step: float) -> Iterator[State]:
    """FFGG with w_m*(theta) itself."""
    return _run_ffgg(problem, step, Powers(problem.gram[:, problem.d :, problem.d :], 0.0).inverse)


def ffgg_by_cg(problem: Quadratics, step: float, steps: int) -> Iterator[State]:
    """FFGG with so many steps of conjugate gradients in w, from w = 0 (Hestenes and Stiefel 1952)."""
    inner = problem.gram[:, problem.d :, problem.d :]

    def solve(right: np.ndarray) -> np.ndarray:
        w, rest = np.zeros_like(right), right.copy()
        direction, size = rest.copy(), (rest**2).sum(1)
        floor = 1e-30 * size
        for _ in range(steps):
            product = _multiply(inner, direction)
            bend = (direction * product).sum(1)
            # A client whose rest is nothing but rounding stands still.
            active = (size > floor) & (bend > 0)
            pace = np.where(active, size / np.where(active, bend, 1), 0)[:, None]
            w, rest = w + pace * direction, rest - pace * product
            new = (rest**2).sum(1)
            direction = np.where(
                active[:, None], rest + (new / np.where(active, size, 1))[:, None] * direction, direction
            )
            size = np.where(active, new, size)
        return w

    return _run_ffgg(problem, step, solve)


def local_gd(problem: Quadratics, lr: float, steps: int) -> Iterator[State]:
    """One model for all: the mean of the clients' models after so many gradient steps each."""
    local, stars = Powers(problem.gram, lr), problem.stars()
    x = np.zeros(stars.shape[1])
    while True:
        yield x[: problem.d], np.broadcast_to(x, stars.shape)
        x = (stars + local.times(steps, x - stars)).mean(0)


def scaffold(problem: Quadratics, lr: float, steps: int, outer: float) -> Iterator[State]:
    """SCAFFOLD, option II, from controls of 0: y_m descends on f_m(y) + (c - c_m)^T y."""
    local, stars = Powers(problem.gram, lr), problem.stars()
    x, control = np.zeros(stars.shape[1]), np.zeros_like(stars)
    while True:
        yield x[: problem.d], np.broadcast_to(x, stars.shape)
        correction = control.mean(0) - control
        centre = stars - local.inverse(correction)
        y = centre + local.times(steps, x - centre)
        control = (x - y) / (steps * lr) - correction
        x = x + outer * (y - x).mean(0)


def l2gd(
    problem: Quadratics, lr: float, pull: float, probability: float, lengths: Sequence[tuple[int, int]]
) -> Iterator[State]:
    """L2GD; ``lengths`` has for each round how many steps to the mean and how many local ones its coin gives."""
    local, stars = Powers(problem.gram, lr / (1 - probability)), problem.stars()
    models = np.zeros_like(stars)
    yield models.mean(0)[: problem.d], models
    for means, locals_ in lengths:
        mean = models.mean(0)
        models = mean + (1 - lr * pull / probability) ** means * (models - mean)
        models = stars + local.times(locals_, models - stars)
        yield models.mean(0)[: problem.d], models
