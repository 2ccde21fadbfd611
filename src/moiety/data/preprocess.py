"""What was fitted on a table's training rows, as one frozen value, and how it turns raw rows into the column ``x``.

Raw rows are numbers, one for each feature of the table: a category is the position of its name among the feature's
``categories`` (any other number: unknown), a boolean is 0 or 1, and NaN is missing. ``transform`` fills what is
missing, scales numbers, and lays categories out. It is all arithmetic, so a run can carry it into an ``nn.Module``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moiety.errors import must, refuse

Array = NDArray[Any]
Floats = NDArray[np.float64]
ENCODINGS = ("one-hot", "codes")
WIDER = 'Correct it, or say dtype="float64".'


@dataclass(frozen=True)
class Feature:
    """A column of the table that goes into ``x``.

    ``kind`` is ``number``, ``boolean`` or ``category``; ``encoding`` and ``categories`` are those of a category.
    ``fill`` takes the place of a missing value (None: missing values are refused), ``indicator`` adds a column that
    says where one was. ``mean`` and ``scale`` standardise a number. ``missing`` counts training rows without a value.

    >>> Feature("ward", "category", "one-hot", ("a", "b")).columns, Feature("age", mean=40.0, scale=10.0).columns
    (['ward=a', 'ward=b'], ['age'])
    """

    name: str
    kind: str = "number"
    encoding: str = ""
    categories: tuple[str, ...] = ()
    fill: float | None = None
    indicator: bool = False
    mean: float = 0.0
    scale: float = 1.0
    missing: int = 0

    @property
    def columns(self) -> list[str]:
        """The names of the columns of ``x`` that it becomes, its indicator aside."""
        if self.encoding == "one-hot":
            return [f"{self.name}={category}" for category in self.categories]
        return [self.name]


@dataclass(frozen=True)
class Preprocessing:
    """How rows of a table become rows of the columns ``x``, ``y`` and ``weight``.

    ``target`` and ``weights`` are the table's columns that became ``y`` and ``weight`` (divided by ``weight_mean``).
    ``class_names`` are the names of the labels 0, 1, ... where ``y`` holds labels, and ``dtype`` is the type of ``x``.

    >>> ward = Feature("ward", "category", "one-hot", ("a", "b"))
    >>> table = Preprocessing((Feature("age", mean=40.0, scale=10.0), ward), target="outcome")
    >>> table.names, table.transform([[50.0, 1.0]]).tolist()
    (['age', 'ward=a', 'ward=b'], [[1.0, 0.0, 1.0]])
    """

    features: tuple[Feature, ...] = ()
    target: str = ""
    class_names: tuple[str, ...] = ()
    weights: str = ""
    weight_mean: float = 1.0
    dtype: str = "float32"

    @property
    def names(self) -> list[str]:
        """The names of the columns of ``x``, in order."""
        plain = [name for feature in self.features for name in feature.columns]
        return [*plain, *(f"{feature.name} missing" for feature in self.features if feature.indicator)]

    def transform(self, raw: Any, place: Callable[[int], str] = "row {}".format) -> Array:
        """Raw rows [rows, features] as rows of ``x``; a value that may not be missing, or is infinite, is refused.

        ``place`` says where a row is.
        """
        rows = self.check_raw(raw)
        x = np.zeros((len(rows), len(self.names)), dtype=self.dtype)
        at, flag = 0, len(self.names) - sum(feature.indicator for feature in self.features)
        for k, feature in enumerate(self.features):
            values, width = rows[:, k], len(feature.columns)
            absent = np.isnan(values)
            if feature.fill is not None:
                values = np.where(absent, feature.fill, values)
            if feature.kind != "category":
                with np.errstate(over="ignore", invalid="ignore"):
                    x[:, at] = (values - feature.mean) / feature.scale
                self._check_range(feature, x[:, at], values, place)
            else:
                count = len(feature.categories)
                is_known = (values >= 0) & (values < count) & (values == np.floor(values))
                codes = np.where(is_known, values, count).astype(np.int64)
                if feature.encoding == "codes":
                    x[:, at] = codes
                else:
                    x[np.flatnonzero(is_known), at + codes[is_known]] = 1.0
            if feature.indicator:
                x[:, flag] = absent
                flag += 1
            at += width
        return x

    def _check_range(self, feature: Feature, column: Array, values: Floats, place: Callable[[int], str]) -> None:
        if not np.isfinite(column).all():
            row = int(np.argmin(np.isfinite(column)))
            constraint = f"within the range of {self.dtype}"
            refuse(f"column {feature.name!r}", constraint, f"{values[row]} at {place(row)}", WIDER)

    def check_raw(self, raw: Any) -> Floats:
        """Raw rows as float64 [rows, features]."""
        try:
            rows = np.asarray(raw, dtype=np.float64)
        except (ValueError, TypeError):
            hint = "Texts are known by the names of their columns: give a data frame."
            refuse("x", f"numbers for the {len(self.features)} features", "others", hint)
        constraint = f"of shape [rows, {len(self.features)}], a number for each of {self._list_features()}"
        must(rows.ndim == 2 and rows.shape[1] == len(self.features), "x", constraint, f"shape {list(rows.shape)}")
        for k, feature in enumerate(self.features):
            odd = np.isinf(rows[:, k]) if feature.fill is not None else ~np.isfinite(rows[:, k])
            if odd.any():
                row = int(np.argmax(odd))
                hint = "Nothing was fitted for missing values here."
                refuse(f"column {feature.name!r}", "finite", f"{rows[row, k]} at row {row}", hint)
        return rows

    def _list_features(self) -> str:
        names = [feature.name for feature in self.features]
        return ", ".join([*names[:5], *(["..."] if len(names) > 5 else [])])

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON holds it."""
        table: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return table

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Preprocessing:
        """What ``as_dict`` gave."""
        features = tuple(Feature(**{**each, "categories": tuple(each["categories"])}) for each in table["features"])
        rest = {each.name: table[each.name] for each in fields(cls) if each.name not in ("features", "class_names")}
        return cls(features=features, class_names=tuple(table["class_names"]), **rest)

    def digest(self) -> str:
        """A short hash that tells it from others."""
        content = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def sort_labels(labels: list[str]) -> list[str]:
    """Names in the order of numbers where all are whole numbers, else in the order of texts.

    >>> sort_labels(["10", "9"]), sort_labels(["10", "9", "b"])
    (['9', '10'], ['10', '9', 'b'])
    """
    whole = all(label.removeprefix("-").isdecimal() for label in labels)
    return sorted(labels, key=(lambda label: (int(label), label)) if whole else None)


