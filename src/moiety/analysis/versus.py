"""One way of training against another, over seeds; ``moiety.reports.versus`` compares client by client.

The rows over seeds serve FedAlt against FedSim (Table 4 of Pillutla et al. 2022), after against before the final
finetuning (Tables 12 and 14), stateful against stateless clients (Table 13), and any personal part against none
(Table 2, Figure 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from moiety.analysis.intervals import as_columns, interval
from moiety.errors import must
from moiety.reports.versus import Rows

Row = dict[str, Any]
Seeds = Sequence[Rows]
"""The rows of a run's clients, for each seed."""


def average(rows: Rows, *, weighted: bool = True) -> float:
    """The mean metric over clients with test rows: weighted by how much each one's metric counts, or plain.

    >>> rows = [{"n_test": 1, "metric": 0.5}, {"n_test": 3, "metric": 1.0}, {"n_test": 0, "metric": math.nan}]
    >>> average(rows), average(rows, weighted=False)
    (0.875, 0.75)
    """
    weights = [float(row.get("weight", row["n_test"])) for row in rows]
    pairs = [(w, float(row["metric"])) for w, row in zip(weights, rows, strict=True) if w > 0]
    must(len(pairs) > 0, "rows", "those of at least one client with test rows", "none")
    if not weighted:
        return fmean(metric for _, metric in pairs)
    return math.fsum(w * metric for w, metric in pairs) / math.fsum(w for w, _ in pairs)


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


class PersonalPart(NamedTuple):
    """A personal part: how many parameters it has, out of how many, and the runs with it and without."""

    personal: int
    total: int
    new: Seeds
    old: Seeds


def against_parameters(
    parts: Mapping[str, PersonalPart | tuple[int, int, Seeds, Seeds]],
    *,
    higher_is_better: bool = True,
    weighted: bool = True,
    level: float = 0.95,
) -> list[Row]:
    """Figure 4: what each personal part gains against how many parameters are personal, the smallest first.

    Rows are those of ``differences``, with ``personal`` and ``total`` numbers of parameters, the ``share`` that is
    personal, and ``boost``: the share of the largest part's gain that this one has (None where that gains nothing).
    """
    entries = {name: PersonalPart(*part) for name, part in parts.items()}
    pairs = {name: (part.new, part.old) for name, part in entries.items()}
    rows = differences(pairs, higher_is_better=higher_is_better, weighted=weighted, level=level)
    for row in rows:
        part = entries[row["row"]]
        row.update(personal=part.personal, total=part.total, share=part.personal / part.total)
    rows.sort(key=lambda row: (row["personal"], row["row"]))
    most = rows[-1]["difference"] if rows else 0.0
    for row in rows:
        row["boost"] = row["difference"] / most if most > 0 else None
    return rows
