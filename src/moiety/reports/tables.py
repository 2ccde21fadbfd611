"""Tables of results, as JSON and Markdown: the paper's number beside ours, the interval over seeds, the verdict."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moiety.errors import kind, must
from moiety.files import report_failure, write_file

Row = Mapping[str, Any]

COLUMNS = {
    "row": "",
    "paper": "paper",
    "ours": "ours",
    "interval": "95% interval over seeds",
    "seeds": "seeds",
    "verdict": "verdict",
}
"""The usual columns and their headings; ``interval`` is made of ``low`` and ``high``."""


def write_table(
    folder: str | os.PathLike[str],
    rows: Sequence[Row],
    *,
    name: str = "table",
    title: str = "",
    note: str = "",
    columns: Mapping[str, str] | None = None,
    digits: int = 2,
) -> None:
    """Write ``NAME.json``, with all that the rows hold, and ``NAME.md``, with the columns to be read.

    Args:
        folder: made where it is not there.
        rows: as ``moiety.analysis.intervals.table_row`` gives them, or others.
        name: of the two files, without an ending.
        title: a heading.
        note: what the reader should know, below the table.
        columns: keys of the rows and their headings, in order; ``COLUMNS`` by default.
        digits: decimals of numbers in the Markdown; JSON has them in full.
    """
    kind("folder", folder, (str, os.PathLike), "a folder's path")
    must(bool(name) and Path(name).name == name, "name", "the name of a file, without a folder", repr(name))
    content = {"title": title, "note": note, "rows": [{k: _plain(v) for k, v in row.items()} for row in rows]}
    text = markdown(rows, columns=columns, digits=digits)
    page = "\n\n".join(part for part in (f"# {title}" if title else "", text, note) if part) + "\n"
    path = Path(folder)
    with report_failure(path):
        path.mkdir(parents=True, exist_ok=True)
    write_file(path / f"{name}.json", (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    write_file(path / f"{name}.md", page.encode())


def _plain(value: Any) -> Any:
    """A value that JSON has: numbers that are not finite become null, and what is unknown to JSON its text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def markdown(rows: Sequence[Row], *, columns: Mapping[str, str] | None = None, digits: int = 2) -> str:
    r"""The rows as a Markdown table; numbers to the right, a dash where there is none.

    >>> print(markdown([{"row": "a|b", "ours": 1.239, "low": None, "high": None, "seeds": 1}], digits=1))
    |  | paper | ours | 95% interval over seeds | seeds | verdict |
    |:---|---:|---:|---:|---:|:---|
    | a\|b | - | 1.2 | - | 1 | - |
    """
    columns = COLUMNS if columns is None else columns
    must(len(columns) > 0, "columns", "at least one", "none")
    cells = [[_cell(row, key, digits) for key in columns] for row in rows]
    text = {key: any(isinstance(row.get(key), str) for row in rows) or key in ("row", "verdict") for key in columns}
    lines = [list(columns.values()), *cells]
    made = ["| " + " | ".join(line) + " |" for line in lines]
    made.insert(1, "|" + "|".join(":---" if text[key] else "---:" for key in columns) + "|")
    return "\n".join(made)


def _cell(row: Row, key: str, digits: int) -> str:
    if key == "interval" and key not in row:
        low, high = row.get("low"), row.get("high")
        return "-" if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"
    value = row.get(key)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return " ".join(str(value).split()).replace("|", "\\|")
