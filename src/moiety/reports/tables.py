"""Tables of results, as Markdown: the paper's number beside ours, the interval over seeds, the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moiety.errors import must
from moiety.evaluation import format_score

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


def markdown(rows: Sequence[Row], *, columns: Mapping[str, str] | None = None, digits: int = 2) -> str:
    r"""The rows as a Markdown table; numbers to the right, a dash where there is none.

    >>> print(markdown([{"row": "a|b", "ours": 1.239, "low": None, "high": None, "seeds": 1}], digits=1))
    |  | paper | ours | 95% interval over seeds | seeds | verdict |
    |:---|---:|---:|---:|---:|:---|
    | a\|b | - | 1.2 | - | 1 | - |
    """
    columns = COLUMNS if columns is None else columns
    must(len(columns) > 0, "columns", "at least one", "none")
    cells = [[_format_cell(row, key, digits) for key in columns] for row in rows]
    text = {key: any(isinstance(row.get(key), str) for row in rows) or key in ("row", "verdict") for key in columns}
    lines = ["| " + " | ".join(line) + " |" for line in [list(columns.values()), *cells]]
    lines.insert(1, "|" + "|".join(":---" if text[key] else "---:" for key in columns) + "|")
    return "\n".join(lines)


def _format_cell(row: Row, key: str, digits: int) -> str:
    if key == "interval" and key not in row:
        low, high = row.get("low"), row.get("high")
        return "-" if low is None or high is None else " to ".join(format_score(x, digits=digits) for x in (low, high))
    value = row.get(key)
    if value is None or isinstance(value, float):
        return format_score(value, digits=digits)
    return " ".join(str(value).split()).replace("|", "\\|")
