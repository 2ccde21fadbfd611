"""Human activity recognition with smartphones (UCI HAR)."""

from __future__ import annotations

from moiety.data.sources._files import Source, by_client, numbers
from moiety.errors import choice


def uci_har(features: str = "inertial") -> Source:
    """Phone movements of 30 people, 10,299 windows, 6 activities; x [9, 64] raw, or 108 statistics.

    Args:
        features: ``inertial``, the raw signals, or ``statistics``, 12 numbers for each of the 9 channels, standardised.
    """
    choice("features", features, ["inertial", "statistics"])
    if features == "statistics":
        return by_client("uci_har_inertial.npz", (108,), 6, numbers, standardise=108, array="F")
    return by_client("uci_har_inertial.npz", (9, 64), 6, numbers)
