"""``moiety list``: what a configuration file can name."""

from __future__ import annotations

import importlib
import inspect
import os
from pathlib import Path
from typing import NamedTuple

from moiety.errors import must, near


class Kind(NamedTuple):
    """A module with a table of names, and the place in a file (nothing for what the command alone knows)."""

    module: str
    table: str
    place: str


KINDS = {
    "algorithms": Kind("moiety.algorithms", "ALGORITHMS", "name in [algorithm]"),
    "recipes": Kind("moiety.experiments.registry", "", ""),
    "datasets": Kind("moiety.data", "SOURCES", "name in [data]"),
    "partitions": Kind("moiety.data.partition", "PARTITIONS", "partition in [data]"),
    "models": Kind("moiety.models", "MODELS", "name in [model]"),
    "splits": Kind("moiety.split", "SPLITS", "name in [split]"),
    "servers": Kind("moiety.server.optimisers", "SERVERS", "server in [algorithm]"),
    "schedules": Kind("moiety.local.schedules", "SCHEDULES", "schedule in [algorithm]"),
    "local": Kind("moiety.local.work", "LOCAL_WORK", "shared and personal in [algorithm]"),
    "solvers": Kind("moiety.local.solvers", "SOLVERS", "personal in [algorithm] for ffgg, solver for local_ffgg"),
    "kernels": Kind("moiety.local.kernels", "KERNELS", "personal in [algorithm] for fedpop"),
    "priors": Kind("moiety.local.priors", "PRIORS", "prior in [algorithm], for fedpop"),
    "aggregators": Kind("moiety.server.aggregators", "AGGREGATORS", "name in [aggregator]"),
    "attacks": Kind("moiety.server.attacks", "ATTACKS", "name in [attack]"),
    "codecs": Kind("moiety.transport.codecs", "CODECS", "name in [codec]"),
    "clocks": Kind("moiety.clients.clock", "CLOCKS", "name in [clock]"),
    "times": Kind("moiety.clients.speed", "TIMES", "compute, up and down in [clock]"),
    "losses": Kind("moiety.task.scores", "LOSSES", "loss in [run]"),
    "metrics": Kind("moiety.task.scores", "METRICS", "metric in [run]"),
    "engines": Kind("moiety.engines.auto", "ENGINES", "engine in [run]"),
}

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


def show_kind(what: str) -> None:
    """Print the names of one kind, each with one line, and where in a file they stand."""
    from moiety.cli.output import say, show, table  # not above: --help knows the kinds and nothing heavy

    must(what in KINDS, "what", "one of the known kinds", repr(what), near(what, KINDS, None))
    headers, rows = ["name", "what it is"], [[name, line] for name, line in describe_names(what).items()]
    if what == "datasets":
        headers.insert(1, "file")
        rows = [[name, file_state(name), line] for name, line in rows]
    show(table(headers, rows, text=(0, 1, 2)))
    place = KINDS[what].place
    say(f"\nin a file: {place}" if place else "\nas in: moiety run quickstart")
    if what == "datasets":
        folder = os.environ.get("MOIETY_DATA", "")
        say(f"files are looked for in MOIETY_DATA, {folder or 'which is not set'}")
        say('data of your own, saved by FederatedData.save: name = "folder", path = "..."')
        say('a CSV or Parquet file: name = "table", path = "...", client = "...", target = "..."')


def describe_names(what: str) -> dict[str, str]:
    """What there is of a kind, each with the first line of its docstring."""
    if what == "engines":
        return ENGINES
    if what == "recipes":
        from moiety.experiments.registry import describe_recipes

        return describe_recipes()
    builders = getattr(importlib.import_module(KINDS[what].module), KINDS[what].table)
    # A metric is a record; what it measures is said by its function.
    return {name: first_line(getattr(builder, "per_example", builder)) for name, builder in builders.items()}


def first_line(thing: object) -> str:
    """The first line of a docstring, or nothing."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def file_state(dataset: str) -> str:
    """Whether the data set's file is ``found`` or ``absent``, or the data is ``shipped``."""
    if dataset not in FILES:
        return "shipped"
    folder = os.environ.get("MOIETY_DATA", "")
    return "found" if folder and (Path(folder) / FILES[dataset]).is_file() else "absent"
