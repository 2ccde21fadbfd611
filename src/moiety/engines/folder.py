"""A run's folder: configuration, history, a row per client, the ledger."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from safetensors.torch import load, save

from moiety.engines.checkpoint import write_file, writing
from moiety.errors import MoietyError, message, must
from moiety.evaluation import Row
from moiety.types import Params


def create(out: str | os.PathLike[str], config: dict[str, Any], initial: Params) -> Path:
    """Make the folder of a new run; one that holds a run already is refused, so that nothing is lost."""
    folder = Path(out)
    hint = "Resume it, or choose another folder."
    must(not (folder / "config.toml").exists(), "out", "a folder that holds no run yet", folder, hint)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # The first values are kept because a client that has not been asked yet still starts from them after a resume.
    write_file(folder / "initial.safetensors", save({k: v.contiguous() for k, v in initial.items()}))
    write_config(folder, config)
    return folder


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write ``config.toml``; TOML has no null, so what is None is left out."""
    write_file(folder / "config.toml", tomli_w.dumps(_without_none(config)).encode())


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list | tuple) else value


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run folder."""
    path = folder / "config.toml"
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise MoietyError(message("folder", "a run folder with a config.toml", folder)) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise MoietyError(message("config.toml", "readable TOML", f"{path}: {error}")) from None


def read_initial(folder: Path) -> Params:
    """The first values of all parameters and buffers of the run."""
    path = folder / "initial.safetensors"
    try:
        return load(path.read_bytes())
    except Exception as error:
        raise MoietyError(message("initial.safetensors", "whole", f"{path}: {error}")) from None


def append_history(folder: Path, row: Row) -> None:
    """Add one line to ``history.jsonl`` and flush it."""
    with writing(folder), open(folder / "history.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_history(folder: Path, until: int | None = None) -> list[Row]:
    """The rows of ``history.jsonl`` up to round ``until``; a last line cut short by a kill is left out."""
    path = folder / "history.jsonl"
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if until is None or row["round"] <= until:
            rows.append(row)
    return rows


def write_history(folder: Path, rows: list[Row]) -> None:
    """Write the whole history, for a run that is resumed from before its last line."""
    write_file(folder / "history.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


def write_results(folder: Path, clients: list[Row], ledger: dict[str, Any]) -> None:
    """Write ``clients.parquet`` and ``ledger.json``."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(clients), sink)
    write_file(folder / "clients.parquet", sink.getvalue().to_pybytes())
    write_file(folder / "ledger.json", json.dumps(ledger, indent=1).encode())


def read_clients(folder: Path) -> list[Row]:
    """The rows of ``clients.parquet``."""
    path = folder / "clients.parquet"
    try:
        return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]
    except (OSError, pa.ArrowInvalid) as error:
        hint = "The run may not have ended; resume it."
        raise MoietyError(message("clients.parquet", "whole", f"{path}: {error}", hint)) from None
