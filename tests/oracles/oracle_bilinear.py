"""A linear representation under a linear head, y ~ h . B x, in NumPy: the model of the theory of Collins et al. 2021.

f(B, h; x, y) = (h . B x - y)^2 / 2, so with r = h . B x - y the gradients are r h x' in B and r B x in h.
"""

from __future__ import annotations

import numpy as np
import torch
from oracle_problems import split_of

from moiety.task import from_functions

START = {"B": np.array([[0.5, -0.3, 0.2], [0.1, 0.4, -0.6]]), "h": np.array([0.7, -0.4])}
SIZES = {"B": 6, "h": 2}


def clients(sizes, seed=0):
    """Data with a representation in common and a head for each."""
    rng = np.random.default_rng(seed)
    body = rng.normal(size=(2, 3))
    data = []
    for i, n in enumerate(sizes):
        x = rng.normal(size=(n, 3))
        data.append({"x": x, "y": x @ body.T @ (rng.normal(size=2) + i / 2) + rng.normal(size=n) / 10})
    return data


def task():
    init = {k: torch.tensor(value) for k, value in START.items()}
    return from_functions(init, lambda p, d: (d["x"] @ p["B"].T @ p["h"] - d["y"]).square() / 2)


def split(personal):
    return split_of([k for k in START if k != personal], [personal], SIZES)


def gradient(w, data, rows):
    """Of the mean of f over some rows, in both blocks."""
    x, y = data["x"][rows], data["y"][rows]
    r = x @ w["B"].T @ w["h"] - y
    return {"B": np.outer(w["h"], r @ x) / len(y), "h": w["B"] @ (r @ x) / len(y)}


def agree(run, shared, owns):
    """A run has these shared blocks, and every client these blocks of its own."""
    for k, value in shared.items():
        np.testing.assert_allclose(run.shared_parameters()[k].numpy(), value, rtol=1e-10, atol=1e-12)
    for i, own in enumerate(owns):
        for k, value in own.items():
            np.testing.assert_allclose(run.parameters(i)[k].numpy(), value, rtol=1e-10, atol=1e-12)
