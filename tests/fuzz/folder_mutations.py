"""Changes of one file of a run's folder: raw ones, and ones of what it says, with all checksums right again."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
import torch
from safetensors.torch import load, save

from moiety.seals import JSON_END, LINE_END, TOML_END, digest, seal

NUMBERS = [0, -1, 7, 10**30, 0.5, -2.5, 1e308, float("nan"), float("-inf")]
ODD: list[Any] = [None, True, "", "x", "\0", "../x", [], [1], ["x"], [[]], {}, {"x": 1}, {"name": "x"}, *NUMBERS]
DEEP = "deep"
"""Stands for lists in lists, deeper than Python reads."""


def list_files(folder: Path) -> list[Path]:
    """The files that a run wrote."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def _flip(content: bytearray, draw: Random) -> bytearray:
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return content


RAW: dict[str, Callable[[bytearray, Random], bytearray]] = {
    "bit": _flip,
    "cut": lambda content, draw: content[: draw.randrange(len(content))],
    "longer": lambda content, draw: content + draw.randbytes(draw.randrange(1, 20)),
    "zero": lambda content, draw: bytearray(len(content)),
}
"""Changes of the bytes of a file."""


def damage_bytes(content: bytearray, draw: Random) -> bytearray | None:
    """The bytes of a file after some damage; None where it is gone."""
    how = draw.choice(["bit"] * 4 + ["cut", "longer", "zero", "remove", "nothing"])
    return None if how == "remove" else content if how == "nothing" else RAW[how](content, draw)


def damage(folder: Path, other: Path, number: int, draw: Random) -> tuple[str, str]:
    """Flip a bit, cut, lengthen, empty, remove or exchange a file; its name and what was done.

    Files take turns by the ``number``.
    """
    files = list_files(folder)
    file = files[number % len(files)]
    content = bytearray(file.read_bytes())
    subtle, plain = ["bit"] * 6 + ["other run"] * 2, ["zero", "cut", "longer", "remove", "remove its folder"]
    how = draw.choice(subtle + plain)
    if how in RAW:
        content = RAW[how](content, draw)
    elif how == "other run":
        content = bytearray(draw.choice([p for p in list_files(other) if p.name == file.name] or [file]).read_bytes())
    if how == "remove":
        file.unlink()
    elif how == "remove its folder" and file.parent != folder:
        shutil.rmtree(file.parent)
    else:
        file.write_bytes(content)
    return file.name, how


def forge(folder: Path, number: int, draw: Random) -> tuple[str, str]:
    """Change what a file says, and repair every checksum that would tell; its name and what was done."""
    files = [path for path in list_files(folder) if path.suffix in FORGERS]
    file = files[number % len(files)]
    return file.name, FORGERS[file.suffix](file, draw)


def mutate(table: Any, draw: Random) -> str:
    """Change one thing in a table, or in what it holds; what was done."""
    parent, key = draw.choice([place for place in _walk(table) if place[1] != "check"])
    how = draw.choice(["odd", "odd", "odd", "number", "remove", "deep", "more"])
    if how == "remove":
        del parent[key]
    elif how == "more" and isinstance(parent, dict):
        parent["zzz"] = draw.choice(ODD)
    elif how == "number" and isinstance(parent[key], int | float):
        parent[key] = parent[key] * 2 + 1
    else:
        parent[key] = DEEP if how == "deep" else draw.choice(ODD)
    return f"{how} at {key}"


def _encode(text: str) -> bytes:
    return text.replace(f'"{DEEP}"', "[" * 5000 + "]" * 5000).encode()


