"""Data of many clients as columns: one array per column, and for every client where its rows lie.

Rows are grouped by client, and within a client they are ordered train, validation, test. So a cohort's batches are
gathers of row numbers, whatever the number of clients.

On disk the data is a folder of NumPy files that is read by memory mapping: ``columns/NAME.npy`` for each column,
``bounds.npy``, ``ids.npy`` where clients have names, and ``meta.json``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from moiety.data.describe import Description, describe_data
from moiety.data.digest import (
    Digest,
    MappedFile,
    digest_data,
    explain_difference,
    fingerprint_of,
    open_mapped,
    release_pages,
)
from moiety.data.folder import AGAIN, COLUMNS, map_array, read_meta, refuse_folder, write_arrays
from moiety.data.preprocess import Preprocessing
from moiety.errors import as_array, choice, is_whole, kind, must, near, refuse
from moiety.files import check_path

Array = NDArray[Any]
Ints = NDArray[np.int64]
Columns = Mapping[str, Array]

PARTS = ("train", "validation", "test")
FOLDER = "folder"
"""Stands for a data set's name in a specification: the data lies in the folder ``path``."""
TABLE = "table"
"""Stands for one too: the data is a CSV or Parquet file at ``path``."""
UNSEEN = "unseen"
"""The folder, inside that of saved data, of the clients that training never sees."""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMES_SEARCHED = 10_000  # an unknown name is compared with this many: comparing it with all could take minutes


class NumberNames(Sequence[str]):
    """The names "0", "1", ... of clients without names; it stores no text for each.

    >>> names = NumberNames(1_000_000)
    >>> len(names), names[-1], names.index("41"), "1000000" in names
    (1000000, '999999', 41, False)
    """

    def __init__(self, count: int):
        self._range = range(count)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [str(i) for i in self._range[at]]
        return str(self._range[at])

    def __contains__(self, name: object) -> bool:
        digits = isinstance(name, str) and name.isascii() and name.isdecimal()
        return digits and str(int(str(name))) == name and int(name) < len(self)

    def index(self, name: str, start: int = 0, stop: int | None = None) -> int:
        """The position of ``name``; ValueError where there is none, as for any sequence."""
        if name not in self:
            raise ValueError(f"{name!r} is not one of the names")
        return self._range.index(int(name))


Names = Sequence[str] | Array


def check_names(name: str, names: Iterable[object]) -> None:
    """Raise unless all are texts that files can hold: without the character 0, which NumPy drops at a text's end."""
    texts: list[Any] = names.tolist() if isinstance(names, np.ndarray) else list(names)
    hint = "Give such clients other names."
    must(all(isinstance(each, str) for each in texts), name, "texts", "others", hint)
    text = "\n".join(texts)
    try:
        text.encode()
        odd = "\0" in text
    except UnicodeEncodeError:
        odd = True
    if odd:
        first = next(each for each in texts if "\0" in each or each.encode(errors="replace").decode() != each)
        refuse(name, "names of valid Unicode, without the character 0", repr(first), hint)


