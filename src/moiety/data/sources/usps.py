"""USPS."""

from __future__ import annotations

from moiety.data.sources._files import Source, images, train_and_test


def usps() -> Source:
    """Handwritten digits of envelopes, 7,291 and 2,007 for testing, x [1, 16, 16] from 0 to 1, 10 classes."""
    return train_and_test("usps.npz", (16, 16), 10, images)