class Sums(NamedTuple):
    """What a client could send for means and standard deviations: for each column, over the values that are there.

    ``rows`` counts them, ``total`` is the sum of their distances from ``around``, a point that all clients know (0, or
    a first guess of the mean: the nearer, the fewer digits cancel), and ``squares`` is the sum of squared distances
    from the client's own mean.
    """

    rows: Floats
    total: Floats
    squares: Floats
    around: Floats

    @property
    def mean(self) -> Floats:
        """The mean of each column, ``around`` where it has no value."""
        return self.around + self.total / np.maximum(self.rows, 1)

    @property
    def scale(self) -> Floats:
        """The standard deviation of each column (over n), 1 where it is constant up to rounding."""
        count = np.maximum(self.rows, 1)
        variance, unit = self.squares / count, np.finfo(np.float64).eps
        constant = variance <= count * unit * variance + (count * self.mean * unit) ** 2
        return np.where(constant, 1.0, np.sqrt(variance))


def sum_rows(rows: Any, around: Any = 0.0) -> Sums:
    """The sums of one client's rows [rows, columns]; NaN is a value that is not there."""
    values = np.asarray(rows, dtype=np.float64)
    point = np.broadcast_to(np.asarray(around, dtype=np.float64), values.shape[1:])
    present = ~np.isnan(values)
    count = present.sum(axis=0).astype(np.float64)
    distance = np.where(present, values - point, 0.0)
    total = distance.sum(axis=0)
    rest = np.where(present, distance - total / np.maximum(count, 1), 0.0)
    # The second term is 0 but for the rounding of the mean, which it takes out.
    squares = (rest * rest).sum(axis=0) - rest.sum(axis=0) ** 2 / np.maximum(count, 1)
    return Sums(count, total, squares, point)


def add_sums(parts: Sequence[Sums]) -> Sums:
    """The sums of all rows from the sums of some rows each (Chan, Golub and LeVeque 1983), all around one point.

    >>> both = add_sums([sum_rows([[1.0], [3.0]]), sum_rows([[8.0]])])
    >>> both.mean.tolist(), (both.scale**2).round(9).tolist()
    ([4.0], [8.666666667])
    """
    whole = parts[0]
    for part in parts[1:]:
        must(np.array_equal(part.around, whole.around), "around", "the same for all sums", "others")
        rows = whole.rows + part.rows
        gap = part.total / np.maximum(part.rows, 1) - whole.total / np.maximum(whole.rows, 1)
        between = gap**2 * whole.rows * part.rows / np.maximum(rows, 1)
        whole = Sums(rows, whole.total + part.total, whole.squares + part.squares + between, whole.around)
    return whole
