"""Freed memory is kept: engines ask for tensors of the same sizes again in every step."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache

KEPT_BYTES = 1 << 30
"""How much freed memory a process may keep."""
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's ``mallopt``, from its malloc.h."""


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what this process, and those forked from it, free.

    Else each tensor of a megabyte is mapped anew and its pages are zeroed one fault at a time, a fifth of a round for a
    small model. Where the library is not glibc nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((M_MMAP_THRESHOLD, 1 << 25), (M_TRIM_THRESHOLD, KEPT_BYTES), (M_TOP_PAD, 1 << 26)):
            mallopt(parameter, value)
