"""Federated data from data sets of other libraries: torch ``Dataset`` objects and Hugging Face ``Dataset`` tables.

Nothing of those libraries is imported: what a data set gives is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moiety.data.build import from_arrays, from_clients
from moiety.data.federated import FederatedData
from moiety.data.partition import Partition, deal
from moiety.data.preprocess import Preprocessing, sort_labels
from moiety.errors import as_array, kind, must, near, refuse, report_errors, whole
from moiety.random import generator

Tokenizer = Any
"""A tokenizer of ``transformers``: called with texts, it gives ``input_ids`` and ``attention_mask``."""


def from_datasets(
    datasets: Any,
    *,
    client: str | None = None,
    partition: Any = None,
    clients: int | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    text: str | None = None,
    tokenizer: Tokenizer | None = None,
    max_length: int = 128,
    test: float = 0.2,
    validation: float = 0.0,
    seed: int = 0,
) -> FederatedData:
    """Federated data from a data set for each client, or from one whose rows are dealt to clients.

    Args:
        datasets: a mapping from clients to data sets, or one data set. A data set is a ``torch.utils.data.Dataset``
            whose items are tuples or dicts (transforms are applied once, here), or a Hugging Face ``Dataset``.
        client: of one Hugging Face data set, the column that says whose a row is.
        partition: how one data set is dealt: ``moiety.data.dirichlet(0.3)`` with ``clients``, or a partitioner of
            flwr-datasets.
        clients: how many clients a partition of moiety makes.
        columns: the names of a tuple's entries, ``("x", "y")`` by default; or, of tables, their new names by the old:
            ``{"image": "x", "label": "y"}``. What is not named is left out. Where the labels ``y`` are texts, or the
            data set knows the names of its classes, these are the data's ``class_names``.
        text: a column of texts, which the ``tokenizer`` turns into the columns ``input_ids`` and ``attention_mask``.
        tokenizer: one of ``transformers``.
        max_length: tokens of a text; longer ones are cut, shorter ones padded.
        test: as in ``from_arrays``, like the following.
        validation: the share of each client's rows kept for validation.
        seed: seed of the split and of the partition.
    """
    must((text is None) == (tokenizer is None), "tokenizer", "given with text, and only then", tokenizer)
    options: dict[str, Any] = {"test": test, "validation": validation, "seed": seed}

    if hasattr(partition, "load_partition"):  # flwr-datasets
        must(client is None, "client", "left out with a partition", client)
        datasets, partition = _load_partitions(datasets, partition), None
    if isinstance(datasets, Mapping) and not hasattr(datasets, "column_names"):
        lone = client is None and partition is None
        must(lone, "client", "left out where every client has a data set, as is partition", client or "a partition")
        tables = [_read_table(each, columns, f" in client {key!r}", keep=(text,)) for key, each in datasets.items()]
        if text is not None:
            _tokenise_tables(tables, text, tokenizer, max_length)
        names = _join_labels(tables, [_class_names(each, columns) for each in datasets.values()])
        return _name_classes(from_clients(dict(zip(datasets, tables, strict=True)), **options), names)
    must((client is None) != (partition is None), "client", "given, or a partition", "both" if client else "neither")
    table = _read_table(datasets, columns, "", keep=(text, client))
    if text is not None:
        _tokenise_tables([table], text, tokenizer, max_length)
    names = _join_labels([table], [_class_names(datasets, columns)])
    if client is not None:
        must(client in table, "client", "a column of the data", client, near(client, table))
        return _name_classes(from_arrays(table, client=table.pop(client), **options), names)
    kind("partition", partition, Partition, "one such as iid() or dirichlet(0.3), or one of flwr-datasets")
    whole("clients", clients, 1)
    rows = len(next(iter(table.values())))
    labels = table.get("y")
    labels = labels if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu" else None
    owner = deal(partition, labels, rows, int(clients or 0), generator(int(seed), "data", "partition"))
    used = owner >= 0
    fed = from_arrays({name: column[used] for name, column in table.items()}, client=owner[used], **options)
    return _name_classes(fed, names)


def _load_partitions(table: Any, partitioner: Any) -> dict[Any, Any]:
    """The parts that a partitioner of flwr-datasets makes of a table, by the names it knows, or their numbers."""
    if not partitioner.is_dataset_assigned():
        partitioner.dataset = table
    same = partitioner.dataset is table
    must(same, "partition", "a partitioner of this data", "one that was used for other data", "Make a new one.")
    parts = {i: partitioner.load_partition(i) for i in range(partitioner.num_partitions)}
    names = getattr(partitioner, "partition_id_to_natural_id", {})
    return {names.get(i, i): part for i, part in parts.items()}


def _class_names(data: Any, columns: Sequence[str] | Mapping[str, str] | None) -> list[str] | None:
    """What a data set calls the labels ``y``, if it does: a ``ClassLabel`` of Hugging Face, ``classes`` of others."""
    old = next((old for old, new in columns.items() if new == "y"), "y") if isinstance(columns, Mapping) else "y"
    names = getattr((getattr(data, "features", None) or {}).get(old), "names", None)
    if names is None and not hasattr(data, "column_names"):
        names = getattr(data, "classes", None)
    return [str(name) for name in names] if isinstance(names, list | tuple) else None


def _join_labels(tables: Sequence[dict[str, Any]], class_names: Sequence[list[str] | None]) -> tuple[str, ...]:
    """The names of the labels ``y`` of all tables, which get the same labels for the same names.

    Texts become labels. Where a table's labels have no names, or others than it says, nothing is changed.
    """
    labels = [table.get("y") for table in tables]
    lists = [names for names in class_names if names is not None]
    if all(isinstance(y, list) for y in labels):
        names = sort_labels(sorted({text for y in labels for text in y or ()}))
        lists = [names] * len(tables)
        labels = [_place(y or (), names) for y in labels]
    if len(lists) < len(tables) or not all(_fit_names(y, own) for y, own in zip(labels, lists, strict=True)):
        return ()
    alike = all(own == lists[0] for own in lists)
    names = lists[0] if alike else sort_labels(sorted({name for own in lists for name in own}))
    for table, y, own in zip(tables, labels, lists, strict=True):
        table["y"] = _place(own, names)[y]
    return tuple(names)


def _place(texts: Sequence[str], names: Sequence[str]) -> Any:
    """The position of each text among the names."""
    at = {name: place for place, name in enumerate(names)}
    return np.array([at[text] for text in texts], dtype=np.int64)


def _fit_names(y: Any, names: Sequence[str]) -> bool:
    """Whether these are labels from 0 on, each with a name."""
    whole_numbers = isinstance(y, np.ndarray) and y.ndim == 1 and y.dtype.kind in "iu"
    return whole_numbers and y.min(initial=0) >= 0 and y.max(initial=0) < len(names)


def _name_classes(fed: FederatedData, names: tuple[str, ...]) -> FederatedData:
    """The data with the names of its labels."""
    return (
        replace(fed, classes=len(names), preprocessing=Preprocessing(target="y", class_names=names)) if names else fed
    )


def tokenise(texts: Sequence[str], tokenizer: Tokenizer, *, max_length: int = 128) -> dict[str, np.ndarray]:
    """Columns ``input_ids`` and ``attention_mask`` of texts, as wide as the longest of them.

    Args:
        texts: one for each row.
        tokenizer: one of ``transformers``.
        max_length: longer texts are cut to so many tokens.
    """
    whole("max_length", max_length, 1)
    for row, each in enumerate(texts):
        must(isinstance(each, str), "text", "a text in every row", f"{each!r:.40} in row {row}")
    with report_errors("tokenizer", "one that takes a list of texts"):
        tokens = tokenizer(list(texts), truncation=True, padding=True, max_length=max_length, return_tensors="np")
    columns = ("input_ids", "attention_mask")
    return {name: np.asarray(tokens[name]) for name in columns if name in tokens}


def _tokenise_tables(tables: Sequence[dict[str, Any]], text: str, tokenizer: Tokenizer, max_length: int) -> None:
    """Replace the texts of all tables by tokens of one width."""
    for table in tables:
        must(text in table, "text", "a column of the data", text, near(text, table))
    texts = [table.pop(text) for table in tables]
    tokens = tokenise([each for some in texts for each in some], tokenizer, max_length=max_length)
    ends = np.cumsum([len(some) for some in texts])[:-1]
    for name, column in tokens.items():
        for table, rows in zip(tables, np.split(column, ends), strict=True):
            table[name] = rows


def _read_table(
    data: Any, columns: Sequence[str] | Mapping[str, str] | None, where: str, *, keep: Sequence[str | None]
) -> dict[str, Any]:
    """The columns of a data set by name."""
    hint = 'Choose one, as in data["train"].'
    must(not isinstance(data, Mapping), "datasets", f"one data set{where}", "one with splits", hint)
    has_length = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    must(has_length, "datasets", f"data sets with a length and items{where}", type(data).__name__)
    form = (getattr(data, "format", None) or {}).get("type")
    if hasattr(data, "column_names") and form != "custom":  # a table of Hugging Face; one with a transform has items
        data = data.with_format("numpy") if form is None and hasattr(data, "with_format") else data
        return _read_columns(data.column_names, lambda name: data[name][:], columns, where, keep)
    must(len(data) > 0, "datasets", f"of at least one item{where}", "none")
    items = [data[i] for i in range(len(data))]
    first = items[0]
    if isinstance(first, Mapping):
        return _read_columns(list(first), lambda name: [item[name] for item in items], columns, where, keep)
    if not isinstance(first, tuple | list):
        refuse("datasets", f"items that are tuples or dicts{where}", type(first).__name__, "As in (x, y).")
    names = list(columns) if columns is not None else ["x", "y"]
    fits = len(names) == len(first)
    must(fits, "columns", f"{len(first)} names, one for each entry of an item{where}", names)
    return {name: _as_array(name, [item[k] for item in items], where) for k, name in enumerate(names)}


def _read_columns(
    header: Sequence[str],
    read: Callable[[str], Any],
    columns: Sequence[str] | Mapping[str, str] | None,
    where: str,
    keep: Sequence[str | None],
) -> dict[str, Any]:
    """The columns that the user names, and those to ``keep``, by their new names."""
    names = columns if isinstance(columns, Mapping) else {name: name for name in columns or header}
    names = {**{name: name for name in keep if name}, **names}
    for name in names:
        must(name in header, "columns", f"columns of the data{where}", name, near(name, header))
    return {new: _as_array(old, read(old), where) for old, new in names.items()}


def _as_array(name: str, values: Sequence[Any], where: str) -> Any:
    """The values of a column as an array; texts stay a list."""
    if len(values) and isinstance(values[0], str):
        return [str(value) if isinstance(value, str) else value for value in values]
    with report_errors(f"columns.{name}", f"numbers of one shape in every row{where}"):
        arrays = [np.asarray(value) for value in values]
        shapes = {array.shape for array in arrays}
        must(len(shapes) == 1, f"columns.{name}", f"of one shape in every row{where}", sorted(shapes)[:3])
        return np.stack(arrays) if arrays else as_array(name, values, "numbers")
