"""Data sets of features and labels: a table of npz files with a common layout, and the few that need code."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from moiety.data.federated import Array
from moiety.data.sources.files import (
    AGAIN,
    Shape,
    Source,
    as_floats,
    as_images,
    check_range,
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
    return make_columns(file, as_images(x) if x.ndim == 3 else as_floats(x), y, classes)


def _count_standardised(row: Row) -> int:
    """How many features of a row are standardised: those of tables, none of images."""
    return row[0] if len(row) == 1 else 0


Layout = Callable[[str, Row, int], Source]
_FILES: dict[str, tuple[Layout, str, Row, int, str]] = {
    "audiomnist": (
        _read_client_file,
        "audiomnist_mel32.npz",
        (32, 32),
        10,
        "Spoken digits of 60 speakers, 500 each, as mel spectrograms x [1, 32, 32] from 0 to 1, 10 classes.",
    ),
    "chars74k": (
        _read_client_file,
        "chars74k_hnd_28.npz",
        (28, 28),
        62,
        "Handwritten letters and digits of 55 writers, 62 each, x [1, 28, 28] from 0 to 1, 62 classes.",
    ),
    "fashion_mnist": (
        _read_split_file,
        "fashion_mnist.npz",
        (28, 28),
        10,
        "Pictures of clothes, 60,000 and 10,000 for testing, x [1, 28, 28] from 0 to 1, 10 classes.",
    ),
    "isolet": (
        _read_client_file,
        "isolet1.npz",
        (617,),
        26,
        "Spoken letters of 30 speakers (Isolet1), 52 each, 617 features (standardised), 26 classes.",
    ),
    "letter": (
        _read_ordered_file,
        "letter.npz",
        (16,),
        26,
        "Printed letters, 16,000 and 4,000 for testing, 16 features (standardised), 26 classes.",
    ),
    "mnist": (
        _read_split_file,
        "mnist.npz",
        (28, 28),
        10,
        "Handwritten digits, 60,000 and 10,000 for testing, x [1, 28, 28] from 0 to 1, 10 classes.",
    ),
    "pendigits": (
        _read_split_file,
        "pendigits.npz",
        (16,),
        10,
        "Digits as pen positions, 7,494 and 3,498 for testing, 16 features (standardised), 10 classes.",
    ),
    "satimage": (
        _read_split_file,
        "satimage.npz",
        (36,),
        6,
        "Land seen from a satellite, 4,435 and 2,000 for testing, 36 features (standardised), 6 classes.",
    ),
    "shuttle": (
        _read_ordered_file,
        "shuttle.npz",
        (9,),
        7,
        "Space shuttle states, 43,500 and 14,500 for testing, 9 features (standardised), 7 very uneven classes.",
    ),
    "usps": (
        _read_split_file,
        "usps.npz",
        (16, 16),
        10,
        "Handwritten digits of envelopes, 7,291 and 2,007 for testing, x [1, 16, 16] from 0 to 1, 10 classes.",
    ),
}
"""By name: the layout of the file, its name, the shape of a row, the number of classes, and what the data is."""


def _make_source(name: str, layout: Layout, file: str, row: Row, classes: int, about: str) -> Callable[[], Source]:
    def source() -> Source:
        return layout(file, row, classes)

    source.__name__, source.__doc__ = name, about
    return source


PLAIN = {name: _make_source(name, *entry) for name, entry in _FILES.items()}


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
    """Small colour pictures, 50,000 and 10,000 for testing, x [3, 32, 32] from 0 to 1, 10 classes; JPEG quality."""
    file = "cifar10_jpeg.npz"
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
