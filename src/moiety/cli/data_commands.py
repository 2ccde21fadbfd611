"""The commands of ``moiety data`` and their options."""

# No annotations as text (`from __future__ import annotations`): typer would evaluate each four times.

from pathlib import Path
from typing import Annotated

import typer

_HELP = {"help_option_names": ["-h", "--help"]}
data = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@data.command("list", context_settings=_HELP)
def list_data() -> None:
    """List data sets, their licences, and which files are there."""
    from moiety.cli.data import list_sets

    list_sets()


@data.command(context_settings=_HELP)
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Data sets of moiety data list.")],
    originals: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="A folder with the publisher's files, if you have them."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Make the files again, even if they are there.")] = False,
) -> None:
    """Download data sets and convert them.

    Prints licence, citation and source first. Compares the checksums of the publisher's files, and converts them to the
    files that moiety reads. Files go to the folder that MOIETY_DATA names, or else to this user's cache. If something
    is wrong, the exit code is 2 with one line, and a file that was there before stays.
    """
    from moiety.cli.data import fetch_sets

    fetch_sets(names, originals, again)


@data.command(context_settings=_HELP)
def check() -> None:
    """Read every file that is there and say what is known of it.

    The exit code is 2 if one is damaged.
    """
    from moiety.cli.data import check_files

    if not check_files():
        raise typer.Exit(2)


@data.command(context_settings=_HELP)
def where() -> None:
    """Show the folders that are searched and fetched to."""
    from moiety.cli.data import show_folders

    show_folders()
