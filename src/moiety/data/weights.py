"""Weights of classes, for labels that are not balanced."""

from __future__ import annotations

import numpy as np

from moiety.data.federated import FederatedData
from moiety.errors import must


def class_weights(data: FederatedData) -> list[float]:
    """The weights that let every class count alike in training: rows / (classes x rows of the class).

    Only counts of training rows enter, which clients could send as sums. A class without training rows has weight 0.

    >>> import moiety as mo
    >>> fed = mo.data.from_clients({"a": {"x": np.zeros((4, 1)), "y": np.array([0, 0, 0, 1])}}, test=0)
    >>> [round(weight, 2) for weight in class_weights(fed)]
    [0.67, 2.0]
    """
    y = data.columns.get("y")
    must(y is not None and y.ndim == 1 and y.dtype.kind in "iub", "data", "with a column y of classes", data)
    assert y is not None
    rows = np.concatenate([np.arange(start, stop) for start, stop in data.bounds[:, :2]])
    counts = np.bincount(np.asarray(y[rows]).astype(np.int64), minlength=data.classes or 0)
    present = counts > 0
    weights = np.divide(counts.sum(), present.sum() * counts, out=np.zeros(len(counts)), where=present)
    return [float(weight) for weight in weights]
