"""Columns of a flat input, chosen by index."""

from __future__ import annotations

from collections.abc import Sequence

from moiety.errors import must, whole

Columns = list[int] | slice
"""What a tensor's last axis is indexed with: a slice where the columns are neighbours, which copies nothing."""


def checked_features(name: str, features: Sequence[int], below: int | None = None) -> list[int]:
    """The indices, if they are distinct, at least one, and less than ``below`` where that is known."""
    must(isinstance(features, list | tuple | range), name, "a list of feature indices or a range", repr(features))
    most = float("inf") if below is None else below - 1
    for feature in features:
        whole(name, feature, 0, most)
    must(len(features) > 0, name, "at least one feature", "none")
    twice = sorted({feature for feature in features if list(features).count(feature) > 1})
    must(not twice, name, "features that are named once each", ", ".join(map(str, twice)))
    return [int(feature) for feature in features]


def as_columns(features: Sequence[int]) -> Columns:
    """The index of those columns.

    >>> as_columns([2, 3, 4]), as_columns([0, 2])
    (slice(2, 5, None), [0, 2])
    """
    first, count = features[0], len(features)
    return slice(first, first + count) if list(features) == list(range(first, first + count)) else list(features)
