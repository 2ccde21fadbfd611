"""Converters of pictures: idx files, CIFAR's binary files, MATLAB files, svmlight text, Parquet, folders of JPEG."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from moiety.data.federated import Array
from moiety.data.originals.archives import read_bounded, read_compressed, read_member, read_members
from moiety.errors import must

Files = Mapping[str, Path]
Arrays = dict[str, Array]

_IDX_UBYTE = 8
"""The code of unsigned bytes in the header of an idx file."""


def convert_mnist(files: Files) -> Arrays:
    """Four idx files: pictures and labels of both parts."""
    return _read_idx_parts({name: read_compressed(path) for name, path in files.items()}, "train-", "t10k-")


def _convert_emnist(files: Files, split: str) -> Arrays:
    """One split of EMNIST: an archive of idx files whose pictures are stored with rows and columns exchanged."""
    (archive,) = files.values()
    kinds = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    names = [f"emnist-{split}-{kind}-ubyte.gz" for kind in kinds]
    contents = {}
    for name, packed in zip(names, read_member(archive, *names), strict=True):
        with gzip.open(io.BytesIO(packed)) as stream:
            contents[name] = read_bounded(name, stream)
    arrays = _read_idx_parts(contents, f"emnist-{split}-train-", f"emnist-{split}-test-")
    for part in ("train", "test"):
        arrays[f"x_{part}"] = np.ascontiguousarray(arrays[f"x_{part}"].transpose(0, 2, 1))
        if split == "letters":  # numbered from 1
            arrays[f"y_{part}"] -= 1
    return arrays


convert_emnist_byclass = partial(_convert_emnist, split="byclass")
convert_emnist_bymerge = partial(_convert_emnist, split="bymerge")
convert_emnist_balanced = partial(_convert_emnist, split="balanced")
convert_emnist_letters = partial(_convert_emnist, split="letters")
convert_emnist_digits = partial(_convert_emnist, split="digits")
convert_emnist_mnist = partial(_convert_emnist, split="mnist")


def _read_idx_parts(contents: Mapping[str, bytes], train: str, test: str) -> Arrays:
    def read(part: str, kind: str) -> Array:
        name = next(name for name in contents if name.startswith(f"{part}{kind}"))
        return read_idx(name, contents[name])

    return {
        "x_train": read(train, "images"),
        "y_train": read(train, "labels"),
        "x_test": read(test, "images"),
        "y_test": read(test, "labels"),
    }


def read_idx(name: str, content: bytes) -> Array:
    """The array of an idx file of bytes: two zeros, the type, the number of axes, their lengths, the values."""
    must(len(content) >= 4 and content[:3] == bytes([0, 0, _IDX_UBYTE]), name, "an idx file of bytes", "another one")
    axes = content[3]
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", axes, 4))
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    must(len(values) == math.prod(shape), name, f"of {math.prod(shape):,} values, as it claims", f"{len(values):,}")
    return values.reshape(shape).copy()


def convert_cifar10(files: Files) -> Arrays:
    """Records of one label and 3,072 bytes: the red, green and blue planes of 32 x 32. Five files for training."""
    (archive,) = files.values()
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    *train, test = (_read_records(name, c, 1) for name, c in zip(names, read_member(archive, *names), strict=True))
    labels, x_train = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return {"x_train": x_train, "y_train": labels[:, 0], "x_test": test[1], "y_test": test[0][:, 0]}


def convert_cifar100(files: Files) -> Arrays:
    """As CIFAR-10, with two labels a record: one of 20 coarse classes, then one of 100 fine ones."""
    (archive,) = files.values()
    arrays = {}
    for part, content in zip(("train", "test"), read_member(archive, "train.bin", "test.bin"), strict=True):
        labels, arrays[f"x_{part}"] = _read_records(f"{part}.bin", content, 2)
        arrays[f"coarse_{part}"], arrays[f"y_{part}"] = labels[:, 0], labels[:, 1]
    return arrays


def _read_records(name: str, content: bytes, labels: int) -> tuple[Array, Array]:
    size = labels + 3 * 32 * 32
    must(len(content) % size == 0, name, f"records of {size:,} bytes", f"{len(content):,} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    x = records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return records[:, :labels].copy(), np.ascontiguousarray(x)


def convert_cifar10_jpeg(files: Files) -> Arrays:
    """JPEG files ``train/airplane/0000.jpg`` by number, then class. What all of them begin with is stored once."""
    (archive,) = files.values()
    place = re.compile(r"(?:.*/)?(train|test)/([a-z]+)/(\d+)\.jpg")
    pictures: dict[str, list[tuple[int, str, bytes]]] = {"train": [], "test": []}
    for name, content in read_members(archive, lambda name: place.fullmatch(name) is not None):
        part, kind, number = place.fullmatch(name).groups()  # type: ignore[union-attr]
        pictures[part].append((int(number), kind, content))
    classes = sorted({kind for rows in pictures.values() for _, kind, _ in rows})
    must(bool(pictures["train"] and pictures["test"]), archive.name, "an archive with train and test", "another one")
    contents = [content for rows in pictures.values() for _, _, content in rows]
    shared = _count_shared(contents)
    arrays: Arrays = {"jpeg_header": np.frombuffer(contents[0][:shared], np.uint8).copy(), "classes": np.array(classes)}
    for part, rows in pictures.items():
        rows.sort(key=lambda row: row[:2])
        bodies = [content[shared:] for _, _, content in rows]
        arrays[f"jpeg_{part}"] = np.frombuffer(b"".join(bodies), np.uint8).copy()
        arrays[f"off_{part}"] = np.concatenate([[0], np.cumsum([len(body) for body in bodies])]).astype(np.int64)
        arrays[f"y_{part}"] = np.array([classes.index(kind) for _, kind, _ in rows], np.uint8)
    return arrays


def _count_shared(contents: list[bytes]) -> int:
    """How many bytes up to the end of the header of the first picture's scan are the same in all."""
    least, most = min(contents), max(contents)
    shared = next((i for i, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), min(len(least), len(most)))
    # The scan's data follows its header: marker FFDA, a length of two bytes, and that many bytes with them.
    start = contents[0].find(b"\xff\xda")
    end = start + 2 + int.from_bytes(contents[0][start + 2 : start + 4], "big") if start >= 0 else shared
    return min(shared, end)


