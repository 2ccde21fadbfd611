"""Two ways to train compared client by client, where clients and training seeds are both drawn by chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moiety.errors import must
from moiety.evaluation.per_client import worst_decile
from moiety.random import generator
from moiety.reports.versus import Rows, changes, column

RESAMPLES = 1000
Ends = tuple[float, float]


@dataclass(frozen=True)
class Contrast:
    """How much better one way is than another on the same rows: the ``mean`` gain with its interval at ``level``.

    ``gains`` has the gain of each client, the mean over seeds. More is better, whatever the metric.
    """

    mean: float
    low: float
    high: float
    gains: Mapping[str, float]
    seeds: int
    level: float = 0.95

    @property
    def beyond_chance(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0


def contrast(new: Sequence[Rows], old: Sequence[Rows], *, higher_is_better: bool, level: float = 0.95) -> Contrast:
    """Compare two ways to train on the same clients, each trained with several seeds.

    The mean weighs clients as the metric of a run does. Two things could have come out otherwise: which clients there
    are, and the training. Each has a variance: that of the clients' gains (each the mean over seeds; a weighted mean
    has the variance of a ratio), divided by their number, and that of the seeds' mean gains, divided by theirs. The
    half-width of the interval is the root of the sum of the squares of the two half-widths, each of Student's t. With
    three seeds this is a little too wide; degrees of freedom by Welch's formula would make it a little too narrow. With
    one seed it is over clients alone.

    Args:
        new: rows of clients for each seed, as ``Run.evaluate`` gives them.
        old: the same for the other way, seeds in the same order.
        higher_is_better: the direction of the metric.
        level: of the interval.

    >>> old = [{"client": str(i), "n_test": 10, "metric": 0.5} for i in range(3)]
    >>> new = [{**row, "metric": 0.5 + gain} for row, gain in zip(old, (0.1, 0.2, 0.3))]
    >>> result = contrast([new], [old], higher_is_better=True)
    >>> round(result.mean, 3), round(result.low, 3), round(result.high, 3)
    (0.2, -0.048, 0.448)
    """
    must(len(new) == len(old) > 0, "new", "as many seeds as old has, and at least one", f"{len(new)} and {len(old)}")
    tables = [changes(column(a), column(b), higher_is_better=higher_is_better) for a, b in zip(new, old, strict=True)]
    clients = [client for client in tables[0] if all(client in table for table in tables)]
    must(len(clients) > 1, "rows", "those of at least two clients with test rows on both sides", len(clients))
    weights = _weigh_clients(new[0], clients)
    gains = np.array([[table[client] for client in clients] for table in tables])
    each, by_client = gains @ weights, gains.mean(0)
    mean, count, seeds = float(each.mean()), len(clients), len(tables)
    over_clients = float(((weights * (by_client - mean)) ** 2).sum()) * count / (count - 1)
    over_seeds = float(each.var(ddof=1)) / seeds if seeds > 1 else 0.0
    from scipy.stats import t  # half a second to import

    parts = [(over_clients, count - 1), (over_seeds, max(1, seeds - 1))]
    half = math.sqrt(sum(variance * float(t.ppf((1 + level) / 2, freedom)) ** 2 for variance, freedom in parts))
    return Contrast(mean, mean - half, mean + half, dict(zip(clients, by_client.tolist(), strict=True)), seeds, level)


def _weigh_clients(rows: Rows, clients: Sequence[str]) -> np.ndarray:
    """How much each client counts, adding up to 1."""
    counts = {str(row["client"]): float(row.get("weight", row["n_test"])) for row in rows}
    weights = np.array([counts[client] for client in clients])
    return np.asarray(weights / weights.sum())


def describe_clients(
    rows: Rows, reference: Rows, *, higher_is_better: bool, seed: int = 0, level: float = 0.95
) -> dict[str, Any]:
    """Mean, worst decile and share of clients hurt, with intervals by resampling clients.

    A client is hurt here where its metric is worse than in ``reference``, by however little.

    Returns:
        ``mean``, ``worst_decile`` and ``share_hurt``, each with ``_low`` and ``_high``, and ``clients``.
    """
    metric, other = column(rows), column(reference)
    gains = changes(metric, other, higher_is_better=higher_is_better)
    clients = list(gains)
    must(len(clients) > 1, "rows", "those of at least two clients with rows on both sides", len(clients))
    values, gain = np.array([metric[c] for c in clients]), np.array([gains[c] for c in clients])
    weights = _weigh_clients(rows, clients)
    measures: dict[str, Callable[[np.ndarray], float]] = {
        "mean": lambda at: float(np.average(values[at], weights=weights[at])),
        "worst_decile": lambda at: worst_decile(values[at], higher_is_better=higher_is_better),
        "share_hurt": lambda at: float((gain[at] < 0).mean()),
    }
    draws = generator(seed, "recommend", "resample").integers(len(clients), size=(RESAMPLES, len(clients)))
    ends = (100 * (1 - level) / 2, 100 * (1 + level) / 2)
    row: dict[str, Any] = {"clients": len(clients)}
    for name, measure in measures.items():
        low, high = np.percentile([measure(draw) for draw in draws], ends)
        row |= {name: measure(np.arange(len(clients))), f"{name}_low": float(low), f"{name}_high": float(high)}
    return row
