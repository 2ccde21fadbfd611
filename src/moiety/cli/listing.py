"""``moiety list``: what a configuration file can name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moiety.cli.output import say, table
from moiety.cli.output import show as show_table
from moiety.errors import choice

KINDS = ("algorithms", "recipes", "datasets", "models", "splits", "aggregators", "attacks")
FILES = {
    "audiomnist": "audiomnist_mel32.npz",
    "chars74k": "chars74k_hnd_28.npz",
    "cifar10": "cifar10_jpeg.npz",
    "connected_digits": "audiomnist_mel32.npz",
    "covtype": "covtype15k.npz",
    "fashion_mnist": "fashion_mnist.npz",
    "isolet": "isolet1.npz",
    "letter": "letter.npz",
    "mnist": "mnist.npz",
    "pendigits": "pendigits.npz",
    "satimage": "satimage.npz",
    "shakespeare": "shakespeare_roles.npz",
    "shuttle": "shuttle.npz",
    "uci_har": "uci_har_inertial.npz",
    "usps": "usps.npz",
}
"""The file each data set is read from; one that is not here needs none."""


def show(what: str) -> None:
    """Print the names of one kind, each with the first line of its docstring."""
    choice("what", what, KINDS)
    found = _table_of(what)
    headers, rows = ["name", "what it is"], [[name, first_line(maker)] for name, maker in found.items()]
    if what == "datasets":
        headers.insert(1, "file")
        rows = [[name, file_state(name), line] for name, line in rows]
    show_table(table(headers, rows, text=(0, 1, 2)))
    if what == "datasets":
        folder = os.environ.get("MOIETY_DATA", "")
        say(f"\nfiles are looked for in MOIETY_DATA, {folder or 'which is not set'}")


def _table_of(what: str) -> Mapping[str, Callable[..., Any]]:
    if what == "algorithms":
        from moiety.algorithms import ALGORITHMS

        return ALGORITHMS
    if what == "recipes":
        from moiety.recipes import RECIPES

        return RECIPES
    if what == "datasets":
        from moiety.data import SOURCES

        return SOURCES
    if what == "models":
        from moiety.models import MODELS

        return MODELS
    if what == "aggregators":
        from moiety.aggregation.aggregators import AGGREGATORS

        return AGGREGATORS
    if what == "attacks":
        from moiety.aggregation.attacks import ATTACKS

        return ATTACKS
    from moiety.split import SPLITS

    return SPLITS


def first_line(maker: Callable[..., Any]) -> str:
    """The first line of a docstring, or nothing."""
    return (inspect.getdoc(maker) or "").partition("\n")[0]


def file_state(dataset: str) -> str:
    """Whether the data set's file is ``found`` or ``absent``, or the data is ``shipped``."""
    if dataset not in FILES:
        return "shipped"
    folder = os.environ.get("MOIETY_DATA", "")
    return "found" if folder and (Path(folder) / FILES[dataset]).is_file() else "absent"
