"""Groups of runs in tables: means and intervals over seeds, and differences paired by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rich.table import Table

from moiety.reports.console import table
from moiety.reports.groups import Group
from moiety.reports.intervals import interval
from moiety.reports.versus import changes, column, higher_is_better
from moiety.reports.words import format_gain, format_metric, make_printable


def tabulate_groups(groups: Sequence[Group], metric: str) -> Table:
    """A row for each group: means and 95% intervals over its seeds."""
    rows = []
    for group in groups:
        runs = list(group.results.values())
        scores = [[run.personal[key] for run in runs] for key in ("metric", "metric_unweighted")]
        cells = [_show(values, lambda value: format_metric(value, metric)) for values in scores]
        cells.append(format_metric(fmean(run.personal["worst_decile"] for run in runs), metric))
        cells.append(format_metric(fmean(run.shared["metric"] for run in runs), metric))
        rows.append([make_printable(group.name), runs[0].part_name("algorithm"), str(len(runs)), *cells])
    heads = ["runs", "algorithm", "seeds", metric, "client\nmean", "worst\ntenth", "shared\nalone"]
    return table(heads, rows, text=(0, 1))


def tabulate_pairs(groups: Sequence[Group], metric: str) -> Table:
    """Each group against the first, over the seeds that both have: the paired gain, and clients by their mean gain."""
    base = groups[0]
    results = [result for group in groups for result in group.results.values()]
    higher = higher_is_better(metric, *(result.clients for result in results))
    sign = 1 if higher else -1
    rows = []
    for group in groups[1:]:
        seeds = [seed for seed in group.results if seed in base.results]
        pairs = [(group.results[seed], base.results[seed]) for seed in seeds]
        gains = [sign * float(new.personal["metric"] - old.personal["metric"]) for new, old in pairs]
        own = [changes(column(new.clients), column(old.clients), higher_is_better=higher) for new, old in pairs]
        means = [fmean(each[name] for each in own if name in each) for name in dict.fromkeys(n for e in own for n in e)]
        counts = [sum(gain > 0 for gain in means), sum(gain == 0 for gain in means), sum(gain < 0 for gain in means)]
        text = _show(gains, lambda gain: format_gain(gain, metric))
        rows.append([make_printable(group.name), str(len(seeds)), text, *map(str, counts)])
    return table(["runs", "seeds\npaired", "gain", "clients\nbetter", "equal", "worse"], rows)


def _show(values: Sequence[float], write: Any) -> str:
    """A mean with its interval; a dash where a value is missing or not finite."""
    if not values or not all(math.isfinite(value) for value in values):
        return "-"
    span = interval([float(value) for value in values])
    if span.low is None or span.high is None:
        return str(write(span.mean))
    return f"{write(span.mean)} [{write(span.low)}, {write(span.high)}]"
