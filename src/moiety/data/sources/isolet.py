"""ISOLET, the part known as Isolet1."""

from __future__ import annotations

from moiety.data.sources._files import Source, by_client, numbers


def isolet() -> Source:
    """Spoken letters of 30 speakers, 52 each, 617 features (standardised), 26 classes."""
    return by_client("isolet1.npz", (617,), 26, numbers, standardise=617)
