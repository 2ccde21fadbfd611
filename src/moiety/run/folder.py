"""A run's folder: configuration, history, a row per client, the ledger.

Every file carries the id of its run and a checksum, or another file of the run holds its digest: a file that was
damaged, or that is of another run, is refused by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from safetensors.torch import save

from moiety.data import FederatedData, Preprocessing
from moiety.data.federated import NumberNames
from moiety.errors import MoietyError, is_real, is_whole, kind, message, must, report_errors, whole
from moiety.evaluation import Row
from moiety.files import append_line, aside_of, check_path, make_folder, remove_file, report_unreadable, write_file
from moiety.run.checkpoint import (
    PROGRESS,
    find_checkpoint,
    name_before,
    pack_states,
    read_tensors,
    remove_old_checkpoints,
    round_of,
    unpack_states,
    write_progress,
)
from moiety.run.privacy import COUNTED
from moiety.seals import (
    CONFIG,
    LINE_END,
    PIPELINE,
    digest,
    is_sealed,
    read_sealed,
    read_sealed_toml,
    seal,
    write_sealed,
    write_sealed_toml,
)
from moiety.types import Params, Tree

IDENTITY, HISTORY, ROWS, UNSEEN, LEDGER, COMMAND, PREPROCESSING = (
    "identity.json",
    "history.jsonl",
    "clients.parquet",
    "unseen.parquet",
    "ledger.json",
    "command.json",
    "preprocessing.json",
)
SAFEGUARD, ONE_MODELS = "safeguard.json", ("one_model.safetensors", "one_model_2.safetensors")
"""The choices of a safeguard, and where its one model may be: another one is written beside the present one."""
OURS = (CONFIG, PIPELINE, HISTORY, "checkpoint", PROGRESS, "clients", "best", COMMAND)
_VALUES = ("initial.safetensors", "start.safetensors")
WRITTEN = (
    *(CONFIG, PIPELINE, IDENTITY, HISTORY, ROWS, UNSEEN, LEDGER, COMMAND, PREPROCESSING, PROGRESS, COUNTED),
    *(SAFEGUARD, *ONE_MODELS),
    *_VALUES,
)
"""All files that are written beside their place and renamed."""
NOTES, CALIBRATION = ("stopped", "restored"), "calibration"
"""Keys of ``ledger.json``: why a callback stopped the run, and the earlier round whose models it ended with."""
NOT_ENDED = "The run may not have ended; resume it."
DEVICES = "devices"
"""What the configuration calls data that are on devices, with the states of clients."""


def create_run(
    out: str | os.PathLike[str],
    config: dict[str, Any],
    initial: Params,
    identity: dict[str, Any],
    start: Mapping[int, Tree],
    preprocessing: Mapping[str, Any] | None = None,
    schema: Mapping[str, Any] | None = None,
) -> tuple[Path, str]:
    """Make the folder of a new run, in which some clients may ``start`` with states of their own; its path and id.

    ``schema`` describes data that the configuration cannot name (see ``describe_schema``). ``preprocessing`` is what
    was fitted on the training rows of a table, if the data come from one.
    """
    folder = make_run_folder(out)
    run = _new_id(folder)
    # The first values are kept because a client that has not been asked yet still starts from them after a resume.
    files = {"initial": save({k: v.contiguous() for k, v in initial.items()})}
    files |= {"start": save(pack_states(start))} if start else {}
    for name, values in files.items():
        write_file(folder / f"{name}.safetensors", values)
    digests = {name: digest(values) for name, values in files.items()}
    if preprocessing is not None:
        write_sealed(folder / PREPROCESSING, preprocessing, run)
    extra = {} if schema is None else {"schema": schema}
    write_sealed(folder / IDENTITY, {**identity, **digests, **extra}, run)
    write_config(folder, config, run)
    return folder, run


def is_beginning(file: Path) -> bool:
    """Whether a file is of a run that was cut off while its folder was made. The next start writes it again."""
    return file.name in (IDENTITY, PREPROCESSING) and file.with_name(_VALUES[0]).exists()


def _new_id(folder: Path) -> str:
    """The id of a new run: at random, but that of a stage where a pipeline is in the folder above."""
    if (folder.parent / PIPELINE).is_file():
        with contextlib.suppress(MoietyError):  # a file of the user's own may have that name
            return stage_id(folder)
    return secrets.token_hex(8)


def make_run_folder(out: str | os.PathLike[str]) -> Path:
    """A folder for a run, made where there is none; one that holds a run is refused, so that nothing is lost."""
    check_path("out", out, "a folder's path")
    folder = Path(out)
    with report_errors("out", "a folder's path", (OSError, ValueError), f" at {folder}"):
        names = [name for name in OURS if (folder / name).exists()]
    hint = "Resume it, or choose another folder."
    must(not names, "out", "a folder that holds no run yet", f"{folder} with {', '.join(names)}", hint)
    return make_folder(folder)


def write_config(folder: Path, config: dict[str, Any], run: str, name: str = CONFIG) -> None:
    """Write ``config.toml``; TOML has no null, so what is None is left out."""
    write_sealed_toml(folder / name, tomli_w.dumps(drop_none(config)), run)


def drop_none(value: Any) -> Any:
    """The tables as a file holds them, without what is None."""
    if isinstance(value, dict):
        return {k: drop_none(v) for k, v in value.items() if v is not None}
    return [drop_none(v) for v in value] if isinstance(value, list | tuple) else value


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run folder."""
    must(os.path.exists(folder / CONFIG), "folder", f"a run folder with a {CONFIG}", folder)
    return read_sealed_toml(folder / CONFIG, read_id(folder))[0]


