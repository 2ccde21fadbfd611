"""Shakespeare's plays by speaking role, for prediction of the next character."""

from __future__ import annotations

import numpy as np

from moiety.data.sources._files import AGAIN, Source, read
from moiety.errors import must


def shakespeare(length: int = 80) -> Source:
    """The lines of 773 roles in 37 plays; x and y [80] characters, y one further on, 82 classes.

    A role's text is cut into sequences of ``length`` characters that do not overlap; a shorter rest is left out, and so
    are roles with fewer than two sequences (none with the default length). Sequences are later split into training
    and test at random, not by time.
    """
    must(length >= 1, "length", "an integer of at least 1", length)
    a = read("shakespeare_roles.npz", {"codes": ("n",), "offsets": ("o",), "client_names": ("roles",), "vocab": ()})
    offsets, names, classes = a["offsets"].astype(np.int64), a["client_names"], len(str(a["vocab"]))
    inside = len(offsets) == len(names) + 1 and offsets[0] >= 0 and offsets[-1] <= len(a["codes"])
    ascending = bool(inside) and bool((np.diff(offsets) >= 0).all())
    must(ascending, "shakespeare_roles.npz: offsets", "ascending, one more than roles", "others", AGAIN)
    known = len(a["codes"]) > 0 and int(a["codes"].max()) < classes
    must(known, "shakespeare_roles.npz: codes", f"from 0 to {classes - 1}", "others", AGAIN)
    count = np.maximum(np.diff(offsets) - 1, 0) // length  # the last character of a sequence needs one to follow it
    count[count < 2] = 0
    must(bool(count.any()), "length", "such that some role has two sequences", length, "Use a smaller one.")
    role = np.repeat(np.arange(len(names)), count)
    place = np.arange(len(role)) - np.repeat(np.cumsum(count) - count, count)
    at = (offsets[role] + place * length)[:, None] + np.arange(length)
    codes = a["codes"].astype(np.int64)
    return Source({"x": codes[at], "y": codes[at + 1]}, classes=classes, client=role, names=names)
