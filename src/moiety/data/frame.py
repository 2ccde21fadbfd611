"""``from_frame``: federated data from a table with a column that names the client of each row."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from moiety.data.checks import check_fractions
from moiety.data.digest import release_pages
from moiety.data.federated import TABLE, Array, FederatedData, Ints, Names, NumberNames
from moiety.data.fitting import Fitter, check_spaces, check_texts, count_unknown, find_row, read_raw, warn_of_unknown
from moiety.data.parts import part_at_random, part_by_group, part_by_time
from moiety.data.preprocess import ENCODINGS, WIDER, Feature, Preprocessing
from moiety.data.roles import Rows, check_roles, read_roles
from moiety.data.room import make_room
from moiety.data.tables import Table, open_table
from moiety.data.values import check_feature, is_number_text
from moiety.errors import SEED, choice, kind, must, near, refuse, whole
from moiety.random import generator
from moiety.spec import plain, writable

MISSING = ("mean", "median", "indicator")
TASKS = ("classification", "regression")
DTYPES = ("float32", "float64")
NEEDED = ("client", "target")
CHECKED = ("categories", "missing", "standardise", "unseen_clients", "task", "dtype", "on_disk")


def from_frame(
    data: Any,
    *,
    client: str,
    target: str,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    time: str | None = None,
    group: str | None = None,
    weights: str | None = None,
    task: str | None = None,
    categories: str | Mapping[str, str] = "one-hot",
    missing: str | None = None,
    standardise: bool = False,
    unseen_clients: float = 0.0,
    test: float | str | ArrayLike = 0.2,
    validation: float = 0.0,
    dtype: str = "float32",
    on_disk: bool | None = None,
    seed: int = 0,
) -> FederatedData:
    """Federated data from a table: each row is an example, and one column names its client.

    Args:
        data: a data frame (pandas, polars, pyarrow), or the path of a CSV or Parquet file; a pattern such as
            ``visits/*.parquet``, or a list of paths, stands for all these files together.
        client: the column that names the client of each row, by texts or whole numbers.
        target: the column to predict. Texts, booleans and whole numbers are labels, whose names are kept; other
            numbers are a regression (see ``task``).
        features: the columns that make up ``x``; by default all that have no other use.
        drop: columns to leave out.
        time: a column of dates, times or numbers: each client is tested on its last rows, and validated on those
            before them.
        group: a column: a client's rows with the same value go to the same part (several visits of one patient, say).
        weights: a column of numbers >= 0: how much each row counts in the loss and in the metric. They are divided by
            their mean over training rows.
        task: ``classification`` or ``regression``, where the type of ``target`` does not tell: whole numbers with more
            than 100 different values.
        categories: how texts become numbers: ``one-hot``, or ``codes`` (0, 1, ... in one column); or a table that says
            so for some columns, which makes categories of numbers too.
        missing: what happens to missing features (empty, null, NaN): by default they are refused. ``mean`` and
            ``median`` fill in those of the training rows (for categories the commonest one); ``indicator`` fills in the
            mean and adds a column of 0 and 1 for each feature with missing training values.
        standardise: bring numbers to mean 0 and standard deviation 1 over all training rows.
        unseen_clients: the share of clients that training never sees; a run evaluates them in the end, each with the
            model that ``onboard`` makes from its training rows.
        test: the share of each client's rows for testing, as in ``from_arrays``; or the name of a column of booleans,
            or a boolean for each row.
        validation: the share for validation, taken out of the rest.
        dtype: the type of ``x`` and of numbers to predict: ``float32`` or ``float64``.
        on_disk: map ``x`` from a temporary file instead of holding it in memory; by default where it would take a
            quarter of the free memory.
        seed: seed of the split and of the draw of unseen clients.

    Returns:
        The data, with columns ``x``, ``y`` and, if asked for, ``weight``. What was fitted on training rows is its
        ``preprocessing``; ``run.predict``, ``onboard`` and ``export`` apply it.

    >>> import pyarrow as pa
    >>> visits = {"site": ["a", "a", "b", "b"], "age": [40, 50, 60, 70], "outcome": ["ill", "well", "ill", "well"]}
    >>> fed = from_frame(pa.table(visits), client="site", target="outcome", test=0.5)
    >>> fed, fed.class_names
    (FederatedData(2 clients, 4 rows; x float32 [1], y int64), ('ill', 'well'))
    """
    options = {key: value for key, value in locals().items() if key != "data"}
    frame = open_rows(data, options)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that are too large are refused below
        inputs = _fit(frame, missing=missing, standardise=standardise, on_disk=on_disk)
    rows, mean = frame.rows, 1.0
    if rows.weight is not None:
        mean = float(rows.weight[trained_rows(frame.split)].mean())
        must(mean > 0, f"column {weights!r}", "above 0 in some training row", "0 in all of them")
    recipe = Preprocessing(inputs, target, rows.class_names, weights or "", mean, dtype)
    return replace(apply_recipe(frame, recipe, on_disk=on_disk), spec=_write_spec(data, options))


OPTIONS = {key: each.default for key, each in inspect.signature(from_frame).parameters.items() if key != "data"}
"""The options of ``from_frame`` and their defaults."""


def open_rows(data: Any, options: Mapping[str, Any]) -> Frame:
    """The table with its features, roles and parts, before anything is fitted; ``options`` are those of from_frame."""
    client, features, drop, categories = (options[key] for key in ("client", "features", "drop", "categories"))
    time, group, test, validation = (options[key] for key in ("time", "group", "test", "validation"))
    seed, unseen = options["seed"], options["unseen_clients"]
    for name, value in {"features": () if features is None else features, "drop": drop}.items():
        kind(name, value, (list, tuple), "a list of columns")
    _check_options(*(options[key] for key in CHECKED))
    whole("seed", seed, -SEED, SEED)
    by_row = isinstance(test, str) or np.ndim(test) > 0
    check_fractions(0.0 if by_row else test, validation)
    must(time is None or group is None, "group", "left out where rows are split by time", group)
    must(not by_row or (time is None and group is None), "test", "a share with time or group", repr(test))
    roles = {role: options[role] for role in ("client", "target", "time", "group", "weights")}
    roles |= {"test": test} if isinstance(test, str) else {}
    names = list(roles.values())
    table = open_table(
        data,
        lambda name: name not in names and (name in drop or name not in (features or [name])),
        as_written=[client] if isinstance(client, str) else [],
    )
    empty = all(pa.types.is_null(each) or name in table.as_written for name, each in table.types.items())
    must(not empty, "data", "at least one row", "none")
    columns = check_roles(table, {role: name for role, name in roles.items() if name is not None or role in NEEDED})
    inputs = _choose_features(table, columns, features, drop, categories)
    rows = read_roles(table, columns, options["task"])
    if by_row and not isinstance(test, str):
        mask = np.asarray(test)
        shape = f"{mask.dtype} of shape {list(mask.shape)}"
        fits = mask.dtype == np.bool_ and mask.shape == rows.owner.shape
        must(fits, "test", f"a share, a column, or {len(rows.owner)} booleans", shape)
        rows = rows._replace(test=mask)
    split = _place_rows(rows, test=test, validation=validation, unseen=unseen, seed=seed)
    return Frame(table, inputs, rows, split, list(categories) if isinstance(categories, Mapping) else [])


def apply_recipe(frame: Frame, recipe: Preprocessing, *, on_disk: bool | None = None) -> FederatedData:
    """The data that a recipe makes of a table; the recipe's classes are those of its rows."""
    rows, split, weights = frame.rows, frame.split, recipe.weights
    columns = {"x": _make_x(frame, recipe, on_disk), "y": _put(rows.y, split)}
    columns["y"] = columns["y"] if rows.class_names else _narrow(columns["y"], recipe.target, recipe.dtype)
    if rows.weight is not None:
        columns["weight"] = _narrow(_put(rows.weight, split) / recipe.weight_mean, weights, recipe.dtype)
    return _assemble(columns, split, recipe)


def from_table(arguments: Mapping[str, Any]) -> FederatedData:
    """The data that the table ``[data]`` of a file describes: ``path``, and the options of ``from_frame``."""
    options = {key: value for key, value in arguments.items() if key not in ("name", "path", "validation_in_train")}
    for key in options:
        choice("data", key, (*OPTIONS, "name", "path", "validation_in_train"))
    path, in_train = arguments.get("path"), arguments.get("validation_in_train", False)
    kind("data.path", path, (str, list), "the path of CSV or Parquet files")
    kind("data.validation_in_train", in_train, bool, "true or false")
    for key in ("client", "target"):
        kind(f"data.{key}", options.get(key), str, "the name of a column")
    fed = from_frame(path, **options)
    return fed.with_validation_in_train() if in_train else fed


def _write_spec(data: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """How a file describes the data; empty where it is a data frame."""
    paths = data if isinstance(data, list | tuple) else [data]
    if not all(isinstance(path, str | os.PathLike) for path in paths):
        return {}
    names = [os.fspath(path) for path in paths]
    spec: dict[str, Any] = {"name": TABLE, "path": names if isinstance(data, list | tuple) else names[0]}
    for key, value in options.items():
        if np.ndim(value) > 0 and not isinstance(value, list | tuple):
            return {}
        if value != OPTIONS[key]:
            spec[key] = dict(value) if isinstance(value, Mapping) else plain(value)
    return spec if all(isinstance(v, dict) or writable(v) for v in spec.values()) else {}


class _Split(NamedTuple):
    """Where rows go: the part and new place of each, bounds and names of all clients, and how many training sees."""

    part: Array
    place: Ints
    bounds: Ints
    names: Names
    seen_clients: int


class Frame(NamedTuple):
    """A table whose rows have their places: ``features`` are not fitted yet, those ``sure`` may look like numbers."""

    table: Table
    features: list[Feature]
    rows: Rows
    split: _Split
    sure: list[str]


def _check_options(
    categories: Any, missing: Any, standardise: Any, unseen: Any, task: Any, dtype: Any, on_disk: Any
) -> None:
    kind("categories", categories, (str, Mapping), "one-hot, codes, or a table of columns")
    each = list(categories.values()) if isinstance(categories, Mapping) else [categories]
    for value in each:
        choice("categories", value, ENCODINGS)
    for name, value, names in (("missing", missing, MISSING), ("task", task, TASKS)):
        if value is not None:
            choice(name, value, names)
    choice("dtype", dtype, DTYPES)
    kind("standardise", standardise, bool, "true or false")
    kind("on_disk", on_disk, (bool, type(None)), "true or false")
    real = isinstance(unseen, int | float) and not isinstance(unseen, bool)
    must(real and 0 <= unseen < 1, "unseen_clients", "a share from 0 to below 1", repr(unseen))


def _choose_features(
    table: Table,
    roles: Mapping[str, str],
    features: Sequence[str] | None,
    drop: Sequence[str],
    categories: str | Mapping[str, str],
) -> list[Feature]:
    """The features, with their kinds, before anything is fitted."""
    role_columns = set(roles.values())
    encodings = dict(categories) if isinstance(categories, Mapping) else {}
    for role, names in {"features": features, "drop": drop, "categories": list(encodings)}.items():
        if names is None:
            continue
        for name in names:
            if name not in table.types:
                refuse(role, "columns of the table", repr(name), near(str(name), table.types))
            use = f"{name!r}, the {next((r for r, n in roles.items() if n == name), '')}"
            must(name not in role_columns or role == "drop", role, "columns without another use", use)
        must(len(set(names)) == len(names), role, "columns that differ", f"{names}")
    names = list(table.types) if features is None else list(features)
    names = [name for name in names if name not in role_columns and name not in drop]
    must(len(names) > 0, "features", "at least one column besides client and target", "none")
    inputs = []
    for name in names:
        sort = "category" if name in encodings else check_feature(name, table.types[name])
        default = categories if isinstance(categories, str) else "one-hot"
        inputs.append(Feature(name, sort, encodings.get(name, default) if sort == "category" else ""))
    for name in encodings:
        must(name in names, "categories", "for columns that are features", repr(name))
    return inputs


def _place_rows(rows: Rows, *, test: Any, validation: float, unseen: float, seed: int) -> _Split:
    """Split each client's rows and order all rows by client and part; clients never seen come last."""
    owner, names, count = rows.owner, rows.names, len(rows.names)
    rng = generator(int(seed), "data", "split")
    if rows.time is not None:
        part = part_by_time(owner, rows.time, count, test=test, validation=validation)
    elif rows.group is not None:
        part = part_by_group(owner, rows.group, count, test=test, validation=validation, generator=rng)
    else:
        share = test if rows.test is None else rows.test
        labels = rows.y if rows.class_names else None
        part = part_at_random(owner, labels, count, test=share, validation=validation, generator=rng)
    trains = np.bincount(owner[part == 0], minlength=count) > 0
    if not trains.all():
        first = str(names[int(np.argmin(trains))])
        refuse("test", "such that every client keeps a training row", f"none for client {first!r}")
    seen_clients = count
    if unseen > 0:
        hidden = round(unseen * count)
        constraint = f"a share that comes to some of the {count} clients, and not to all"
        must(0 < hidden < count, "unseen_clients", constraint, f"{unseen}, or {hidden} of them")
        draw = np.sort(generator(int(seed), "data", "unseen").choice(count, size=hidden, replace=False))
        order = np.concatenate([np.delete(np.arange(count), draw), draw])
        rank = np.empty(count, dtype=np.int64)
        rank[order] = np.arange(count)
        owner, names, seen_clients = rank[owner], np.asarray(names, dtype=np.str_)[order], count - hidden
    key = owner * 3 + part
    sequence = np.argsort(key, kind="stable") if rows.time is None else np.lexsort((rows.time, key))
    place = np.empty(len(owner), dtype=np.int64)
    place[sequence] = np.arange(len(owner))
    ends = np.cumsum(np.bincount(key, minlength=3 * count)).reshape(count, 3)
    bounds = np.column_stack([np.concatenate([[0], ends[:-1, 2]]), ends])
    return _Split(part, place, bounds, names, seen_clients)


def trained_rows(split: _Split) -> Array:
    """Whether each row is a training row of a client that training sees."""
    return np.asarray((split.part == 0) & (split.place < split.bounds[split.seen_clients - 1, 3]))


def _fit(frame: Frame, *, missing: str | None, standardise: bool, on_disk: bool | None) -> tuple[Feature, ...]:
    """Go through the training rows of all features, where there is something to fit."""
    features = frame.features
    if missing is None and not standardise and all(feature.kind != "category" for feature in features):
        return tuple(features)
    inputs = collect_rows(frame, missing=missing, standardise=standardise, on_disk=on_disk).finish()
    for feature in inputs:
        check_spaces(frame.table, feature.name, feature.categories)
        if feature.categories and feature.name not in frame.sure:
            way_out = f'say categories={{"{feature.name}": "{feature.encoding}"}}'
            check_texts(frame.table, feature.name, feature.categories, way_out)
    return inputs


def collect_rows(frame: Frame, *, missing: str | None, standardise: bool, on_disk: bool | None = None) -> Fitter:
    """What the training rows say about all features."""
    table, features, training = frame.table, frame.features, trained_rows(frame.split)
    fitter = Fitter(
        features,
        missing=missing,
        standardise=standardise,
        rows=int(training.sum()),
        room=lambda shape: make_room(shape, "float64", on_disk),
    )
    first = 0
    for block in table.read([feature.name for feature in features]):
        rows = np.flatnonzero(training[first : first + block.rows])
        first += block.rows
        place = block.place
        if len(rows) == block.rows:
            fitter.add(block.columns, place)
        elif len(rows):
            index = pa.array(rows)
            some = {name: column.take(index) for name, column in block.columns.items()}
            fitter.add(some, lambda row, rows=rows, place=place: place(int(rows[row])))  # type: ignore[misc]
    return fitter


def _make_x(frame: Frame, recipe: Preprocessing, on_disk: bool | None) -> Array:
    """Go through the features of all rows and put them where they belong."""
    table, split, sure = frame.table, frame.split, frame.sure
    x = make_room((len(split.place), len(recipe.names)), recipe.dtype, on_disk)
    unknown: Any = np.zeros(len(recipe.features), dtype=np.int64)
    first = 0
    for block in table.read([feature.name for feature in recipe.features]):
        raw = read_raw(recipe.features, block.columns, block.place)
        unknown += count_unknown(recipe.features, raw)
        _check_rows(first + block.rows <= len(x))
        x[split.place[first : first + block.rows]] = recipe.transform(raw, block.place)
        first += block.rows
        release_pages(x)
    _check_rows(first == len(x))
    for feature, count in zip(recipe.features, unknown.tolist(), strict=True):
        if count and feature.name not in sure and all(map(is_number_text, feature.categories)):
            odd = find_row(table, feature.name, None)
            must(not odd, f"column {feature.name!r}", "all numbers, or all texts", odd, "Correct that row.")
    warn_of_unknown(recipe.features, unknown)
    return x


def _narrow(values: Array, name: str, dtype: str) -> Array:
    """The values in another type, which must hold them."""
    largest = float(np.abs(values).max(initial=0.0))
    must(largest <= float(np.finfo(dtype).max), f"column {name!r}", f"within the range of {dtype}", largest, WIDER)
    return values.astype(dtype)


def _check_rows(same: bool) -> None:
    must(same, "data", "the same while it is read", "another number of rows", "Something writes to its files.")


def _put(values: Array, split: _Split) -> Array:
    """The values of all rows in their new places."""
    column = np.empty_like(values)
    column[split.place] = values
    return column


def _assemble(columns: Mapping[str, Array], split: _Split, recipe: Preprocessing) -> FederatedData:
    """The data of the clients that training sees, with the others as ``unseen``."""
    classes = len(recipe.class_names) or None
    seen_clients, cut = split.seen_clients, int(split.bounds[split.seen_clients - 1, 3])
    first = {name: column[:cut] for name, column in columns.items()}
    names = split.names if isinstance(split.names, NumberNames) else split.names[:seen_clients]
    fed = FederatedData(first, split.bounds[:seen_clients], names, classes, preprocessing=recipe)
    if seen_clients == len(split.bounds):
        return fed
    rest = {name: column[cut:] for name, column in columns.items()}
    bounds, names = split.bounds[seen_clients:] - cut, split.names[seen_clients:]
    others = FederatedData(rest, bounds, names, classes, preprocessing=recipe)
    return replace(fed, unseen=others)
