"""L2GD on least squares in NumPy: Algorithm 1 of Hanzely and Richtarik 2020, iteration by iteration, and its problem.

As in ``oracle_pulled``: grad f_i(x) = A_i x - b_i with all blocks one below the other. Only the outcome of the coin is
taken from the program.
"""

from __future__ import annotations

import numpy as np
from oracle_pulled import cut, make_quadratic

from moiety.algorithms.l2gd import toss_coins
from moiety.random import hash_words


def coin(probability, rounds, coins=0):
    """xi_0, xi_1, ...: in each round a run of ones, then a run of zeros."""
    throws = []
    for t in range(rounds):
        means, local = toss_coins(probability, coins, hash_words("train", t))
        throws += [1] * means + [0] * local
    return throws


def algorithm_1(xs, quadratics, weights, flips, *, lr, pull, probability):
    """The paper's loop with alpha / n = lr; the mean is weighted. All models after it."""
    share = np.asarray(weights) / sum(weights)
    for xi in flips:
        if xi == 1:
            step, mean = lr * pull / probability, share @ xs
            xs = (1 - step) * xs + step * mean
        else:
            gradients = np.array([a @ x - b for (a, b), x in zip(quadratics, xs, strict=True)])
            xs = xs - lr / (1 - probability) * gradients
    return xs


def run(clients, weights, start, rounds, matrices, **options):
    """The mean, and the models of all clients, after so many rounds from ``start``."""
    coins = options.pop("coins", 0)
    first = np.concatenate([start[k] for k in matrices])
    quadratics = [make_quadratic(data, matrices) for data in clients]
    flips = coin(options["probability"], rounds, coins)
    xs = algorithm_1(np.tile(first, (len(clients), 1)), quadratics, weights, flips, **options)
    mean = np.asarray(weights) / sum(weights) @ xs
    return cut(mean, clients, matrices), [cut(x, clients, matrices) for x in xs]


def minimiser(clients, weights, pull, matrices):
    """argmin of sum_i alpha_i (f_i(x_i) + (pull / 2) ||x_i - mean||^2), with the mean weighted by alpha, by one solve.

    The derivative in x_i is alpha_i (A_i x_i - b_i + pull (x_i - mean)): that of the mean drops out, since
    sum_j alpha_j (x_j - mean) = 0.
    """
    share = np.asarray(weights) / sum(weights)
    quadratics = [make_quadratic(data, matrices) for data in clients]
    n, d = len(clients), len(quadratics[0][1])
    left, right = np.zeros((n * d, n * d)), np.zeros(n * d)
    for i, (a, b) in enumerate(quadratics):
        mine = slice(i * d, (i + 1) * d)
        left[mine, mine] += a + pull * np.eye(d)
        right[mine] = b
        for j in range(n):
            left[mine, j * d : (j + 1) * d] -= pull * share[j] * np.eye(d)
    return np.linalg.solve(left, right).reshape(n, d)
