"""Federated data from arrays at hand: checks, the split of every client's rows, and the grouping by client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moiety.data.apportion import assign_parts
from moiety.data.checks import as_column, check_column_names, check_finite, check_fractions
from moiety.data.federated import Array, Columns, FederatedData, Ints, Names, NumberNames, check_names, describe_array
from moiety.errors import SEED, as_array, must, refuse, whole
from moiety.random import generator

_ROWS_AT_ONCE = 65_536


class Piece(NamedTuple):
    """Some rows of a pool of columns, with the client and the part (0 train, 1 validation, 2 test) of each."""

    columns: Columns
    rows: Ints
    owner: Ints
    part: NDArray[np.int8]


def from_arrays(
    columns: Mapping[str, Any],
    client: Any,
    *,
    test: float | ArrayLike = 0.2,
    validation: float = 0.0,
    seed: int = 0,
) -> FederatedData:
    """Federated data from columns of rows and the client of each row.

    Args:
        columns: arrays (or torch tensors, or lists) with one leading axis of rows. Integer ``y`` are labels from 0.
        client: the client of each row, ints or strings. Clients are ordered by id. Their names are texts: where ids
            are numbers that do not count from 0, client 3 is ``"3"``.
        test: the share of each client's rows kept for testing (labels in proportion where ``y`` holds one label a
            row; a client with two rows or more has at least one), or a boolean for each row.
        validation: the share of each client's rows kept for validation, taken out of the rest.
        seed: seed of the split.

    Returns:
        The data, rows grouped by client. float16 becomes float32 and integers become int64, but uint8 columns other
        than ``y`` stay as they are.

    >>> fed = from_arrays({"x": [[0.0], [1.0], [2.0], [3.0]], "y": [0, 0, 1, 1]}, client=["b", "a", "b", "a"], test=0.5)
    >>> [str(name) for name in fed.ids], fed.sizes("train").tolist(), fed.sizes("test").tolist(), fed.classes
    (['a', 'b'], [1, 1], [1, 1], 2)
    """
    table, rows = as_table(columns, place=lambda row: f"client {_name_at(client, row)}, row {row}")
    ids = _as_ids(client, rows)
    names, owner = np.unique(ids, return_inverse=True)
    _check_finite(table, ids)
    return make(table, owner.astype(np.int64), as_names(names), test=test, validation=validation, seed=seed)


def from_clients(
    clients: Mapping[str, Mapping[str, Any]] | Mapping[int, Mapping[str, Any]],
    *,
    test: float = 0.2,
    validation: float = 0.0,
    seed: int = 0,
) -> FederatedData:
    """Federated data from a table of clients, each with its own columns; their order is kept.

    The other arguments are those of ``from_arrays``.

    >>> fed = from_clients({"b": {"x": [1.0, 2.0]}, "a": {"x": [3.0, 4.0, 5.0]}}, test=0)
    >>> [str(name) for name in fed.ids], fed.sizes("train").tolist(), fed.client("a")["x"].tolist()
    (['b', 'a'], [2, 3], [3.0, 4.0, 5.0])
    """
    must(len(clients) > 0, "clients", "at least one client", "none")
    wrong = next((key for key in clients if isinstance(key, bool) or not isinstance(key, str | int | np.integer)), None)
    must(wrong is None, "clients", "named by strings or integers", repr(wrong))
    keys = [str(key) for key in clients]
    check_names("clients", keys)  # before NumPy cuts off what is 0 at the end of a text
    most, times = Counter(keys).most_common(1)[0]
    must(times == 1, "clients", "of different names", f"{most!r} {times} times", "1 and '1' are one name.")
    tables, sizes = [], []
    for key, values in zip(keys, clients.values(), strict=True):
        table, rows = as_table(values, f" in client {key!r}")
        _check_finite(table, [key] * rows)
        tables.append(table)
        sizes.append(rows)
        _check_alike(key, table, keys[0], tables[0])
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    owner = np.repeat(np.arange(len(keys)), sizes)
    has_numbers = all(key == str(i) for i, key in enumerate(keys))
    names: Names = NumberNames(len(keys)) if has_numbers else np.array(keys)
    return make(columns, owner, names, test=test, validation=validation, seed=seed)


def make(
    columns: Columns,
    owner: Ints,
    names: Names,
    *,
    test: Any,
    validation: float,
    seed: int,
    more: Sequence[Piece] = (),
) -> FederatedData:
    """Federated data from checked columns: each client's rows are split, then grouped.

    Args:
        columns: one array for each column.
        owner: the client of each row, -1 for rows that are not used.
        names: the names of the clients.
        test: a share, or a boolean for each row that is used, as in ``from_arrays``.
        validation: as in ``from_arrays``.
        seed: as in ``from_arrays``.
        more: rows of other columns, with their clients and parts, that are added.
    """
    whole("seed", seed, -SEED, SEED)
    labels, rows = labels_of(columns), np.flatnonzero(owner >= 0)
    labels, owner = None if labels is None else labels[rows], owner[rows]
    by_row = np.ndim(test) > 0
    if by_row:
        test = np.asarray(test)
        shape = f"{test.dtype} of shape {list(test.shape)}"
        must(test.dtype == np.bool_ and test.shape == rows.shape, "test", f"a share or {len(rows)} booleans", shape)
    check_fractions(0.0 if by_row else test, validation)
    rng = generator(int(seed), "data", "split")
    part = assign_parts(owner, labels, len(names), test=test, validation=validation, generator=rng)
    trains = np.bincount(owner[part == 0], minlength=len(names)) > 0
    if not trains.all():
        first = str(names[int(np.argmin(trains))])
        refuse("test", "such that every client keeps a training row", f"none for client {first!r}")
    classes = None if labels is None else int(labels.max()) + 1
    return gather([Piece(columns, rows, owner, part), *more], names, classes)


def gather(pieces: Sequence[Piece], names: Names, classes: int | None) -> FederatedData:
    """Copy the rows of all pieces into new columns, ordered by client and part; ties keep their order."""
    key = np.concatenate([piece.owner * 3 + piece.part for piece in pieces])
    position = np.argsort(np.argsort(key, kind="stable"))  # where each row goes
    columns: dict[str, Array] = {}
    for name, like in pieces[0].columns.items():
        columns[name] = np.empty((len(key), *like.shape[1:]), dtype=like.dtype)
        start = 0
        for piece in pieces:
            # In blocks, so that a large column is never in memory three times.
            for at in range(0, len(piece.rows), _ROWS_AT_ONCE):
                rows = piece.rows[at : at + _ROWS_AT_ONCE]
                columns[name][position[start : start + len(rows)]] = piece.columns[name][rows]
                start += len(rows)
    ends = np.cumsum(np.bincount(key, minlength=3 * len(names))).reshape(len(names), 3)
    starts = np.concatenate([[0], ends[:-1, 2]])
    return FederatedData(columns, np.column_stack([starts, ends]), names, classes)


def labels_of(columns: Columns) -> Ints | None:
    """Column ``y`` where it holds one integer label a row."""
    y = columns.get("y")
    return y if y is not None and y.ndim == 1 and y.dtype.kind in "iu" else None


def as_names(ids: Array) -> Names:
    """The names of clients with these distinct ids; 0, 1, ... need no text each."""
    if ids.dtype.kind == "U":
        return ids
    if np.array_equal(ids, np.arange(len(ids))):
        return NumberNames(len(ids))
    width = max(len(str(ids.min())), len(str(ids.max())))
    return ids.astype(f"<U{width}")


def _as_ids(client: Any, rows: int) -> Array:
    ids = as_array("client", client, "one id for each row")
    must(ids.ndim == 1 and len(ids) == rows, "client", f"one id for each of {rows} rows", f"shape {list(ids.shape)}")
    texts = ids.dtype.kind == "O" and all(isinstance(value, str) for value in ids)
    if texts or (ids.dtype.kind == "U" and not isinstance(client, np.ndarray)):
        check_names("client", ids if texts else client)  # before NumPy cuts off what is 0 at the end of a text
        ids = ids.astype(np.str_)
    must(ids.dtype.kind in "iuU", "client", "integers or strings", ids.dtype)
    return ids


def _name_at(client: Any, row: int) -> str:
    """The client of a row, for messages; how many ids there are is not checked yet."""
    ids = np.ravel(as_array("client", client, "one id for each row"))
    return repr(str(ids[row])) if row < len(ids) else "unknown"


def as_table(
    columns: Mapping[str, Any], where: str = "", place: Callable[[int], str] = "row {}".format
) -> tuple[dict[str, Array], int]:
    """The columns as arrays of one length, and that length."""
    check_column_names(columns, where)
    table = {name: as_column(name, values, where, place) for name, values in columns.items()}
    lengths = {name: len(column) for name, column in table.items()}
    hint = "Every column has one entry per row."
    must(len(set(lengths.values())) == 1, "columns", f"of one length{where}", lengths, hint)
    rows = next(iter(lengths.values()))
    must(rows > 0, "columns", "of at least one row", f"none{where}")
    return table, rows


def _check_finite(table: Columns, clients: Sequence[str] | Array) -> None:
    for name, column in table.items():
        check_finite(name, column, lambda row: f"client {str(clients[row])!r}, row {row}")


def _check_alike(client: str, table: Columns, first: str, model: Columns) -> None:
    """Refuse a client whose columns are not those of the first one."""
    same = table.keys() == model.keys()
    must(same, "columns", f"{sorted(model)} as in client {first!r}", f"{sorted(table)} in client {client!r}")
    for name, column in table.items():
        expected, form = describe_array(model[name], 1), describe_array(column, 1)
        constraint = f"{expected} a row as in client {first!r}"
        must(expected == form, f"columns.{name}", constraint, f"{form} a row in client {client!r}")
