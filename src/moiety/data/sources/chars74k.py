"""Chars74K, the handwritten English part."""

from __future__ import annotations

from moiety.data.sources._files import Source, by_client, images


def chars74k() -> Source:
    """Handwritten letters and digits of 55 writers, 62 each, x [1, 28, 28] from 0 to 1, 62 classes."""
    return by_client("chars74k_hnd_28.npz", (28, 28), 62, images)
