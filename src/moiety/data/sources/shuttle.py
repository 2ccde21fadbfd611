"""Statlog shuttle (UCI)."""

from __future__ import annotations

from moiety.data.sources._files import Source, first_rows_train


def shuttle() -> Source:
    """Space shuttle states, 43,500 and 14,500 for testing, 9 features (standardised), 7 very uneven classes."""
    return first_rows_train("shuttle.npz", 9, 7)
