"""FedSpa and Sub-FedAvg in NumPy, place by place from their descriptions, for a linear network of two matrices.

f(W, V, b; x, y) = |x W V + b - y|^2 / 2. With r = x W V + b - y, means over the rows: df/dV = (x W)^T r, df/dW =
x^T r V^T, df/db = r.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from moiety.task import from_functions

SHAPES = {"W": (4, 5), "V": (5, 3), "b": (3,)}


def task(seed=0, dtype=torch.float64):
    draw = np.random.default_rng(seed)
    init = {name: torch.tensor(draw.normal(size=shape) / 2, dtype=dtype) for name, shape in SHAPES.items()}

    def loss(p, d):
        return (d["x"] @ p["W"] @ p["V"] + p["b"] - d["y"]).square().sum(-1) / 2

    return from_functions(init, loss)


def clients(sizes, seed=1):
    draw = np.random.default_rng(seed)
    return [{"x": draw.normal(size=(n, 4)), "y": draw.normal(size=(n, 3)) + i} for i, n in enumerate(sizes)]


def gradient(p, data):
    x, y = data["x"], data["y"]
    r = x @ p["W"] @ p["V"] + p["b"] - y
    return {"W": x.T @ r @ p["V"].T / len(x), "V": (x @ p["W"]).T @ r / len(x), "b": r.mean(0)}


def loss(p, data):
    return float((np.square(data["x"] @ p["W"] @ p["V"] + p["b"] - data["y"]).sum(-1) / 2).mean())


def apply(p, mask):
    return {name: np.where(mask[name], value, 0) if name in mask else value for name, value in p.items()}


def train(p, mask, data, *, steps, lr, decay=0.0):
    for _ in range(steps):
        g = gradient(p, data)
        p = {name: p[name] - lr * apply({name: g[name] + decay * p[name]}, mask)[name] for name in p}
    return p


def first(places, key):
    """Places by a key, of equal keys the earlier first."""
    return sorted(places, key=lambda i: (key(i), i))


def search_mask(mask, weight, score, rate, regrow_pruned=True):
    """Prune by magnitude, regrow by score, for one layer. Those just pruned compete, or come last."""
    old, w, s = mask.reshape(-1), weight.reshape(-1), score.reshape(-1)
    on = [i for i in range(old.size) if old[i]]
    off = [i for i in range(old.size) if not old[i]]
    count = math.floor(rate * len(on))
    removals = first(on, lambda i: abs(w[i]))[:count]
    last = first(off, lambda i: -s[i]) + first(removals, lambda i: -s[i])
    additions = (first(off + removals, lambda i: -s[i]) if regrow_pruned else last)[:count]
    new = old.copy()
    new[removals] = False
    new[additions] = True
    return new.reshape(mask.shape)


def fedspa(w, masks, data, cohorts, *, lr, steps, rate, decay=0.0, search=True, regrow_pruned=True):
    """Algorithms 1 and 2: the server's weights and every client's mask after the rounds."""
    masks = [dict(m) for m in masks]
    for t, cohort in enumerate(cohorts):
        alpha = 0.5 * rate * (1 + math.cos(t / (len(cohorts) - 1) * math.pi))
        changes = []
        for k in cohort:
            start = apply(w, masks[k])
            end = train(start, masks[k], data[k], steps=steps, lr=lr, decay=decay)
            changes.append({name: start[name] - end[name] for name in w})
            if search:
                dense = gradient(end, data[k])
                masks[k] = {
                    n: search_mask(m, end[n], np.abs(dense[n]), alpha, regrow_pruned) for n, m in masks[k].items()
                }
        w = {name: w[name] - sum(u[name] for u in changes) / len(cohort) for name in w}
    return w, masks


def without_least(mask, weight, rate, final):
    on = [i for i in range(mask.size) if mask.reshape(-1)[i]]
    count = min(math.floor(rate * len(on)), len(on) - final)
    new = mask.reshape(-1).copy()
    new[first(on, lambda i: abs(weight.reshape(-1)[i]))[:count]] = False
    return new.reshape(mask.shape)


def sub_fedavg(w, data, cohorts, final, *, lr, epochs, rate, most_loss, distance):
    """Sub-FedAvg (Un) with full batches; "right often enough" is a loss of at most ``most_loss``."""
    masks = [{name: np.ones(SHAPES[name], bool) for name in final} for _ in data]
    for cohort in cohorts:
        ends = []
        for k in cohort:
            after = train(apply(w, masks[k]), masks[k], data[k], steps=1, lr=lr)
            one = {n: without_least(m, after[n], rate, final[n]) for n, m in masks[k].items()}
            end = train(after, masks[k], data[k], steps=epochs - 1, lr=lr)
            two = {n: without_least(m, end[n], rate, final[n]) for n, m in masks[k].items()}
            gap = sum((one[n] != two[n]).sum() for n in one) / sum(m.size for m in one.values())
            if loss(end, data[k]) <= most_loss and gap >= distance:
                masks[k] = two
            ends.append((apply(end, masks[k]), masks[k]))
        new = {}
        for name, value in w.items():
            new[name] = value.copy()
            for place in np.ndindex(value.shape):
                have = [p[name][place] for p, m in ends if name not in m or m[name][place]]
                if have:
                    new[name][place] = sum(have) / len(have)
        w = new
    return w, masks
