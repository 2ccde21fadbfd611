"""The data sets that ``load`` knows: one file each, and a table of them.

All but ``digits`` are read from npz files in the folder that the environment variable ``MOIETY_DATA`` names. A function
here returns the pool of rows as it is; dealing it to clients, splitting and standardising are the work of ``load``,
which hands its seed to a function that asks for one.
"""

from __future__ import annotations

from collections.abc import Callable

from moiety.data.sources._files import Source
from moiety.data.sources.audiomnist import audiomnist
from moiety.data.sources.chars74k import chars74k
from moiety.data.sources.cifar10 import cifar10
from moiety.data.sources.connected_digits import connected_digits
from moiety.data.sources.covtype import covtype
from moiety.data.sources.digits import digits
from moiety.data.sources.fashion_mnist import fashion_mnist
from moiety.data.sources.isolet import isolet
from moiety.data.sources.letter import letter
from moiety.data.sources.mnist import mnist
from moiety.data.sources.pendigits import pendigits
from moiety.data.sources.satimage import satimage
from moiety.data.sources.shakespeare import shakespeare
from moiety.data.sources.shuttle import shuttle
from moiety.data.sources.uci_har import uci_har
from moiety.data.sources.usps import usps

__all__ = ["SOURCES", "Source"]

SOURCES: dict[str, Callable[..., Source]] = {
    "audiomnist": audiomnist,
    "chars74k": chars74k,
    "cifar10": cifar10,
    "connected_digits": connected_digits,
    "covtype": covtype,
    "digits": digits,
    "fashion_mnist": fashion_mnist,
    "isolet": isolet,
    "letter": letter,
    "mnist": mnist,
    "pendigits": pendigits,
    "satimage": satimage,
    "shakespeare": shakespeare,
    "shuttle": shuttle,
    "uci_har": uci_har,
    "usps": usps,
}
