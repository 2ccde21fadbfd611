"""The version of Flower whose private parts ``node.py``, ``worker.py`` and ``answers.py`` use; no other is touched."""

from __future__ import annotations

VERSION = "1.41.0"
"""The version that is known."""
PAUSE = 0.05
"""Seconds between two looks for work, or for parts of a message."""
LONGEST = 3
"""The longest that a node or worker waits before it calls again after a break; Flower's own is 20."""


def is_known(installed: str) -> bool:
    """Whether this is the version of Flower whose private parts are known."""
    return installed == VERSION


def shorten_waits(installed: str) -> None:
    """Let Flower look again soon for parts of a message that are not there yet: by itself it waits for a second."""
    if is_known(installed):
        from flwr.supercore.inflatable import inflatable_utils

        for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
            (function.__kwdefaults__ or {})["initial_backoff"] = PAUSE
