"""Where the lines of the figure lead, by linear algebra on the quadratics: no run is needed for these numbers."""

from __future__ import annotations

import numpy as np

from moiety_recipes.ffgg_figure1_problem import Quadratics


def error(problem: Quadratics, models: np.ndarray) -> float:
    """The mean of f_m over clients, at a model for each [clients, d + e] or at one for all [d + e]."""
    gaps = models - problem.stars()
    return float(np.einsum("mi,mij,mj->m", gaps, problem.gram, gaps).mean() / 2)


def exact_ffgg(problem: Quadratics, lr: float, rounds: int) -> float:
    """The error of FFGG after some rounds from 0 if every w were w_m*(theta).

    theta^r - theta* = (I - lr J)^r (theta^0 - theta*) with J the mean of J_m, and f_m(theta, w_m*(theta)) is half the
    quadratic form of J_m.
    """
    mean = problem.operators().mean(0)
    gap = np.linalg.matrix_power(np.eye(problem.d) - lr * mean, rounds) @ -problem.theta
    return float(gap @ mean @ gap / 2)


def ffgg(problem: Quadratics, steps: int) -> float:
    """The end of FFGG with so many gradient steps from w = 0: theta such that the mean of grad_1 f_m is 0 there.

    w_m(theta) = (I - T_m) w_m*(theta), T_m = (I - Q_m / L_w)^steps, and w_m*(theta) = w_m* - Q_m^-1 C_m^T (theta -
    theta*), where G_m = [P_m C_m; C_m^T Q_m].
    """
    d, g = problem.d, problem.gram
    cross, inner = g[:, :d, d:], g[:, d:, d:]
    decay = np.linalg.matrix_power(np.eye(g.shape[1] - d) - inner / problem.smooth_in_w(), steps)
    pull = np.linalg.solve(inner, np.swapaxes(cross, 1, 2))  # Q^-1 C^T
    shift = decay @ pull - pull  # of w_m with theta - theta*
    rest = -np.einsum("mij,mj->mi", decay, problem.w)  # w_m - w_m* at theta*
    jacobian = (g[:, :d, :d] + cross @ shift).mean(0)
    gap = np.linalg.solve(jacobian, -np.einsum("mij,mj->mi", cross, rest).mean(0))
    w = problem.w + rest + shift @ gap
    return error(problem, np.hstack([np.tile(problem.theta + gap, (len(w), 1)), w]))


def one_model(problem: Quadratics) -> float:
    """The end of SCAFFOLD: the minimiser of the mean of f_m."""
    slopes = np.einsum("mij,mj->mi", problem.gram, problem.stars())
    return error(problem, np.linalg.solve(problem.gram.mean(0), slopes.mean(0)))


def local_gd(problem: Quadratics, lr: float, steps: int) -> float:
    """The end of Local GD: sum_m (I - (I - lr G_m)^steps)(x - x_m*) = 0."""
    eye = np.eye(problem.gram.shape[1])
    shift = eye - np.linalg.matrix_power(eye - lr * problem.gram, steps)
    return error(problem, np.linalg.solve(shift.mean(0), np.einsum("mij,mj->mi", shift, problem.stars()).mean(0)))


def l2gd(problem: Quadratics, pull: float) -> float:
    """The minimiser of L2GD's problem: x_m = (G_m + pull I)^-1 (G_m x_m* + pull mean), around which its coin keeps it.

    With K_m = pull (G_m + pull I)^-1 that is x_m = x_m* + K_m (mean - x_m*), so the mean solves
    (I - mean of K_m) mean = mean of (I - K_m) x_m*.
    """
    size = problem.gram.shape[1]
    weights = pull * np.linalg.inv(problem.gram + pull * np.eye(size))
    own = problem.stars()
    mean = np.linalg.solve(np.eye(size) - weights.mean(0), (own - np.einsum("mij,mj->mi", weights, own)).mean(0))
    return error(problem, own + np.einsum("mij,mj->mi", weights, mean - own))
