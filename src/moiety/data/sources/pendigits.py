"""Pen-based digits (UCI)."""

from __future__ import annotations

from moiety.data.sources._files import Source, numbers, train_and_test


def pendigits() -> Source:
    """Digits as pen positions, 7,494 and 3,498 for testing, 16 features (standardised), 10 classes."""
    return train_and_test("pendigits.npz", (16,), 10, numbers, standardise=16)
