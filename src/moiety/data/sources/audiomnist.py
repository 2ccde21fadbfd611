"""AudioMNIST as mel spectrograms."""

from __future__ import annotations

from moiety.data.sources._files import Source, by_client, images


def audiomnist() -> Source:
    """Spoken digits of 60 speakers, 500 each, as mel spectrograms x [1, 32, 32] from 0 to 1, 10 classes."""
    return by_client("audiomnist_mel32.npz", (32, 32), 10, images)
