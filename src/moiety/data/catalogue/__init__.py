"""The data sets that can be fetched: one row each. Nothing heavy is imported here.

To add one, write a row in one of the files of this package, and a converter in ``moiety.data.originals``.
"""

from __future__ import annotations

from moiety.data.catalogue.people import PEOPLE
from moiety.data.catalogue.pictures import PICTURES
from moiety.data.catalogue.records import DataSet, Original
from moiety.data.catalogue.tables import TABLES

__all__ = ["DATA_SETS", "VARIANTS", "DataSet", "Original", "row_of_file", "rows_of"]

DATA_SETS: dict[str, DataSet] = {row.name: row for row in sorted((*PICTURES, *TABLES, *PEOPLE), key=lambda r: r.name)}

VARIANTS = {
    "cifar10": ("cifar10", "cifar10-jpeg"),
    "connected_digits": ("audiomnist",),
    "shakespeare": ("shakespeare-roles", "shakespeare-tff"),
}
"""Names of ``load`` that are read from the file of another row, or from the first one there is of several."""


def rows_of(name: str) -> list[DataSet]:
    """The rows whose file can serve a data set, the preferred one first; none for one that needs no file."""
    return [DATA_SETS[row] for row in VARIANTS.get(name, (name,)) if row in DATA_SETS]


def row_of_file(file: str) -> DataSet | None:
    """The row that a file belongs to."""
    return next((row for row in DATA_SETS.values() if row.file == file), None)
