"""Forest cover type (UCI), the balanced sample of 15,120 rows."""

from __future__ import annotations

import numpy as np

from moiety.data.sources._files import AGAIN, Source, labelled, numbers, read
from moiety.errors import must

_SOILS = 40


def covtype() -> Source:
    """Forest cover in 4 wilderness areas, 15,120 rows, 10 numbers (standardised) and 40 soil flags, 7 classes."""
    a = read("covtype15k.npz", {"X": ("n", 10), "soil": ("n",), "y": ("n",), "client": ("n",)})
    soil = a["soil"].astype(np.int64)
    inside = len(soil) == 0 or (int(soil.min()) >= 0 and int(soil.max()) < _SOILS)
    must(inside, "covtype15k.npz: soil", f"from 0 to {_SOILS - 1}", "others", AGAIN)
    x = np.concatenate([numbers(a["X"]), np.eye(_SOILS, dtype=np.float32)[soil]], axis=1)
    return Source(labelled("covtype15k.npz", x, a["y"], 7), classes=7, client=a["client"], standardise=10)
