"""What every row of a table says besides its features: its client, its target, and what orders, groups or weighs it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from moiety.data.build import as_names
from moiety.data.federated import Array, Ints, Names, check_names
from moiety.data.fitting import check_texts
from moiety.data.tables import Table, is_number, is_text
from moiety.data.values import (
    REMOVE,
    Vocabulary,
    as_label,
    check_given,
    read_integers,
    read_numbers,
    read_times,
    sort_labels,
)
from moiety.errors import kind, must, near, refuse

MOST_CLASSES = 100
"""Whole numbers with more distinct values than that are not taken for labels unless the user says so."""


class Rows(NamedTuple):
    """What every row says besides its features: its client, its target, and what orders, groups or weighs it."""

    owner: Ints
    names: Names
    y: Array
    class_names: tuple[str, ...]
    time: Array | None
    group: Ints | None
    weight: Array | None
    test: Array | None


def check_roles(table: Table, roles: Mapping[str, Any]) -> dict[str, str]:
    """The column of each role, which must be there; no column has two roles."""
    for role, name in roles.items():
        kind(role, name, str, "the name of a column")
        if name not in table.types:
            refuse(role, "a column of the table", repr(name), near(name, table.types))
    twice = [name for name in roles.values() if list(roles.values()).count(name) > 1]
    must(not twice, "columns", "of one use each", f"{twice[:1]} for {[r for r, n in roles.items() if n in twice]}")
    return dict(roles)


def read_roles(table: Table, roles: Mapping[str, str], task: str | None) -> Rows:
    """Go through the table once, for all columns that are no features."""
    by_name = {name: role for role, name in roles.items()}
    clients, groups, words = Vocabulary(), Vocabulary(), Vocabulary()
    labels, asked = _read_as_labels(table.types[roles["target"]], roles["target"], task)
    _check_client_type(roles["client"], table.types[roles["client"]])
    parts: dict[str, list[Array]] = {role: [] for role in roles}
    for block in table.read(list(by_name)):
        for name, column in block.columns.items():
            role, place = by_name[name], block.place
            if role in ("client", "group"):
                check_given(name, column, place)
                values: Array = (clients if role == "client" else groups).encode(column)
            elif role == "target":
                if labels == "words":
                    check_given(name, column, place)
                    values = words.encode(column)
                else:
                    read = read_integers if labels == "integers" else partial(read_numbers, hint=REMOVE)
                    values = read(name, column, place)
            elif role == "time":
                values = read_times(name, column, place)
            elif role == "test":
                check_given(name, column, place)
                must(pa.types.is_boolean(column.type), f"column {name!r}", "booleans for test", str(column.type))
                values = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.bool_)
            else:
                values = read_numbers(name, column, place, hint=REMOVE)
                low = int(np.argmin(values)) if len(values) else 0
                fits = not len(values) or values[low] >= 0
                must(fits, f"column {name!r}", ">= 0", f"{values[low] if len(values) else 0} at {place(low)}")
            parts[role].append(values)
    must(sum(map(len, parts["client"])) > 0, "data", "at least one row", "none")
    columns: dict[str, Any] = {role: np.concatenate(parts.pop(role)) for role in list(parts)}
    y, class_names = _encode_target(columns["target"], roles["target"], labels, words, asked, table)
    owner, names = _order_clients(columns["client"], clients)
    rest = [columns.get(role) for role in ("time", "group", "weights", "test")]
    return Rows(owner, names, y, class_names, *rest)


def _check_client_type(name: str, type_: pa.DataType) -> None:
    if pa.types.is_null(type_):
        refuse(f"column {name!r}", "given in every row", "nothing at all")
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    fits = pa.types.is_integer(value) or is_text(value)
    hint = "Where one is missing, whole numbers may have become floating." if pa.types.is_floating(value) else ""
    must(fits, f"column {name!r}", "texts or whole numbers to name clients", str(type_), hint)


def _read_as_labels(type_: pa.DataType, name: str, task: str | None) -> tuple[str, bool]:
    """How a target is read: as ``words``, ``integers`` or ``numbers``; and whether the user asked for labels."""
    asked = task == "classification"
    if is_text(type_) or pa.types.is_boolean(type_) or pa.types.is_dictionary(type_):
        must(task != "regression" or not is_text(type_), f"column {name!r}", "numbers for a regression", str(type_))
        return ("numbers" if task == "regression" else "words"), asked
    if pa.types.is_integer(type_):
        return ("numbers" if task == "regression" else "integers"), asked
    if not is_number(type_):
        got = "no value at all" if pa.types.is_null(type_) else str(type_)
        refuse(f"column {name!r}", "of numbers, booleans or texts to be the target", got)
    return ("integers" if asked else "numbers"), asked


def _encode_target(
    values: Array, name: str, labels: str, words: Vocabulary, asked: bool, table: Table
) -> tuple[Array, tuple[str, ...]]:
    """The target as labels with names, or as numbers without."""
    if labels == "numbers":
        return values, ()
    if labels == "integers":
        distinct, codes = np.unique(values, return_inverse=True)
        hint = 'Say task="regression" or task="classification".'
        few = asked or len(distinct) <= MOST_CLASSES
        must(few, f"column {name!r}", f"labels with at most {MOST_CLASSES} different values", len(distinct), hint)
        return codes.astype(np.int64), tuple(str(value) for value in distinct.tolist())
    given = [as_label(value) for value in words.codes]
    ordered = sort_labels(list(dict.fromkeys(given)))
    if not asked:
        check_texts(table, name, given, 'say task="classification"')
    position = {label: place for place, label in enumerate(ordered)}
    return np.array([position[label] for label in given], dtype=np.int64)[values], tuple(ordered)


def _order_clients(codes: Ints, clients: Vocabulary) -> tuple[Ints, Names]:
    """The client of each row by its position among all, which are ordered by id, and their names."""
    given = list(clients.codes)
    texts = [value for value in given if isinstance(value, str)]
    check_names("client", texts)
    largest = 0 if texts else max((value for value in given if isinstance(value, int)), default=0)
    must(largest < 2**63, "client", "numbers within the range of int64, or texts", largest)
    ids = np.array(given, dtype=np.str_) if texts else np.array(given, dtype=np.int64)
    distinct, position = np.unique(ids, return_inverse=True)
    return position.astype(np.int64)[codes], as_names(distinct)
