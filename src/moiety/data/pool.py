"""The rows that are dealt to clients: a data set by name, your arrays, or federated data whose rows are dealt anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from moiety.data.build import as_table, labels_of
from moiety.data.checks import check_finite
from moiety.data.federated import Array, FederatedData
from moiety.data.sources import SOURCES, Source
from moiety.errors import choice, kind

OWN = "your data"
"""What messages call rows that have no name."""
Rows = str | Mapping[str, Any] | FederatedData
"""What can be dealt."""


def open_rows(argument: str, rows: Rows, **options: Any) -> tuple[str, Source]:
    """The name of what is to be dealt, and its rows; ``argument`` is what messages call it.

    All rows of federated data are one pool, whatever part they were in; its clients are the natural ones. Arrays have
    no natural clients. The features of either are not standardised. What was fitted for federated data, and the names
    of its classes, stay with its rows.
    """
    if isinstance(rows, FederatedData):
        return OWN, _from_federated(rows)
    if isinstance(rows, Mapping):
        columns, _ = as_table(rows)
        for name, column in columns.items():
            check_finite(name, column, "row {}".format)
        return OWN, Source(columns, _count_classes(columns))
    hint = "Tables are for from_frame, data sets of other libraries for from_datasets."
    kind(argument, rows, str, "the name of a data set, a table of arrays or FederatedData", hint)
    choice(argument, rows, SOURCES)
    return rows, SOURCES[rows](**options)


def _from_federated(fed: FederatedData) -> Source:
    sizes = fed.bounds[:, 3] - fed.bounds[:, 0]
    before = np.cumsum(sizes) - sizes
    place = np.arange(int(sizes.sum())) + np.repeat(fed.bounds[:, 0] - before, sizes)
    columns = {name: np.asarray(column)[place] for name, column in fed.columns.items()}
    client = np.repeat(np.arange(len(fed)), sizes)
    names = np.array([str(name) for name in fed.ids])
    source = Source(columns, fed.classes or _count_classes(columns), client=client, names=names)
    recipe = fed.preprocessing
    return source if recipe is None else replace(source, finish=lambda fed: replace(fed, preprocessing=recipe))


def _count_classes(columns: Mapping[str, Array]) -> int:
    labels = labels_of(columns)
    return 0 if labels is None else int(labels.max()) + 1
