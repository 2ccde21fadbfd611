"""Checks of columns and shares of rows, before any work is done with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from moiety.data.federated import Array, is_plain_name
from moiety.errors import FILL, as_array, is_real, must, refuse

PADDING = -100
"""The label of a position of a sequence that is not there."""


def check_column_names(columns: Mapping[str, Any], where: str = "") -> None:
    """Raise unless there is at least one column, all have plain names, and none has the name that padding uses.

    ``where`` ends the message, as in " in client 'ann'".
    """
    must(isinstance(columns, Mapping), "columns", f"a table of named columns{where}", type(columns).__name__)
    must(len(columns) > 0, "columns", "at least one named column", f"none{where}")
    for name in columns:
        must(is_plain_name(name), "columns", "named by letters, digits and underscores", f"{name!r}{where}")
        hint = "`mask` marks padding; rename the column."
        must(name != "mask", "columns", "of other names than `mask`", f"{name!r}{where}", hint)


def as_column(name: str, values: Any, where: str = "", place: Callable[[int], str] = "row {}".format) -> Array:
    """The values as an array of one of the dtypes that training knows: bool, uint8, int64, float32, float64.

    ``where`` and ``place`` are for messages, as in ``as_array``.
    """
    column = as_array(f"columns.{name}", values, "an array", where, place)
    must(column.ndim > 0, f"columns.{name}", "an array with an axis of rows", f"a single value{where}")
    hint = "Turn texts and objects into numbers first."
    must(column.dtype.kind in "biuf", f"columns.{name}", "of numbers or booleans", f"{column.dtype}{where}", hint)
    if column.dtype.kind == "f":
        return column.astype(np.float32 if column.dtype.itemsize <= 4 else np.float64, copy=False)
    if name == "y" and column.dtype.kind in "iu" and column.size and column.min() < 0:
        odd = (column < 0) & ((column != PADDING) | (column.ndim == 1))
        row = int(np.argmax(odd.reshape(len(column), -1).any(axis=1)))
        constraint = "labels from 0" if column.ndim == 1 else f"labels from 0, or {PADDING} for padding"
        value = f"{column[row].min()}{where} (row {row})"
        must(not odd.any(), "columns.y", constraint, value, "Number the classes 0, 1, ...")
    if column.dtype.kind == "b" or (column.dtype == np.uint8 and name != "y"):
        return column
    large = column.dtype == np.uint64 and column.size > 0 and int(column.max()) > np.iinfo(np.int64).max
    must(not large, f"columns.{name}", "within the range of int64", f"{column.max() if large else 0}{where}")
    return column.astype(np.int64, copy=False)


def check_finite(name: str, column: Array, where: Callable[[int], str]) -> None:
    """Raise where there is NaN or infinity; the message says where the first one is."""
    if column.dtype.kind != "f" or np.isfinite(column).all():
        return
    bad = ~np.isfinite(column).reshape(len(column), -1).all(axis=1)
    row = int(np.argmax(bad))
    value = column[row].reshape(-1)
    problem = f"{value[~np.isfinite(value)][0]} ({where(row)})"
    refuse(f"columns.{name}", "finite everywhere", problem, FILL)


def check_fractions(test: Any, validation: Any) -> None:
    """Raise unless both are shares of a client's rows that leave something to train on."""
    for name, share in (("test", test), ("validation", validation)):
        must(is_real(share) and 0 <= share < 1, name, "a share from 0 to below 1", repr(share))
    hint = "What is left is for training."
    must(test + validation < 1, "test + validation", "below 1", test + validation, hint)
