"""What moiety logs, on stderr: ``moiety run --verbose``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def show_log(wanted: bool) -> Iterator[None]:
    """Write the messages of the logger ``moiety`` to stderr meanwhile, if that is wanted."""
    if not wanted:
        yield
        return
    handler, logger = logging.Handler(logging.INFO), logging.getLogger("moiety")
    # Through sys.stderr as it is then: where there is a bar, that writes above it.
    handler.emit = lambda record: print(f"moiety: {record.getMessage()}", file=sys.stderr)  # type: ignore[method-assign]
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
