"""Where words and tables go: a terminal, or a plain stream without control codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

PLAIN_WIDTH = 120
NARROW = 100


def on_terminal() -> bool:
    """Whether there is someone to watch, on a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def console() -> Console:
    """A console that takes names as they are (no markup) and never colours what is not a terminal."""
    terminal = on_terminal()
    return Console(
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
    made = Table(
        box=box.SIMPLE_HEAD if any(headers) else None,
        padding=(0, gap, 0, 0),
        show_header=any(headers),
        pad_edge=False,
        show_edge=False,
    )
    for at, header in enumerate(headers):
        made.add_column(header, justify="left" if at in text else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def show(made: Table) -> None:
    """Print a table; where it is not a terminal, without the blanks that fill its lines."""
    out = console()
    if out.is_terminal:
        out.print(made)
        return
    with out.capture() as captured:
        out.print(made)
    for line in captured.get().splitlines():
        say(line.rstrip())


def show_page(text: str) -> None:
    """Print a page of Markdown: its tables drawn on a terminal, as it is elsewhere."""
    from rich.markdown import Markdown

    if on_terminal():
        console().print(Markdown(text))
    else:
        say(text)


def say(text: str = "") -> None:
    """One line: a terminal breaks it between words, a file keeps it whole."""
    if on_terminal():
        console().print(text)
    else:
        print(text, flush=True)
