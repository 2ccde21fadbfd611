"""Two ways of training against each other, client by client."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moiety.errors import MoietyError, message

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Versus:
    """The clients that are ``helped``, ``unchanged`` and ``hurt``, and the ``mean`` gain over all of them.

    Gains are signed such that more is better, whatever the metric. ``hurt`` begins with the one that lost most.
    """

    helped: tuple[str, ...]
    unchanged: tuple[str, ...]
    hurt: tuple[tuple[str, float], ...]
    mean: float

    @property
    def clients(self) -> int:
        """How many clients were compared."""
        return len(self.helped) + len(self.unchanged) + len(self.hurt)


def versus(new: Mapping[str, float], old: Mapping[str, float], *, higher_is_better: bool) -> Versus:
    """Compare the metric of each client that has one in both.

    Differences within rounding count as none: a mean over seven examples is not the same number in single and in double
    precision.

    >>> result = versus({"a": 0.9, "b": 0.5, "c": 0.2}, {"a": 0.8, "b": 0.5, "c": 0.7}, higher_is_better=True)
    >>> result.helped, result.unchanged, result.hurt[0][0], round(result.mean, 3)
    (('a',), ('b',), 'c', -0.133)
    """
    gains = changes(new, old, higher_is_better=higher_is_better)
    return Versus(
        helped=tuple(c for c, gain in gains.items() if gain > 0),
        unchanged=tuple(c for c, gain in gains.items() if gain == 0),
        hurt=tuple(sorted(((c, g) for c, g in gains.items() if g < 0), key=lambda pair: pair[1])),
        mean=mean(gains.values()),
    )


def changes(new: Mapping[str, float], old: Mapping[str, float], *, higher_is_better: bool) -> dict[str, float]:
    """The gain of each client that has a metric in both, 0 where the two differ by rounding only.

    >>> changes({"ann": 0.75, "bob": 0.5}, {"ann": 0.5, "bob": 0.5}, higher_is_better=True)
    {'ann': 0.25, 'bob': 0.0}
    """
    sign = 1 if higher_is_better else -1
    gains: dict[str, float] = {}
    for client, value in new.items():
        if client in old and math.isfinite(value) and math.isfinite(old[client]):
            equal = math.isclose(value, old[client], rel_tol=1e-6, abs_tol=1e-9)
            gains[client] = 0.0 if equal else sign * (value - old[client])
    return gains


def column(rows: Rows, name: str = "metric") -> dict[str, float]:
    """A column of a run's rows by client, without clients that have no test rows."""
    return {str(row["client"]): float(row[name]) for row in rows if row.get("weight", row["n_test"]) > 0}


def mean(values: Iterable[float]) -> float:
    """The plain mean, NaN of nothing."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else math.nan


def higher_is_better(metric: str, *runs: Rows) -> bool:
    """The direction of a metric: known by its name, or else from the sign of some client's gain.

    >>> higher_is_better("accuracy"), higher_is_better("mse")
    (True, False)
    """
    from moiety.task.metrics import EVERY_METRIC

    if metric in EVERY_METRIC:
        return EVERY_METRIC[metric].higher_is_better
    if metric == "loss":
        return False
    for row in (row for rows in runs for row in rows):
        change = row["gain"] * (row["metric"] - row["shared_metric"])
        if math.isfinite(change) and change != 0:
            return bool(change > 0)
    raise MoietyError(message("metric", f"one of {', '.join(EVERY_METRIC)}, or one that shows its direction", metric))
