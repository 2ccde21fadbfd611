"""A run's folder: configuration, history, a row per client, the ledger."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from safetensors import SafetensorError
from safetensors.torch import load, save

from moiety.errors import MoietyError, kind, message, must
from moiety.evaluation import Row
from moiety.files import append_line, digest, report_failure, write_file
from moiety.run.checkpoint import stacked, unstacked
from moiety.types import Params, Tree

CONFIG, PIPELINE = "config.toml", "pipeline.toml"
OURS = (CONFIG, PIPELINE, "history.jsonl", "checkpoint", "clients", "command.json")


def create(
    out: str | os.PathLike[str],
    config: dict[str, Any],
    initial: Params,
    identity: dict[str, Any],
    start: Mapping[int, Tree],
) -> Path:
    """Make the folder of a new run, in which some clients may ``start`` with states of their own."""
    folder = empty(out)
    # The first values are kept because a client that has not been asked yet still starts from them after a resume.
    files = {"initial": save({k: v.contiguous() for k, v in initial.items()})}
    files |= {"start": save(stacked(start))} if start else {}
    for name, values in files.items():
        write_file(folder / f"{name}.safetensors", values)
    digests = {name: digest(values) for name, values in files.items()}
    write_file(folder / "identity.json", json.dumps({**identity, **digests}, indent=1).encode())
    write_config(folder, config)
    return folder


def empty(out: str | os.PathLike[str]) -> Path:
    """A folder, made where there is none; one that holds a run already is refused, so that nothing is lost."""
    kind("out", out, (str, os.PathLike), "a folder's path")
    must("\0" not in str(out), "out", "a folder's path", repr(out))
    folder = Path(out)
    try:
        taken = [name for name in OURS if (folder / name).exists()]
    except (OSError, ValueError) as error:
        raise MoietyError(message("out", "a folder's path", f"{folder}: {error}")) from None
    hint = "Resume it, or choose another folder."
    must(not taken, "out", "a folder that holds no run yet", f"{folder} with {', '.join(taken)}", hint)
    with report_failure(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_config(folder: Path, config: dict[str, Any], name: str = CONFIG) -> None:
    """Write ``config.toml``; TOML has no null, so what is None is left out."""
    write_file(folder / name, tomli_w.dumps(without_none(config)).encode())


def without_none(value: Any) -> Any:
    """The tables as a file holds them."""
    if isinstance(value, dict):
        return {k: without_none(v) for k, v in value.items() if v is not None}
    return [without_none(v) for v in value] if isinstance(value, list | tuple) else value


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """The configuration of a run folder."""
    path = folder / name
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise MoietyError(message("folder", f"a run folder with a {name}", folder)) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise MoietyError(message(name, "readable TOML", f"{path}: {error}")) from None


def read_identity(folder: Path) -> dict[str, Any]:
    """What the run is of, as ``create`` wrote it."""
    path = folder / "identity.json"
    try:
        found = json.loads(path.read_text())
        kind("identity.json", found, dict, "a table")
        return found  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        if isinstance(error, MoietyError):
            raise
        raise MoietyError(message("identity.json", "whole", f"{path}: {error}")) from None


def read_initial(folder: Path, wanted: str, order: Iterable[str]) -> Params:
    """The first values of the run, in the model's ``order``; ``wanted`` is the file's digest."""
    found = _tensors(folder / "initial.safetensors", wanted)
    names = list(order)
    must(set(names) == set(found), "model", "the one the run began with", "one with other names")
    return {name: found[name] for name in names}


def read_start(folder: Path, wanted: str, first: Tree) -> dict[int, Tree]:
    """The states of their own with which clients began, none where there is no digest; ``first`` is like them."""
    return unstacked(_tensors(folder / "start.safetensors", wanted), first) if wanted else {}


def _tensors(path: Path, wanted: str) -> Params:
    try:
        content = path.read_bytes()
        found = load(content)
    except (OSError, SafetensorError) as error:
        raise MoietyError(message(path.name, "whole", f"{path}: {error}")) from None
    must(digest(content) == wanted, path.name, "as it was written", f"other bytes in {path}")
    return found


def append_history(folder: Path, row: Row) -> None:
    """Add one line to ``history.jsonl``."""
    append_line(folder / "history.jsonl", json.dumps(row, allow_nan=False).encode())


def read_history(folder: Path, until: int | None = None, every: int = 1) -> list[Row]:
    """The rows of ``history.jsonl``, up to round ``until`` where given; what a kill cut short must lie after that.

    There must then be a row for every round up to ``until`` that is a multiple of ``every``.
    """
    path = folder / "history.jsonl"
    rows: list[Row] = []
    try:
        for line in path.read_bytes().splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
                later = row["round"] > (math.inf if until is None else until)
            except (ValueError, KeyError, TypeError):
                break
            if not later:
                rows.append(row)
    except OSError as error:
        raise MoietyError(message("history.jsonl", "readable", f"{path}: {error}")) from None
    lost = sorted(set(range(every, (until or 0) + 1, every)) - {row["round"] for row in rows})
    hint = "Remove checkpoint, clients and history.jsonl to start the run again."
    must(not lost, "history.jsonl", f"whole up to round {until}", f"no row of round {lost[:1]} in {path}", hint)
    return rows


def tidy(folder: Path) -> None:
    """Remove what writes that a kill cut off left behind."""
    for left in folder.glob(".*.[0-9]*"):
        left.unlink(missing_ok=True)


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