def read_pipeline(folder: Path) -> tuple[dict[str, Any], str]:
    """The configuration of a pipeline's folder, and the pipeline's id."""
    must(os.path.exists(folder / PIPELINE), "folder", f"a folder with a {PIPELINE}", folder)
    return read_sealed_toml(folder / PIPELINE)


def read_identity(folder: Path) -> dict[str, Any]:
    """What makes a run this one and no other, as ``create_run`` wrote it."""
    return {key: value for key, value in read_sealed(folder / IDENTITY).items() if key not in ("run", "schema")}


def describe_schema(data: FederatedData) -> dict[str, Any]:
    """What must be known of data to predict for its clients: their names, and the columns without their rows."""
    columns = {name: [str(column.dtype), list(column.shape[1:])] for name, column in data.columns.items()}
    ids = len(data.ids) if isinstance(data.ids, NumberNames) else [str(name) for name in data.ids]
    return {"ids": ids, "columns": columns, "classes": data.classes}


def read_schema(folder: Path) -> dict[str, Any] | None:
    """What ``describe_schema`` gave when the run began; None where its configuration names the data."""
    schema: dict[str, Any] | None = read_sealed(folder / IDENTITY).get("schema")
    return schema


def read_id(folder: Path) -> str:
    """The id of the run, or of the pipeline, in a folder."""
    if (folder / PIPELINE).exists():
        return read_pipeline(folder)[1]
    return str(read_sealed(folder / IDENTITY, keys=["run"])["run"])


def stage_id(folder: Path) -> str:
    """The id of a run that is a stage of the pipeline in the folder above: it follows from the pipeline's."""
    return digest(f"{read_pipeline(folder.parent)[1]} {folder.name}".encode())[:16]


def stage_names(algorithms: Iterable[str]) -> list[str]:
    """The names of the folders of a pipeline's stages."""
    return [f"{number}-" + re.sub(r"[^\w.-]", "_", name) for number, name in enumerate(algorithms, 1)]


def check_stages(folder: Path, names: Sequence[str]) -> None:
    """Refuse a stage of another pipeline than that of the folder, and one that is lost though a later one has begun."""
    stages = [name for name in names if (folder / name / CONFIG).is_file()]
    hint = "Restore the folder from a copy."
    for name, expected in zip(stages, names, strict=False):
        must(name == expected, expected, f"there, for {name} has begun", f"none in {folder}", hint)
        run, ours = read_id(folder / name), stage_id(folder / name)
        must(run == ours, name, f"a stage of the pipeline in {folder}", f"run {run} of another one", hint)


def read_preprocessing(folder: Path, run: str, checksum: str) -> Preprocessing:
    """What was fitted on the training rows of the table that the run's data come from; ``checksum`` is its digest."""
    table = read_sealed(folder / PREPROCESSING, run)
    with report_unreadable(folder / PREPROCESSING):
        recipe = Preprocessing.from_dict(table)
    must(recipe.digest() == checksum, PREPROCESSING, "that of the run's data", f"another in {folder}")
    return recipe


