"""The data sets that ``load`` knows by name.

All but ``digits`` are read from npz files in the folder that the environment variable ``MOIETY_DATA`` names. A function
here returns the pool of rows as it is. ``load`` deals it to clients, splits and standardises it, and passes its seed to
a function that takes one.
"""

from __future__ import annotations

from collections.abc import Callable

from moiety.data.sources.files import Source
from moiety.data.sources.plain import PLAIN, cifar10, covtype, digits, uci_har
from moiety.data.sources.sequences import connected_digits, shakespeare

__all__ = ["SOURCES", "Source"]

_WITH_CODE = (cifar10, connected_digits, covtype, digits, shakespeare, uci_har)
SOURCES: dict[str, Callable[..., Source]] = dict(
    sorted({**PLAIN, **{source.__name__: source for source in _WITH_CODE}}.items())
)