def _walk(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in tables and lists, as what holds it and its key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in items:
        yield value, key
        yield from _walk(inside)


def _forge_json(file: Path, draw: Random) -> str:
    table = json.loads(file.read_text())
    what = mutate(table, draw)
    write_json(file, table)
    return what


def write_json(file: Path, table: dict[str, Any]) -> None:
    """Write a table as it was written before, with a right checksum."""
    body = json.dumps({key: value for key, value in table.items() if key != "check"}, indent=1)
    file.write_bytes(seal(_encode(body.removesuffix("\n}")) + b',\n "check": "', JSON_END))


def _forge_toml(file: Path, draw: Random) -> str:
    text, _, last = file.read_text().rstrip().rpartition("\n")
    tables = tomllib.loads(text)
    what = mutate(tables, draw)
    tables = json.loads(json.dumps(tables), object_pairs_hook=_without_none)  # TOML has no null
    file.write_bytes(seal(_encode(f"{tomli_w.dumps(tables)}\n{last[: -2 * 16]}"), TOML_END))
    return what


def _without_none(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    drop = lambda value: [drop(each) for each in value if each is not None] if isinstance(value, list) else value  # noqa: E731
    return {key: drop(value) for key, value in pairs if value is not None}


def _forge_lines(file: Path, draw: Random) -> str:
    run = json.loads((file.parent / "identity.json").read_text())["run"]
    lines = file.read_bytes().splitlines()
    at = draw.randrange(len(lines))
    row = json.loads(lines[at])
    what = mutate(row, draw)
    body = json.dumps({key: value for key, value in row.items() if key != "check"}).removesuffix("}")
    lines[at] = seal(_encode(body) + b', "check": "', LINE_END, run)
    file.write_bytes(b"\n".join(lines) + b"\n")
    return what


def _forge_tensors(file: Path, draw: Random) -> str:
    tensors = load(file.read_bytes())
    name = draw.choice(sorted(tensors) or ["none"])
    value = tensors.get(name, torch.zeros(1))
    changes: dict[str, Callable[[], torch.Tensor]] = {
        "NaN": lambda: torch.full(value.shape, float("nan")),
        "double": lambda: value.double(),
        "bytes": lambda: value.to(torch.uint8),
        "longer": lambda: torch.cat([value.flatten(), value.flatten(), torch.ones(1).to(value)]),
        "single": lambda: torch.ones(()).to(value),
        "empty": lambda: value.flatten()[:0],
        "another axis": lambda: value[None],
        "negative": lambda: -value.float().add(1).to(value.dtype) if value.dtype != torch.bool else ~value,
        "huge": lambda: torch.full_like(value, 2**40 if value.dtype == torch.int64 else 100),
    }
    what = draw.choice([*changes, "remove", "rename"])
    tensors = {key: each for key, each in tensors.items() if key != name}
    if what != "remove":
        tensors["zzz" if what == "rename" else name] = changes.get(what, lambda: value)().contiguous()
    file.write_bytes(save(tensors))
    for owner, key in ((file.parent / "state.json", "files"), (file.parent / "identity.json", "")):
        if owner.exists():
            table = json.loads(owner.read_text())
            (table[key] if key else table)[file.name if key else file.stem] = digest(file.read_bytes())
            write_json(owner, table)
    return f"{what} at {name}"


def _forge_parquet(file: Path, draw: Random) -> str:
    rows = pq.read_table(file).to_pylist()
    if draw.random() < 0.5:  # a whole column, which one type must hold
        key, value = draw.choice(sorted(rows[0])), draw.choice(ODD)
        rows, what = [{**row, key: value} for row in rows], f"{value!r} at {key}"
    else:
        what = mutate(rows, draw)
    try:
        pq.write_table(pa.Table.from_pylist(rows), file)
    except (pa.ArrowException, ValueError, TypeError, AttributeError, OverflowError):
        pq.write_table(pa.table({"client": pa.array([], pa.string())}), file)
        what = "no rows"
    owner = file.parent / "ledger.json"
    write_json(owner, {**json.loads(owner.read_text()), "clients": digest(file.read_bytes())})
    return what


FORGERS: dict[str, Callable[[Path, Random], str]] = {
    ".json": _forge_json,
    ".toml": _forge_toml,
    ".jsonl": _forge_lines,
    ".safetensors": _forge_tensors,
    ".parquet": _forge_parquet,
}
