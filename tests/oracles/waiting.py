"""Waiting for what other processes and threads do: often looked for, and given up late."""

import time
from collections.abc import Callable
from typing import Any

LONG = 300.0
"""Seconds that a test waits for something before it fails. On a busy machine all things take long."""


def wait_until(condition: Callable[[], Any], pause: float = 0.02) -> Any:
    """What the condition gives as soon as it is true; its last answer where it does not become true for ``LONG``."""
    end = time.monotonic() + LONG
    while not (answer := condition()) and time.monotonic() < end:
        time.sleep(pause)
    return answer
