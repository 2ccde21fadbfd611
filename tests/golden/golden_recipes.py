"""The rows that each recipe ends with at its smallest scale."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from moiety.cli import main

SEQUENTIAL = ("--scale", "ci", "--engine", "sequential")
OWN_ENGINE = ("--scale", "ci")
RECIPES: dict[str, tuple[str, ...]] = {
    "quickstart": ("--rounds", "10", "--engine", "sequential"),
    "fedalt-images": SEQUENTIAL,
    "fedalt-speech": SEQUENTIAL,
    "fedalt-text": SEQUENTIAL,
    "fedpop-full": SEQUENTIAL,
    "fedpop-people": SEQUENTIAL,
    "fedpop-small": SEQUENTIAL,
    "fedpop-toy": SEQUENTIAL,
    "fedpop-uncertainty": SEQUENTIAL,
    "ffgg-async": SEQUENTIAL,
    "ffgg-byzantine": SEQUENTIAL,
    "ffgg-figure1": SEQUENTIAL,
    "ffgg-table1": SEQUENTIAL,
    "glocal-table1": OWN_ENGINE,
    "glocal-clients": OWN_ENGINE,
    "glocal-delay": OWN_ENGINE,
    "glocal-features": OWN_ENGINE,
    "glocal-fictitious": OWN_ENGINE,
    "fedspa-table1": SEQUENTIAL,
    "fedspa-table2": SEQUENTIAL,
    "fedspa-sparsity": SEQUENTIAL,
    "fedspa-ablations": SEQUENTIAL,
}
"""How each is started. Those of Glocal take no engine, and quickstart has no scales."""

LEFT_OUT = ("seconds", "date", "version", "versions", "path", "folder")
"""Columns that differ between two runs of the same code."""
TIMES = "time of mask search"
"""A row that begins so has a measured time for its number."""


def rows_of(name: str, folder: Path) -> list[dict[str, Any]]:
    """Run a recipe in ``folder`` by the command, and read what it wrote there.

    At this scale no recipe needs files of data; the folder of such files is hidden, so that none is looked at.
    """
    with mock.patch.dict(os.environ):
        os.environ.pop("MOIETY_DATA", None)
        code, told = said("run", name, *RECIPES[name], "--out", str(folder), "--quiet")
    assert code == 0, f"{name} ended with {code}: {told}"
    table = folder / "table.json"
    rows = json.loads(table.read_text())["rows"] if table.is_file() else list(_histories(folder))
    return [_kept(row) for row in rows]


def names_of(kind: str) -> list[str]:
    """What ``moiety list`` shows of a kind: the first word of each line below the rule."""
    code, told = said("list", kind)
    assert code == 0, told
    lines = told.split("\n\n")[0].splitlines()[2:]
    return [line.split()[0] for line in lines if line and not line.startswith(" ")]


def said(*words: str) -> tuple[int, str]:
    """The exit code of the command and all that it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(words)
    return code, out.getvalue()


def _histories(folder: Path) -> Iterator[dict[str, Any]]:
    """The histories of the runs in a folder, for a recipe without a table."""
    for file in sorted(folder.glob("**/history.jsonl")):
        for line in file.read_text().splitlines():
            yield {"run": file.parent.relative_to(folder).as_posix(), **json.loads(line)}


def _kept(row: dict[str, Any]) -> dict[str, Any]:
    timed = str(row.get("row", "")).startswith(TIMES)
    return {key: value for key, value in row.items() if key not in LEFT_OUT and not (timed and key == "ours")}
