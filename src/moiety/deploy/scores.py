"""What leaves a device of its scores, and what the server records of them.

``none``: nothing. ``histogram``: in which step of the scale the metric and the gain lie, and whether the client is
hurt; the server records counts alone, and only where enough clients answered. ``per_client``: the row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from moiety.deploy.letters import is_small
from moiety.errors import is_whole, must
from moiety.evaluation import Row

STEP = 0.05
"""The width of a step of a histogram."""
FARTHEST = 10_000
"""The last step in either direction; values beyond it count there."""
MOST = 256
"""The most columns of a row."""
COUNTS, NUMBERS = ("n", "n_test"), ("loss", "metric", "shared_loss", "shared_metric", "gain")


def share_row(row: Row, share: str) -> dict[str, Any]:
    """What a device sends of its row; no number that is not finite, as JSON has none."""
    if share == "none":
        return {}
    if share == "per_client":
        return {key: _finite(value) for key, value in row.items() if key != "client"}
    steps = {key: _step(row[key]) for key in ("metric", "gain")}
    return {**steps, "hurt": bool(row["hurt"])}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _step(value: float) -> int | None:
    return max(-FARTHEST, min(FARTHEST, math.floor(value / STEP + 1e-9))) if math.isfinite(value) else None


def check_scores(scores: Any, share: str, rows: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    """The scores that a device sent, if they are what it may send; ``rows`` are its training and its scored ones."""
    must(isinstance(scores, dict), "scores", "a table", type(scores).__name__)
    table: dict[str, Any] = scores
    if share == "histogram":
        fits = set(table) == {"metric", "gain", "hurt"} and isinstance(table["hurt"], bool)
        fits = fits and all(table[key] is None or _is_step(table[key]) for key in ("metric", "gain"))
        must(fits, "scores", "steps of a histogram", sorted(table))
    if share == "per_client":
        fits = all(is_whole(table.get(key)) for key in COUNTS) and rows == tuple(table[key] for key in COUNTS)
        fits = fits and all(table.get(key, "") is None or is_small(table.get(key)) for key in NUMBERS)
        others = [value for key, value in table.items() if key not in (*COUNTS, "hurt")]
        fits = fits and isinstance(table.get("hurt"), bool) and all(v is None or is_small(v) for v in others)
        fits = fits and len(table) <= MOST and "client" not in table
        must(fits, "scores", "those of one client", sorted(map(str, table))[:12])
        # Of one type in each column, for a file of rows holds columns.
        return {key: _as_float(value) if key not in (*COUNTS, "hurt") else value for key, value in table.items()}
    return table


def _as_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def match_columns(scores: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """The scores of each client in the columns that most devices sent: no single one decides what is recorded.

    >>> match_columns({0: {"n": 1, "weight": 9.0}, 1: {"n": 2}, 2: {"n": 3}})
    {0: {'n': 1}, 1: {'n': 2}, 2: {'n': 3}}
    """
    counts = Counter(key for table in scores.values() for key in table)
    columns = [key for key, count in counts.items() if 2 * count > len(scores)]
    return {client: {key: table.get(key) for key in columns} for client, table in scores.items()}


def _is_step(value: Any) -> bool:
    return is_whole(value) and abs(value) <= FARTHEST


def as_row(name: str, scores: Mapping[str, Any]) -> Row:
    """The row of a client from what its device sent."""
    return {"client": name, **{key: math.nan if value is None else value for key, value in scores.items()}}


def count_steps(scores: Sequence[Mapping[str, Any]], floor: int) -> dict[str, Any]:
    """Histograms of metric and gain, by the lower end of each step, and how many are hurt; nothing below ``floor``.

    >>> count_steps([{"metric": 19, "gain": 0, "hurt": False}, {"metric": 18, "gain": -1, "hurt": True}], floor=2)
    {'clients': 2, 'hurt': 1, 'metric_histogram': {'0.90': 1, '0.95': 1}, 'gain_histogram': {'-0.05': 1, '0.00': 1}}
    """
    rows = [each for each in scores if each["metric"] is not None]
    if len(rows) < floor:
        return {}
    histograms = {}
    for key in ("metric", "gain"):
        counts = Counter(each[key] for each in rows if each[key] is not None)
        histograms[f"{key}_histogram"] = {f"{step * STEP:.2f}": counts[step] for step in sorted(counts)}
    return {"clients": len(rows), "hurt": sum(each["hurt"] for each in rows), **histograms}
