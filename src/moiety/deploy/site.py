"""A device's own data: loaded on the device, never sent. The server knows its clients by name and size alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moiety.data import FederatedData, from_clients
from moiety.errors import kind, must


def name_node(config: Mapping[str, Any], node: int) -> str:
    """The name of a client: ``name`` of its node's configuration, else ``partition-id``, else the node's id."""
    return str(config.get("name", config.get("partition-id", node)))


def as_own_data(name: str, data: Any) -> FederatedData:
    """What the user's function gave, as data of one client."""
    if isinstance(data, FederatedData):
        must(len(data) == 1, "data", "of one client on a device", f"{len(data)} clients")
        return replace(data, ids=[name], spec={})
    kind("data", data, Mapping, "FederatedData of one client, or a table of columns")
    return from_clients({name: data})


def load_function(data: Callable[[Mapping[str, Any]], Any], config: Mapping[str, Any], name: str) -> FederatedData:
    """The data that the user's function gives for a node."""
    return as_own_data(name, data(config))


def place_client(data: FederatedData, position: int) -> FederatedData:
    """The same data with its one client at a position among others that have no rows here.

    Keys and shuffles belong to positions, so a device computes what a simulation computes for that client.
    """
    bounds = np.zeros((position + 1, 4), dtype=np.int64)
    bounds[position] = data.bounds[0]
    return replace(data, bounds=bounds, ids=["elsewhere"] * position + [str(data.ids[0])])


def describe_rows(data: FederatedData) -> dict[str, Any]:
    """What the server is told of a device's data: how many rows of each part, and the columns without their rows."""
    return {
        "sizes": [int(size) for size in np.diff(data.bounds[0])],
        "columns": {name: [str(column.dtype), list(column.shape[1:])] for name, column in data.columns.items()},
        "classes": data.classes,
    }


def data_without_rows(
    names: list[str], descriptions: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]
) -> FederatedData:
    """Data of clients that the server knows by name and size alone: every row is the same row of zeros."""
    sizes = np.array([each["sizes"] for each in descriptions], dtype=np.int64)
    ends = np.cumsum(sizes.reshape(-1)).reshape(sizes.shape)
    bounds = np.column_stack([np.concatenate([[0], ends[:-1, 2]]), ends])
    total = int(ends[-1, 2])
    columns = {
        name: np.broadcast_to(np.zeros((1, *shape), dtype=dtype), (total, *shape))
        for name, (dtype, shape) in layout.items()
    }
    classes = [each["classes"] for each in descriptions if each["classes"] is not None]
    return FederatedData(columns, bounds, np.asarray(names, dtype=np.str_), max(classes) if classes else None)


def describe_layout(description: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same on all devices: columns; of tables their features, and whether they have classes."""
    table = description.get("table")
    layout: dict[str, Any] = {"columns": description["columns"]}
    if table is not None:
        layout |= {"features": table["features"], "classes": bool(table["classes"]), "weight": table["weight"] is None}
    return layout


def check_alike(name: str, description: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Refuse a device whose data are not laid out as those of the others."""
    mine, others = describe_layout(description), describe_layout(first)
    for key in others:
        must(mine.get(key) == others[key], key, f"as on other devices: {others[key]}", f"{mine.get(key)} of {name}")