def read_initial(folder: Path, checksum: str, order: Iterable[str]) -> Params:
    """The first values of the run, in the model's ``order``; ``checksum`` is the file's digest."""
    values = read_tensors(folder / "initial.safetensors", checksum)
    names = list(order)
    must(set(names) == set(values), "model", "the one the run began with", "one with other names")
    return {name: values[name] for name in names}


def read_start(folder: Path, checksum: str, first: Tree) -> dict[int, Tree]:
    """The states with which clients began; none where there is no digest. ``first`` is laid out as they are."""
    path = folder / "start.safetensors"
    with report_unreadable(path):
        return unpack_states(read_tensors(path, checksum), first) if checksum else {}


def _seal_row(row: Row, run: str) -> bytes:
    """A line of the history, whose checksum is over the run's id too."""
    return seal(json.dumps(row, allow_nan=False).removesuffix("}").encode() + b', "check": "', LINE_END, run)


def append_history(folder: Path, row: Row, run: str) -> None:
    """Add one line to ``history.jsonl``."""
    append_line(folder / HISTORY, _seal_row(row, run))


def read_history(folder: Path, run: str | None = None) -> list[Row]:
    """The rows of ``history.jsonl`` that are whole and of the run, by round; others are passed over."""
    path, rows = folder / HISTORY, {}
    run = read_id(folder) if run is None else run
    with report_unreadable(path):
        lines = path.read_bytes().splitlines() if path.exists() else []
    for line in lines:
        if is_sealed(line, LINE_END, run) and (row := _read_row(line)) is not None:
            rows[row["round"]] = row
    return [rows[t] for t in sorted(rows)]


def _read_row(line: bytes) -> Row | None:
    """The row of a line; None where it lacks what a resume needs, or could not be written again."""
    with contextlib.suppress(ValueError, RecursionError):
        row = json.loads(line)
        json.dumps(row, allow_nan=False)
        loss = row.get("train_loss", "")
        if is_whole(row.get("round")) and is_real(row.get("seconds")) and (loss is None or is_real(loss)):
            return {key: value for key, value in row.items() if key != "check"}
    return None


def read_history_until(folder: Path, run: str, until: int, options: Mapping[str, Any]) -> tuple[list[Row], list[int]]:
    """The rows up to round ``until``, and the rounds up to there that have lost theirs.

    Every multiple of ``evaluate_every`` has a row, and the last of all ``rounds``; ``options`` has both. What a kill
    cut short is of a later round.
    """
    rows = [row for row in read_history(folder, run) if row["round"] <= until]
    kind("run", options, Mapping, f"a table in {folder / CONFIG}")
    every = options.get("evaluate_every", until) or 1
    whole("run.evaluate_every", every, 1)
    rounds = {*range(every, until + 1, every), *([until] if until and until == options.get("rounds") else [])}
    return rows, sorted(rounds - {row["round"] for row in rows})


def warn_of_lost_rows(folder: Path, rounds: list[int]) -> None:
    """Say which rounds have lost their row; no model depends on it."""
    if rounds:
        numbers = ", ".join(map(str, rounds[:10])) + (", ..." if len(rounds) > 10 else "")
        word = "round" if len(rounds) == 1 else "rounds"
        text = f"{folder / HISTORY} has lost the rows of {word} {numbers}. The models are not affected."
        warnings.warn(text, stacklevel=3)


def remove_leftovers(folder: Path) -> None:
    """Remove what was being written when a process was killed, by the names that moiety gives it."""
    for name in WRITTEN:
        remove_file(aside_of(folder / name))
    remove_old_checkpoints(folder)


def write_history(folder: Path, rows: list[Row], run: str) -> None:
    """Write the whole history, for a run that is resumed from before its last line."""
    write_file(folder / HISTORY, b"".join(_seal_row(row, run) + b"\n" for row in rows))


