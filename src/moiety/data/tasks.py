"""Related binary tasks from one data set of many classes, one for each client; and principal components."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moiety.data.build import Piece, gather
from moiety.data.federated import Array, Columns, FederatedData, Ints, NumberNames
from moiety.data.load import standardise
from moiety.data.pool import Rows, open_rows
from moiety.errors import SEED, MoietyError, message, must, proper_fraction, whole
from moiety.random import generator

_TRIES = 1000


def binary_tasks(
    source: Rows,
    *,
    clients: int = 30,
    per_class: int = 10,
    merged: float = 0.3,
    validation_per_class: int = 10,
    test_per_class: int = 10,
    seed: int = 0,
) -> FederatedData:
    """Every client distinguishes a class of its own from a class 0 that all clients have in common.

    Appendix E.1 of "Global and Local Learning for Distributed Personalization". A random set of classes is merged into
    class 0, and each client gets as many rows of it as it needs. The rows of each other class are cut into buckets of
    that size, and each client gets a bucket, drawn uniformly, as its class 1. No row goes to two clients, nor to two
    parts of one.

    The paper gives a client M rows of either class and splits "each client's data" at random, without saying whether M
    counts before or after. Here it counts the rows to train on.

    Args:
        source: a data set of ``SOURCES`` with one label a row; or a table of arrays ``x`` and ``y``; or
            ``FederatedData``. Training and test rows are one pool.
        clients: how many clients.
        per_class: M, the rows of either class that a client trains on.
        merged: the share of classes, rounded down, that make up class 0. If they have too few rows for all clients,
            other classes are drawn.
        validation_per_class: rows of either class for validation.
        test_per_class: rows of either class for testing.
        seed: seed of all draws.

    Returns:
        The data, labels 0 and 1. ``task`` is a column with the original class of the client's class 1. Features of
        tabular data are standardised over all clients' training rows.

    >>> binary_tasks("digits", clients=5, seed=1)
    FederatedData(5 clients, 300 rows; x float32 [64], y int64, task int64)
    """
    whole("seed", seed, -SEED, SEED)
    whole("clients", clients, 1)
    whole("per_class", per_class, 1)
    whole("validation_per_class", validation_per_class, 0)
    whole("test_per_class", test_per_class, 0)
    proper_fraction("merged", merged)
    name, data = open_rows("source", source)
    x, y = _pool(name, data.columns, data.test)
    rng = generator(int(seed), "data", "tasks", name)
    sizes = (per_class, validation_per_class, test_per_class)
    zero, one, task = _deal(y, data.classes, clients, sum(sizes), merged, rng)
    owner = np.tile(np.repeat(np.arange(clients), sum(sizes)), 2)
    part = np.tile(np.repeat(np.arange(3, dtype=np.int8), sizes), 2 * clients)
    rows = np.concatenate([zero.ravel(), one.ravel()])
    label = np.repeat([0, 1], clients * sum(sizes))
    columns = {"x": x[rows], "y": label, "task": task[owner]}
    fed = gather([Piece(columns, np.arange(len(rows)), owner, part)], NumberNames(clients), 2)
    return standardise(fed, data.standardise)


def _pool(source: str, train: Columns, test: Columns | None) -> tuple[Array, Array]:
    """Features, as rows of numbers, and labels of a data set's own training and test rows together."""
    fits = {"x", "y"} <= train.keys() and train["y"].ndim == 1
    must(fits, "source", "a data set with features x and one label y a row", source)
    both = [train] if test is None else [train, test]
    x, y = (np.concatenate([np.asarray(each[name]) for each in both]) for name in ("x", "y"))
    return x.reshape(len(x), -1).astype(np.float32, copy=False), y


def _deal(
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
            bucket = others[rng.choice(len(others), size=clients, replace=False)]
            return common, bucket, y[bucket[:, 0]]
    hint = "Use fewer clients or fewer rows of each."
    raise MoietyError(message("clients", f"such that {count} merged classes have {size} rows for each", clients, hint))


def principal_components(fed: FederatedData, count: int) -> FederatedData:
    """``x`` in its first ``count`` principal components, computed from the training rows of all clients.

    Rows are centred by their mean; each component has the sign that makes its largest weight positive.

    >>> import moiety as mo
    >>> mo.data.principal_components(mo.data.load("digits", clients=3, partition=mo.data.iid()), 2)
    FederatedData(3 clients, 1797 rows; x float32 [2], y int64)
    """
    x = np.asarray(fed.columns["x"], dtype=np.float64).reshape(fed.total, -1)
    training = x[fed.all_rows("train")]
    whole("count", count, 1)
    must(count <= min(training.shape), "count", f"<= {min(training.shape)}, the features and training rows", count)
    mean = training.mean(axis=0)
    _, _, axes = np.linalg.svd(training - mean, full_matrices=False)
    axes = axes[:count]
    signs = np.sign(axes[np.arange(count), np.abs(axes).argmax(axis=1)])
    components = ((x - mean) @ (axes * signs[:, None]).T).astype(np.float32)
    return replace(fed, columns={**fed.columns, "x": components}, spec={})
