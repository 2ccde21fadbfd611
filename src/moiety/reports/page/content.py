"""The numbers of the report: curves, clients, how they are spread, what differs between runs, and costs.

The page has a bounded size. All counts, means and quantiles are over all clients; drawn one by one are at most
``CLIENTS`` (fewer where there are many comparisons), and curves have at most ``ROUNDS`` points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moiety.evaluation.per_client import worst_decile
from moiety.reports.groups import Group
from moiety.reports.intervals import Interval, interval
from moiety.reports.noise import HELPED, HURT, UNKNOWN, bound_gains, judge_gains, read_ends
from moiety.reports.result import Result
from moiety.reports.versus import changes, higher_is_better

CLIENTS, POINTS, ROUNDS, GROUPS, NAME = 10_000, 30_000, 120, 8, 48
"""At most so many clients, clients times comparisons, points of a curve, groups in figures, characters of a name."""
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
MEASURES = {
    "metric": "personal models",
    "worst_decile": "worst tenth of clients",
    "shared_metric": "shared model alone",
    "loss": "loss",
    "train_loss": "loss while training",
    "epsilon": "privacy spent (epsilon)",
}
"""Columns of a history that are drawn, as a reader knows them."""
ACROSS = {"round": "rounds", "sent": "sent (bytes)", "flops": "local training (FLOP)", "seconds": "time in rounds (s)"}


@dataclass(frozen=True)
class Scores:
    """The clients of one group: names, training and test rows, and the metric of both models, [seeds, clients]."""

    names: list[str]
    n: np.ndarray
    n_test: np.ndarray
    own: np.ndarray
    shared: np.ndarray


@dataclass(frozen=True)
class View:
    """One comparison, client by client: what is compared with what, the gain of each, and who is beyond noise."""

    label: str
    new: str
    old: str
    values: np.ndarray
    base: np.ndarray
    gains: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    verdicts: list[str]
    over_seeds: Interval | None
    group: int

    def count(self, verdict: str) -> int:
        """How many clients have this verdict."""
        return self.verdicts.count(verdict)


@dataclass(frozen=True)
class Content:
    """All that the page shows."""

    groups: list[Group]
    metric: str
    higher: bool
    views: list[View]
    scores: list[Scores]
    curves: list[dict[str, Any]]

    @property
    def drawn_views(self) -> list[View]:
        """The comparisons whose clients are drawn one by one."""
        return [view for view in self.views if view.group < GROUPS]

    @property
    def reliability(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """The bins of a reliability diagram for each group that has some, over all its seeds."""
        pairs = [(group.name, _pool_bins(list(group.results.values()))) for group in self.groups[:GROUPS]]
        return [(name, bins) for name, bins in pairs if bins]

    @property
    def first(self) -> Result:
        """A result that stands for all."""
        return next(iter(self.groups[0].results.values()))


def _pool_bins(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The bins of all runs as those of one: examples are added, and means are over all of them."""
    groups: dict[tuple[float, float], list[Mapping[str, Any]]] = {}
    for row in (row for result in results for row in result.calibration):
        groups.setdefault((row["low"], row["high"]), []).append(row)
    bins = []
    for (low, high), rows in sorted(groups.items()):
        n = sum(row["n"] for row in rows)
        means = {key: sum(row["n"] * row[key] for row in rows) / n for key in ("confidence", "accuracy")}
        bins.append({"low": low, "high": high, "n": n, **means})
    return bins


def gather(groups: Sequence[Group]) -> Content:
    """Everything that the page needs, from runs of the same data and metric; runs under way have curves only."""
    results = [result for group in groups for result in group.results.values()]
    begun_results = [result for result in results if result.history]
    metric = begun_results[0].metric if begun_results else ""
    ended_groups = [
        group for group in groups if group.results and all(result.clients for result in group.results.values())
    ]
    higher = True
    if any(result.clients for result in results):
        higher = higher_is_better(metric, *(result.clients for result in results))
    scores = [_align(group) for group in ended_groups]
    views = _compare(ended_groups, scores, metric, higher)
    curves = [_follow(group) for group in groups[:GROUPS] if any(result.history for result in group.results.values())]
    return Content(list(groups), metric, higher, views, scores, curves)


def _align(group: Group) -> Scores:
    """The clients of a group in the order of its first run."""
    results = list(group.results.values())
    rows = results[0].clients
    names = [str(row["client"]) for row in rows]
    tables = [{str(row["client"]): row for row in result.clients} for result in results]

    def take(key: str) -> np.ndarray:
        return np.array([[_read_tested(table[name], key) for name in names] for table in tables])

    n, n_test = (np.array([int(row.get(key) or 0) for row in rows]) for key in ("n", "n_test"))
    return Scores(names, n, n_test, take("metric"), take("shared_metric"))


def _read_tested(row: Mapping[str, Any], key: str) -> float:
    return float(row[key]) if row.get("weight", row["n_test"]) > 0 else np.nan


