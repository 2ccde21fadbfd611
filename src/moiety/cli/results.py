"""What the folder of an ended run says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moiety.errors import is_real, must
from moiety.evaluation import Row
from moiety.reports.result import Result
from moiety.run import folder

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
_BIN = {"n": "a number >= 0", **dict.fromkeys(("low", "high", "confidence", "accuracy"), "a number")}
_LEDGER = ("up_payload", "down_payload", "flops", "device_memory")


def read_result(path: Path, name: str) -> Result:
    """The result that a run's folder holds."""
    config = folder.read_config(path)
    missing = [section for section in _SECTIONS if not isinstance(config.get(section), dict)]
    must(not missing, "config.toml", "a whole configuration", f"no [{', '.join(missing)}] in {path}")
    run = folder.read_id(path)
    rows, ledger = folder.read_results(path, run, (*_LEDGER, "rounds"))
    _check_types("ledger.json", path, ledger, dict.fromkeys((*_LEDGER, "rounds"), "a number >= 0"))
    history, gaps = folder.read_history_until(path, run, ledger["rounds"], config["run"])
    notes = folder.read_notes(path, run)
    for round in (ledger["rounds"], notes.get("restored", ledger["rounds"])):  # those of the models that it ended with
        complete = any(row["round"] == round for row in history)
        must(complete, "history.jsonl", f"whole in its row of round {round}", f"none in {path}")
    folder.warn_of_lost_rows(path, gaps)
    history = _check_rows("history.jsonl", path, history, _HISTORY)
    clients = _check_rows("clients.parquet", path, rows, _CLIENT)
    unseen = folder.read_unseen(path, run)
    unseen = _check_rows("unseen.parquet", path, unseen, _CLIENT) if unseen else []
    bins = folder.read_calibration(path, run)
    bins = _check_rows("ledger.json: calibration", path, bins, _BIN) if bins else []
    versions = _read_versions(path)
    return Result(
        name, config, history, clients, ledger, unseen, **notes, versions=versions, checked=True, calibration=bins
    )


def read_current(path: Path, name: str) -> Result:
    """What the folder of a run says now: its result, or, of a run under way, configuration and history."""
    run = folder.read_id(path)
    if folder.has_ended(path, run):
        return read_result(path, name)
    config = folder.read_config(path)
    history = folder.read_history(path, run)
    history = _check_rows("history.jsonl", path, history, _HISTORY) if history else []
    return Result(name, config, history, [], {}, versions=_read_versions(path))


def _read_versions(path: Path) -> dict[str, str]:
    """The versions, processor and device that a run began with."""
    versions = folder.read_identity(path).get("environment", {})
    return {str(key): str(value) for key, value in versions.items()} if isinstance(versions, dict) else {}


def _check_rows(file: str, path: Path, rows: list[Any], keys: Mapping[str, str]) -> list[Row]:
    """The rows, if there are some and they have what is needed."""
    must(len(rows) > 0, file, "of at least one row", f"none in {path}", "The run may not have ended; resume it.")
    for row in rows:
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        must(not missing, file, f"rows with {', '.join(keys)}", f"none called {', '.join(missing)} in {path}")
        _check_types(file, path, row, {**keys, **({"weight": "a number >= 0"} if "weight" in row else {})})
    return rows


def _check_types(file: str, path: Path, row: Row, keys: Mapping[str, str]) -> None:
    for key, kind in keys.items():
        must(_FITS[kind](row[key]), f"{file}: {key}", kind, f"{row[key]!r:.60} in {path}", "It is damaged.")
