"""The result of a run that has ended, from memory or from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moiety.evaluation import Row, summarise
from moiety.reports.versus import Versus, column, higher_is_better, versus
from moiety.reports.words import make_printable


@dataclass(frozen=True)
class Result:
    """The end of one run: its last evaluation (``last``), a row per client, what it cost.

    ``stopped`` says why a callback stopped it, and ``restored`` is the round whose models it ended with, if not the
    last. ``class_names`` are those of the labels, where they have any. ``versions`` are those that the run began with,
    and ``checked`` says whether it was read from files whose checksums were compared. ``calibration`` has the bins of a
    reliability diagram, as ``moiety.evaluation.calibration.reliability`` gives them, where there is a posterior.
    """

    name: str
    config: dict[str, Any]
    history: list[Row]
    clients: list[Row]
    ledger: dict[str, Any]
    unseen: list[Row] = field(default_factory=list)
    stopped: str = ""
    restored: int | None = None
    class_names: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    checked: bool = False
    calibration: list[Row] = field(default_factory=list)

    @property
    def last(self) -> Row:
        """The row of the history for the models that the run ended with: the last, unless it went back."""
        if self.restored is None:
            return self.history[-1]
        return next(row for row in reversed(self.history) if row["round"] <= self.restored)

    @property
    def metric(self) -> str:
        """The metric's name."""
        return str(self.last["metric_name"])

    @property
    def higher(self) -> bool:
        """Whether more of the metric is better."""
        return higher_is_better(self.metric, self.clients)

    @property
    def personal(self) -> dict[str, float | int]:
        """Means and worst decile of the personal models."""
        return summarise(self.clients, higher_is_better=self.higher)

    @property
    def shared(self) -> dict[str, float | int]:
        """The same of the shared model alone."""
        rows = [{**row, "loss": row["shared_loss"], "metric": row["shared_metric"]} for row in self.clients]
        return summarise(rows, higher_is_better=self.higher)

    @property
    def newcomers(self) -> tuple[int, float, float] | None:
        """Of the clients that training never saw: how many were tested, and the mean metric of both models."""
        rows = [row for row in self.unseen if row["n_test"] > 0 and row["metric"] == row["metric"]]
        if not rows:
            return None
        personal, shared = (sum(row[key] for row in rows) / len(rows) for key in ("metric", "shared_metric"))
        return len(rows), personal, shared

    @property
    def versus_shared(self) -> Versus:
        """Each client's personal model against the shared model alone."""
        personal, shared = column(self.clients), column(self.clients, "shared_metric")
        return versus(personal, shared, higher_is_better=self.higher)

    @property
    def dropped(self) -> list[str]:
        """The updates that were dropped, as round:client."""
        return [name for row in self.history for name in row.get("dropped", [])]

    def part_name(self, section: str) -> str:
        """The name of the run's algorithm, split, model or data, as a terminal can show it."""
        return make_printable(part_name(self.config, section))


def part_name(config: Mapping[str, Any], section: str) -> str:
    """The name of the algorithm, split, model or data of a run; the path of data in a folder."""
    table = config.get(section, {})
    name = table.get("path") if section == "data" and table.get("name") == "folder" else table.get("name")
    return str(name or table.get("own", "-"))
