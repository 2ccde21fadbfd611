"""Tables and bars for a terminal, a notebook or a plain stream without control codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from rich import box
from rich.console import Console
from rich.table import Table

PLAIN_WIDTH = 120
NARROW = 100


def on_terminal(*, stderr: bool = False) -> bool:
    """Whether there is someone to watch stdout, or ``stderr``, on a terminal that can move its cursor."""
    stream = sys.stderr if stderr else sys.stdout
    return stream is not None and stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def in_notebook() -> bool:
    """Whether this is a notebook that has widgets, in which bars can move."""
    return Console().is_jupyter and find_spec("ipywidgets") is not None


def console(*, stderr: bool = False) -> Console:
    """A console that takes names as they are (no markup) and never colours what is not a terminal."""
    terminal = on_terminal(stderr=stderr)
    return Console(
        stderr=stderr,
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        width=None if terminal else PLAIN_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, text: Sequence[int] = (0,)) -> Table:
    """A table without lines at its sides; columns hold numbers, to the right, but for those of ``text``."""
    gap = 2 if not any(headers) else 0 if console().width < NARROW else 1
    result = Table(
        box=box.SIMPLE_HEAD if any(headers) else None,
        padding=(0, gap, 0, 0),
        show_header=any(headers),
        pad_edge=False,
        show_edge=False,
    )
    for at, header in enumerate(headers):
        result.add_column(header, justify="left" if at in text else "right", overflow="fold")
    for row in rows:
        result.add_row(*row)
    return result


def print_plain(table: Table) -> str:
    """A table as text, without the blanks that fill its lines."""
    out = Console(color_system=None, width=PLAIN_WIDTH, markup=False, highlight=False, emoji=False, no_color=True)
    with out.capture() as capture:
        out.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
