"""Federated data from data sets of other libraries: torch ``Dataset`` objects and Hugging Face ``Dataset`` tables.

Nothing of those libraries is imported: what a data set gives is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moiety.data.build import from_arrays, from_clients
from moiety.data.federated import FederatedData
from moiety.data.partition import Partition, deal
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
            ``{"image": "x", "label": "y"}``. What is not named is left out.
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
        partition.dataset = datasets
        datasets = {i: partition.load_partition(i) for i in range(partition.num_partitions)}
        partition = None
    if isinstance(datasets, Mapping) and not hasattr(datasets, "column_names"):
        lone = client is None and partition is None
        must(lone, "client", "left out where every client has a data set, as is partition", client or "a partition")
        tables = [_read_table(each, columns, f" in client {key!r}", keep=(text,)) for key, each in datasets.items()]
        if text is not None:
            _tokenise_tables(tables, text, tokenizer, max_length)
        return from_clients(dict(zip(datasets, tables, strict=True)), **options)
    must((client is None) != (partition is None), "client", "given, or a partition", "both" if client else "neither")
    table = _read_table(datasets, columns, "", keep=(text, client))
    if text is not None:
        _tokenise_tables([table], text, tokenizer, max_length)
    if client is not None:
        must(client in table, "client", "a column of the data", client, near(client, table))
        return from_arrays(table, client=table.pop(client), **options)
    kind("partition", partition, Partition, "one such as iid() or dirichlet(0.3), or one of flwr-datasets")
    whole("clients", clients, 1)
    rows = len(next(iter(table.values())))
    labels = table.get("y")
    labels = labels if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu" else None
    owner = deal(partition, labels, rows, int(clients or 0), generator(int(seed), "data", "partition"))
    used = owner >= 0
    return from_arrays({name: column[used] for name, column in table.items()}, client=owner[used], **options)


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
        encoded = tokenizer(list(texts), truncation=True, padding=True, max_length=max_length, return_tensors="np")
    wanted = ("input_ids", "attention_mask")
    return {name: np.asarray(encoded[name]) for name in wanted if name in encoded}


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
    if hasattr(data, "column_names"):  # a table of Hugging Face
        names = columns if isinstance(columns, Mapping) else {name: name for name in columns or data.column_names}
        names = {**{name: name for name in keep if name}, **names}
        for name in names:
            known = data.column_names
            must(name in known, "columns", f"columns of the data{where}", name, near(name, known))
        return {new: _as_array(old, data[old], where) for old, new in names.items()}
    sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    must(sized, "datasets", f"data sets with a length and items{where}", type(data).__name__)
    must(len(data) > 0, "datasets", f"of at least one item{where}", "none")
    items = [data[i] for i in range(len(data))]
    first = items[0]
    if isinstance(first, Mapping):
        names = columns if isinstance(columns, Mapping) else {name: name for name in columns or first}
        for name in names:
            must(name in first, "columns", f"entries of the items{where}", name, near(name, first))
        return {new: _as_array(old, [item[old] for item in items], where) for old, new in names.items()}
    if not isinstance(first, tuple | list):
        refuse("datasets", f"items that are tuples or dicts{where}", type(first).__name__, "As in (x, y).")
    chosen = list(columns) if columns is not None else ["x", "y"]
    fits = len(chosen) == len(first)
    must(fits, "columns", f"{len(first)} names, one for each entry of an item{where}", chosen)
    return {name: _as_array(name, [item[k] for item in items], where) for k, name in enumerate(chosen)}


def _as_array(name: str, values: Sequence[Any], where: str) -> Any:
    """The values of a column as an array; texts stay a list."""
    if len(values) and isinstance(values[0], str):
        return list(values)
    with report_errors(f"columns.{name}", f"numbers of one shape in every row{where}"):
        arrays = [np.asarray(value) for value in values]
        shapes = {array.shape for array in arrays}
        must(len(shapes) == 1, f"columns.{name}", f"of one shape in every row{where}", sorted(shapes)[:3])
        return np.stack(arrays) if arrays else as_array(name, values, "numbers")
