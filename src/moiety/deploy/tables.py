"""Tables on devices: every device reads its own file, the server gets sums and names, all apply one recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from moiety.data import FederatedData, Preprocessing
from moiety.data.agree import agree_on_recipe, match_recipe, summarise_table
from moiety.data.frame import OPTIONS, Frame, apply_recipe, open_rows
from moiety.data.tables import open_table
from moiety.errors import choice, kind, must

CLIENT = "moiety:client"
"""A column that stands for the device in its own table."""
GIVEN = ("client", "unseen_clients", "on_disk")
"""Options of ``from_frame`` that a device's table does not have."""


@dataclass(frozen=True)
class Table:
    """What ``table`` made: where a device's rows are, and how they are read."""

    path: str | None
    options: dict[str, Any]


def table(path: str | None = None, *, target: str, **options: Any) -> Table:
    """The rows of each device are in a CSV or Parquet file of its own.

    Means, scales, categories and classes are agreed on by sums and names: no row leaves its device.

    Args:
        path: of the file on every device, or a pattern of several; by default what the node's configuration calls
            ``data``.
        target: the column to predict, as for ``moiety.data.from_frame``.
        **options: others of ``from_frame``: ``features``, ``drop``, ``time``, ``group``, ``weights``, ``task``,
            ``categories``, ``missing`` (``mean`` or ``indicator``: a median is no sum), ``standardise``, ``test``,
            ``validation``, ``dtype`` and ``seed``.

    >>> rows = table("rows.csv", target="outcome", drop=["patient"], standardise=True)  # then app(..., data=rows)
    >>> rows.path, rows.options["target"], rows.options["drop"]
    ('rows.csv', 'outcome', ['patient'])
    >>> table(target="outcome", missing="median")
    Traceback (most recent call last):
    moiety.errors.MoietyError: `missing` must be mean or indicator on devices, got median. It is no sum.
    """
    if path is not None:
        kind("path", path, str, "the path of CSV or Parquet files")
    for name in options:
        choice("table", name, [each for each in OPTIONS if each not in GIVEN])
    must(options.get("missing") != "median", "missing", "mean or indicator on devices", "median", "It is no sum.")
    test = options.get("test", 0.2)
    must(np.ndim(test) == 0, "test", "a share, or the name of a column", "a list")
    return Table(path, {**OPTIONS, "client": CLIENT, "target": target, **options})


def describe_table(table: Table, config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the server is told of a device's table: how many rows of each part, and sums and names."""
    frame = _open(table, config, name)
    sizes = [int(size) for size in np.diff(frame.split.bounds[0])]
    return {"sizes": sizes, "columns": {}, "classes": None, "table": summarise_table(frame, table.options)}


def load_table(table: Table, config: Mapping[str, Any], name: str, recipe: Preprocessing) -> FederatedData:
    """A device's own rows, as the recipe makes them."""
    return replace(apply_recipe(match_recipe(_open(table, config, name), recipe), recipe), ids=[name])


def fit_recipe(data: Any, descriptions: Sequence[Mapping[str, Any]]) -> Preprocessing | None:
    """The recipe that all devices apply; None where they have no tables."""
    return agree_on_recipe([each["table"] for each in descriptions], data.options) if isinstance(data, Table) else None


def recipe_columns(recipe: Preprocessing) -> dict[str, list[Any]]:
    """The columns that a recipe makes, without rows."""
    y = "int64" if recipe.class_names else recipe.dtype
    columns: dict[str, list[Any]] = {"x": [recipe.dtype, [len(recipe.names)]], "y": [y, []]}
    return columns | ({"weight": [recipe.dtype, []]} if recipe.weights else {})


def _open(table: Table, config: Mapping[str, Any], name: str) -> Frame:
    path = table.path or config.get("data")
    must(isinstance(path, str), "data", "the path of a table in the node's configuration", repr(path))
    file = open_table(path)
    blocks = [pa.table(block.columns) for block in file.read(list(file.types))]
    whole = pa.concat_tables(blocks)
    must(CLIENT not in whole.column_names, "data", f"a table without a column {CLIENT}", path)
    return open_rows(whole.append_column(CLIENT, pa.array([name] * len(whole))), table.options)
