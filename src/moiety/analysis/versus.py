"""One way of training against another: client by client, and over seeds.

The rows over seeds serve FedAlt against FedSim (Table 4 of Pillutla et al. 2022), after against before the final
finetuning (Tables 12 and 14), stateful against stateless clients (Table 13), and any personal part against none
(Table 2, Figure 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from moiety.analysis.intervals import as_columns, interval
from moiety.errors import MoietyError, message, must

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
Seeds = Sequence[Rows]
"""The rows of a run's clients, for each seed."""


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
    """The gain of each client that has a metric in both, 0 where the two differ by rounding only."""
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
    """The direction of a metric: known by its name, or else from the sign of some client's gain."""
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


def average(rows: Rows, *, weighted: bool = True) -> float:
    """The mean metric over clients with test rows: weighted by how much each one's metric counts, or plain.

    >>> rows = [{"n_test": 1, "metric": 0.5}, {"n_test": 3, "metric": 1.0}, {"n_test": 0, "metric": math.nan}]
    >>> average(rows), average(rows, weighted=False)
    (0.875, 0.75)
    """
    weights = [float(row.get("weight", row["n_test"])) for row in rows]
    tested = [(w, float(row["metric"])) for w, row in zip(weights, rows, strict=True) if w > 0]
    must(len(tested) > 0, "rows", "those of at least one client with test rows", "none")
    if not weighted:
        return fmean(metric for _, metric in tested)
    return math.fsum(w * metric for w, metric in tested) / math.fsum(w for w, _ in tested)


def differences(
    pairs: Mapping[str, tuple[Seeds, Seeds]],
    *,
    higher_is_better: bool = True,
    weighted: bool = True,
    level: float = 0.95,
) -> list[Row]:
    """A row for each pair (new, old): both means over seeds, and how much the new one is better.

    Args:
        pairs: by the name of the row; seeds stand in the same order on both sides.
        higher_is_better: the direction of the metric.
        weighted: how clients are averaged, as in ``average``.
        level: of the interval over seeds.

    Returns:
        Rows with ``row``, ``new``, ``old``, ``difference`` with its ``std``, ``low`` and ``high`` over seeds (None with
        one seed), ``seeds``, and ``each``: the difference in every seed, as ``claim`` wants them.
    """
    sign = 1 if higher_is_better else -1
    rows = []
    for name, (new, old) in pairs.items():
        same = len(new) == len(old)
        must(same, "pairs", "as many seeds of the new as of the old", f"{len(new)} and {len(old)} for {name}")
        ours, theirs = ([average(one, weighted=weighted) for one in seeds] for seeds in (new, old))
        each = [sign * (a - b) for a, b in zip(ours, theirs, strict=True)]
        means = {"row": name, "new": fmean(ours), "old": fmean(theirs)}
        rows.append({**means, **as_columns(interval(each, level=level), "difference"), "each": each})
    return rows


class Sized(NamedTuple):
    """A personal part: how many parameters it has, out of how many, and the runs with it and without."""

    personal: int
    total: int
    new: Seeds
    old: Seeds


def against_parameters(
    parts: Mapping[str, Sized | tuple[int, int, Seeds, Seeds]],
    *,
    higher_is_better: bool = True,
    weighted: bool = True,
    level: float = 0.95,
) -> list[Row]:
    """Figure 4: what each personal part gains against how many parameters are personal, the smallest first.

    Rows are those of ``differences``, with ``personal`` and ``total`` numbers of parameters, the ``share`` that is
    personal, and ``boost``: the share of the largest part's gain that this one has (None where that gains nothing).
    """
    sized = {name: Sized(*part) for name, part in parts.items()}
    pairs = {name: (part.new, part.old) for name, part in sized.items()}
    rows = differences(pairs, higher_is_better=higher_is_better, weighted=weighted, level=level)
    for row in rows:
        part = sized[row["row"]]
        row.update(personal=part.personal, total=part.total, share=part.personal / part.total)
    rows.sort(key=lambda row: (row["personal"], row["row"]))
    most = rows[-1]["difference"] if rows else 0.0
    for row in rows:
        row["boost"] = row["difference"] / most if most > 0 else None
    return rows
