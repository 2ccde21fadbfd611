"""Related binary tasks out of one data set of many classes, one for each client; and principal components."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moiety.data.build import Piece, gather
from moiety.data.checks import check_count, check_seed
from moiety.data.federated import Columns, FederatedData, Ints, Numbered
from moiety.data.load import standardised
from moiety.data.sources import SOURCES
from moiety.errors import choice, must, number
from moiety.random import generator

_TRIES = 1000


def binary_tasks(
    source: str,
    *,
    clients: int = 30,
    per_class: int = 10,
    merged: float = 0.3,
    validation_per_class: int = 10,
    test_per_class: int = 10,
    seed: int = 0,
) -> FederatedData:
    """Every client tells one class of its own from a class 0 that all have in common.

    Appendix E.1 of "Global and Local Learning for Distributed Personalization". Some classes, drawn, are merged to the
    class 0, and each client gets as many rows of it as it needs. The rows of the other classes are cut into buckets of
    that many rows of one class, and each client gets a bucket, drawn uniformly, as its class 1. No row goes to two
    clients, nor to two parts of one.

    The paper gives a client M rows of either class and splits "each client's data" at random, without saying whether M
    counts before or after. Here it counts the rows to train on.

    Args:
        source: a data set of ``SOURCES`` with one label a row; its own training and test rows are one pool.
        clients: how many.
        per_class: M, the rows of either class that a client trains on.
        merged: the share of classes, rounded down, that make up class 0. Where those drawn have too few rows for all
            clients they are drawn anew.
        validation_per_class: rows of either class for validation.
        test_per_class: rows of either class for testing.
        seed: of all draws.

    Returns:
        The data, labels 0 and 1. ``task`` is a column with the original class of the client's class 1. Features of
        tabular data are standardised over all clients' training rows.

    >>> binary_tasks("digits", clients=5, seed=1)
    FederatedData(5 clients, 300 rows; x float32 [64], y int64, task int64)
    """
    choice("source", source, SOURCES)
    check_seed(seed)
    check_count("clients", clients, 1)
    check_count("per_class", per_class, 1)
    check_count("validation_per_class", validation_per_class, 0)
    check_count("test_per_class", test_per_class, 0)
    number("merged", merged, "> 0 and < 1", lambda m: 0 < m < 1)
    made = SOURCES[source]()
    pool = _pooled(source, made.columns, made.test)
    rng = generator(int(seed), "data", "tasks", source)
    sizes = (per_class, validation_per_class, test_per_class)
    zero, one, task = _dealt(pool["y"], made.classes, clients, sum(sizes), merged, rng)
    owner = np.tile(np.repeat(np.arange(clients), sum(sizes)), 2)
    part = np.tile(np.repeat(np.arange(3, dtype=np.int8), sizes), 2 * clients)
    rows = np.concatenate([zero.ravel(), one.ravel()])
    label = np.repeat([0, 1], clients * sum(sizes))
    columns = {"x": pool["x"][rows], "y": label, "task": task[owner]}
    fed = gather([Piece(columns, np.arange(len(rows)), owner, part)], Numbered(clients), 2)
    return standardised(fed, made.standardise)


def _pooled(source: str, train: Columns, test: Columns | None) -> dict[str, np.ndarray]:
    """A data set's own training and test rows one below the other; x as a row of numbers."""
    fits = {"x", "y"} <= train.keys() and train["y"].ndim == 1
    must(fits, "source", "a data set with features x and one label y a row", source)
    both = [train] if test is None else [train, test]
    x, y = (np.concatenate([np.asarray(each[name]) for each in both]) for name in ("x", "y"))
    return {"x": x.reshape(len(x), -1).astype(np.float32, copy=False), "y": y}


def _dealt(
    y: Ints, classes: int, clients: int, size: int, merged: float, rng: np.random.Generator
) -> tuple[Ints, Ints, Ints]:
    """Rows [clients, size] of class 0 and of class 1, and the class that the latter is."""
    count = int(np.floor(merged * classes))
    must(0 < count < classes, "merged", f"a share that leaves classes on both sides of {classes}", merged)
    for _ in range(_TRIES):
        zero = rng.choice(classes, size=count, replace=False)
        inside = np.isin(y, zero)
        pieces = [np.flatnonzero(y == k) for k in range(classes) if k not in zero]
        buckets = [rng.permutation(p)[: len(p) // size * size].reshape(-1, size) for p in pieces]
        others = np.concatenate(buckets)
        if inside.sum() >= clients * size and len(others) >= clients:
            common = rng.choice(np.flatnonzero(inside), size=(clients, size), replace=False)
            taken = others[rng.choice(len(others), size=clients, replace=False)]
            return common, taken, y[taken[:, 0]]
    hint = "Ask for fewer clients or fewer rows of each."
    must(False, "clients", f"such that {count} merged classes have {size} rows for each", clients, hint)
    raise AssertionError


def principal_components(fed: FederatedData, count: int) -> FederatedData:
    """``x`` in its first ``count`` principal components, found on the training rows of all clients.

    Centred by their mean; each component has the sign that makes its largest weight positive.
    """
    x = np.asarray(fed.columns["x"], dtype=np.float64).reshape(fed.total, -1)
    seen = x[fed.all_rows("train")]
    check_count("count", count, 1)
    must(count <= min(seen.shape), "count", f"<= {min(seen.shape)}, the features and training rows", count)
    mean = seen.mean(axis=0)
    _, _, axes = np.linalg.svd(seen - mean, full_matrices=False)
    axes = axes[:count]
    signs = np.sign(axes[np.arange(count), np.abs(axes).argmax(axis=1)])
    turned = ((x - mean) @ (axes * signs[:, None]).T).astype(np.float32)
    return replace(fed, columns={**fed.columns, "x": turned}, spec={})
