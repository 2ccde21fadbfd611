"""Who has what: a description of federated data to look at before training, and what to be warned of."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from moiety.data.federated import FederatedData

Array = NDArray[Any]
PARTS = ("train", "validation", "test")
SHOWN = 8
"""How many labels, columns or clients a line names at most."""
NUMBERS = 50_000_000
"""Means of clients are compared where there are at most this many of them."""
_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class Description:
    """A table of clients, and what sums it up.

    ``rows`` has an entry for each client: its rows in each part, and, where they can be told, ``classes`` (how many
    labels its training rows have), ``commonest`` (the label that most of them have), ``label_drift`` (the total
    variation distance of its label shares from those of all training rows, 0 to 1) and ``feature_drift`` (the largest
    distance of a feature's mean from that over all training rows, in standard deviations). ``labels`` has the share of
    each label, ``missing`` the number of training rows without a value for each feature, and ``warnings`` a sentence
    for everything to look at.
    """

    title: str
    rows: tuple[Mapping[str, Any], ...]
    labels: Mapping[str, float]
    missing: Mapping[str, int]
    warnings: tuple[str, ...]

    def lines(self) -> list[tuple[str, str]]:
        """What is printed: a name and a text for each line."""
        table = [("", self.title)]
        for key, words in _SUMMED.items():
            values = np.array([row[key] for row in self.rows if row.get(key) is not None], dtype=float)
            if len(values) and (key in ("train", "test") or values.any()):
                low, middle, high = np.quantile(values, (0, 0.5, 1))
                total = f", {values.sum():.0f} in all" if key in PARTS else ""
                table.append((words, f"{low:.4g} to {high:.4g} a client, median {middle:.4g}{total}"))
        if self.labels:
            table.append(("label shares", _list([f"{name} {share:.1%}" for name, share in self.labels.items()])))
            low = min(self.labels.values())
            ratio = f"{max(self.labels.values()) / low:.3g}" if low > 0 else "without end: a label has no training row"
            table.append(("imbalance", f"{ratio} (commonest label to rarest)"))
        if any(self.missing.values()):
            absent = [f"{name} {count}" for name, count in self.missing.items() if count]
            table.append(("missing values", f"{_list(absent)} (training rows)"))
        return [*table, *(("warning", text) for text in self.warnings)]

    def __str__(self) -> str:
        return "\n".join(f"{name:16}{text}".strip() if name else text for name, text in self.lines())

    def _repr_html_(self) -> str:
        cells = [f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in self.lines()]
        return f"<table>{''.join(cells)}</table>"


_SUMMED = {
    "train": "training rows",
    "validation": "validation rows",
    "test": "test rows",
    "classes": "labels",
    "label_drift": "label drift",
    "feature_drift": "feature drift",
}
"""The numbers of clients that are summed up, and their names in print."""


def describe_data(fed: FederatedData) -> Description:
    """The description of all clients that training sees."""
    sizes = {part: fed.sizes(part) for part in PARTS}
    columns: dict[str, Sequence[Any]] = {"client": [str(name) for name in fed.ids]}
    columns |= {part: size.tolist() for part, size in sizes.items()}
    labels: dict[str, float] = {}
    y = fed.columns.get("y")
    if fed.classes is not None and y is not None and y.ndim == 1:
        counts = _count_labels(fed, y)
        pooled = counts.sum(axis=0) / max(1, counts.sum())
        names = fed.class_names or [str(k) for k in range(counts.shape[1])]
        labels = {name: float(share) for name, share in zip(names, pooled, strict=True)}
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        columns["classes"] = (counts > 0).sum(axis=1).tolist()
        columns["commonest"] = [names[k] for k in counts.argmax(axis=1).tolist()]
        columns["label_drift"] = (np.abs(shares - pooled).sum(axis=1) / 2).tolist()
    drift = _measure_drift(fed)
    if drift is not None:
        columns["feature_drift"] = drift.tolist()
    rows = tuple(dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    features = fed.preprocessing.features if fed.preprocessing else ()
    missing = {feature.name: feature.missing for feature in features}
    title = repr(fed) + (f", and {len(fed.unseen)} clients that training never sees" if fed.unseen else "")
    return Description(title, rows, labels, missing, tuple(_warn(fed, rows)))


def _count_labels(fed: FederatedData, y: Array) -> Array:
    """How many training rows of each label every client has [clients, labels]."""
    width = max(int(fed.classes or 0), int(y.max(initial=0)) + 1, len(fed.class_names))
    client = np.repeat(np.arange(len(fed)), fed.sizes("train"))
    cells = np.bincount(client * width + y[fed.all_rows("train")], minlength=len(fed) * width)
    return cells.reshape(len(fed), width)


def _measure_drift(fed: FederatedData) -> Array | None:
    """The largest distance of a client's feature means from those of all, in standard deviations of training rows."""
    x = fed.columns.get("x")
    if x is None or x.dtype.kind != "f" or np.prod(x.shape[1:]) * len(fed) > NUMBERS or x.ndim < 2:
        return None
    width, sizes = int(np.prod(x.shape[1:])), np.maximum(fed.sizes("train"), 1)
    rows = fed.all_rows("train")
    owner = np.repeat(np.arange(len(fed)), fed.sizes("train"))
    shift = np.asarray(x[rows[:1]], dtype=np.float64).reshape(1, width)
    sums, squares = np.zeros((len(fed), width)), np.zeros(width)
    for at in range(0, len(rows), _ROWS_AT_ONCE):
        some = slice(at, at + _ROWS_AT_ONCE)
        values = np.asarray(x[rows[some]], dtype=np.float64).reshape(-1, width) - shift
        starts = np.flatnonzero(np.diff(owner[some], prepend=-1))  # rows are grouped by client
        sums[owner[some][starts]] += np.add.reduceat(values, starts, axis=0)
        squares += (values * values).sum(axis=0)
    mean = sums.sum(axis=0) / max(1, len(rows))
    deviation = np.sqrt(np.maximum(squares / max(1, len(rows)) - mean**2, 0.0))
    distance = np.abs(sums / sizes[:, None] - mean) / np.where(deviation > 0, deviation, 1.0)
    return np.asarray(distance.max(axis=1))


def _warn(fed: FederatedData, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for everything that a user should look at before training."""
    texts = []
    single = [f"{row['client']} ({row['commonest']})" for row in rows if row.get("classes") == 1]
    if single and fed.classes != 1:
        texts.append(f"{_count(single, 'client')} of one label alone: {_list(single)}.")
    without_test = [row["client"] for row in rows if row["test"] == 0] if fed.sizes("test").any() else []
    if without_test:
        texts.append(f"{_count(without_test, 'client')} with too few rows to test: {_list(without_test)}.")
    clients, parts = _count_duplicates(fed)
    if clients:
        texts.append(f"Different rows that several clients have: {clients}.")
    if parts:
        texts.append(f"Different rows both for training and for testing or validation: {parts}.")
    return texts


def _count_duplicates(fed: FederatedData) -> tuple[int, int]:
    """How many different rows several clients have, and how many are both in train and in another part."""
    hashes = np.zeros(fed.total, dtype=np.uint64)
    for place, column in enumerate(fed.columns[name] for name in sorted(fed.columns)):
        for at in range(0, fed.total, _ROWS_AT_ONCE):
            hashes[at : at + _ROWS_AT_ONCE] += _hash_rows(column[at : at + _ROWS_AT_ONCE], place)
    rows = np.concatenate([fed.all_rows(part) for part in PARTS])
    owner = np.concatenate([np.repeat(np.arange(len(fed)), fed.sizes(part)) for part in PARTS])
    trains = np.arange(len(rows)) < int(fed.sizes("train").sum())
    order = np.argsort(hashes[rows], kind="stable")
    values = hashes[rows][order]
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    low, high = (f.reduceat(owner[order], starts) for f in (np.minimum, np.maximum))
    some, every = (f.reduceat(trains[order], starts) for f in (np.logical_or, np.logical_and))
    return int((low != high).sum()), int((some & ~every).sum())


def _hash_rows(column: Array, place: int) -> NDArray[np.uint64]:
    """64 bits for each row of a column; equal rows have equal bits, others almost surely not."""
    flat = np.ascontiguousarray(column).reshape(len(column), -1)
    wide = flat.astype(np.float64) if flat.dtype.kind == "f" else flat.astype(np.int64)
    words = wide.view(np.uint64)
    with np.errstate(over="ignore"):
        # The finaliser of SplitMix64, with another constant for each place of a row.
        bits = words + np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits += np.uint64(place + 1) * np.uint64(0xD1B54A32D192ED03)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
        return np.asarray((bits ^ (bits >> np.uint64(31))).sum(axis=1, dtype=np.uint64))


def _count(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}" + ("s" if len(names) != 1 else "")


def _list(names: Sequence[str]) -> str:
    return ", ".join([*names[:SHOWN], *(["..."] if len(names) > SHOWN else [])])
