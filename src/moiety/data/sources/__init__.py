"""The data sets that ``load`` knows by name.

All but ``digits`` are read from npz files, which ``moiety data fetch`` makes: in the folder that the environment
variable ``MOIETY_DATA`` names, or else in the cache of this user. A function here returns the pool of rows as it is.
``load`` deals it to clients, splits and standardises it, and passes its seed to a function that takes one.
"""

from __future__ import annotations

from collections.abc import Callable

from moiety.data.sources import plain, sequences
from moiety.data.sources.files import Source
from moiety.data.sources.plain import PLAIN

__all__ = ["SOURCES", "Source"]

_WITH_CODE: dict[str, Callable[..., Source]] = {
    "cifar10": plain.cifar10,
    "cifar10-jpeg": plain.cifar10_jpeg,
    "cifar100": plain.cifar100,
    "connected_digits": sequences.connected_digits,
    "covtype": plain.covtype,
    "digits": plain.digits,
    "femnist": plain.femnist,
    "gldv2": plain.gldv2,
    "librispeech": sequences.librispeech,
    "shakespeare": sequences.shakespeare,
    "shakespeare-roles": sequences.shakespeare_roles,
    "shakespeare-tff": sequences.shakespeare_tff,
    "stackoverflow": sequences.stackoverflow,
    "uci_har": plain.uci_har,
}
SOURCES: dict[str, Callable[..., Source]] = dict(sorted({**PLAIN, **_WITH_CODE}.items()))
