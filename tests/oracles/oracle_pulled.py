"""Ditto, pFedMe and finetuning on least squares in NumPy: their pseudocode, and where it ends, by linear solves.

As in ``oracle_numpy``: f(w; a, y) = (a . w - y)^2 / 2, ``w`` a dict of blocks, rows in data order.
"""

from __future__ import annotations

import numpy as np
import oracle_numpy as ref


def pulled_steps(v, w, data, index, rate, strength, matrices, momentum=0.0, weight_decay=0.0, clip=None):
    """Steps v <- v - rate (grad F(v) + strength (v - w)): the update of v_k in Algorithm 1 of Li et al. 2021.

    Also line 7 of Algorithm 1 of Dinh et al. 2020 where ``index`` names one minibatch K times.
    """
    v = {k: x.copy() for k, x in v.items()}
    velocity = {k: 0 * x for k, x in v.items()}
    for rows in index:
        g, _ = ref.gradients(v, data, rows, matrices)
        if clip is not None:
            norm = np.sqrt(sum((x**2).sum() for x in g.values()))
            g = {k: x * min(1.0, clip / (norm + 1e-6)) for k, x in g.items()}
        for k in v:
            velocity[k] = momentum * velocity[k] + g[k] + weight_decay * v[k] + strength * (v[k] - w[k])
        v = {k: v[k] - rate * velocity[k] for k in v}
    return v


def ditto_round(w, vs, clients, weights, *, eta, eta_v, pull, index_w, index_v, matrices, **options):
    """One round of Algorithm 1 of Li et al. 2021 with all clients; G is FedAvg."""
    uploads, after = [], []
    for i, data in enumerate(clients):
        w_k, _ = ref.descend(w, data, index_w[i], dict.fromkeys(w, eta), matrices, **options)
        uploads.append({k: w_k[k] - w[k] for k in w})
        after.append(pulled_steps(vs[i], w, data, index_v[i], eta_v, pull, matrices, **options))
    change = ref.aggregate(uploads, weights)
    return {k: w[k] + change[k] for k in w}, after


def pfedme_round(w, clients, weights, *, eta, eta_v, pull, inner, beta, index, matrices, **options):
    """One round of Algorithm 1 of Dinh et al. 2020 with all clients: the new w, and the last theta of each."""
    ends, thetas = [], []
    for data, minibatches in zip(clients, index, strict=True):
        w_i, theta = w, w  # line 5
        for rows in minibatches:  # line 6
            theta = pulled_steps(theta, w_i, data, [rows] * inner, eta_v, pull, matrices, **options)  # line 7
            w_i = {k: w_i[k] - eta * pull * (w_i[k] - theta[k]) for k in w}  # line 8
        ends.append(w_i)
        thetas.append(theta)
    mean = ref.aggregate(ends, weights)
    return {k: (1 - beta) * w[k] + beta * mean[k] for k in w}, thetas  # line 10


def make_quadratic(data, matrices):
    """A_i and b_i with grad F_i(w) = A_i w - b_i, all blocks one below the other."""
    rows = np.hstack([data[m] for m in matrices.values()])
    return rows.T @ rows / len(rows), rows.T @ data["y"] / len(rows)


def cut(vector, clients, matrices):
    """The blocks of a vector."""
    ends = np.cumsum([clients[0][m].shape[1] for m in matrices.values()])[:-1]
    return dict(zip(matrices, np.split(vector, ends), strict=True))


def proximal(w, data, pull, matrices):
    """argmin_v F_i(v) + (pull / 2) ||v - w||^2 = (A_i + pull I)^-1 (b_i + pull w)."""
    a, b = make_quadratic(data, matrices)
    return np.linalg.solve(a + pull * np.eye(len(b)), b + pull * w)


def ditto_limit(clients, weights, pull, matrices):
    """w*, the minimiser of the weighted mean of F_k, and v_k, the proximal points of w*."""
    shared = ref.minimiser(clients, weights, matrices, ())[0]
    w = np.concatenate([shared[k] for k in matrices])
    return shared, [cut(proximal(w, data, pull, matrices), clients, matrices) for data in clients]


def pfedme_limit(clients, weights, pull, matrices):
    """The w at which the weighted mean of the envelopes' gradients pull (w - theta_i(w)) is 0, and theta_i(w).

    theta_i(w) = M_i (b_i + pull w) with M_i = (A_i + pull I)^-1, so sum alpha_i (I - pull M_i) w = sum alpha_i M_i b_i.
    """
    left, right = 0.0, 0.0
    for data, alpha in zip(clients, weights, strict=True):
        a, b = make_quadratic(data, matrices)
        inverse = np.linalg.inv(a + pull * np.eye(len(b)))
        left, right = left + alpha * (np.eye(len(b)) - pull * inverse), right + alpha * inverse @ b
    w = np.linalg.solve(left, right)
    own = [cut(proximal(w, data, pull, matrices), clients, matrices) for data in clients]
    return cut(w, clients, matrices), own


def pulled_limit(clients, start, pull, matrices):
    """Ditto as finetuning: w stays, v_k ends at its proximal point."""
    w = np.concatenate([start[k] for k in matrices])
    return dict(start), [cut(proximal(w, data, pull, matrices), clients, matrices) for data in clients]


def finetuned_limit(clients, start, matrices, personal):
    """The shared blocks stay at ``start``; each client's personal ones minimise its own F_i there."""
    shared = {k: start[k] for k in matrices if k not in personal}
    own = []
    for data in clients:
        rest = data["y"] - sum(data[matrices[k]] @ w for k, w in shared.items())
        rows = np.hstack([data[matrices[k]] for k in personal])
        best = np.linalg.lstsq(rows, rest, rcond=None)[0]
        own.append(cut(best, clients, {k: matrices[k] for k in personal}))
    return shared, own
