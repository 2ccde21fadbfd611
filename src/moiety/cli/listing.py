"""``moiety list``: what a configuration file can name."""

from __future__ import annotations

import importlib
import inspect
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
    "privacy": Kind("moiety.transport.privacy", "PRIVACY", "name in [privacy]"),
    "clocks": Kind("moiety.clients.clock", "CLOCKS", "name in [clock]"),
    "times": Kind("moiety.clients.speed", "TIMES", "compute, up and down in [clock]"),
    "losses": Kind("moiety.task.losses", "EVERY_LOSS", "loss in [run]"),
    "metrics": Kind("moiety.task.metrics", "EVERY_METRIC", "metric in [run]"),
    "engines": Kind("moiety.engines.auto", "ENGINES", "engine in [run]"),
}

ENGINES = {
    "auto": "The fastest of all but ray, by size or measured for a moment; the default.",
    "sequential": "One client after another: the reference.",
    "vectorised": "Blocks of clients at once.",
    "processes": "The faster of the two below.",
    "processes:sequential": "Workers on all cores, each with one client after another.",
    "processes:vectorised": "Workers on all cores, each with blocks of clients.",
    "ray": "The better of the two below, by size; needs pip install 'moiety[ray]'.",
    "ray:sequential": "Actors of a Ray cluster, each with one client after another.",
    "ray:vectorised": "Actors of a Ray cluster, each with blocks of clients.",
}
"""The engines, and the names that leave the choice open."""


def show_kind(what: str) -> None:
    """Print the names of one kind, each with one line, and where in a file they stand."""
    from moiety.cli.output import say, show  # not above: --help knows the kinds and nothing heavy
    from moiety.reports.console import table

    must(what in KINDS, "what", "one of the known kinds", repr(what), near(what, KINDS, None))
    headers, rows = ["name", "what it is"], [[name, line] for name, line in describe_names(what).items()]
    if what == "datasets":
        headers.insert(1, "file")
        rows = [[name, file_state(name), line] for name, line in rows]
    show(table(headers, rows, text=(0, 1, 2)))
    place = KINDS[what].place
    say(f"\nin a file: {place}" if place else "\nas in: moiety run quickstart")
    if what == "datasets":
        say("absent ones: moiety data fetch NAME; where files are looked for: moiety data where")
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
    return {name: first_line(_function_of(builder)) for name, builder in builders.items()}


def _function_of(builder: object) -> object:
    return getattr(builder, "per_example", None) or getattr(builder, "compute", None) or builder


def first_line(thing: object) -> str:
    """The first line of a docstring, or nothing."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def file_state(dataset: str) -> str:
    """Whether a file of the data set is ``found`` or ``absent``, or the data is ``shipped``."""
    from moiety.data.catalogue import rows_of
    from moiety.data.sources.folders import find_file

    rows = rows_of(dataset)
    if not rows:
        return "shipped"
    return "found" if any(find_file(row.file) for row in rows) else "absent"
