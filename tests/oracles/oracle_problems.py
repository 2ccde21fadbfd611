"""Small federated problems with every number in sight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from moiety.data import FederatedData
from moiety.engines.base import ClientFunction
from moiety.engines.problem import Problem, to_tensors
from moiety.split import Split
from moiety.task import from_functions

Columns = Mapping[str, np.ndarray]


def federated(train: Sequence[Columns], test: Sequence[Columns | None] | None = None, names=None) -> FederatedData:
    """Rows exactly in the order given: a client's training rows, then its test rows."""
    test = test or [None] * len(train)
    pieces, bounds, at = [], [], 0
    for ours, theirs in zip(train, test, strict=True):
        n = len(next(iter(ours.values())))
        m = 0 if theirs is None else len(next(iter(theirs.values())))
        pieces += [ours] if theirs is None else [ours, theirs]
        bounds.append([at, at + n, at + n, at + n + m])
        at += n + m
    columns = {k: np.concatenate([np.asarray(p[k]) for p in pieces]) for k in train[0]}
    names = names or [f"client-{i}" for i in range(len(train))]
    return FederatedData(columns, np.array(bounds, dtype=np.int64), names)


def split_of(shared=(), personal=(), sizes=None) -> Split:
    sizes = sizes or dict.fromkeys((*shared, *personal), 1)
    return Split(tuple(shared), tuple(personal), (), frozenset(), sizes)


def scalar_task(u=1.0, v=0.0, dtype=torch.float64):
    """f(u, v; a, b, y) = (a u + b v - y)^2 / 2 with two numbers u and v."""
    init = {"u": torch.tensor(float(u), dtype=dtype), "v": torch.tensor(float(v), dtype=dtype)}
    return from_functions(init, lambda p, d: (d["a"] * p["u"] + d["b"] * p["v"] - d["y"]).square() / 2)


def vector_task(u, v, dtype=torch.float64):
    """f(u, v; a, b, y) = (a . u + b . v - y)^2 / 2 with vectors u and v."""
    init = {"u": torch.tensor(u, dtype=dtype), "v": torch.tensor(v, dtype=dtype)}
    predict = lambda p, d: d["a"] @ p["u"] + d["b"] @ p["v"]  # noqa: E731
    return from_functions(init, lambda p, d: (predict(p, d) - d["y"]).square() / 2, predict)


def vector_clients(sizes: Sequence[int], p: int = 2, q: int = 2, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Least squares of different curvature for each client.

    Client i's a is scaled by 1 + i / 4, its targets shifted.
    """
    rng = np.random.default_rng(seed)
    clients = []
    for i, n in enumerate(sizes):
        a, b = rng.normal(size=(n, p)) * (1 + i / 4), rng.normal(size=(n, q))
        w = rng.normal(size=p + q) + i
        clients.append({"a": a, "b": b, "y": np.hstack([a, b]) @ w + rng.normal(size=n) / 2})
    return clients


def even_clients(sizes: Sequence[int], seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Least squares in (u, v) of two numbers each whose Hessians have eigenvalues 1 to 4, turned differently for

    each.
    """
    rng = np.random.default_rng(seed)
    clients = []
    for i, n in enumerate(sizes):
        left, _ = np.linalg.qr(rng.normal(size=(n, 4)))
        right, _ = np.linalg.qr(rng.normal(size=(4, 4)))
        rows = np.sqrt(n) * left * np.sqrt([1.0, 2.0, 3.0, 4.0]) @ right
        y = rows @ (rng.normal(size=4) * 2 + i) + rng.normal(size=n)
        clients.append({"a": rows[:, :2], "b": rows[:, 2:], "y": y})
    return clients


def problem_of(task, data: FederatedData, split: Split, seed: int = 0) -> Problem:
    return Problem(task, split, data, to_tensors(data.columns, task, torch.device("cpu")), seed)


def image_clients(sizes: Sequence[int], features: int = 4, classes: int = 3, seed: int = 0, dtype=np.float32):
    """Labelled rows for module tests."""
    rng = np.random.default_rng(seed)
    return [
        {"x": rng.normal(size=(n, features)).astype(dtype) + i / 3, "y": rng.integers(0, classes, size=n)}
        for i, n in enumerate(sizes)
    ]


def serve(engine, problem, function, jobs, received, info):
    """What an engine, given by its class, makes of a function that is not one of an algorithm's own."""
    phases = tuple(jobs[0].rows)
    return list(engine(problem, {"asked": ClientFunction(function, phases)}).map("asked", jobs, received, info))


def next_server(algorithm, server, updates, share=1.0):
    """The server after a round of these updates, which come from this share of all clients."""
    if algorithm.aggregator is None:  # nothing is sent
        return server
    return algorithm.server_update(server, algorithm.aggregator(updates), share)


def engine_name(engine) -> str:
    return getattr(engine, "func", engine).name
