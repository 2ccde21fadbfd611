"""The digits that come with scikit-learn: no file is needed."""

from __future__ import annotations

import numpy as np

from moiety.data.sources._files import Source, labelled


def digits() -> Source:
    """Handwritten digits, 1,797 of 8x8 pixels as 64 numbers from 0 to 1, 10 classes; ships with scikit-learn."""
    from sklearn.datasets import load_digits  # takes a second, so only where it is used

    x, y = load_digits(return_X_y=True)
    return Source(labelled("digits", (x / 16).astype(np.float32), y, 10), classes=10)
