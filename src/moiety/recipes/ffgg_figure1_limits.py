"""Where the lines of the figure lead, by linear algebra on the quadratics: no run is needed for these numbers."""

from __future__ import annotations

import numpy as np

from moiety.recipes.ffgg_figure1_problem import Quadratics


def error(found: Quadratics, models: np.ndarray) -> float:
    """The mean of f_m over clients, at a model for each [clients, d + e]."""
    gaps = models - stars(found)
    return float(np.einsum("mi,mij,mj->m", gaps, found.gram, gaps).mean() / 2)


def stars(found: Quadratics) -> np.ndarray:
    """x_m* = (theta*, w_m*), where f_m is 0."""
    return np.hstack([np.tile(found.theta, (len(found.w), 1)), found.w])


def exact_ffgg(found: Quadratics, lr: float, rounds: int) -> float:
    """The error of FFGG after some rounds from 0 if every w were w_m*(theta).

    theta^r - theta* = (I - lr J)^r (theta^0 - theta*) with J the mean of J_m, and f_m(theta, w_m*(theta)) is half the
    quadratic form of J_m.
    """
    mean = found.operators().mean(0)
    gap = np.linalg.matrix_power(np.eye(found.d) - lr * mean, rounds) @ -found.theta
    return float(gap @ mean @ gap / 2)


def ffgg(found: Quadratics, steps: int) -> float:
    """The end of FFGG with so many gradient steps from w = 0: theta such that the mean of grad_1 f_m is 0 there.

    w_m(theta) = (I - T_m) w_m*(theta), T_m = (I - Q_m / L_w)^steps, and w_m*(theta) = w_m* - Q_m^-1 C_m^T (theta -
    theta*), where G_m = [P_m C_m; C_m^T Q_m].
    """
    d, g = found.d, found.gram
    cross, inner = g[:, :d, d:], g[:, d:, d:]
    left = np.linalg.matrix_power(np.eye(g.shape[1] - d) - inner / found.smooth_in_w(), steps)
    pull = np.linalg.solve(inner, np.swapaxes(cross, 1, 2))  # Q^-1 C^T
    moved = left @ pull - pull  # of w_m with theta - theta*
    rest = -np.einsum("mij,mj->mi", left, found.w)  # w_m - w_m* at theta*
    jacobian = (g[:, :d, :d] + cross @ moved).mean(0)
    gap = np.linalg.solve(jacobian, -np.einsum("mij,mj->mi", cross, rest).mean(0))
    w = found.w + rest + moved @ gap
    return error(found, np.hstack([np.tile(found.theta + gap, (len(w), 1)), w]))


def one_model(found: Quadratics) -> float:
    """The end of SCAFFOLD: the minimiser of the mean of f_m."""
    slopes = np.einsum("mij,mj->mi", found.gram, stars(found))
    best = np.linalg.solve(found.gram.mean(0), slopes.mean(0))
    return error(found, np.tile(best, (len(found.w), 1)))


def local_gd(found: Quadratics, lr: float, steps: int) -> float:
    """The end of Local GD: sum_m (I - (I - lr G_m)^steps)(x - x_m*) = 0."""
    moved = np.eye(found.gram.shape[1]) - np.linalg.matrix_power(np.eye(found.gram.shape[1]) - lr * found.gram, steps)
    best = np.linalg.solve(moved.mean(0), np.einsum("mij,mj->mi", moved, stars(found)).mean(0))
    return error(found, np.tile(best, (len(found.w), 1)))


def l2gd(found: Quadratics, pull: float) -> float:
    """The minimiser of L2GD's problem: x_m = (G_m + pull I)^-1 (G_m x_m* + pull mean), around which its coin keeps it.

    With K_m = pull (G_m + pull I)^-1 that is x_m = x_m* + K_m (mean - x_m*), so the mean solves
    (I - mean of K_m) mean = mean of (I - K_m) x_m*.
    """
    size = found.gram.shape[1]
    held = pull * np.linalg.inv(found.gram + pull * np.eye(size))
    own = stars(found)
    mean = np.linalg.solve(np.eye(size) - held.mean(0), (own - np.einsum("mij,mj->mi", held, own)).mean(0))
    return error(found, own + np.einsum("mij,mj->mi", held, mean - own))
