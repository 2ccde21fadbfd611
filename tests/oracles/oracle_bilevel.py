"""Mishchenko et al. 2023 in NumPy, from the paper's formulas: the problem of its Example 1, F_m, and where F = 0.

f_m(theta, w) = ||H theta - c||^2 / 2 + ||A theta + B w - y||^2 / 2, the first term being phi_m. A client's rows a, b,
h, y, c are sqrt(n) times those of A, B, H, y, c, since a loss is a mean over rows.
"""

from __future__ import annotations

import numpy as np
import torch

from moiety.task import from_functions


def task(theta, w, phi=True, dtype=torch.float64):
    """f_m as a mean over rows; without phi where there is none."""
    init = {"u": torch.tensor(theta, dtype=dtype), "v": torch.tensor(w, dtype=dtype)}

    def loss(p, d):
        fit = (d["a"] @ p["u"] + d["b"] @ p["v"] - d["y"]).square() / 2
        return fit + (d["h"] @ p["u"] - d["c"]).square() / 2 if phi else fit

    return from_functions(init, loss)


def clients(count, rows, d, e, seed=0, noise=0.0, phi=True):
    """Clients whose rows agree on one theta*, up to ``noise``, but each with a w* of its own; and theta*."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=d)
    data = []
    for m in range(count):
        n = rows + m
        a, b = rng.normal(size=(n, d)) * (1 + m / 3), rng.normal(size=(n, e))
        y = a @ theta + b @ (3 * rng.normal(size=e) + m) + noise * rng.normal(size=n)
        h = rng.normal(size=(n, d)) / 2
        data.append({"a": a, "b": b, "y": y} | ({"h": h, "c": h @ theta} if phi else {}))
    return data, theta


def matrices(data):
    n = len(data["y"])
    zero = {"h": 0 * data["a"], "c": 0 * data["y"]}
    return {k: x / np.sqrt(n) for k, x in (zero | data).items()}


def inner(data, theta):
    """w*(theta) = B^+ (y - A theta), appendix A.1."""
    m = matrices(data)
    return np.linalg.pinv(m["b"]) @ (m["y"] - m["a"] @ theta)


def operator(data, theta, w=None):
    """grad_1 f_m(theta, w), by default at w*(theta), where it is F_m(theta)."""
    m = matrices(data)
    w = inner(data, theta) if w is None else w
    return m["h"].T @ (m["h"] @ theta - m["c"]) + m["a"].T @ (m["a"] @ theta + m["b"] @ w - m["y"])


def outside(data):
    """I - B B^+, the projection away from what w can reach."""
    b = matrices(data)["b"]
    return np.eye(len(b)) - b @ np.linalg.pinv(b)


def cocoercive(data):
    """L = 2 max(L_phi, ||A^T (I - B B^+) A||), Example 1."""
    m = matrices(data)
    return 2 * max(np.linalg.norm(m["h"].T @ m["h"], 2), np.linalg.norm(m["a"].T @ outside(data) @ m["a"], 2))


def bilevel_minimiser(some, weights):
    """argmin_theta sum_m alpha_m ||(I - B B^+)(A theta - y)||^2 (proof of Theorem 5) as one least-squares problem."""
    scaled = [np.sqrt(alpha) * outside(data) for data, alpha in zip(some, weights, strict=True)]
    left = np.vstack([s @ matrices(data)["a"] for s, data in zip(scaled, some, strict=True)])
    right = np.concatenate([s @ matrices(data)["y"] for s, data in zip(scaled, some, strict=True)])
    return np.linalg.lstsq(left, right, rcond=None)[0]


def risk(some, weights, theta):
    """sum_m alpha_m f_m(theta, w*_m(theta)) without phi."""
    total = 0.0
    for data, alpha in zip(some, weights, strict=True):
        m = matrices(data)
        total += alpha * np.sum((m["a"] @ theta + m["b"] @ inner(data, theta) - m["y"]) ** 2) / 2
    return total
