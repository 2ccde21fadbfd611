"""Where words and tables go: a terminal, or a plain stream without control codes."""

from __future__ import annotations

from rich.table import Table

from moiety.reports.console import console, on_terminal, print_plain


def show(table: Table) -> None:
    """Print a table; where it is not a terminal, without the blanks that fill its lines."""
    out = console()
    if out.is_terminal:
        out.print(table)
    else:
        say(print_plain(table))


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
