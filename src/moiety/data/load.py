"""Data sets by name: their rows are dealt to clients, split, and described so that a file can ask for them again."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from moiety.data.apportion import draw_stratified, largest_remainder
from moiety.data.build import Piece, as_names, labels_of, make
from moiety.data.checks import check_finite, check_fractions
from moiety.data.federated import FOLDER, TABLE, Columns, FederatedData, Ints, Names, NumberNames, open_folder
from moiety.data.partition import PARTITIONS, Partition, deal, iid, natural
from moiety.data.pool import OWN, Rows, open_rows
from moiety.data.sources import SOURCES, Source
from moiety.errors import SEED, choice, kind, must, near, refuse, whole
from moiety.random import generator
from moiety.spec import build, check_arguments

_TEST = 0.2
_TEST_PER_CLIENT = 100


def load(
    name: Rows,
    *,
    clients: int | None = None,
    partition: Partition | None = None,
    seed: int = 0,
    test: float | None = None,
    validation: float = 0.0,
    test_per_client: int | None = None,
    per_client: int | None = None,
    validation_in_train: bool = False,
    **options: Any,
) -> FederatedData:
    """A data set by name, or rows of your own, dealt to clients.

    Args:
        name: one of ``SOURCES``; or a table of arrays, as in ``from_arrays``; or ``FederatedData``, whose rows, of all
            parts together, are dealt and split anew.
        clients: how many clients. Data with natural clients has all of them by default, and a number draws that many
            of them; other data needs a number.
        partition: how rows are dealt; by default to natural clients where there are some, else ``iid()``.
        seed: seed of the deal, of the draw of clients and rows, and of the split.
        test: the share of a client's rows kept for testing, 0.2 by default.
        validation: the share of a client's rows kept for validation, taken out of its training rows.
        test_per_client: where the data set has a test set of its own (and clients are not natural ones), each client
            gets this many of its rows instead, 100 by default, with the label ratios of its training rows (FedSpa,
            appendix B.1); different clients may get the same test rows.
        per_client: at most this many rows of each client, drawn with labels in proportion before the rows are split;
            test rows of a data set's own test set do not count.
        validation_in_train: count validation rows as training rows, to train again after tuning.
        options: options of the source.

    Returns:
        The data. Features of tabular data are standardised with the mean and standard deviation of all clients'
        training rows. ``spec`` holds the arguments, for ``from_spec``; it is empty where a user's own partition cannot
        be written to a file.

    >>> from moiety.data import dirichlet
    >>> load("digits", clients=50, partition=dirichlet(0.3))
    FederatedData(50 clients, 1750 rows; x float32 [64], y int64)
    >>> load({"x": np.zeros((40, 2)), "y": np.arange(40) % 4}, clients=5, partition=dirichlet(0.3))
    FederatedData(5 clients, 40 rows; x float64 [2], y int64)
    """
    whole("seed", seed, -SEED, SEED)
    type_name = type(partition).__name__
    must(isinstance(partition, Partition | None), "partition", "one such as iid() or dirichlet(0.3)", type_name)
    check_fractions(0.0, validation)
    kind("validation_in_train", validation_in_train, bool, "true or false")
    counts = {k: count for k, count in (("clients", clients), ("per_client", per_client)) if count is not None}
    for key, count in counts.items():
        whole(key, count, 1)
    own_options = _check_source_options(name, options)
    seeds = {"seed": int(seed)} if "seed" in _list_source_options(name) else {}
    name, source = open_rows("name", name, **own_options, **seeds)
    for part, columns in {"rows": source.columns, "test rows": source.test or {}}.items():
        for each, values in columns.items():
            check_finite(each, values, f"row {{}} of the {part} of {name}".format)
    if partition is None:
        partition = iid() if source.client is None else natural()
    pool = None if partition.natural else source.test
    test_rows = _choose_test_option(name, pool is not None, test, test_per_client, validation)
    owner, names = _assign_owners(name, source, clients, partition, seed)
    if per_client is not None:
        owner = _limit_rows(owner, labels_of(source.columns), len(names), per_client, seed)
    share, more = test_rows.get("test", 0.0), []
    if pool is not None:
        more = [_draw_test_rows(owner, source.columns["y"], len(names), pool, test_rows["test_per_client"], seed)]
    fed = make(source.columns, owner, names, test=share, validation=validation, seed=seed, more=more)
    spec = {"name": name, "seed": int(seed), "partition": dict(partition.spec), "validation": float(validation)}
    spec |= test_rows | {key: value for key, value in own_options.items() if value is not None}
    spec |= {key: int(count) for key, count in counts.items()}
    writable = bool(partition.spec) and partition.ids is None and name != OWN
    fed = standardise(replace(fed, classes=source.classes or None, spec=spec if writable else {}), source.standardise)
    fed = fed if source.finish is None else source.finish(fed)
    return fed.with_validation_in_train() if validation_in_train else fed


def from_spec(spec: Mapping[str, Any] | str) -> FederatedData:
    """The data that ``spec`` describes: the name of a data set, or a table with the arguments of ``load``.

    The name ``folder`` stands for data that was saved, at ``path``; ``table`` stands for CSV or Parquet files there,
    with the options of ``from_frame``.

    >>> spec = {"name": "digits", "clients": 5, "partition": {"name": "shards", "per_client": 1}}
    >>> sorted(from_spec(spec).sizes("train").tolist())
    [287, 287, 287, 288, 288]
    """
    arguments: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    must("name" in arguments, "data.name", "given", "nothing", near("", SOURCES))
    choice("data.name", arguments["name"], (*SOURCES, FOLDER, TABLE))
    if arguments["name"] == TABLE:
        from moiety.data.frame import from_table  # here, so that lists of data sets do not load pyarrow

        return from_table(arguments)
    if arguments["name"] == FOLDER:
        return _from_folder(arguments)
    if "partition" in arguments:
        arguments["partition"] = build("data.partition", PARTITIONS, arguments["partition"])
    return load(**arguments)


def _from_folder(arguments: dict[str, Any]) -> FederatedData:
    for key in arguments:
        choice("data", key, ("name", "path", "validation_in_train"))
    path, in_train = arguments.get("path"), arguments.get("validation_in_train", False)
    kind("data.path", path, str, "a folder that FederatedData.save wrote")
    kind("data.validation_in_train", in_train, bool, "true or false")
    fed = replace(open_folder(str(path)), spec={"name": FOLDER, "path": path})  # whatever it was saved from
    return fed.with_validation_in_train() if in_train else fed


def _choose_test_option(name: str, pool: bool, test: Any, per_client: Any, validation: float) -> dict[str, Any]:
    """The one of ``test`` and ``test_per_client`` that applies; the other must be left out."""
    if pool:
        must(test is None, "test", f"left out for {name}, which has a test set", test, "Use test_per_client.")
        size = _TEST_PER_CLIENT if per_client is None else per_client
        whole("test_per_client", size, 0)
        return {"test_per_client": int(size)}
    constraint = f"left out for {name}, where clients test on rows of their own"
    must(per_client is None, "test_per_client", constraint, per_client, "Use test.")
    share = _TEST if test is None else test
    check_fractions(share, validation)
    return {"test": float(share)}


def _list_source_options(name: Rows) -> list[str]:
    """The options of the source of that name; rows of your own have none."""
    if not isinstance(name, str):
        return []
    choice("name", name, SOURCES)
    return list(inspect.signature(SOURCES[name]).parameters)


def _check_source_options(name: Rows, options: dict[str, Any]) -> dict[str, Any]:
    """The options, after a check that the source knows them and takes their types."""
    keys, source = _list_source_options(name), name if isinstance(name, str) else OWN
    common = [k for k, p in inspect.signature(load).parameters.items() if p.kind is not p.VAR_KEYWORD]
    for key in options:
        must(key in keys, "data", f"a table of known keys for {source}", key, near(key, keys + common))
    return check_arguments("data", SOURCES[name], options, {}) if isinstance(name, str) else {}


def _assign_owners(
    name: str, source: Source, clients: int | None, partition: Partition, seed: int
) -> tuple[Ints, Names]:
    """The client of each row (-1 for unused rows) and the clients' names."""
    rows = len(next(iter(source.columns.values())))
    if not partition.natural:
        if clients is None:
            refuse("clients", f"a number for {name} with this partition", "none", "Say how many clients to make.")
        rng = generator(int(seed), "data", "partition")
        return deal(partition, labels_of(source.columns), rows, int(clients), rng), NumberNames(int(clients))
    ids = source.client if partition.ids is None else partition.ids
    if ids is None:
        hint = "Use another partition, or natural(ids)."
        refuse("partition", f"another one for {name}, which has no natural clients", "natural()", hint)
    must(len(ids) == rows, "ids", f"one for each of {rows} rows", len(ids))
    values, owner = np.unique(ids, return_inverse=True)
    if clients is not None and clients != len(values):
        must(clients < len(values), "clients", f"at most the {len(values)} natural ones of {name}", clients)
        sample = np.sort(generator(int(seed), "data", "clients").choice(len(values), size=clients, replace=False))
        place = np.full(len(values), -1)
        place[sample] = np.arange(clients)
        values, owner = values[sample], place[owner]
    names = None if partition.ids is not None else source.names
    return owner.astype(np.int64), as_names(values) if names is None else names[values]


