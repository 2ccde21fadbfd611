"""Data sets by name: their rows are dealt to clients, split, and described so that a file can ask for them again."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from moiety.data.apportion import assign_parts, draw_stratified, largest_remainder
from moiety.data.build import Piece, as_names, gather, labels_of, make
from moiety.data.checks import check_fractions
from moiety.data.federated import FOLDER, Columns, FederatedData, Ints, Names, Numbered, open_folder
from moiety.data.partition import PARTITIONS, Partition, deal, iid, natural
from moiety.data.sources import SOURCES, Source
from moiety.errors import choice, kind, must, near, refuse, whole
from moiety.random import generator
from moiety.spec import build, check_arguments

_TEST = 0.2
_TEST_PER_CLIENT = 100


def load(
    name: str,
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
    """A data set by name, dealt to clients.

    Args:
        name: one of ``SOURCES``.
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
    """
    choice("name", name, SOURCES)
    whole("seed", seed)
    got = type(partition).__name__
    must(isinstance(partition, Partition | None), "partition", "one such as iid() or dirichlet(0.3)", got)
    check_fractions(0.0, validation)
    kind("validation_in_train", validation_in_train, bool, "true or false")
    counts = {k: count for k, count in (("clients", clients), ("per_client", per_client)) if count is not None}
    for key, count in counts.items():
        whole(key, count, 1)
    own_options = _source_options(name, options)
    seeds = {"seed": int(seed)} if "seed" in inspect.signature(SOURCES[name]).parameters else {}
    source = SOURCES[name](**own_options, **seeds)
    if partition is None:
        partition = iid() if source.client is None else natural()
    pool = None if partition.natural else source.test
    test_rows = _test_option(name, pool is not None, test, test_per_client, validation)
    owner, names = _owners(name, source, clients, partition, seed)
    if per_client is not None:
        owner = _limit_rows(owner, labels_of(source.columns), len(names), per_client, seed)
    used = np.flatnonzero(owner >= 0)
    if pool is not None:
        fed = _with_test_pool(source, pool, used, owner[used], names, seed, validation, test_rows["test_per_client"])
    else:
        columns = source.columns if len(used) == len(owner) else {k: c[used] for k, c in source.columns.items()}
        fed = make(columns, owner[used], names, test=test_rows["test"], validation=validation, seed=seed)
    spec = {"name": name, "seed": int(seed), "partition": dict(partition.spec), "validation": float(validation)}
    spec |= test_rows | {key: value for key, value in own_options.items() if value is not None}
    spec |= {key: int(count) for key, count in counts.items()}
    writable = bool(partition.spec) and partition.ids is None
    fed = standardise(replace(fed, classes=source.classes, spec=spec if writable else {}), source.standardise)
    fed = fed if source.finish is None else source.finish(fed)
    return fed.with_validation_in_train() if validation_in_train else fed


def from_spec(spec: Mapping[str, Any] | str) -> FederatedData:
    """The data that ``spec`` describes: the name of a data set, or a table with the arguments of ``load``.

    The name ``folder`` stands for data that was saved, at ``path``.

    >>> spec = {"name": "digits", "clients": 5, "partition": {"name": "shards", "per_client": 1}}
    >>> sorted(from_spec(spec).sizes("train").tolist())
    [287, 287, 287, 288, 288]
    """
    arguments: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    must("name" in arguments, "data.name", "given", "nothing", near("", SOURCES))
    choice("data.name", arguments["name"], (*SOURCES, FOLDER))
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


def _test_option(name: str, pool: bool, test: Any, per_client: Any, validation: float) -> dict[str, Any]:
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


def _source_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options, after a check that the source knows them and takes their types."""
    known = list(inspect.signature(SOURCES[name]).parameters)
    common = [k for k, p in inspect.signature(load).parameters.items() if p.kind is not p.VAR_KEYWORD]
    for key in options:
        must(key in known, "data", f"a table of known keys for {name}", key, near(key, known + common))
    return check_arguments("data", SOURCES[name], options, {})


def _owners(name: str, source: Source, clients: int | None, partition: Partition, seed: int) -> tuple[Ints, Names]:
    """The client of each row (-1 for unused rows) and the clients' names."""
    rows = len(next(iter(source.columns.values())))
    if not partition.natural:
        if clients is None:
            refuse("clients", f"a number for {name}, dealt so", "none", "Say how many clients to make.")
        rng = generator(int(seed), "data", "partition")
        return deal(partition, labels_of(source.columns), rows, int(clients), rng), Numbered(int(clients))
    ids = source.client if partition.ids is None else partition.ids
    if ids is None:
        hint = "Use another partition, or natural(ids)."
        refuse("partition", f"another than natural() for {name}, which has no clients", "it", hint)
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
    wanted = np.minimum(np.bincount(owner[rows], minlength=clients), most)
    sample = draw_stratified(rows, owner, labels, wanted, generator(int(seed), "data", "rows"))
    limited = np.full_like(owner, -1)
    limited[sample] = owner[sample]
    return limited


def _with_test_pool(
    source: Source, pool: Columns, used: Ints, owner: Ints, names: Names, seed: int, validation: float, size: int
) -> FederatedData:
    """The used rows of the training pool with their owners, and rows of the test pool in each client's label ratios."""
    y = source.columns["y"][used]
    rng = generator(int(seed), "data", "split")
    part = assign_parts(owner, y, len(names), test=0.0, validation=validation, generator=rng)
    rows, testers = _test_rows(owner, y, len(names), pool["y"], size, generator(int(seed), "data", "test"))
    train = Piece(source.columns, used, owner, part)
    return gather([train, Piece(pool, rows, testers, np.full(len(rows), 2, dtype=np.int8))], names, None)


def _test_rows(
    owner: Ints, labels: Ints, clients: int, pool: Ints, size: int, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Rows of the test pool and the client of each: ``size`` a client, in its label ratios, none twice."""
    classes = int(max(labels.max(), pool.max(initial=0))) + 1
    cells, counts = np.unique(owner * classes + labels, return_counts=True)
    client, label = cells // classes, cells % classes
    quota = largest_remainder(counts, client, np.full(clients, min(size, len(pool))), rng)
    of_label = [np.flatnonzero(pool == k) for k in range(classes)]
    quota = np.minimum(quota, np.array([len(rows) for rows in of_label])[label])
    rows = [rng.choice(of_label[k], size=q, replace=False) for k, q in zip(label, quota, strict=True)]
    return np.concatenate(rows), np.repeat(client, quota)


def standardise(fed: FederatedData, features: int) -> FederatedData:
    """The first features of ``x`` at mean 0 and standard deviation 1 over all training rows; constant ones at 0."""
    if features == 0:
        return fed
    x = fed.columns["x"]
    training = x[fed.all_rows("train"), :features].astype(np.float64)
    mean, deviation = training.mean(axis=0), training.std(axis=0)
    scaled = x.copy()
    scaled[:, :features] = (x[:, :features] - mean) / np.where(deviation > 0, deviation, 1.0)
    return replace(fed, columns={**fed.columns, "x": scaled})