def write_results(
    folder: Path,
    clients: list[Row],
    ledger: dict[str, Any],
    run: str,
    unseen: Sequence[Row] = (),
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Write ``clients.parquet``, ``unseen.parquet`` where it has rows, and ``ledger.json`` with their digests.

    ``notes`` say how the run ended, where a callback had to do with it (see ``NOTES``), and how sure its models were.
    """
    newest = find_checkpoint(folder)
    if (folder / LEDGER).exists():  # that of an earlier end, which would not fit
        if newest is not None:
            write_progress(folder, round_of(newest), run)
        remove_file(folder / LEDGER)
    digests = {"clients": _write_rows(folder / ROWS, clients)}
    digests |= {"unseen": _write_rows(folder / UNSEEN, unseen)} if unseen else {}
    digests |= {name: note for name, note in (notes or {}).items() if note}
    write_sealed(folder / LEDGER, {**ledger, **digests}, run)
    if newest is not None:
        write_progress(folder, round_of(newest), run, ended=True)


def find_lost_files(folder: Path, newest: Path, note: Mapping[str, Any]) -> dict[str, str]:
    """A sentence for each file that a run with this checkpoint must have; ``note`` is what ``check_newest`` gives.

    A kill may come before a run's first checkpoint is written down, and before its results are.
    """
    hint = "Resume the run: it is written again."
    if not note and (name_before(newest) or (folder / LEDGER).exists()):
        return {PROGRESS: message(PROGRESS, f"there, for {newest.name} was written down", f"none in {folder}", hint)}
    if note.get("ended") and not (folder / LEDGER).exists():
        return {
            LEDGER: message(LEDGER, f"there, for {PROGRESS} says that the run has ended", f"none in {folder}", hint)
        }
    return {}


def _write_rows(path: Path, rows: Sequence[Row]) -> str:
    """Write rows as Parquet; the digest of the file."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    content = sink.getvalue().to_pybytes()
    write_file(path, content)
    return digest(content)


def read_results(folder: Path, run: str, keys: Iterable[str] = ()) -> tuple[list[Row], dict[str, Any]]:
    """The rows of ``clients.parquet``, and the ledger, which must have ``keys``."""
    must((folder / LEDGER).exists(), LEDGER, "there", f"none in {folder}", NOT_ENDED)
    ledger = read_sealed(folder / LEDGER, run, ("clients", *keys), NOT_ENDED)
    rows = _read_rows(folder / ROWS, ledger["clients"])
    extras = ("run", "clients", "unseen", CALIBRATION, *NOTES)
    return rows, {key: value for key, value in ledger.items() if key not in extras}


def _read_rows(path: Path, checksum: str) -> list[Row]:
    """The rows of a Parquet file with that digest."""
    with report_unreadable(path, NOT_ENDED):
        content = path.read_bytes()
    must(digest(content) == checksum, path.name, "as it was written", f"other bytes in {path}", NOT_ENDED)
    with report_unreadable(path, NOT_ENDED):
        # On this thread alone: a thread of Arrow's that still holds the bytes when Python ends would abort it.
        table = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False).read(use_threads=False)
        rows: list[Row] = table.to_pylist()
    return rows


def has_ended(folder: Path, run: str) -> bool:
    """Whether the results in a folder belong to its newest checkpoint. A run resumed after its end has older ones."""
    newest = find_checkpoint(folder)
    if newest is None or not (folder / LEDGER).exists():
        return False
    return bool(read_sealed(folder / LEDGER, run, hint=NOT_ENDED).get("rounds") == round_of(newest))


def read_notes(folder: Path, run: str) -> dict[str, Any]:
    """How the run ended, where a callback had to do with it; empty where none had, and while it goes on."""
    if not has_ended(folder, run):
        return {}
    ledger = read_sealed(folder / LEDGER, run, hint=NOT_ENDED)
    notes = {name: ledger[name] for name in NOTES if name in ledger}
    fits = isinstance(notes.get("stopped", ""), str) and is_whole(notes.get("restored", 0))
    must(fits, LEDGER, "as it was written", f"{notes!r:.60} in {folder}", NOT_ENDED)
    return notes


def read_unseen(folder: Path, run: str) -> list[Row]:
    """The rows of clients that training never saw; none where there were none."""
    checksum = read_sealed(folder / LEDGER, run, hint=NOT_ENDED).get("unseen")
    return _read_rows(folder / UNSEEN, checksum) if checksum else []


def read_calibration(folder: Path, run: str) -> list[Row]:
    """The bins of a reliability diagram that the run ended with; none where its algorithm has no posterior."""
    rows: list[Row] = read_sealed(folder / LEDGER, run, hint=NOT_ENDED).get(CALIBRATION, [])
    return rows


def read_clients(folder: Path) -> list[Row]:
    """The rows of ``clients.parquet``."""
    return read_results(folder, read_id(folder))[0]
