"""The rows that each recipe ends with at its smallest scale."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipe_runs import RecipeRun, call_command

LEFT_OUT = ("seconds", "date", "version", "versions", "path", "folder", "check")
"""Columns that differ between two runs of the same code."""


def list_rows(run: RecipeRun) -> list[dict[str, Any]]:
    """The rows of a recipe's table, or of its runs' histories where it has none, without what differs each time."""
    rows = run.table.get("rows") or _histories(run.folder)
    return [_drop_times(row) for row in rows]


def list_names(kind: str) -> list[str]:
    """What ``moiety list`` shows of a kind: the first word of each line below the rule."""
    code, output, errors = call_command("list", kind)
    assert (code, errors) == (0, "")
    lines = output.split("\n\n")[0].splitlines()[2:]
    return [line.split()[0] for line in lines if line and not line.startswith(" ")]


def _histories(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob("**/history.jsonl")):
        for line in file.read_text().splitlines():
            yield {"run": file.parent.relative_to(folder).as_posix(), **json.loads(line)}


def _drop_times(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in LEFT_OUT}
