"""What ends a command that the user stopped."""

from __future__ import annotations


class Interrupted(Exception):  # noqa: N818 - to stop is no error
    """The user stopped the work; the message says how to go on."""
