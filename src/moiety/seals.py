"""Sealed files: tables with a format number, the run's id and a checksum, which are compared before use."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from moiety.errors import must
from moiety.files import read_json, read_toml, report_unreadable, write_file

CONFIG, PIPELINE, RECIPE = "config.toml", "pipeline.toml", "recipe.json"
"""The file that says what is in a folder: a run, a pipeline or a recipe. The last two have runs in folders below."""
TABLE, TABLE_FORMAT = "table.json", 2
"""The numbers of a recipe, and the format of that file. Format 1 had no checksum."""
START_AGAIN = (
    "Restore the folder from a copy, or remove checkpoint, progress.json, clients and history.jsonl to start again."
)
"""What to do where a run cannot go on from its checkpoint."""

# Not by an import: the package itself names modules of all layers.
VERSION: str = sys.modules["moiety"].__version__
FORMAT = 3
"""The format of the folder of a run, a pipeline or a recipe.

Format 1 had neither checksums nor the run's id in its files. Format 2 had none in recipes, and its stages could be of
any pipeline.
"""
JSON_END, TOML_END, LINE_END = b'"\n}\n', b"\n", b'"}'
"""What follows the checksum in each kind of file. The checksum is over all bytes before it."""


def digest(content: bytes) -> str:
    """A short hash that tells whether a file was changed."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def seal(content: bytes, end: bytes, run: str = "") -> bytes:
    """The content, its checksum and the ``end``. The checksum of a line is over the run's id too."""
    return content + digest(run.encode() + content).encode() + end


def is_sealed(content: bytes, end: bytes, run: str = "") -> bool:
    """Whether a checksum of ``seal`` stands at the end and is right."""
    return content == seal(content[: -len(end) - 2 * 16], end, run)


def write_sealed(
    path: Path, content: Mapping[str, Any], run: str | None, *, format: int = FORMAT, private: bool = True
) -> None:
    """Write a table as JSON with the format, moiety's version, the run's id if any, and a checksum of all of it.

    Every key stands on a line of its own with all of its value.
    """
    table = {"format": format, "moiety": VERSION, **({} if run is None else {"run": run}), **content}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in table.items()]
    text = "\n".join(["{", ",\n".join([*lines, ' "check": "'])])
    write_file(path, seal(text.encode(), JSON_END), private=private)


def is_whole_table(path: Path) -> bool:
    """Whether a file is there and is as ``write_sealed`` wrote it."""
    try:
        return is_sealed(path.read_bytes(), JSON_END)
    except OSError:
        return False


def read_sealed(
    path: Path,
    run: str | None = None,
    keys: Iterable[str] = (),
    hint: str = "",
    name: str = "",
    *,
    format: int = FORMAT,
) -> dict[str, Any]:
    """A table that ``write_sealed`` wrote, with the run's id and without the rest of the seal.

    It must be of this format, whole, and of the run of that id where one is given.
    """
    content = read_json(path, hint=hint, name=name)
    whole = is_whole_table(path)
    if whole or "check" not in content:
        check_format(content.get("format", 1), path, format)
    check_seal(whole, path, content.get("run"), run, hint, name)
    missing = sorted(set(keys) - content.keys())
    must(not missing, name or path.name, "as it was written", f"{path}, which has no {', '.join(missing)}", hint)
    return {key: value for key, value in content.items() if key not in ("format", "moiety", "check")}


def check_format(number: object, path: Path, version: int = FORMAT) -> None:
    """Refuse a file of another format."""
    hint = "Use the version of moiety that wrote it."
    text = f"{number!s:.20}".removeprefix("moiety data ")  # as data folders had it up to format 2
    must(number == version, "folder", f"of format {version}", f"format {text} in {path}", hint)


def check_seal(whole: bool, path: Path, owner: object, run: str | None, hint: str = "", name: str = "") -> None:
    """Refuse a file whose checksum is wrong, or that is of another run."""
    must(whole, name or path.name, "as it was written", f"another checksum in {path}", hint)
    must(run in (None, owner), name or path.name, f"a file of run {run}", f"one of run {owner!s:.40} in {path}", hint)


def write_sealed_toml(path: Path, text: str, run: str) -> None:
    """Write a TOML file whose last line is a comment with what ``write_sealed`` adds."""
    line = f"# moiety {VERSION}, format {FORMAT}, run {run}, check "
    write_file(path, seal(f"{text.rstrip()}\n\n{line}".encode(), TOML_END))


def read_sealed_toml(path: Path, run: str | None = None) -> tuple[dict[str, Any], str]:
    """The tables of a file that ``write_sealed_toml`` wrote, and the run's id."""
    content = read_toml(path)
    with report_unreadable(path):
        raw = path.read_bytes()
    last = raw.rstrip().rpartition(b"\n")[2].decode(errors="replace")
    words = re.fullmatch(r"# moiety (\S+), format (\d+), run (\w*), check (\w+)", last)
    whole = is_sealed(raw, TOML_END)
    if run is None and (whole or words is None):
        check_format(int(words[2]) if words else 1, path)
    check_seal(whole and words is not None, path, words[3] if words else None, run)
    return content, words[3] if words else ""
