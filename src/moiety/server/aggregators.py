"""``moiety.aggregator``: ways to join the uploads of a round, for ``moiety.Settings(aggregator=...)``."""

from __future__ import annotations

from collections.abc import Callable

from moiety.server.geometric import geometric_median
from moiety.server.preaggregation import bucketing, nearest_neighbour_mixing
from moiety.server.robust import Aggregator, centred_clipping, krum, mean, median, multi_krum, trimmed_mean
from moiety.spec import Spec, build

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "aggregator_from",
    "bucketing",
    "centred_clipping",
    "geometric_median",
    "krum",
    "mean",
    "median",
    "multi_krum",
    "nearest_neighbour_mixing",
    "trimmed_mean",
]

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {
    "mean": mean,
    "median": median,
    "trimmed_mean": trimmed_mean,
    "krum": krum,
    "multi_krum": multi_krum,
    "geometric_median": geometric_median,
    "centred_clipping": centred_clipping,
    "bucketing": bucketing,
    "nearest_neighbour_mixing": nearest_neighbour_mixing,
}


def aggregator_from(spec: Spec | str) -> Aggregator:
    """The aggregator that a table of a configuration file describes.

    >>> aggregator_from({"name": "bucketing", "size": 2, "then": "median"}).spec
    {'name': 'bucketing', 'size': 2, 'then': {'name': 'median'}}
    """
    return build("aggregator", AGGREGATORS, spec, {"then": AGGREGATORS})


def __dir__() -> list[str]:
    return __all__
