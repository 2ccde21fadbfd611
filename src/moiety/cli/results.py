"""What an ended run says, from memory or from its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moiety.analysis.versus import Versus, column, higher_is_better, versus
from moiety.cli.folders import part_name
from moiety.errors import is_real, must
from moiety.evaluation import Row, summarise
from moiety.reports.words import make_printable
from moiety.run import folder
from moiety.run.result import Run

_SECTIONS = ("data", "split", "algorithm", "run")
_CLIENT = {
    "client": "a text",
    "n_test": "a number >= 0",
    **dict.fromkeys(("loss", "metric", "shared_loss", "shared_metric", "gain"), "a number"),
}
_HISTORY = {"round": "a number >= 0", "part": "a text", "metric_name": "a text", "seconds": "a number >= 0"}
_FITS: dict[str, Callable[[Any], bool]] = {
    "a text": lambda value: isinstance(value, str),
    "a number": is_real,
    "a number >= 0": lambda value: is_real(value) and value >= 0,
}
_LEDGER = ("up_payload", "down_payload", "flops", "device_memory")


@dataclass(frozen=True)
class Result:
    """The end of one run: its last evaluation (``last``), a row per client, what it cost."""

    name: str
    config: dict[str, Any]
    history: list[Row]
    clients: list[Row]
    ledger: dict[str, Any]
    unseen: list[Row] = field(default_factory=list)

    @property
    def last(self) -> Row:
        """The last row of the history."""
        return self.history[-1]

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


def result_of(run: Run, name: str) -> Result:
    """The result of a run that has just ended."""
    return Result(name, run.config, run.history, run.clients, run.ledger, run.unseen)


def read_result(path: Path, name: str) -> Result:
    """The result that a run's folder holds."""
    config = folder.read_config(path)
    lacking = [section for section in _SECTIONS if not isinstance(config.get(section), dict)]
    must(not lacking, "config.toml", "a whole configuration", f"no [{', '.join(lacking)}] in {path}")
    run = folder.read_id(path)
    rows, ledger = folder.read_results(path, run, (*_LEDGER, "rounds"))
    _check_types("ledger.json", path, ledger, dict.fromkeys((*_LEDGER, "rounds"), "a number >= 0"))
    history, lost = folder.read_history_until(path, run, ledger["rounds"], config["run"])
    ended = bool(history) and history[-1]["round"] == ledger["rounds"]
    must(ended, "history.jsonl", f"whole in its last row, of round {ledger['rounds']}", f"none in {path}")
    folder.warn_of_lost_rows(path, lost)
    history = _check_rows("history.jsonl", path, history, _HISTORY)
    clients = _check_rows("clients.parquet", path, rows, _CLIENT)
    unseen = folder.read_unseen(path, run)
    unseen = _check_rows("unseen.parquet", path, unseen, _CLIENT) if unseen else []
    return Result(name, config, history, clients, ledger, unseen)


def _check_rows(file: str, path: Path, rows: list[Any], keys: Mapping[str, str]) -> list[Row]:
    """The rows, if there are some and they have what is needed."""
    must(len(rows) > 0, file, "of at least one row", f"none in {path}", "The run may not have ended; resume it.")
    for row in rows:
        lacking = [key for key in keys if not isinstance(row, dict) or key not in row]
        must(not lacking, file, f"rows with {', '.join(keys)}", f"none called {', '.join(lacking)} in {path}")
        _check_types(file, path, row, {**keys, **({"weight": "a number >= 0"} if "weight" in row else {})})
    return rows


def _check_types(file: str, path: Path, row: Row, keys: Mapping[str, str]) -> None:
    for key, wanted in keys.items():
        must(_FITS[wanted](row[key]), f"{file}: {key}", wanted, f"{row[key]!r:.60} in {path}", "It is damaged.")
