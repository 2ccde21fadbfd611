"""What a data set is to ``load``, and how its file is found and read."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moiety.data.federated import Array, Columns, FederatedData
from moiety.errors import MoietyError, message, must

AGAIN = "Get the file again."

Shape = tuple[str | int, ...]


@dataclass(frozen=True, eq=False)
class Source:
    """A pool of rows before they are dealt to clients.

    ``test`` is the data set's own test pool, if it has one. ``client`` is the natural client of each row, a number,
    and ``names`` are those clients' names. The first ``standardise`` features of ``x`` are to be brought to mean 0 and
    standard deviation 1 over all clients' training rows, once it is known which those are; ``finish`` does whatever
    else must know that.
    """

    columns: Columns
    classes: int
    test: Columns | None = None
    client: Array | None = None
    names: Array | None = None
    standardise: int = 0
    finish: Callable[[FederatedData], FederatedData] | None = None


def read(file: str, shapes: Mapping[str, Shape]) -> dict[str, Array]:
    """The named arrays of an npz file in the folder ``MOIETY_DATA``, each of its shape (a letter is any one length)."""
    path = _find(file, shapes)
    try:
        # Opened here and not by NumPy, which would leave a damaged file open.
        with path.open("rb") as stream, zipfile.ZipFile(stream):
            stream.seek(0)
            archive = np.load(stream, allow_pickle=False)
            lacking = sorted(set(shapes) - set(archive.files))
            must(not lacking, file, f"an archive of {_described(shapes)}", f"none called {', '.join(lacking)}", AGAIN)
            arrays = {name: archive[name] for name in shapes}
    except MoietyError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        raise MoietyError(message(file, "a readable npz archive", f"a damaged one, {path}", AGAIN)) from None
    lengths: dict[str, int] = {}
    for name, shape in shapes.items():
        _check_shape(f"{file}: {name}", arrays[name], shape, lengths)
    return arrays


def images(pixels: Array) -> Array:
    """uint8 [n, height, width] as float32 [n, 1, height, width] from 0 to 1."""
    return (pixels[:, None] / np.float32(255)).astype(np.float32, copy=False)


def numbers(features: Array) -> Array:
    """Features of any type as float32."""
    return features.astype(np.float32)


def train_and_test(
    file: str, row: tuple[int, ...], classes: int, prepare: Callable[[Array], Array], standardise: int = 0
) -> Source:
    """A source from a file with ``x_train``, ``y_train``, ``x_test`` and ``y_test``."""
    a = read(file, {"x_train": ("n", *row), "y_train": ("n",), "x_test": ("m", *row), "y_test": ("m",)})
    train = labelled(file, prepare(a["x_train"]), a["y_train"], classes)
    test = labelled(file, prepare(a["x_test"]), a["y_test"], classes)
    return Source(train, classes, test=test, standardise=standardise)


def first_rows_train(file: str, features: int, classes: int) -> Source:
    """A tabular source from a file with ``X`` and ``y``, whose first ``n_train`` rows are for training."""
    a = read(file, {"X": ("n", features), "y": ("n",), "n_train": ()})
    cut = int(a["n_train"])
    must(0 < cut < len(a["y"]), f"{file}: n_train", f"from 1 to below {len(a['y'])}", cut, AGAIN)
    whole = labelled(file, numbers(a["X"]), a["y"], classes)
    train, test = ({name: c[rows] for name, c in whole.items()} for rows in (slice(cut), slice(cut, None)))
    return Source(train, classes, test=test, standardise=features)


def by_client(
    file: str,
    row: tuple[int, ...],
    classes: int,
    prepare: Callable[[Array], Array],
    *,
    standardise: int = 0,
    array: str = "X",
) -> Source:
    """A source from a file with ``X`` (or another array), ``y`` and the natural ``client`` of each row."""
    a = read(file, {array: ("n", *row), "y": ("n",), "client": ("n",)})
    columns = labelled(file, prepare(a[array]), a["y"], classes)
    return Source(columns, classes, client=a["client"], standardise=standardise)


def labelled(file: str, x: Array, y: Array, classes: int) -> dict[str, Array]:
    """The two columns of a classification data set, labels checked."""
    inside = y.dtype.kind in "iu" and (len(y) == 0 or (int(y.min()) >= 0 and int(y.max()) < classes))
    must(inside, f"{file}: labels", f"integers from 0 to {classes - 1}", "others", AGAIN)
    return {"x": x, "y": y.astype(np.int64)}


def _find(file: str, shapes: Mapping[str, Shape]) -> Path:
    folder = os.environ.get("MOIETY_DATA", "")
    hint = f"Set it to a folder that holds {file}, an npz archive of {_described(shapes)}."
    must(folder != "", "MOIETY_DATA", f"a folder that holds {file}", "nothing: it is not set", hint)
    must(Path(folder).is_dir(), "MOIETY_DATA", f"a folder that holds {file}", f"{folder}, which is no folder", hint)
    path = Path(folder) / file
    must(path.is_file(), "MOIETY_DATA", f"a folder that holds {file}", f"{folder}, which does not", hint)
    return path


def _described(shapes: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in shapes.items())


def _check_shape(name: str, array: Array, shape: Shape, lengths: dict[str, int]) -> None:
    fits = array.ndim == len(shape)
    for length, want in zip(array.shape, shape, strict=False):
        fits = fits and length == (lengths.setdefault(want, length) if isinstance(want, str) else want)
    known = {letter: length for letter, length in lengths.items() if letter in shape}
    wanted = f"of shape [{', '.join(map(str, shape))}]" + (f" with {known}" if known and not fits else "")
    must(fits, name, wanted, list(array.shape), AGAIN)
