"""Rows of runs as a report reads them, made by hand."""

from __future__ import annotations

from typing import Any

from moiety.reports.groups import Group
from moiety.reports.result import Result

LEDGER = {
    "rounds": 2,
    "client_updates": 6,
    "down_payload": 1000,
    "up_payload": 500,
    "flops": 2e6,
    "device_memory": 4096,
}


def client(name: str, metric: float, shared: float, n: int = 20, n_test: int = 10, **more: Any) -> dict[str, Any]:
    row = {"client": name, "n": n, "n_test": n_test, "loss": 1 - metric, "metric": metric}
    row |= {"shared_loss": 1 - shared, "shared_metric": shared, "gain": metric - shared, "hurt": metric < shared}
    return {**row, **more}


def history(*metrics: float | None, name: str = "accuracy", **more: Any) -> list[dict[str, Any]]:
    rows = []
    for at, metric in enumerate(metrics, 1):
        row = {"round": at, "part": "test", "train_loss": 1 / at, "loss": 2 / at, "metric": metric, "metric_name": name}
        row |= {
            "shared_metric": metric and metric / 2,
            "worst_decile": metric and metric / 4,
            "dropped": [],
            "seconds": 0.5 * at,
        }
        rows.append({**row, **LEDGER, "down_payload": 500 * at, "up_payload": 250 * at, **more})
    return rows


def result(name: str, clients: list[dict[str, Any]], rows: list[dict[str, Any]] | None = None, seed: int = 0) -> Result:
    config = {
        "data": {"name": "digits"},
        "model": {"name": "mlp"},
        "split": {"name": "output_layer"},
        "algorithm": {"name": name},
        "run": {"rounds": 2, "seed": seed, "engine": "sequential", "evaluate_every": 1},
    }
    versions = {"moiety": "0.1.0", "torch": "2.13.0"}
    return Result(name, config, rows or history(0.5, 0.75), clients, dict(LEDGER), versions=versions)


def group(name: str, *results: Result) -> Group:
    return Group(name, dict(enumerate(results)))
