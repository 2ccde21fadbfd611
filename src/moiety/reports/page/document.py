"""The page as one file: the template, its style and scripts, and the data, none of which can break out of its place."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

SCRIPTS = ("draw.js", "curves.js", "figures.js", "points.js", "clients.js", "page.js")


@cache
def _read(name: str) -> str:
    return (files("moiety.reports.page") / name).read_text(encoding="utf-8")


def escape(text: object) -> str:
    """A text as HTML shows it, in a tag's content as in a quoted attribute; half characters become question marks.

    >>> escape('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(str(text).encode("utf-8", "replace").decode("utf-8"), quote=True)


def embed_json(data: Any) -> str:
    r"""Data as JSON that may stand in a script element: nothing in it can end the element.

    >>> embed_json({"name": "</script>"})
    '{"name":"\\u003c/script>"}'
    """
    text = json.dumps(round_numbers(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text.encode("utf-8", "replace").decode("utf-8")


def round_numbers(value: Any) -> Any:
    """The same with five digits a number, which is more than a figure shows; null for what is not finite."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.5g}")
        return int(short) if short == int(short) and abs(short) < 1e15 else short
    if isinstance(value, Mapping):
        return {key: round_numbers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [round_numbers(each) for each in value]
    return value


def fill_template(title: str, main: str, data: Mapping[str, Any], *, live: bool = False) -> str:
    """The whole page. Its policy allows its own script alone, by its digest, and no address but, live, its own."""
    script = "\n".join(_read(name) for name in SCRIPTS)
    code = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{code}'; style-src 'unsafe-inline'; img-src data:"
    policy += "; connect-src 'self'" if live else ""
    parts = {
        "policy": f"{policy}; base-uri 'none'; form-action 'none'",
        "title": escape(title),
        "style": _read("style.css"),
        "live": "live" if live else "",
        "main": main,
        "data": embed_json(data),
        "script": script,
    }
    pieces = _read("template.html").split("@@")
    return "".join(piece if at % 2 == 0 else parts[piece] for at, piece in enumerate(pieces))


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]], *, texts: int = 1, last_texts: int = 0
) -> str:
    """A table whose first ``texts`` and last ``last_texts`` columns are text; the first names its row."""
    numbers = range(texts, len(heads) - last_texts)
    top = "".join(f'<th scope="col"{_align(at in numbers)}>{escape(head)}</th>' for at, head in enumerate(heads))
    lines = []
    for row in rows:
        cells = [
            f'<th scope="row">{escape(cell)}</th>' if at == 0 else f"<td{_align(at in numbers)}>{_show(cell)}</td>"
            for at, cell in enumerate(row)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    head = f"<thead><tr>{top}</tr></thead>" if any(heads) else ""
    inner = f"<caption>{escape(caption)}</caption>{head}<tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>{inner}</table></div>'


def _show(cell: object) -> str:
    """A cell; thousands have commas."""
    return escape(f"{cell:,}" if isinstance(cell, int) else cell)


def _align(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def figure(name: str, title: str, caption: str, numbers: str) -> str:
    """A place that the script draws in, and the table behind it."""
    plot = f'<div class="plot" id="plot-{name}" data-title="{escape(title)}"></div>'
    more = f"<details><summary>The numbers as a table</summary>{numbers}</details>" if numbers else ""
    return f'<figure id="figure-{name}">{plot}<figcaption>{escape(caption)}</figcaption>{more}</figure>'


def section(name: str, title: str, *parts: str) -> str:
    """A section with its heading."""
    head = f'<h2 id="{name}-title">{escape(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{"".join(parts)}</section>'


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph."""
    return f"<p{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{escape(text)}</p>"
