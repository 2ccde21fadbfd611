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
    "recipes": Kind("moiety.experiments", "", ""),
    "datasets": Kind("moiety.data", "SOURCES", "name in [data]"),
    "partitions": Kind("moiety.data.partition", "PARTITIONS", "partition in [data]"),
    "models": Kind("moiety.models", "MODELS", "name in [model]"),
    "splits": Kind("moiety.split", "SPLITS", "name in [split]"),
    "servers": Kind("moiety.aggregation.server", "SERVERS", "server in [algorithm]"),
    "schedules": Kind("moiety.schedules", "SCHEDULES", "schedule in [algorithm]"),
    "solvers": Kind("moiety.solvers", "SOLVERS", "solver in [algorithm], for ffgg and local_ffgg"),
    "kernels": Kind("moiety.kernels", "KERNELS", "kernel in [algorithm], for fedpop"),
    "priors": Kind("moiety.priors", "PRIORS", "prior in [algorithm], for fedpop"),
    "aggregators": Kind("moiety.aggregation.aggregators", "AGGREGATORS", "name in [aggregator]"),
    "attacks": Kind("moiety.aggregation.attacks", "ATTACKS", "name in [attack]"),
    "codecs": Kind("moiety.transport.codecs", "CODECS", "name in [codec]"),
    "clocks": Kind("moiety.clients.clock", "CLOCKS", "name in [clock]"),
    "times": Kind("moiety.clients.speed", "TIMES", "compute, up and down in [clock]"),
    "losses": Kind("moiety.scores", "LOSSES", "loss in [run]"),
    "metrics": Kind("moiety.scores", "METRICS", "metric in [run]"),
    "engines": Kind("moiety.engines.choose", "ENGINES", "engine in [run]"),
}
