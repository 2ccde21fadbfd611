"""What is seen on stdout while a run goes on: a bar on a terminal, else a line for each evaluation, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from moiety.cli.log import tell_messages
from moiety.cli.output import say
from moiety.reports.console import console, on_terminal
from moiety.run.progress import Bars, Lines
from moiety.run.protocol import Callback

Watch = Callable[[str], Callback]
"""Called with the name of a run before it begins; gives what shows how it goes on."""


@contextmanager
def show_progress(quiet: bool) -> Iterator[Watch]:
    """Show how runs go on, in the way that suits where the output goes; ``watch`` of each run is to be called."""
    if quiet:
        yield lambda name: Callback()
    elif not on_terminal():
        with tell_messages("moiety.cells", say):
            yield lambda name: Lines(name, say)
    else:
        bars = Bars(console())
        with bars.show():
            yield bars.watch
