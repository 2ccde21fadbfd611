"""What every row of a table says besides its features: its client, its target, and what orders, groups or weighs it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from moiety.data.build import as_names
from moiety.data.federated import Array, Ints, Names, check_names
from moiety.data.fitting import check_spaces, check_texts, find_row
from moiety.data.preprocess import sort_labels
from moiety.data.tables import Table, is_number, is_text
from moiety.data.values import (
    REMOVE,
    Vocabulary,
    as_label,
    check_complete,
    is_number_text,
    read_integers,
    read_numbers,
    read_times,
)
from moiety.errors import kind, must, near, refuse

NAMES = "texts or whole numbers to name clients"
FEW_VALUES = 10
"""Of so many different floating numbers, all whole, one asks whether they are labels."""
MOST_CLASSES = 100
"""Whole numbers with more distinct values than that are not taken for labels unless the user says so."""


class Rows(NamedTuple):
    """What a table says of each row besides features: client, target, time, group, weight, and if it is for testing."""

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
            twins = [repr(each) for each in table.types if each.strip() == name.strip()]
            hint = f"Its name is {twins[0]}, with spaces." if twins else near(name, table.types)
            refuse(role, "a column of the table", repr(name), hint)
    twice = [name for name in roles.values() if list(roles.values()).count(name) > 1]
    must(not twice, "columns", "of one use each", f"{twice[:1]} for {[r for r, n in roles.items() if n in twice]}")
    return dict(roles)


def read_roles(table: Table, roles: Mapping[str, str], task: str | None) -> Rows:
    """Go through the table once, for all columns that are no features."""
    by_name = {name: role for role, name in roles.items()}
    clients, groups, words = Vocabulary(), Vocabulary(), Vocabulary()
    labels, explicit = _read_as_labels(table.types[roles["target"]], roles["target"], task)
    _check_client_type(roles["client"], table.types[roles["client"]])
    parts: dict[str, list[Array]] = {role: [] for role in roles}
    for block in table.read(list(by_name)):
        for name, column in block.columns.items():
            role, place = by_name[name], block.place
            if role in ("client", "group"):
                check_complete(name, column, place)
                values: Array = (clients if role == "client" else groups).encode(column)
            elif role == "target":
                if labels == "words":
                    check_complete(name, column, place)
                    values = words.encode(column)
                else:
                    read = read_integers if labels == "integers" else partial(read_numbers, hint=REMOVE)
                    values = read(name, column, place)
            elif role == "time":
                values = read_times(name, column, place)
            elif role == "test":
                check_complete(name, column, place)
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
    y, class_names = _encode_target(columns["target"], roles["target"], labels, words, explicit, table)
    _warn_of_target(roles["target"], y, class_names, task)
    owner, names = _order_clients(columns["client"], clients, roles["client"], table)
    rest = [columns.get(role) for role in ("time", "group", "weights", "test")]
    return Rows(owner, names, y, class_names, *rest)


def _check_client_type(name: str, type_: pa.DataType) -> None:
    if pa.types.is_null(type_):
        refuse(f"column {name!r}", "given in every row", "nothing at all")
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    fits = pa.types.is_integer(value) or is_text(value)
    hint = "Where one is missing, whole numbers may have become floating." if pa.types.is_floating(value) else ""
    must(fits, f"column {name!r}", NAMES, str(type_), hint)


def _read_as_labels(type_: pa.DataType, name: str, task: str | None) -> tuple[str, bool]:
    """How a target is read: as ``words``, ``integers`` or ``numbers``; and whether the user asked for labels."""
    explicit = task == "classification"
    if is_text(type_) or pa.types.is_boolean(type_) or pa.types.is_dictionary(type_):
        must(task != "regression" or not is_text(type_), f"column {name!r}", "numbers for a regression", str(type_))
        return ("numbers" if task == "regression" else "words"), explicit
    if pa.types.is_integer(type_):
        return ("numbers" if task == "regression" else "integers"), explicit
    if not is_number(type_):
        problem = "no value at all" if pa.types.is_null(type_) else str(type_)
        refuse(f"column {name!r}", "of numbers, booleans or texts to be the target", problem)
    return ("integers" if explicit else "numbers"), explicit


def _encode_target(
    values: Array, name: str, labels: str, words: Vocabulary, explicit: bool, table: Table
) -> tuple[Array, tuple[str, ...]]:
    """The target as labels with names, or as numbers without."""
    if labels == "numbers":
        return values, ()
    if labels == "integers":
        distinct, codes = np.unique(values, return_inverse=True)
        hint = 'Say task="regression" or task="classification".'
        few = explicit or len(distinct) <= MOST_CLASSES
        must(few, f"column {name!r}", f"labels with at most {MOST_CLASSES} different values", len(distinct), hint)
        return codes.astype(np.int64), tuple(str(value) for value in distinct.tolist())
    texts = [as_label(value) for value in words.codes]
    classes = sort_labels(list(dict.fromkeys(texts)))
    check_spaces(table, name, classes)
    if not explicit:
        check_texts(table, name, texts, 'say task="classification"')
    position = {label: place for place, label in enumerate(classes)}
    return np.array([position[label] for label in texts], dtype=np.int64)[values], tuple(classes)


def _warn_of_target(name: str, y: Array, class_names: tuple[str, ...], task: str | None) -> None:
    """Say that all labels are the same, or that whole numbers, stored as floating ones, are not taken for labels."""
    if len(class_names) == 1:
        text = f"Column {name!r}: all rows have the label {class_names[0]!r}, so there is nothing to tell apart."
        warnings.warn(text, stacklevel=5)
    if task is None and not class_names and (y[:1000] == np.floor(y[:1000])).all():
        values = np.unique(y)
        if len(values) <= FEW_VALUES and (values == np.floor(values)).all():
            numbers = ", ".join(f"{value:g}" for value in values)
            text = f'Column {name!r}: {numbers} are taken for numbers to predict. Say task="classification" for labels.'
            warnings.warn(text, stacklevel=5)


def _order_clients(codes: Ints, clients: Vocabulary, name: str, table: Table) -> tuple[Ints, Names]:
    """The client of each row by its position among all, which are ordered by id, and their names."""
    values = list(clients.codes)
    if name in table.as_written:
        values = _read_written([str(value) for value in values], name, table)
    texts = [value for value in values if isinstance(value, str)]
    check_names("client", texts)
    largest = 0 if texts else max((value for value in values if isinstance(value, int)), default=0)
    must(largest < 2**63, "client", "numbers within the range of int64, or texts", largest)
    check_spaces(table, name, texts)
    ids = np.array(values, dtype=np.str_) if texts else np.array(values, dtype=np.int64)
    distinct, position = np.unique(ids, return_inverse=True)
    return position.astype(np.int64)[codes], as_names(distinct)


def _read_written(texts: list[str], name: str, table: Table) -> list[object]:
    """The clients of a CSV file: whole numbers where all are written as such, else the texts that are written."""
    if all(re.fullmatch(r"0|-?[1-9]\d{0,17}", text) for text in texts):
        return [int(text) for text in texts]
    if all(map(is_number_text, texts)):
        odd = next((text for text in texts if not text.strip("+-").isdecimal()), None)
        if odd is not None:
            refuse(f"column {name!r}", NAMES, f"{odd!r} at {find_row(table, name, odd)}", "Write 1 and not 1.0.")
    spellings: dict[str, str] = {}
    for text in filter(str.isdecimal, texts):
        first = spellings.setdefault(text.lstrip("0"), text)
        if first != text:
            pair = f"{first!r} and {text!r} at {find_row(table, name, text)}"
            refuse(f"column {name!r}", "of clients that are written in one way", pair, "Write them alike.")
    return list(texts)
