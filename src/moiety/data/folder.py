"""The files of data that is saved: NumPy arrays, and ``meta.json``, which ties them together.

``meta.json`` has a checksum of itself. It holds the digest of all values, and for every file its length and a checksum:
of a column, that of its head, which is what stands before the values; of a smaller file, that of all bytes. So every
byte is compared before it is used, and NumPy does not read a damaged head. Nothing is pickled: a folder from a stranger
cannot run code.

Folder and files are for their owner alone: they hold what clients would not send.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any, NoReturn

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from moiety.data.digest import CHUNK_BYTES, release_pages
from moiety.errors import refuse
from moiety.files import make_folder, new_folder, own_aside_of, report_failure, write_file
from moiety.seals import digest, read_sealed, write_sealed

Array = NDArray[Any]

META = "meta.json"
FORMAT = 3
"""The format of a data folder. Up to format 2, ``meta.json`` and the heads of arrays had no checksum."""
COLUMNS = "columns"
AGAIN = "Save the data again."
_DTYPES = {"ids.npy": "U", "bounds.npy": "i"}


def write_arrays(
    target: Path,
    meta: Mapping[str, Any],
    arrays: Mapping[str, Array],
    inner: Mapping[str, Callable[[Path], None]],
) -> None:
    """Write a new folder with these files and with ``meta``, whole or not at all; ``inner`` write folders in it."""
    checks = {}
    with report_failure(target), new_folder(target, own_aside_of(target)) as path:
        make_folder(path / COLUMNS)
        for file, array in arrays.items():
            kind = array.dtype.newbyteorder("<")
            head, values = _make_head(kind, array.shape), _cut(array, kind)
            if not file.startswith(COLUMNS):
                head, values = head + b"".join(values), iter(())
            write_file(path / file, itertools.chain([head], values))
            size = (path / file).stat().st_size
            checks[file] = {"bytes": size, "checked": len(head), "check": digest(head)}
        for name, save in inner.items():
            save(path / name)
        write_sealed(path / META, {**meta, "files": checks}, None, format=FORMAT)


def _make_head(kind: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    head = io.BytesIO()
    npy.write_array_header_1_0(head, {"descr": npy.dtype_to_descr(kind), "fortran_order": False, "shape": shape})
    return head.getvalue()


def _cut(array: Array, kind: np.dtype[Any]) -> Iterator[bytes]:
    """The values in pieces of some rows; no more than a piece of a mapped array is in memory."""
    step = max(1, CHUNK_BYTES // max(1, array[:1].nbytes))
    for at in range(0, len(array), step):
        yield np.ascontiguousarray(array[at : at + step], dtype=kind).tobytes()
        release_pages(array)


def read_meta(path: Path) -> dict[str, Any]:
    """What ``write_arrays`` wrote as ``meta``, with ``files``; it must be whole and of this format."""
    return read_sealed(path / META, hint=AGAIN, format=FORMAT)


def map_array(path: Path, meta: Mapping[str, Any], file: str) -> Array:
    """One of the files as an array that is read from disk where it is used."""
    of_heads = (SyntaxError, TokenError, RecursionError, OverflowError)  # of a head that no version of moiety wrote
    try:
        with (path / file).open("rb") as stream:
            entry = meta["files"][file]
            head, size = stream.read(entry["checked"]), os.fstat(stream.fileno()).st_size
        if (size, digest(head)) != (entry["bytes"], entry["check"]):
            raise ValueError("other bytes")
        array = np.load(path / file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, *of_heads):
        refuse_folder(path, f"{file} is missing, truncated or damaged")
    fits = isinstance(array, np.ndarray) and array.ndim > 0 and array.dtype.isnative
    if not fits or array.dtype.kind not in _DTYPES.get(file, "biuf"):
        refuse_folder(path, f"{file} holds no such array as was written")
    return np.asanyarray(array)


def refuse_folder(path: Path, reason: str) -> NoReturn:
    """Refuse a folder that is not as it was saved."""
    refuse("folder", "one that FederatedData.save wrote", f"{path}: {reason}", AGAIN)