@dataclass(frozen=True, eq=False, repr=False)
class FederatedData:
    """The examples of many clients.

    ``columns`` have a common leading axis of rows. ``bounds`` is int64 [clients, 4]: where a client's rows start, and
    where its train, validation and test rows end. ``ids`` are the clients' names, ``classes`` is the number of label
    classes where ``y`` holds labels, and ``spec`` says how ``load`` made it (empty for a user's own data). ``mapped``
    says which columns ``open_folder`` mapped from files. ``preprocessing`` says how rows of a table became these
    columns, and ``unseen`` holds clients that training never sees (see ``from_frame``). A str means the client of that
    name, an int the client at that position; see ``index`` for names that are numbers.

    >>> columns = {"x": np.arange(5.0), "y": np.array([0, 1, 0, 1, 1])}
    >>> fed = FederatedData(columns, np.array([[0, 2, 2, 3], [3, 4, 4, 5]]), ["ann", "bob"], classes=2)
    >>> len(fed), fed.rows(1, "test"), fed.sizes("train").tolist()
    (2, (4, 5), [2, 1])
    >>> fed.client("bob")["x"]
    array([3.])
    """

    columns: Columns
    bounds: Ints
    ids: Names
    classes: int | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    mapped: Mapping[str, MappedFile] = field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    unseen: FederatedData | None = None

    def __post_init__(self) -> None:
        must(len(self.columns) > 0, "columns", "at least one named column", "none")
        for name, column in self.columns.items():
            fits = isinstance(column, np.ndarray) and column.ndim > 0 and column.dtype.kind in "biuf"
            form = describe_array(column) if isinstance(column, np.ndarray) else type(column).__name__
            must(fits, f"columns.{name}", "an array of numbers or booleans with an axis of rows", form)
            if isinstance(column, np.ma.MaskedArray):
                as_array(f"columns.{name}", column)
        lengths = {name: len(column) for name, column in self.columns.items()}
        must(len(set(lengths.values())) == 1, "columns", "of one length", lengths)
        b = self.bounds
        kind("bounds", b, np.ndarray, "int64 [clients, 4]")
        must(b.ndim == 2 and b.shape[1] == 4 and b.dtype == np.int64, "bounds", "int64 [clients, 4]", describe_array(b))
        must(len(b) > 0, "bounds", "of at least one client", "none")
        in_order = bool((np.diff(b, axis=1) >= 0).all()) and int(b.min()) >= 0 and int(b.max()) <= self.total
        must(in_order, "bounds", f"ascending within a client and within 0 to {self.total}", "others")
        disjoint = bool((np.sort(b[:, 0])[1:] >= np.sort(b[:, 3])[:-1]).all())
        must(disjoint, "bounds", "such that no row belongs to two clients", "clients whose rows overlap")
        must(len(self.ids) == len(b), "ids", f"one name for each of {len(b)} clients", len(self.ids))
        if not isinstance(self.ids, NumberNames):
            check_names("ids", self.ids)

    def __len__(self) -> int:
        return len(self.bounds)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {describe_array(c, 1)}" for name, c in self.columns.items())
        return f"FederatedData({len(self)} clients, {self.total} rows; {columns})"

    @property
    def total(self) -> int:
        """The number of rows of all clients and parts."""
        return len(next(iter(self.columns.values())))

    def rows(self, client: int, part: str = "train") -> tuple[int, int]:
        """The first row of the part of the client at that position, and the row after its last."""
        at, k = self.position(client), _part_index(part)
        return int(self.bounds[at, k]), int(self.bounds[at, k + 1])

    def spans(self, clients: Sequence[int], part: str = "train") -> list[tuple[int, int]]:
        """The first row and the row after the last for each of the clients at these positions."""
        starts, stops = self.edges(clients, part)
        return list(zip(starts.tolist(), stops.tolist(), strict=True))

    def edges(self, clients: Sequence[int] | Ints, part: str = "train") -> tuple[Ints, Ints]:
        """The same as two arrays: of first rows, and of rows after the last."""
        at, k = np.asarray(clients, dtype=np.int64), _part_index(part)
        if len(at) and at.view(np.uint64).max() >= len(self):  # without its sign a negative number is a large one
            for client in clients:
                self.rows(int(client), part)  # which names the one that is not there
        bounds = self.bounds.take(at, axis=0)
        return bounds[:, k], bounds[:, k + 1]

    def sizes(self, part: str = "train") -> Ints:
        """The number of rows of every client's part."""
        k = _part_index(part)
        return self.bounds[:, k + 1] - self.bounds[:, k]

    def all_rows(self, part: str = "train") -> Ints:
        """The row numbers of all clients' part, in the order of clients."""
        sizes, start = self.sizes(part), self.bounds[:, _part_index(part)]
        before = np.cumsum(sizes) - sizes
        return np.asarray(np.arange(int(sizes.sum())) + np.repeat(start - before, sizes))

    def client(self, client: int | str, part: str = "train") -> dict[str, Array]:
        """The columns of one client's part, as views."""
        return self.at(self.index(client), part)

    def at(self, position: int, part: str = "train") -> dict[str, Array]:
        """The columns of the part of the client at that position, as views."""
        start, stop = self.rows(position, part)
        return {name: column[start:stop] for name, column in self.columns.items()}

    def index(self, client: int | str) -> int:
        """The position of a client that a user names: an int is a position, a str is a name.

        Where names are numbers, an int could mean either. It is refused where it is the position of one client and the
        name of another; ``"3"`` and ``ids[3]`` are always clear.

        >>> bounds = np.array([[0, 1, 1, 1], [1, 2, 2, 2]])
        >>> fed = FederatedData({"x": np.arange(2.0)}, bounds, ["1", "2"])
        >>> fed.index("1"), fed.index(0)
        (0, 0)
        >>> fed.index(1)
        Traceback (most recent call last):
        moiety.errors.MoietyError: `client` must be one client, got 1, which is the name of one and the position of \
        client '2'. Say "1" for the name, or data.ids[1] for the position.
        """
        at = self.position(client)
        name = str(self.ids[at])
        if not isinstance(client, str) and name != str(at) and self._position_of_name(str(at)) is not None:
            problem = f"{at}, which is the name of one and the position of client {name!r}"
            refuse("client", "one client", problem, f'Say "{at}" for the name, or data.ids[{at}] for the position.')
        return at

    def position(self, client: int | str) -> int:
        """The position of a client for code that counts clients: an int is always a position."""
        if not isinstance(client, str):
            whole = is_whole(client)
            hint = f'A client\'s name is a str, as in "{client}".' if whole else "A client's name is a str."
            must(whole and 0 <= client < len(self), "client", f"a position from 0 to {len(self) - 1}", client, hint)
            return int(client)
        at = self._position_of_name(client)
        if at is None:
            hint = near(client, (str(name) for name in itertools.islice(self.ids, _NAMES_SEARCHED)))
            refuse("client", "the name of a client", repr(client), hint)
        return at

    def _position_of_name(self, name: str) -> int | None:
        """The position of the client of that name, if there is one."""
        if isinstance(self.ids, np.ndarray):
            places = np.flatnonzero(self.ids == name)
            return int(places[0]) if len(places) else None
        return self.ids.index(name) if name in self.ids else None

    def with_validation_in_train(self) -> FederatedData:
        """The same data with validation rows counted as training rows, to train again after tuning."""
        bounds = self.bounds.copy()
        bounds[:, 1] = bounds[:, 2]
        unseen = self.unseen and self.unseen.with_validation_in_train()
        spec = self.spec and {**self.spec, "validation_in_train": True}
        return replace(self, bounds=bounds, spec=spec, unseen=unseen)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the labels 0, 1, ...; empty where they have none."""
        return self.preprocessing.class_names if self.preprocessing else ()

    def describe(self) -> Description:
        """Rows, label shares, drift between clients, missing values, warnings; print it, or look at its ``rows``."""
        return describe_data(self)

    def release(self) -> None:
        """Let go of the pages of mapped columns that were read; the system still caches the file.

        Without this the resident memory of a long run grows to the size of the data.
        """
        for column in self.columns.values():
            release_pages(column)

    def digest(self) -> Digest:
        """A table of hashes of everything: of all rows of all columns, of clients, names and parts.

        All columns are read, except those of a folder whose files are as they were when it was opened.
        """
        has_names = not isinstance(self.ids, NumberNames)
        ids = np.asarray(self.ids, dtype=np.str_) if has_names else len(self.ids)
        digest = digest_data(self.columns, self.bounds, ids, self.mapped)
        digest |= {"preprocessing": self.preprocessing.digest()} if self.preprocessing else {}
        return digest | ({"unseen": self.unseen.digest()} if self.unseen else {})

    def fingerprint(self) -> str:
        """A short hash that tells this data from other data: that of ``digest``."""
        return fingerprint_of(self.digest())

    def explain_difference(self, was: Digest) -> str:
        """Where this data differs from the data with the digest ``was``, in words; empty where it does not."""
        return explain_difference(was, self.digest(), self.bounds, self.ids)

    def summary(self) -> str:
        """A short table: clients, examples per client in each part, and classes per client."""
        lines = [repr(self), f"{'':20}{'total':>10}{'min':>8}{'median':>9}{'max':>8}"]
        lines += [_format_line(part, self.sizes(part), int(self.sizes(part).sum())) for part in PARTS]
        if self.classes is not None and self.columns["y"].ndim == 1:
            lines.append(_format_line("classes (train)", self._classes_per_client(), self.classes))
        return "\n".join(lines)

    def _classes_per_client(self) -> Ints:
        y = self.columns["y"][self.all_rows("train")]
        client = np.repeat(np.arange(len(self)), self.sizes("train"))
        width = int(y.max(initial=0)) + 1
        return np.bincount(np.unique(client * width + y) // width, minlength=len(self))

    def save(self, folder: str | Path) -> None:
        """Write everything to a new folder, whole or not at all; ``open_folder`` reads it without loading it."""
        check_path("folder", folder, "a folder's path")
        target = Path(folder)
        must(not target.exists(), "folder", "a new one", target, "Remove it first or choose another name.")
        must(target.parent.is_dir(), "folder", "inside a folder that exists", target)
        has_names = not isinstance(self.ids, NumberNames)
        meta = {
            "columns": list(self.columns),
            "classes": self.classes,
            "spec": {} if self.spec.get("name") == FOLDER else self.spec,  # it lies in another folder now
            "named": has_names,
            "digest": self.digest(),
            "preprocessing": self.preprocessing.as_dict() if self.preprocessing else None,
            "unseen": self.unseen is not None,
        }
        arrays = {_column_file(name): column for name, column in self.columns.items()}
        arrays["bounds.npy"] = self.bounds
        if has_names:
            arrays["ids.npy"] = np.asarray(self.ids, dtype=np.str_)
        inner = {} if self.unseen is None else {UNSEEN: self.unseen.save}
        write_arrays(target, meta, arrays, inner)


def _column_file(name: str) -> str:
    return f"{COLUMNS}/{name}.npy"


def open_folder(folder: str | Path, *, read_all: bool = False) -> FederatedData:
    """The data that ``FederatedData.save`` wrote, memory-mapped: rows are read from disk when they are used.

    A configuration file can name it: ``[data]`` with ``name = "folder"`` and ``path``.

    The first time all columns are read, to see whether they are as they were saved. After that only a file that was
    changed, exchanged or copied is read again. With ``read_all`` all of them are read, and nothing is written.
    """
    check_path("folder", folder, "a folder's path")
    path = Path(folder)
    must(path.is_dir(), "folder", "a folder written by FederatedData.save", f"{path}, which is no folder")
    meta = read_meta(path)
    odd = next((key for key, fits in _META.items() if key not in meta or not fits(meta[key])), None)
    if odd is not None:
        refuse_folder(path, f"`{odd}` of meta.json is missing or damaged")
    bounds = np.asarray(map_array(path, meta, "bounds.npy"))
    columns = {str(name): map_array(path, meta, _column_file(name)) for name in meta["columns"]}
    fed = FederatedData(
        columns=columns,
        bounds=bounds,
        ids=map_array(path, meta, "ids.npy") if meta["named"] else NumberNames(len(bounds)),
        classes=meta["classes"],
        spec=meta["spec"] or {"name": FOLDER, "path": str(path)},
    )
    files = {n: open_mapped(path / _column_file(n), c, bounds, read_all=read_all) for n, c in columns.items()}
    unseen = open_folder(path / UNSEEN, read_all=read_all) if meta.get("unseen") else None
    table = meta.get("preprocessing")
    try:
        fed = replace(fed, mapped=files, unseen=unseen, preprocessing=table and Preprocessing.from_dict(table))
        odd = fed.explain_difference(meta["digest"])
    except (KeyError, TypeError, AttributeError):
        refuse_folder(path, "`digest` of meta.json is missing or damaged")
    must(not odd, "folder", "as it was saved", f"{odd} in {path}", f"A file was changed or replaced. {AGAIN}")
    return fed


_META: dict[str, Callable[[Any], bool]] = {
    # A name of letters and digits is one file in the folder, and none outside it.
    "columns": lambda names: isinstance(names, list) and all(is_plain_name(name) for name in names),
    "named": lambda named: isinstance(named, bool),
    "classes": lambda classes: classes is None or (is_whole(classes) and classes > 0),
    "spec": lambda spec: isinstance(spec, dict),
    "digest": lambda digest: isinstance(digest, dict),
}
"""The keys of ``meta.json`` besides those of its files, and what their values are."""


def is_plain_name(name: object) -> bool:
    """Whether a column may have this name: letters, digits, underscores. Such a name is a file name on every system."""
    return isinstance(name, str) and _PLAIN.fullmatch(name) is not None


def _part_index(part: str) -> int:
    choice("part", part, PARTS)
    return PARTS.index(part)


def describe_array(array: Array, skip: int = 0) -> str:
    """The type of an array and its shape, without the first ``skip`` axes: "float32 [64]"."""
    return f"{array.dtype} {list(array.shape[skip:])}" if array.ndim > skip else str(array.dtype)


def _format_line(name: str, values: Ints, total: int) -> str:
    return f"{name:20}{total:>10}{values.min():>8}{np.median(values):>9.1f}{values.max():>8}"
