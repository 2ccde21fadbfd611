"""Who is helped and who is hurt: one row per client, and a summary of the rows.

"The shared model" is the server's shared part together with the first personal part: as initialised, or as
warm-started where training began from a trained model. A client's gain is the metric of its personal model minus that
of the shared model, with the sign such that more is better; a client is hurt where its gain is below zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]
SHARED = "shared_"
"""What the names of the shared model's columns begin with."""


def client_rows(
    ids: Sequence[str],
    n: np.ndarray,
    n_test: np.ndarray,
    personal: tuple[np.ndarray, np.ndarray],
    shared: tuple[np.ndarray, np.ndarray],
    weight: np.ndarray | None = None,
    *,
    higher_is_better: bool,
) -> list[Row]:
    """A row per client from means of (loss, metric) of both models; a client without test rows has NaN.

    ``weight`` is how much each client's metric counts, by default its test rows. Where it differs from them, rows have
    a column ``weight``, and a client of weight 0 counts as one without test rows.
    """
    weight = n_test if weight is None else weight
    differs = not np.array_equal(weight, n_test)
    columns = [np.where(weight > 0, column, np.nan) for column in (*personal, *shared)]
    loss, metric, shared_loss, shared_metric = columns
    with np.errstate(invalid="ignore"):  # two models that diverged: infinity minus infinity is no gain, NaN
        gain = (metric - shared_metric) * (1 if higher_is_better else -1)
    return [
        {
            "client": str(ids[i]),
            "n": int(n[i]),
            "n_test": int(n_test[i]),
            "loss": float(loss[i]),
            "metric": float(metric[i]),
            "shared_loss": float(shared_loss[i]),
            "shared_metric": float(shared_metric[i]),
            "gain": float(gain[i]),
            "hurt": bool(gain[i] < 0),
            **({"weight": float(weight[i])} if differs else {}),
        }
        for i in range(len(n))
    ]


def summarise(rows: Sequence[Row], *, higher_is_better: bool) -> dict[str, float | int]:
    """Means weighted by test examples and unweighted, the worst decile, and how many were helped and hurt.

    Where rows have a ``weight`` (tokens, words), metrics and gains are weighted by it, losses by examples still.

    >>> rows = [{"n_test": 1, "loss": 1.0, "metric": 0.5, "shared_loss": 1.0, "shared_metric": 0.75, "gain": -0.25},
    ...         {"n_test": 3, "loss": 2.0, "metric": 1.0, "shared_loss": 1.0, "shared_metric": 0.75, "gain": 0.25}]
    >>> summary = summarise(rows, higher_is_better=True)
    >>> [summary[key] for key in ("metric", "metric_unweighted", "worst_decile", "hurt", "helped")]
    [0.875, 0.75, 0.5, 1, 1]
    """
    rows = [r for r in rows if _weight(r) > 0]
    if not rows:
        return {"clients": 0}
    examples = np.array([r["n_test"] for r in rows], dtype=float)
    weight = np.array([_weight(r) for r in rows])
    column = {k: np.array([r[k] for r in rows]) for k in ("loss", "metric", "shared_loss", "shared_metric", "gain")}
    means: dict[str, float | int] = {}
    for key, values in column.items():
        means[key] = float(np.average(values, weights=examples if key.endswith("loss") else weight))
        means[f"{key}_unweighted"] = float(values.mean())
    return {
        **means,
        "worst_decile": worst_decile(column["metric"], higher_is_better=higher_is_better),
        "hurt": int((column["gain"] < 0).sum()),
        "helped": int((column["gain"] > 0).sum()),
        "clients": len(rows),
    }


def summarise_sets(rows: Sequence[Row], pooled: Mapping[str, float]) -> dict[str, float | int]:
    """Of each metric of sets, by its name in ``pooled``: its mean over clients and its value over all rows together.

    The mean weighs clients by their test rows. It is over those for whom the metric is defined; how many it is not
    defined for is counted.

    >>> rows = [{"n_test": 2, "auroc": 1.0}, {"n_test": 6, "auroc": 0.5}, {"n_test": 4, "auroc": math.nan}]
    >>> summarise_sets(rows, {"auroc": 0.75})
    {'auroc': 0.625, 'auroc_pooled': 0.75, 'auroc_undefined': 1}
    """
    summary: dict[str, float | int] = {}
    for name, value in pooled.items():
        if name not in rows[0] or name.startswith(SHARED):
            summary[f"{name}_pooled"] = value
            continue
        scored_rows = [row for row in rows if row["n_test"] > 0]
        valid_rows = [row for row in scored_rows if not math.isnan(row[name])]
        weights = [row["n_test"] for row in valid_rows]
        mean = float(np.average([row[name] for row in valid_rows], weights=weights)) if valid_rows else math.nan
        summary |= {name: mean, f"{name}_pooled": value, f"{name}_undefined": len(scored_rows) - len(valid_rows)}
    return summary


def worst_decile(metric: np.ndarray, *, higher_is_better: bool) -> float:
    """The mean over the tenth of the clients (rounded up) that fare worst.

    >>> worst_decile(np.arange(20.0), higher_is_better=True), worst_decile(np.arange(20.0), higher_is_better=False)
    (0.5, 18.5)
    """
    values = np.sort(metric if higher_is_better else -metric)
    worst = float(values[: math.ceil(len(values) / 10)].mean())
    return worst if higher_is_better else -worst


def _weight(row: Row) -> float:
    """How much a client's metric counts."""
    return float(row["weight"] if "weight" in row else row["n_test"])
