"""Room for the rows of a table: in memory, or in a temporary file where they would take too much of it."""

from __future__ import annotations

import numpy as np

from moiety.data.federated import Array
from moiety.files import open_scratch
from moiety.machine import free_memory

IN_MEMORY = 0.25
"""The share of the free memory beyond which columns are mapped from a file."""


def make_room(shape: tuple[int, int], dtype: str, on_disk: bool | None) -> Array:
    """An array to be filled, in memory or mapped from a temporary file."""
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    free = free_memory()
    in_file = (free is not None and size > IN_MEMORY * free) if on_disk is None else on_disk
    if not in_file or size == 0:
        return np.empty(shape, dtype=dtype)
    with open_scratch(size) as file:  # the mapping keeps a handle of its own
        return np.memmap(file, dtype=dtype, mode="r+", shape=shape)
