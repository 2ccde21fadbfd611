"""Letter recognition (UCI)."""

from __future__ import annotations

from moiety.data.sources._files import Source, first_rows_train


def letter() -> Source:
    """Printed letters, 16,000 and 4,000 for testing, 16 features (standardised), 26 classes."""
    return first_rows_train("letter.npz", 16, 26)
