"""FedAvg, FedAlt, FedSim and local training on least squares in NumPy, from the papers' pseudocode.

f(w; a, y) = (a . w - y)^2 / 2. ``w`` is a dict of blocks and a client's data has a matrix for each block, so that which
block is shared and which is personal is a matter of names. Rows are used in data order (no shuffle).
"""

from __future__ import annotations

import numpy as np


def gradients(w, data, rows, matrices):
    """The gradient of the mean of f over ``rows``, block by block."""
    residual = sum(data[matrices[k]][rows] @ w[k] for k in w) - data["y"][rows]
    return {k: data[matrices[k]][rows].T @ residual / len(rows) for k in w}, (residual**2 / 2).mean()


def batches(n, size, epochs=None, steps=None):
    """Walk through the rows in order, epoch after epoch; the last batch of an epoch may be smaller."""
    epoch = [np.arange(k, min(k + size, n)) for k in range(0, n, size)]
    if steps is None:
        return epoch * (1 if epochs is None else epochs)
    return (epoch * steps)[:steps]


def descend(w, data, index, rates, matrices, momentum=0.0, weight_decay=0.0, clip=None):
    """SGD on the blocks named in ``rates``."""
    w = {k: x.copy() for k, x in w.items()}
    velocity = {k: 0 * w[k] for k in rates}
    losses = []
    for rows in index:
        slopes, loss = gradients(w, data, rows, matrices)
        losses.append(loss)
        g = {k: slopes[k] for k in rates}
        if clip is not None:
            norm = np.sqrt(sum((x**2).sum() for x in g.values()))
            g = {k: x * min(1.0, clip / (norm + 1e-6)) for k, x in g.items()}
        for k in rates:
            velocity[k] = momentum * velocity[k] + g[k] + weight_decay * w[k]
        for k, rate in rates.items():
            w[k] = w[k] - rate * velocity[k]
    return w, float(np.mean(losses))


def local_alt(u, v, data, *, gamma_u, gamma_v, index_u, index_v, matrices, **options):
    """Algorithm 2 of Pillutla et al. 2022."""
    w, _ = descend({**u, **v}, data, index_v, dict.fromkeys(v, gamma_v), matrices, **options)  # lines 2-5
    w, loss = descend(w, data, index_u, dict.fromkeys(u, gamma_u), matrices, **options)  # lines 5-8
    return {k: w[k] for k in u}, {k: w[k] for k in v}, loss


def local_sim(u, v, data, *, gamma_u, gamma_v, index, matrices, **options):
    """Algorithm 3 of Pillutla et al. 2022."""
    rates = dict.fromkeys(v, gamma_v) | dict.fromkeys(u, gamma_u)
    w, loss = descend({**u, **v}, data, index, rates, matrices, **options)
    return {k: w[k] for k in u}, {k: w[k] for k in v}, loss


def weight_of(weighting, n, steps):
    return {"examples": n, "batches": steps, "uniform": 1}[weighting]


def aggregate(us, weights):
    """Algorithm 4, line 16."""
    return {k: sum(a * u[k] for a, u in zip(weights, us, strict=True)) / sum(weights) for k in us[0]}


def minimiser(clients, weights, matrices, personal):
    """The minimiser of sum_i alpha_i F_i(u, v_i) / sum_i alpha_i by one linear solve.

    Unknowns: the blocks that are not personal once, the personal ones once for each client. Returns the shared
    blocks and, for each client, its personal blocks.
    """
    widths = {k: clients[0][m].shape[1] for k, m in matrices.items()}
    place, at = {}, 0
    for k, width in widths.items():
        for i in range(len(clients)) if k in personal else [None]:
            place[k, i] = slice(at, at + width)
            at += width
    hessian, right = np.zeros((at, at)), np.zeros(at)
    for i, (data, alpha) in enumerate(zip(clients, weights, strict=True)):
        rows = np.zeros((len(data["y"]), at))
        for k, m in matrices.items():
            rows[:, place[k, i if k in personal else None]] = data[m]
        scale = alpha / len(data["y"])
        hessian += scale * rows.T @ rows
        right += scale * rows.T @ data["y"]
    assert np.linalg.cond(hessian) < 1e4, "the problem must be strongly convex"
    best = np.linalg.solve(hessian, right)
    shared = {k: best[place[k, None]] for k in widths if k not in personal}
    return shared, [{k: best[place[k, i]] for k in widths if k in personal} for i in range(len(clients))], hessian
