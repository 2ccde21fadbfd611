"""What moiety logs, on stderr: ``moiety run --verbose``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def show_log(verbose: bool) -> Iterator[None]:
    """While this is open, write the messages of the logger ``moiety`` to stderr, if ``verbose``."""
    if not verbose:
        yield
        return
    # Through sys.stderr as it is then: where there is a bar, that writes above it.
    with tell_messages("moiety", lambda text: print(f"moiety: {text}", file=sys.stderr)):
        yield


@contextmanager
def tell_messages(name: str, tell: Callable[[str], None]) -> Iterator[None]:
    """While this is open, give the messages of a logger to ``tell``."""
    import logging  # here, so that the command's help need not load it

    handler, logger = logging.Handler(logging.INFO), logging.getLogger(name)
    handler.emit = lambda record: tell(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
