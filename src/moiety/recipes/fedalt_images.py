"""Smaller pictures."""

from __future__ import annotations

from dataclasses import replace

from moiety.data import FederatedData


def averaged(fed: FederatedData) -> FederatedData:
    """The mean of every 2 x 2 pixels."""
    x = fed.columns["x"]
    rows, channels, height, width = x.shape
    small = x.reshape(rows, channels, height // 2, 2, width // 2, 2).mean(axis=(3, 5))
    return replace(fed, columns={**fed.columns, "x": small}, spec={})