def convert_svhn(files: Files) -> Arrays:
    """MATLAB files with ``X`` [32, 32, 3, n] and ``y`` [n, 1], where 10 is the digit 0."""
    from scipy.io import loadmat

    arrays = {}
    for part in ("train", "test"):
        matrices = loadmat(files[f"{part}_32x32.mat"], variable_names=("X", "y"))
        arrays[f"x_{part}"] = np.ascontiguousarray(matrices["X"].transpose(3, 0, 1, 2)).astype(np.uint8, copy=False)
        arrays[f"y_{part}"] = (matrices["y"].reshape(-1) % 10).astype(np.uint8)
    return arrays


def convert_usps(files: Files) -> Arrays:
    """Svmlight text: labels from 1, and pixels from -1 to 1, of which those that are 0 may be left out."""
    from sklearn.datasets import load_svmlight_file

    arrays = {}
    for part, name in (("train", "usps.bz2"), ("test", "usps.t.bz2")):
        x, y = load_svmlight_file(io.BytesIO(read_compressed(files[name])), n_features=256)
        pixels = np.rint((np.asarray(x.todense()) + 1) / 2 * 255)
        arrays[f"x_{part}"] = pixels.astype(np.uint8).reshape(-1, 16, 16)
        arrays[f"y_{part}"] = (y - 1).astype(np.uint8)
    return arrays


def convert_femnist(files: Files) -> Arrays:
    """A Parquet file with PNG pictures, their writers, and characters 0 to 61: digits, capitals, small letters."""
    import pyarrow.parquet as pq
    from PIL import Image

    (path,) = files.values()
    x: list[Array] = []
    y: list[Array] = []
    writers: list[str] = []
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(4096, columns=["image", "writer_id", "character"]):
            for picture in batch.column("image").field("bytes"):
                with Image.open(io.BytesIO(picture.as_py()), formats=("PNG",)) as image:
                    must(image.size == (28, 28), path.name, "of pictures of 28 x 28", list(image.size))
                    x.append(np.asarray(image.convert("L")))
            y.append(batch.column("character").to_numpy(zero_copy_only=False))
            writers += map(str, batch.column("writer_id").to_pylist())
    names, client = np.unique(np.array(writers), return_inverse=True)
    arrays = {"X": np.stack(x), "y": np.concatenate(y).astype(np.uint8), "client": client.astype(np.int32)}
    return {**arrays, "client_names": names}


def convert_gldv2(files: Files) -> Arrays:
    """The pictures that two lists name: of users (user_id, image_id, class), and for testing (image_id, class)."""
    rows = {part: _read_list(files[name]) for part, name in _GLD_LISTS.items()}
    names, client = np.unique([row["user_id"] for row in rows["train"]], return_inverse=True)
    classes = np.unique([int(row["class"]) for entries in rows.values() for row in entries])
    arrays: Arrays = {"client": client.astype(np.int32), "client_names": names, "classes": classes}
    for part, entries in rows.items():
        arrays[f"x_{part}"] = np.stack([_read_square(files["images"], row["image_id"], 64) for row in entries])
        arrays[f"y_{part}"] = np.searchsorted(classes, [int(row["class"]) for row in entries]).astype(np.int32)
    return arrays


_GLD_LISTS = {"train": "mini_gld_train_split.csv", "test": "mini_gld_test.csv"}


def _read_list(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    columns = {"image_id", "class", *({"user_id"} if "train" in path.name else ())}
    must(
        bool(rows) and columns <= rows[0].keys(), path.name, f"a list with {', '.join(sorted(columns))}", "another one"
    )
    return rows


def _read_square(folder: Path, image: str, size: int) -> Array:
    """A picture's middle square in ``size`` x ``size`` pixels; it lies in folders of the first letters of its name."""
    from PIL import Image

    must(re.fullmatch(r"\w+", image) is not None, "image_id", "letters and digits", repr(image))
    path = folder / PurePosixPath(*image[:3]) / f"{image}.jpg"
    must(path.is_file(), "images", f"a folder that holds {path.relative_to(folder)}", folder, "Unpack all shards.")
    with Image.open(path, formats=("JPEG",)) as picture:
        edge, (width, height) = min(picture.size), picture.size
        left, top = (width - edge) // 2, (height - edge) // 2
        middle = picture.convert("RGB").crop((left, top, left + edge, top + edge))
        return np.asarray(middle.resize((size, size), Image.Resampling.BILINEAR))
