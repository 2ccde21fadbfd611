"""``moiety list``: what a configuration file can name."""

from __future__ import annotations

import importlib
import inspect
import os
from pathlib import Path

from moiety.cli.kinds import KINDS
from moiety.cli.output import say, table
from moiety.cli.output import show as show_table
from moiety.errors import MoietyError, must
from moiety.experiments.registry import list_recipes, load_recipe
from moiety.spec import nearest

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


ENGINES = {
    "auto": "Measures for a moment and keeps the fastest of all but ray; the default.",
    "sequential": "One client after another: the reference.",
    "vectorised": "Blocks of clients at once.",
    "processes": "The faster of the two below.",
    "processes:sequential": "Workers on all cores, each with one client after another.",
    "processes:vectorised": "Workers on all cores, each with blocks of clients.",
    "ray": "Actors of a Ray cluster; needs pip install 'moiety[ray]'.",
}
"""The engines, and the names that leave the choice open."""


def show(what: str) -> None:
    """Print the names of one kind, each with one line, and where in a file they stand."""
    must(what in KINDS, "what", "one of the known kinds", repr(what), nearest(what, KINDS))
    headers, rows = ["name", "what it is"], [[name, line] for name, line in lines(what).items()]
    if what == "datasets":
        headers.insert(1, "file")
        rows = [[name, file_state(name), line] for name, line in rows]
    show_table(table(headers, rows, text=(0, 1, 2)))
    place = KINDS[what].place
    say(f"\nin a file: {place}" if place else "\nas in: moiety run quickstart")
    if what == "datasets":
        folder = os.environ.get("MOIETY_DATA", "")
        say(f"files are looked for in MOIETY_DATA, {folder or 'which is not set'}")
        say('data of your own, saved by FederatedData.save: name = "folder", path = "..."')


def lines(what: str) -> dict[str, str]:
    """What there is of a kind, each with the first line of its docstring."""
    if what == "engines":
        return ENGINES
    if what == "recipes":
        return {name: recipe_line(name) for name in list_recipes()}
    found = getattr(importlib.import_module(KINDS[what].module), KINDS[what].table)
    # A metric is a record; what it measures is said by its function.
    return {name: first_line(getattr(made, "per_example", made)) for name, made in found.items()}


def recipe_line(name: str) -> str:
    """What a recipe compares; or why it cannot be imported, so that one bad package does not hide the others."""
    try:
        return load_recipe(name).summary
    except MoietyError as error:
        return f"cannot be run: {error}"


def first_line(made: object) -> str:
    """The first line of a docstring, or nothing."""
    return (inspect.getdoc(made) or "").partition("\n")[0]


def file_state(dataset: str) -> str:
    """Whether the data set's file is ``found`` or ``absent``, or the data is ``shipped``."""
    if dataset not in FILES:
        return "shipped"
    folder = os.environ.get("MOIETY_DATA", "")
    return "found" if folder and (Path(folder) / FILES[dataset]).is_file() else "absent"
