"""The commands and their options. What they do is imported when it is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from moiety import __version__
from moiety.cli.completion import complete_kind, complete_set, complete_target
from moiety.cli.listing import KINDS
from moiety.cli.log import show_log
from moiety.cli.request import Interrupted, Request, read_seeds
from moiety.errors import must

app = typer.Typer(
    add_help_option=False,  # the group has its own: typer's would import pydantic wherever it is not given
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_HELP = {"help_option_names": ["-h", "--help"]}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"moiety {__version__}")
        raise typer.Exit


def _show_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(context.get_help())
        raise typer.Exit


@app.callback(invoke_without_command=True)
def moiety(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
    help: Annotated[
        bool, typer.Option("--help", "-h", is_eager=True, callback=_show_help, help="Show this message and exit.")
    ] = False,
) -> None:
    """Personalised federated learning: part of every model is shared, part is the client's own.

    Start with: moiety run quickstart
    """
    if context.invoked_subcommand is None:
        _show_help(context, True)


@app.command(context_settings=_HELP)
def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|FILE.toml",
            help="A recipe (moiety list recipes) or a configuration file.",
            autocompletion=complete_target,
        ),
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="a.b=c",
            autocompletion=complete_set,
            help="Set a value of the file, as in algorithm.shared=0.1, or a field of a recipe's plan, as in rounds=5."
            " Repeatable.",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="N", help="How many rounds to train.")] = None,
    seed: Annotated[
        str | None,
        typer.Option(
            "--seed",
            metavar="S[,S...]",
            help="The seed of a recipe, or run.seed of a file; data.seed and model.seed are set with --set. 0,1,2 runs"
            " a file three times, in folders seed-0, seed-1 and seed-2 of --out.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="NAME",
            help="auto (measure, keep the fastest), sequential, vectorised, processes, or ray (a cluster).",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Processes of an engine that has any; all cores.")
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale",
            metavar="NAME",
            help="The size of a recipe: ci (seconds), laptop (minutes, the default), night (up to an hour) or paper.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", metavar="N", help="How many seeds a recipe has, from --seed on.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="The device to train on: cpu, cuda or auto.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Folder of the run; by default a new one, runs/NAME or runs/NAME-2."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in --out, or the newest in runs/NAME*. --rounds (more of them), --engine and"
            " --workers may be given anew, what --set and --seed said then is remembered; any other value that is"
            " not as the run began is refused.",
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the closing sentence and the folder, nothing else.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Say on stderr what moiety logs: engine, dropped updates, stops."),
    ] = False,
) -> None:
    """Run a recipe or a configuration file.

    A file has the sections [data], [model], [split], [algorithm] and [run], and may have [aggregator], [codec],
    [attack], [clock] and [track]; moiety list says what they can name. The config.toml of a run's folder is such
    a file. With tables [[stage]], each with a split, an algorithm and rounds of its own, in the place of [split] and
    [algorithm], every stage starts where the one before has ended. Ends with 0, with 2 and one line where something is
    wrong with the input, and with 130 if interrupted.
    """
    must(out != "", "out", "a folder", "nothing")
    where = None if out is None else Path(out)
    each = read_seeds("seed", seed)
    request = Request(
        target, tuple(sets or ()), rounds, each[0] if len(each) == 1 else None, engine, workers, scale, seeds, device
    )
    request = replace(request, out=where, resume=resume, quiet=quiet, several=each if len(each) > 1 else ())
    folder: list[Path] = []
    try:
        from moiety.cli.run import run_target
        from moiety.cli.seeds import run_seeds

        with show_log(verbose):
            (run_seeds if request.several else run_target)(request, on_folder=folder.append)
    except KeyboardInterrupt:
        raise Interrupted(_how_to_continue(request, folder)) from None


def _how_to_continue(request: Request, begun: list[Path]) -> str:
    from moiety.cli.folders import holds_run

    if not begun or not holds_run(begun[0]):
        return "interrupted before anything was written"
    return f"interrupted; continue with: {request.resume_command(begun[0])}"


_FILE = typer.Argument(metavar="FILE.toml", help="A configuration file, as for moiety run.")
_SET = typer.Option("--set", metavar="a.b=c", help="Set a value of the file for all runs. Repeatable.")


@app.command(context_settings=_HELP)
def sweep(
    target: Annotated[str, _FILE],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="a.b=c,d",
            help="Values of the file to try, as in algorithm.shared=0.03,0.1. Repeatable: all combinations are run.",
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N", help="How many seeds (run.seed) from 0 on, or which, as in 3,5,8.")
    ] = "5",
    sets: Annotated[list[str] | None, _SET] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", help="How many runs at a time, each on a core of its own; all cores."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Folder of the sweep; by default runs/NAME-sweep.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the closing sentence and the folder, nothing else.")
    ] = False,
) -> None:
    """Run a file with all values of a grid and several seeds, and name the best on validation rows.

    A sweep that was stopped goes on when the same command is given again. What has ended is not run again, so values
    and seeds can be added.
    """
    from moiety.cli.sweep import run_sweep

    try:
        run_sweep(target, grid or [], seeds, sets or [], jobs, out, quiet)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on") from None


@app.command(context_settings=_HELP)
def tune(
    target: Annotated[str, _FILE],
    space: Annotated[
        list[str] | None,
        typer.Option(
            "--space",
            metavar="a.b=LOW..HIGH[:log]",
            help="Values of the file to search, as in algorithm.shared=0.01..1:log (whole numbers between whole"
            " numbers), or a list, as in algorithm.name=fedavg,fedalt. Repeatable.",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option("--trials", metavar="N", help="How many trials, with those that are in the folder already.")
    ] = 20,
    seed: Annotated[
        int, typer.Option("--seed", metavar="S", help="run.seed of all trials, and the seed of the search.")
    ] = 0,
    sets: Annotated[list[str] | None, _SET] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Folder of the search; by default runs/NAME-tune.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the closing sentence and the folder, nothing else.")
    ] = False,
) -> None:
    """Search values of a file with Optuna, by validation rows; trials that fall behind are stopped (pruned).

    Needs pip install 'moiety[tune]'. A search that was stopped goes on when the same command is given again; more
    trials can be added.
    """
    from moiety.cli.sweep import run_tune

    try:
        run_tune(target, space or [], trials, seed, sets or [], out, quiet)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on") from None


@app.command("list", context_settings=_HELP)
def list_(
    what: Annotated[
        str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.", autocompletion=complete_kind)
    ],
) -> None:
    """List what a file can name: algorithms, data sets, models and all else, a kind at a time.

    For data sets, say whether their file is there; moiety data fetch makes it.
    """
    from moiety.cli.listing import show_kind

    show_kind(what)


@app.command(context_settings=_HELP)
def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Folders of ended runs on the same data, or folders that hold such runs."
        ),
    ],
) -> None:
    """Compare ended runs, overall and client by client.

    One row for each run, and then the clients of each against the same clients of the first. Runs that differ in
    nothing but run.seed make one row, with means and 95% intervals over seeds, and differences are paired by seed.
    """
    from moiety.cli.compare import compare_folders

    compare_folders(folders)


@app.command(context_settings=_HELP)
def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a run, of a pipeline, of a recipe or of data.")
    ],
    data: Annotated[
        bool, typer.Option("--data", help="Read all data of the runs too, and compare it with what they began with.")
    ] = False,
) -> None:
    """Check every file of a folder against its checksum, and change nothing.

    Ends with 0 and one line where all is well, and with 2 and a line for each file that is damaged, missing or of
    another run. Data that the file of a run cannot name is compared by moiety.verify in Python.
    """
    from moiety.cli.verify import verify_folder

    if not verify_folder(folder, data=data):
        raise typer.Exit(2)


data = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
_ABOUT_DATA = "Data sets by name: list them, fetch them, check their files."
app.add_typer(data, name="data", context_settings=_HELP, help=_ABOUT_DATA)


@data.command("list", context_settings=_HELP)
def list_data() -> None:
    """List the data sets that can be fetched, whether their files are there, and their licences."""
    from moiety.cli.data import list_sets

    list_sets()


@data.command(context_settings=_HELP)
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Data sets of moiety data list.")],
    originals: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="A folder with the publisher's files, where you have them."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Make the files even where they are there.")] = False,
) -> None:
    """Download the publisher's files, compare their checksums, and convert them to the files that moiety reads.

    Prints licence, citation and source first. Files go to the folder that MOIETY_DATA names, else to the cache of this
    user. Ends with 2 and one line where something is wrong; a file that was there stays.
    """
    from moiety.cli.data import fetch_sets

    fetch_sets(names, originals, again)


@data.command(context_settings=_HELP)
def check() -> None:
    """Read every file that is there and say what is known of it; ends with 2 where one is damaged."""
    from moiety.cli.data import check_files

    if not check_files():
        raise typer.Exit(2)


@data.command(context_settings=_HELP)
def where() -> None:
    """Say in which folders files are looked for, and where they are fetched to."""
    from moiety.cli.data import show_folders

    show_folders()
