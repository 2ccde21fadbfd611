"""A run's folder: configuration, history, a row per client, the ledger."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from safetensors.torch import save

from moiety.errors import kind, must, report_errors
from moiety.evaluation import Row
from moiety.files import (
    CONFIG,
    PIPELINE,
    append_line,
    digest,
    make_folder,
    read_json,
    read_toml,
    report_unreadable,
    write_file,
    write_json,
)
from moiety.run.checkpoint import pack_states, read_tensors, unpack_states
from moiety.types import Params, Tree

OURS = (CONFIG, PIPELINE, "history.jsonl", "checkpoint", "clients", "command.json")


def create_run(
    out: str | os.PathLike[str],
    config: dict[str, Any],
    initial: Params,
    identity: dict[str, Any],
    start: Mapping[int, Tree],
) -> Path:
    """Make the folder of a new run, in which some clients may ``start`` with states of their own."""
    folder = make_run_folder(out)
    # The first values are kept because a client that has not been asked yet still starts from them after a resume.
    files = {"initial": save({k: v.contiguous() for k, v in initial.items()})}
    files |= {"start": save(pack_states(start))} if start else {}
    for name, values in files.items():
        write_file(folder / f"{name}.safetensors", values)
    digests = {name: digest(values) for name, values in files.items()}
    write_json(folder / "identity.json", {**identity, **digests})
    write_config(folder, config)
    return folder


def make_run_folder(out: str | os.PathLike[str]) -> Path:
    """A folder for a run, made where there is none; one that holds a run is refused, so that nothing is lost."""
    kind("out", out, (str, os.PathLike), "a folder's path")
    must("\0" not in str(out), "out", "a folder's path", repr(out))
    folder = Path(out)
    with report_errors("out", "a folder's path", (OSError, ValueError), f" at {folder}"):
        taken = [name for name in OURS if (folder / name).exists()]
    hint = "Resume it, or choose another folder."
    must(not taken, "out", "a folder that holds no run yet", f"{folder} with {', '.join(taken)}", hint)
    return make_folder(folder)


def write_config(folder: Path, config: dict[str, Any], name: str = CONFIG) -> None:
    """Write ``config.toml``; TOML has no null, so what is None is left out."""
    write_file(folder / name, tomli_w.dumps(drop_none(config)).encode())


def drop_none(value: Any) -> Any:
    """The tables as a file holds them, without what is None."""
    if isinstance(value, dict):
        return {k: drop_none(v) for k, v in value.items() if v is not None}
    return [drop_none(v) for v in value] if isinstance(value, list | tuple) else value


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """The configuration of a run folder."""
    must(os.path.exists(folder / name), "folder", f"a run folder with a {name}", folder)
    return read_toml(folder / name)


def read_identity(folder: Path) -> dict[str, Any]:
    """What makes a run this one and no other, as ``create_run`` wrote it."""
    return read_json(folder / "identity.json")


def read_initial(folder: Path, wanted: str, order: Iterable[str]) -> Params:
    """The first values of the run, in the model's ``order``; ``wanted`` is the file's digest."""
    values = read_tensors(folder / "initial.safetensors", wanted)
    names = list(order)
    must(set(names) == set(values), "model", "the one the run began with", "one with other names")
    return {name: values[name] for name in names}


def read_start(folder: Path, wanted: str, first: Tree) -> dict[int, Tree]:
    """The states with which clients began; none where there is no digest. ``first`` is laid out as they are."""
    return unpack_states(read_tensors(folder / "start.safetensors", wanted), first) if wanted else {}


def append_history(folder: Path, row: Row) -> None:
    """Add one line to ``history.jsonl``."""
    append_line(folder / "history.jsonl", json.dumps(row, allow_nan=False).encode())


def read_history(folder: Path, until: int | None = None, every: int = 1) -> list[Row]:
    """The rows of ``history.jsonl``, up to round ``until`` where given; what a kill cut short must lie after that.

    There must then be a row for every round up to ``until`` that is a multiple of ``every``.
    """
    path = folder / "history.jsonl"
    rows: list[Row] = []
    with report_unreadable(path):
        lines = path.read_bytes().splitlines() if path.exists() else []
    for line in lines:
        try:
            row = json.loads(line)
            later = row["round"] > (math.inf if until is None else until)
        except (ValueError, KeyError, TypeError):
            break
        if not later:
            rows.append(row)
    lost = sorted(set(range(every, (until or 0) + 1, every)) - {row["round"] for row in rows})
    hint = "Remove checkpoint, clients and history.jsonl to start the run again."
    must(not lost, "history.jsonl", f"whole up to round {until}", f"no row of round {lost[:1]} in {path}", hint)
    return rows


def remove_leftovers(folder: Path) -> None:
    """Remove what was being written when a process was killed."""
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
    write_json(folder / "ledger.json", ledger)


def read_clients(folder: Path) -> list[Row]:
    """The rows of ``clients.parquet``."""
    path = folder / "clients.parquet"
    with report_unreadable(path, "The run may not have ended; resume it."):
        return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]