def _limit_rows(owner: Ints, labels: Ints | None, clients: int, most: int, seed: int) -> Ints:
    """The client of each row, with no more than ``most`` rows for any; the others are unused."""
    rows = np.flatnonzero(owner >= 0)
    counts = np.minimum(np.bincount(owner[rows], minlength=clients), most)
    sample = draw_stratified(rows, owner, labels, counts, generator(int(seed), "data", "rows"))
    owners = np.full_like(owner, -1)
    owners[sample] = owner[sample]
    return owners


def _draw_test_rows(owner: Ints, y: Ints, clients: int, pool: Columns, size: int, seed: int) -> Piece:
    """Rows of the test pool: ``size`` for each client, in the label ratios of its training rows, none twice."""
    labels, test_labels, rng = y[owner >= 0], pool["y"], generator(int(seed), "data", "test")
    classes = int(max(labels.max(), test_labels.max(initial=0))) + 1
    cells, counts = np.unique(owner[owner >= 0] * classes + labels, return_counts=True)
    client, label = cells // classes, cells % classes
    quota = largest_remainder(counts, client, np.full(clients, min(size, len(test_labels))), rng)
    of_label = [np.flatnonzero(test_labels == k) for k in range(classes)]
    quota = np.minimum(quota, np.array([len(rows) for rows in of_label])[label])
    rows = np.concatenate([rng.choice(of_label[k], size=q, replace=False) for k, q in zip(label, quota, strict=True)])
    return Piece(pool, rows, np.repeat(client, quota), np.full(len(rows), 2, dtype=np.int8))


def standardise(fed: FederatedData, features: int) -> FederatedData:
    """The first features of ``x`` at mean 0 and standard deviation 1 over all training rows; constant ones at 0."""
    if features == 0:
        return fed
    x = fed.columns["x"]
    training = x[fed.all_rows("train"), :features].astype(np.float64)
    mean, deviation = training.mean(axis=0), training.std(axis=0)
    values = x.copy()
    values[:, :features] = (x[:, :features] - mean) / np.where(deviation > 0, deviation, 1.0)
    return replace(fed, columns={**fed.columns, "x": values})
