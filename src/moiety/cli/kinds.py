"""The kinds of things that a file can name: where their table is, and where in a file they stand."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A module with a table of names, and the place in a file (nothing for what the command alone knows)."""

    module: str
    table: str
    place: str


KINDS = {
    "algorithms": Kind("moiety.algorithms", "ALGORITHMS", "name in [algorithm]"),
    "recipes": Kind("moiety.recipes", "RECIPES", ""),
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
