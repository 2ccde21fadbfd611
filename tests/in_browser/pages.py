"""Reports to look at in a browser, from rows made by hand: one run, several with seeds, ten thousand clients."""

from __future__ import annotations

import math
import random
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))
from report_rows import client, history, result

from moiety.reports.groups import Group
from moiety.reports.page import write_report

HOSTILE = (
    "<script>window.broken=1</script>",
    "</script><script>window.broken=2</script>",
    '"><img src=x onerror="window.broken=3">',
)


def make_clients(count: int, lift: float, seed: int) -> list[dict[str, Any]]:
    """Clients of many sizes, each with a metric of whole test rows."""
    chance, rows = random.Random(seed), []
    names = (
        [*HOSTILE, *(f"site-{at}" for at in range(count))][:count]
        if count > 10
        else [f"site-{at}" for at in range(count)]
    )
    for at, name in enumerate(names):
        n = int(10 ** chance.uniform(1, 3.2))
        n_test = max(4, n // 4)
        level = 0.55 + 0.3 * math.sin(at)
        shared = sum(chance.random() < level for _ in range(n_test)) / n_test
        own = (
            sum(chance.random() < min(0.98, max(0.02, level + lift * chance.gauss(1, 0.8))) for _ in range(n_test))
            / n_test
        )
        rows.append(client(name, own, shared, n=n, n_test=n_test))
    return rows


def make_group(name: str, count: int, lift: float, seeds: int) -> Group:
    runs = {}
    for seed in range(seeds):
        chance = random.Random(f"{name} {seed}")
        course = [0.4 + (0.35 + lift) * (1 - math.exp(-at / 6)) + chance.gauss(0, 0.012) for at in range(1, 31)]
        runs[seed] = result(name, make_clients(count, lift, seed), history(*course), seed)
    return Group(name, runs)


def one_run(folder: Path, count: int = 60) -> Path:
    return write_report([make_group("fedalt", count, 0.12, 1)], folder / f"one-{count}.html")


def several_runs(folder: Path) -> Path:
    groups = [make_group("fedavg", 60, 0.0, 5), make_group("fedalt", 60, 0.1, 5), make_group("ditto", 60, 0.02, 5)]
    return write_report(groups, folder / "several.html")


def posterior(folder: Path) -> Path:
    chance = random.Random(0)
    group = make_group("fedpop", 40, 0.1, 1)
    for row in group.results[0].clients:
        row |= {"effective_draws": chance.uniform(2, 20), "rhat": 1 + chance.expovariate(15), "diverges": False}
    edges = [k / 15 for k in range(16)]
    bins = [
        {"low": a, "high": b, "n": 10 * k, "confidence": (a + b) / 2, "accuracy": max(0.0, (a + b) / 2 - 0.05)}
        for k, (a, b) in enumerate(pairwise(edges), 1)
    ]
    group.results[0] = replace(group.results[0], calibration=bins)
    return write_report([group], folder / "posterior.html")
