"""Data sets of features and labels: those of a common layout, as the catalogue has it, and the few that need code."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from moiety.data.catalogue import DATA_SETS, DataSet
from moiety.data.federated import Array
from moiety.data.sources.files import (
    AGAIN,
    Shape,
    Source,
    as_floats,
    as_images,
    check_range,
    first_file,
    make_columns,
    read_archive,
)
from moiety.errors import choice, must, refuse

Row = tuple[int, ...]
"""The shape of one row of a file: (height, width) of an image, or (features,), which ``load`` standardises."""


def _read_split_file(file: str, row: Row, classes: int) -> Source:
    """From a file with ``x_train``, ``y_train``, ``x_test`` and ``y_test``."""
    a = read_archive(file, {"x_train": ("n", *row), "y_train": ("n",), "x_test": ("m", *row), "y_test": ("m",)})
    train, test = (_convert_columns(file, a[f"x_{part}"], a[f"y_{part}"], classes) for part in ("train", "test"))
    return Source(train, classes, test=test, standardise=_count_standardised(row))


def _read_ordered_file(file: str, row: Row, classes: int) -> Source:
    """From a file with ``X`` and ``y``, whose first ``n_train`` rows are for training."""
    a = read_archive(file, {"X": ("n", *row), "y": ("n",), "n_train": ()})
    cut = int(a["n_train"])
    must(0 < cut < len(a["y"]), f"{file}: n_train", f"from 1 to below {len(a['y'])}", cut, AGAIN)
    columns = _convert_columns(file, a["X"], a["y"], classes)
    train, test = ({name: c[rows] for name, c in columns.items()} for rows in (slice(cut), slice(cut, None)))
    return Source(train, classes, test=test, standardise=_count_standardised(row))


def _read_client_file(file: str, row: Row, classes: int) -> Source:
    """From a file with ``X``, ``y`` and the natural ``client`` of each row."""
    a = read_archive(file, {"X": ("n", *row), "y": ("n",), "client": ("n",)})
    return Source(
        _convert_columns(file, a["X"], a["y"], classes),
        classes,
        client=a["client"],
        standardise=_count_standardised(row),
    )


def _convert_columns(file: str, x: Array, y: Array, classes: int) -> dict[str, Array]:
    return make_columns(file, as_floats(x) if x.ndim == 2 else as_images(x), y, classes)


def _count_standardised(row: Row) -> int:
    """How many features of a row are standardised: those of tables, none of images."""
    return row[0] if len(row) == 1 else 0


def _read_pool_file(file: str, row: Row, classes: int) -> Source:
    """From a file with ``X`` and ``y``."""
    a = read_archive(file, {"X": ("n", *row), "y": ("n",)})
    return Source(_convert_columns(file, a["X"], a["y"], classes), classes, standardise=_count_standardised(row))


LAYOUTS: dict[str, Callable[[str, Row, int], Source]] = {
    "split": _read_split_file,
    "ordered": _read_ordered_file,
    "client": _read_client_file,
    "pool": _read_pool_file,
}
"""The layouts that rows of the catalogue name."""


def _make_source(row: DataSet) -> Callable[[], Source]:
    def source() -> Source:
        return LAYOUTS[row.layout](row.file, row.row, row.classes)

    source.__name__, source.__doc__ = row.name, row.about
    return source


PLAIN = {name: _make_source(row) for name, row in DATA_SETS.items() if row.layout}


def digits() -> Source:
    """Handwritten digits, 1,797 of 8x8 pixels as 64 numbers from 0 to 1, 10 classes; ships with scikit-learn."""
    x, y = _read_digits()
    return Source(make_columns("digits", (x / 16).astype(np.float32), y, 10), classes=10)


def _read_digits() -> tuple[Array, Array]:
    """The table that ships with scikit-learn, read from its file: importing the package takes most of a second."""
    package = find_spec("sklearn")
    places = package.submodule_search_locations if package else None
    file = Path((places or [""])[0], "datasets", "data", "digits.csv.gz")
    if not file.is_file():
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return x, y
    table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return table[:, :-1].astype(np.float64), table[:, -1].astype(np.int64)


def uci_har(features: str = "inertial") -> Source:
    """Phone movements of 30 people, 10,299 windows, 6 activities; x [9, 64] raw, or 108 statistics.

    Args:
        features: ``inertial``, the raw signals, or ``statistics``, 12 numbers for each of the 9 channels, standardised.
    """
    arrays: dict[str, tuple[str, Row]] = {"inertial": ("X", (9, 64)), "statistics": ("F", (108,))}
    choice("features", features, arrays)
    array, row = arrays[features]
    file = "uci_har_inertial.npz"
    a = read_archive(file, {array: ("n", *row), "y": ("n",), "client": ("n",)})
    columns = make_columns(file, as_floats(a[array]), a["y"], 6)
    return Source(columns, classes=6, client=a["client"], standardise=_count_standardised(row))


def covtype() -> Source:
    """Forest cover in 4 wilderness areas, 15,120 rows, 10 numbers (standardised) and 40 soil flags, 7 classes."""
    file, soils = "covtype15k.npz", 40
    a = read_archive(file, {"X": ("n", 10), "soil": ("n",), "y": ("n",), "client": ("n",)})
    check_range(f"{file}: soil", a["soil"], soils)
    x = np.concatenate([as_floats(a["X"]), np.eye(soils, dtype=np.float32)[a["soil"].astype(np.int64)]], axis=1)
    return Source(make_columns(file, x, a["y"], 7), classes=7, client=a["client"], standardise=10)


def cifar10() -> Source:
    """Small colour pictures, 50,000 and 10,000 for testing, x [3, 32, 32] from 0 to 1, 10 classes; lossless if there.

    Where there is no ``cifar10.npz``, the lossy pictures of ``cifar10-jpeg`` are read. They come in another order.
    """
    return _read_lossless() if first_file(_LOSSLESS, _JPEG) == _LOSSLESS else cifar10_jpeg()


_LOSSLESS, _JPEG = "cifar10.npz", "cifar10_jpeg.npz"


def _read_lossless() -> Source:
    return _read_split_file(_LOSSLESS, (32, 32, 3), 10)


def cifar100(labels: str = "fine") -> Source:
    """Small colour pictures, 50,000 and 10,000 for testing, x [3, 32, 32] from 0 to 1, 100 or 20 classes.

    Args:
        labels: ``fine``, 100 classes, or ``coarse``, 20 classes.
    """
    choice("labels", labels, ["fine", "coarse"])
    file, classes, y = "cifar100.npz", 100 if labels == "fine" else 20, "y" if labels == "fine" else "coarse"
    shapes: dict[str, Shape] = {}
    for part in ("train", "test"):
        shapes |= {f"x_{part}": (part, 32, 32, 3), f"y_{part}": (part,), f"coarse_{part}": (part,)}
    a = read_archive(file, shapes)
    train, test = (make_columns(file, as_images(a[f"x_{p}"]), a[f"{y}_{p}"], classes) for p in ("train", "test"))
    return Source(train, classes, test=test)


def femnist() -> Source:
    """Handwritten characters by writer, x [1, 28, 28] from 0 to 1, 62 classes."""
    file = "femnist.npz"
    a = read_archive(file, {"X": ("n", 28, 28), "y": ("n",), "client": ("n",), "client_names": ("writers",)})
    check_range(f"{file}: client", a["client"], len(a["client_names"]))
    columns = make_columns(file, as_images(a["X"]), a["y"], 62)
    return Source(columns, classes=62, client=a["client"], names=a["client_names"])


def gldv2() -> Source:
    """Landmarks by photographer, 233 users, x [3, 64, 64] from 0 to 1, 203 classes; from your own files."""
    file, size = "gldv2_23k.npz", (64, 64, 3)
    shapes: dict[str, Shape] = {"x_train": ("n", *size), "y_train": ("n",), "x_test": ("m", *size), "y_test": ("m",)}
    a = read_archive(file, {**shapes, "client": ("n",), "client_names": ("users",), "classes": ("classes",)})
    check_range(f"{file}: client", a["client"], len(a["client_names"]))
    classes = len(a["classes"])
    train, test = (make_columns(file, as_images(a[f"x_{p}"]), a[f"y_{p}"], classes) for p in ("train", "test"))
    return Source(train, classes, test=test, client=a["client"], names=a["client_names"])


def cifar10_jpeg() -> Source:
    """The pictures of cifar10 as lossy JPEG files, in another order."""
    file = _JPEG
    shapes: dict[str, Shape] = {"jpeg_header": ("h",)}
    for part in ("train", "test"):
        shapes |= {f"jpeg_{part}": (f"bytes_{part}",), f"off_{part}": (f"offsets_{part}",), f"y_{part}": (part,)}
    a = read_archive(file, shapes)

    def read_part(part: str) -> dict[str, Array]:
        y = a[f"y_{part}"]
        x = _decode(file, a["jpeg_header"], a[f"jpeg_{part}"], a[f"off_{part}"], len(y))
        return make_columns(file, x, y, classes=10)

    return Source(read_part("train"), classes=10, test=read_part("test"))


def _decode(file: str, header: Array, data: Array, offsets: Array, count: int) -> Array:
    """All pictures, float32 [count, 3, 32, 32]; they share one JPEG header, which is stored once."""
    from PIL import Image

    x = np.empty((count, 3, 32, 32), dtype=np.float32)
    start, stream = header.tobytes(), data.tobytes()
    try:
        for i in range(count):
            with Image.open(io.BytesIO(start + stream[offsets[i] : offsets[i + 1]])) as picture:
                x[i] = np.asarray(picture).transpose(2, 0, 1)
    except (OSError, ValueError, IndexError):
        refuse(file, f"{count} JPEG pictures of 32 x 32", f"picture {i} that does not decode")
    x /= np.float32(255)
    return x