def _compare(groups: Sequence[Group], scores: Sequence[Scores], metric: str, higher: bool) -> list[View]:
    """Each group against the first, then the personal models of each against its shared model alone."""
    views = []
    for at, (group, own) in enumerate(zip(groups[1:], scores[1:], strict=True), 1):
        seeds = [seed for seed in group.results if seed in groups[0].results]
        if seeds:
            new = own.own[[list(group.results).index(seed) for seed in seeds]]
            old = scores[0].own[[list(groups[0].results).index(seed) for seed in seeds]]
            order = {name: at for at, name in enumerate(scores[0].names)}
            old = old[:, [order[name] for name in own.names]]
            label = f"{group.name} against {groups[0].name}"
            pairs = [(group.results[seed], groups[0].results[seed]) for seed in seeds]
            sign = 1 if higher else -1
            means = [sign * float(a.personal["metric"] - b.personal["metric"]) for a, b in pairs]
            names = label, group.name, groups[0].name
            views.append(_compare_models(names, own, new, old, metric, higher, _find_interval(means), at))
    for at, (group, own) in enumerate(zip(groups, scores, strict=True)):
        if np.array_equal(own.own, own.shared, equal_nan=True):  # one model for all: nothing to compare
            continue
        several = len(groups) > 1
        label = f"{group.name}: personal against shared alone" if several else "personal against shared alone"
        names = (label, f"{group.name}, personal" if several else "personal", "shared alone")
        sign = 1 if higher else -1
        runs = group.results.values()
        means = [sign * float(run.personal["metric"] - run.shared["metric"]) for run in runs]
        clients = next(iter(runs)).clients if len(group.results) == 1 else []
        view = _compare_models(names, own, own.own, own.shared, metric, higher, _find_interval(means), at, clients)
        views.append(view)
    return views


def _find_interval(values: Sequence[float]) -> Interval | None:
    return interval(values) if values and all(np.isfinite(values)) else None


def _compare_models(
    names: tuple[str, str, str],
    scores: Scores,
    new: np.ndarray,
    old: np.ndarray,
    metric: str,
    higher: bool,
    span: Interval | None,
    group: int,
    clients: Sequence[dict[str, Any]] = (),
) -> View:
    """Compare two models of each client, over seeds."""
    values, base = new.mean(0), old.mean(0)
    differences = changes(
        dict(enumerate(values.tolist())),  # type: ignore[arg-type]
        dict(enumerate(base.tolist())),  # type: ignore[arg-type]
        higher_is_better=higher,
    )
    gains = np.array([differences.get(at, np.nan) for at in range(len(values))])  # type: ignore[call-overload]
    ends = read_ends(clients)
    if ends is None:
        ends = bound_gains(new, old, scores.n_test, metric, higher=higher)
    verdicts = judge_gains(gains, ends)
    low, high = (None, None) if ends is None else ends
    return View(*names, values, base, gains, low, high, verdicts, span, group)


def _follow(group: Group) -> dict[str, Any]:
    """The curves of a group: for each round, the mean over the seeds that have it, the least and the largest."""
    results = list(group.results.values())
    histories = [{row["round"]: row for row in result.history} for result in results]
    rounds = sorted({t for history in histories for t in history})
    if len(rounds) > ROUNDS:
        rounds = [rounds[at] for at in np.linspace(0, len(rounds) - 1, ROUNDS).round().astype(int)]
    columns: dict[str, list[list[float | None]]] = {}
    for key in (*MEASURES, *ACROSS):
        points = [_summarise([_read(history[t], key) for history in histories if t in history]) for t in rounds]
        if any(point[0] is not None for point in points):
            columns[key] = points
    if all(result.config.get("algorithm") and _scores_equal(result) for result in results):
        columns.pop("shared_metric", None)
    return {"name": group.name, "seeds": len(results), "columns": columns}


def _scores_equal(result: Result) -> bool:
    """Whether the shared model alone scored as the personal models did, all along."""
    return all(row.get("metric") == row.get("shared_metric") for row in result.history)


def _read(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get("down_payload", 0) + row.get("up_payload", 0) if key == "sent" else row.get(key)
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else None


def _summarise(values: Sequence[float | None]) -> list[float | None]:
    numbers = [value for value in values if value is not None]
    return [sum(numbers) / len(numbers), min(numbers), max(numbers)] if numbers else [None, None, None]


def choose_clients(views: Sequence[View], clients: int) -> np.ndarray:
    """The positions of the clients that are drawn one by one: all, or as many as fit.

    Of more, those at both ends of the first comparison are taken, a quarter each, and the rest evenly between.
    """
    most = min(CLIENTS, POINTS // max(1, len(views)))
    if clients <= most or not views:
        return np.arange(min(clients, most))
    order = np.argsort(views[0].gains, kind="stable")  # NaN comes last
    end = most // 4
    middle = np.linspace(end, clients - end - 1, most - 2 * end).round().astype(int)
    return np.sort(order[np.concatenate([np.arange(end), middle, np.arange(clients - end, clients)])])


def quantiles(values: np.ndarray, *, higher: bool) -> dict[str, Any]:
    """How a metric is spread over clients: quantiles, and the mean of the tenth that fares worst."""
    scores = values[np.isfinite(values)]
    if not len(scores):
        return {"quantiles": [None] * len(QUANTILES), "worst": None, "clients": 0}
    worst = worst_decile(scores, higher_is_better=higher)
    return {"quantiles": np.quantile(scores, QUANTILES).tolist(), "worst": worst, "clients": len(scores)}


def by_size(view: View, n: np.ndarray) -> list[dict[str, Any]]:
    """The comparison for the clients with at most the median number of training rows, and for the others."""
    finite = np.isfinite(view.gains)
    if not finite.any():
        return []
    cut = int(np.median(n[finite]))
    rows = []
    for name, some in ((f"at most {cut:,}", finite & (n <= cut)), (f"more than {cut:,}", finite & (n > cut))):
        if some.any():
            words = [word for word, inside in zip(view.verdicts, some, strict=True) if inside]
            row = {"rows": name, "clients": int(some.sum()), "mean": float(view.gains[some].mean())}
            counts = {"hurt": int((view.gains[some] < 0).sum()), "helped": int((view.gains[some] > 0).sum())}
            beyond = {"hurt_beyond": words.count(HURT), "helped_beyond": words.count(HELPED)}
            rows.append({**row, **counts, **beyond, "known": UNKNOWN not in words})
    return rows
