"""CIFAR-10, kept as JPEG."""

from __future__ import annotations

import io

import numpy as np

from moiety.data.federated import Array
from moiety.data.sources._files import Source, labelled, read
from moiety.errors import MoietyError, message

_FILE = "cifar10_jpeg.npz"


def cifar10() -> Source:
    """Small colour pictures, 50,000 and 10,000 for testing, x [3, 32, 32] from 0 to 1, 10 classes; JPEG quality."""
    shapes: dict[str, tuple[str | int, ...]] = {"jpeg_header": ("h",)}
    for part in ("train", "test"):
        shapes |= {f"jpeg_{part}": (f"bytes_{part}",), f"off_{part}": (f"offsets_{part}",), f"y_{part}": (part,)}
    a = read(_FILE, shapes)
    header = a["jpeg_header"].tobytes()

    def pool(part: str) -> dict[str, Array]:
        y = a[f"y_{part}"]
        return labelled(_FILE, _decoded(header, a[f"jpeg_{part}"], a[f"off_{part}"], len(y)), y, classes=10)

    return Source(pool("train"), classes=10, test=pool("test"))


def _decoded(header: bytes, data: Array, offsets: Array, count: int) -> Array:
    """All pictures, float32 [count, 3, 32, 32]; they share one JPEG header, which is stored once."""
    from PIL import Image

    x = np.empty((count, 3, 32, 32), dtype=np.float32)
    stream = data.tobytes()
    try:
        for i in range(count):
            with Image.open(io.BytesIO(header + stream[offsets[i] : offsets[i + 1]])) as picture:
                x[i] = np.asarray(picture).transpose(2, 0, 1)
    except (OSError, ValueError, IndexError):
        got = f"picture {i} that does not decode"
        raise MoietyError(message(_FILE, f"{count} JPEG pictures of 32 x 32", got)) from None
    x /= np.float32(255)
    return x
