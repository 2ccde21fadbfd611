"""Per-FedAvg and APFL on least squares in NumPy: their pseudocode, and where it ends, by linear solves.

As in ``oracle_numpy``: f(w; a, y) = (a . w - y)^2 / 2, ``w`` a dict of blocks, rows in data order. With A_i and b_i of
``oracle_pulled.make_quadratic``, grad F_i(w) = A_i w - b_i.
"""

from __future__ import annotations

import numpy as np
import oracle_numpy as ref
from oracle_pulled import cut, make_quadratic


def limited(g, clip):
    """A gradient whose joint norm is at most ``clip``."""
    if clip is None:
        return g
    norm = np.sqrt(sum((x**2).sum() for x in g.values()))
    return {k: x * min(1.0, clip / (norm + 1e-6)) for k, x in g.items()}


def curvature(vector, data, rows, matrices):
    """The Hessian of the mean of f over ``rows`` times a vector, from the definition: A' A vector / n."""
    along = sum(data[matrices[k]][rows] @ vector[k] for k in vector)
    return {k: data[matrices[k]][rows].T @ along / len(rows) for k in vector}


def per_fedavg_local(w, data, index, *, alpha, beta, matrices, hessian, clip=None, weight_decay=0.0):
    """The local steps of Algorithm 1 of Fallah et al. 2020; ``index`` has D, D' and D'' of every step."""
    for inner, outer, curved in index:
        g, _ = ref.gradients(w, data, inner, matrices)
        ahead = {k: w[k] - alpha * g[k] for k in w}  # one step ahead
        g, _ = ref.gradients(ahead, data, outer, matrices)
        if hessian:
            bent = curvature(g, data, curved, matrices)
            g = {k: g[k] - alpha * bent[k] for k in w}
        g = limited(g, clip)
        w = {k: w[k] - beta * (g[k] + weight_decay * w[k]) for k in w}  # a step of w by the gradient there
    return w


def per_fedavg_limit(clients, weights, alpha, matrices, *, hessian):
    """The w where the mean of the steps of w is 0, and w - alpha grad F_i(w) for each client.

    With J_i = I - alpha A_i, w~ = J_i w + alpha b_i and grad F_i(w~) = A_i J_i w - J_i b_i, once more times J_i with
    the Hessian. Without it w solves sum A_i J_i w = sum J_i b_i, with it sum J_i A_i J_i w = sum J_i J_i b_i.
    """
    left, right = 0.0, 0.0
    for data, share in zip(clients, weights, strict=True):
        a, b = make_quadratic(data, matrices)
        j = np.eye(len(b)) - alpha * a
        again = j if hessian else np.eye(len(b))
        left, right = left + share * again @ a @ j, right + share * again @ j @ b
    w = np.linalg.solve(left, right)
    own = []
    for data in clients:
        a, b = make_quadratic(data, matrices)
        own.append(cut(w - alpha * (a @ w - b), clients, matrices))
    return cut(w, clients, matrices), own


def apfl_local(w, v, share, data, index, *, eta, eta_v, eta_share, matrices, clip=None, weight_decay=0.0):
    """The steps of Deng et al. 2020 between two synchronisations, with their rule for alpha."""
    for rows in index:
        mixture = {k: share * v[k] + (1 - share) * w[k] for k in w}
        at_w = limited(ref.gradients(w, data, rows, matrices)[0], clip)
        at_mixture = limited(ref.gradients(mixture, data, rows, matrices)[0], clip)
        along = sum((v[k] - w[k]) @ at_mixture[k] for k in w)
        w, v = (
            {k: w[k] - eta * (at_w[k] + weight_decay * w[k]) for k in w},
            {k: v[k] - eta_v * (share * at_mixture[k] + weight_decay * v[k]) for k in w},
        )
        share = min(max(share - eta_share * along, 0.0), 1.0)
    return w, v, share


def apfl_limit(clients, weights, matrices):
    """w* minimises the weighted mean; each mixture its client's own loss, whatever w* is, as long as alpha is not 0."""
    shared = ref.minimiser(clients, weights, matrices, ())[0]
    own = [cut(np.linalg.solve(*make_quadratic(data, matrices)), clients, matrices) for data in clients]
    return shared, own
