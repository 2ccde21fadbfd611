"""A disk that fails, for tests of all that moiety writes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any


class Disk:
    """In the place of ``moiety.files.system_call``: counts calls, and fails the n-th or writes only half of it.

    ``for_good`` lets all calls after it fail too, as a full disk does. A short write is followed by an error at the
    next write, unless ``only_short``.
    """

    def __init__(self, n: int = -1, error: int = errno.ENOSPC, *, for_good: bool = False, only_short: bool = False):
        self.n, self.error, self.for_good, self.only_short = n, error, for_good, only_short
        self.calls: list[str] = []

    def __call__(self, call: Callable[..., Any], *arguments: Any) -> Any:
        at, name = len(self.calls), call.__name__
        self.calls.append(name)
        writes = name in ("write", "pwrite")
        if self.only_short:
            if writes and len(arguments[1]) > 1:
                return call(arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
        elif at == self.n or (self.for_good and at > self.n >= 0):
            if writes and at == self.n:  # half of it reaches the disk, and then there is no room
                call(arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
            raise OSError(self.error, os.strerror(self.error))
        return call(*arguments)
