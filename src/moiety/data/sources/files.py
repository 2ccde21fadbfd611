"""What a data set is to ``load``, and how its npz file is found, read and checked."""

from __future__ import annotations

import lzma
import math
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError

import numpy as np

from moiety.data.catalogue import row_of_file
from moiety.data.federated import Array, Columns, FederatedData
from moiety.data.sources.folders import VARIABLE, find_file, named_folder
from moiety.data.sources.provenance import UNKNOWN, digest_arrays, judge_file
from moiety.errors import MoietyError, message, must, refuse
from moiety.machine import check_room

AGAIN = "Get the file again."
DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    SyntaxError,  # an array's head is read as Python
    TokenError,
    RuntimeError,  # an encrypted archive
    MemoryError,
    OverflowError,
    RecursionError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""What reading a damaged archive raises."""
REAL, TEXT = "iuf", "U"
KINDS = {"X": REAL, "F": REAL, "x_train": REAL, "x_test": REAL, "client_names": TEXT, "vocab": TEXT}
"""The kinds of the arrays in files by their names; all others are whole numbers."""
_KINDS_IN_WORDS = {"iu": "whole numbers", REAL: "real numbers", TEXT: "texts"}

Shape = tuple[str | int, ...]


@dataclass(frozen=True, eq=False)
class Source:
    """A pool of rows before they are dealt to clients.

    ``test`` is the data set's own test pool, if it has one. ``client`` is the natural client of each row, a number,
    and ``names`` are the names of those clients. ``load`` brings the first ``standardise`` features of ``x`` to mean 0
    and standard deviation 1 over all clients' training rows, and calls ``finish`` for other work that needs to know
    the training rows.
    """

    columns: Columns
    classes: int
    test: Columns | None = None
    client: Array | None = None
    names: Array | None = None
    standardise: int = 0
    finish: Callable[[FederatedData], FederatedData] | None = None


def read_archive(file: str, shapes: Mapping[str, Shape]) -> dict[str, Array]:
    """The named arrays of a data set's npz file, each of its shape (a letter is any one length)."""
    contents = ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in shapes.items())
    path = _find(file)
    arrays = read_npz(path, shapes, contents)
    lengths: dict[str, int] = {}
    for name, shape in shapes.items():
        _check_array(f"{file}: {name}", arrays[name], KINDS.get(name, "iu"), shape, lengths)
    if judge_file(path, digest_arrays(arrays)).state == UNKNOWN:
        title = file.partition(".")[0]
        warnings.warn(f"{path} is not the {title} that moiety knows: results are not of that data set.", stacklevel=2)
    return {name: arrays[name] for name in shapes}


def read_npz(path: Path, names: Iterable[str] = (), contents: str = "") -> dict[str, Array]:
    """All arrays of an npz file, among them those of these names; it is not unpickled, and not larger than it says."""
    file = path.name
    try:
        # Opened here and not by NumPy, which would leave a damaged file open.
        with path.open("rb") as stream, zipfile.ZipFile(stream):
            stream.seek(0)
            archive = np.load(stream, allow_pickle=False)
            missing = sorted(set(names) - set(archive.files))
            must(not missing, file, f"an archive of {contents}", f"none called {', '.join(missing)}", AGAIN)
            _check_room(file, archive.zip)
            arrays = {name: np.asarray(archive[name]) for name in archive.files}
    except MoietyError:
        raise
    except DAMAGE:
        refuse(file, "a readable npz archive", f"a damaged one, {path}", AGAIN)
    return arrays


def _check_room(file: str, archive: zipfile.ZipFile) -> None:
    """Raise where what the archive unpacks to is more than there is memory for, or less than its arrays claim."""
    check_room(file, sum(member.file_size for member in archive.infolist()), "It may be made to fill the memory.")
    for member in archive.infolist():
        with archive.open(member) as stream:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
            claim, size = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
            same = claim == size or dtype.hasobject  # which is refused when it is read
            must(same, f"{file}: {member.filename}", f"of {claim:,} bytes, as it claims", f"{size:,}", AGAIN)


def as_images(pixels: Array) -> Array:
    """uint8 [n, height, width] as float32 [n, 1, height, width] from 0 to 1, and so [n, height, width, 3]."""
    if pixels.ndim == 4:
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)) / np.float32(255)
    return (pixels[:, None] / np.float32(255)).astype(np.float32, copy=False)


def as_floats(features: Array) -> Array:
    """Features of any type as float32."""
    return features.astype(np.float32)


def check_range(name: str, values: Array, below: int) -> None:
    """Raise unless all values are whole numbers from 0 to ``below`` - 1."""
    inside = values.dtype.kind in "iu" and (len(values) == 0 or (int(values.min()) >= 0 and int(values.max()) < below))
    must(inside, name, f"integers from 0 to {below - 1}", "others", AGAIN)


def make_columns(file: str, x: Array, y: Array, classes: int) -> dict[str, Array]:
    """The two columns of a classification data set, after a check of the labels."""
    check_range(f"{file}: labels", y, classes)
    return {"x": x, "y": y.astype(np.int64)}


def first_file(*files: str) -> str:
    """The first of these files that is there, or else the first that can be fetched."""
    rows = {file: row_of_file(file) for file in files}
    downloads = [file for file, row in rows.items() if row and not row.by_hand]
    return next((file for file in files if find_file(file) is not None), [*downloads, *files][0])


def _find(file: str) -> Path:
    path = find_file(file)
    if path is not None:
        return path
    folder, row = named_folder(), row_of_file(file)
    problem = "nothing: it is not set"
    if folder is not None:
        problem = f"{folder}, which {'does not' if folder.is_dir() else 'is no folder'}"
    hint = f"To make the file, run: {row.command}." if row else ""
    raise MoietyError(message(VARIABLE, f"a folder that holds {file}", problem, hint))


def _check_array(name: str, array: Array, kinds: str, shape: Shape, lengths: dict[str, int]) -> None:
    must(array.dtype.kind in kinds, name, _KINDS_IN_WORDS[kinds], array.dtype, AGAIN)
    fits = array.ndim == len(shape)
    for length, expected in zip(array.shape, shape, strict=False):
        fits = fits and length == (lengths.setdefault(expected, length) if isinstance(expected, str) else expected)
    sizes = {letter: length for letter, length in lengths.items() if letter in shape}
    constraint = f"of shape [{', '.join(map(str, shape))}]" + (f" with {sizes}" if sizes and not fits else "")
    must(fits, name, constraint, list(array.shape), AGAIN)
