"""Statlog Landsat (UCI)."""

from __future__ import annotations

from moiety.data.sources._files import Source, numbers, train_and_test


def satimage() -> Source:
    """Land seen from a satellite, 4,435 and 2,000 for testing, 36 features (standardised), 6 classes."""
    return train_and_test("satimage.npz", (36,), 6, numbers, standardise=36)
