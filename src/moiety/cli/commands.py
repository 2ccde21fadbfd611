"""The commands and their options. What they do is imported when it is asked for."""

# No annotations as text (`from __future__ import annotations`): typer would evaluate each four times.

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from moiety import __version__
from moiety.cli.completion import complete_kind, complete_set, complete_target
from moiety.cli.interrupts import Interrupted
from moiety.cli.lazy import GROUPS, LazyGroup
from moiety.cli.listing import KINDS
from moiety.errors import must

app = typer.Typer(
    add_help_option=False,  # the group has its own: typer's would import pydantic wherever it is not given
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_HELP = {"help_option_names": ["-h", "--help"]}


def _show_version(flag: bool) -> None:
    if flag:
        typer.echo(f"moiety {__version__}")
        raise typer.Exit


def _show_help(context: typer.Context, flag: bool) -> None:
    if flag:
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
            help="auto (the fastest, by measuring), sequential, vectorised, processes, or ray (a cluster).",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="How many worker processes; by default one per core.")
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
        int | None, typer.Option("--seeds", metavar="N", help="How many seeds a recipe runs, counting from --seed.")
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
            help="Continue the run in --out, or the newest in runs/NAME*. You may change --rounds (to more), --engine"
            " and --workers. --set and --seed are remembered; a value other than the run began with is refused.",
        ),
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Show the run in a browser while it trains, at an address on 127.0.0.1.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the closing sentence and the folder, nothing else.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print moiety's log on stderr: engine, dropped updates, why it stopped."),
    ] = False,
) -> None:
    """Run a recipe or a configuration file.

    A file has the sections [data], [model], [split], [algorithm] and [run]. It may have [privacy], [aggregator],
    [codec], [attack], [clock] and [track]. moiety list shows what they can name. The config.toml of a run's folder is
    such a file.

    A file may have several tables [[stage]] instead of [split] and [algorithm]. Each has its own split, algorithm and
    rounds, and starts where the stage before it ended.

    Exit codes: 0 on success, 2 with one line if the input is wrong, 130 if interrupted.
    """
    from moiety.cli.log import show_log
    from moiety.cli.request import Request, read_seeds

    must(out != "", "out", "a folder", "nothing")
    each = read_seeds("seed", seed)
    request = Request(
        target=target,
        sets=tuple(sets or ()),
        rounds=rounds,
        seed=each[0] if len(each) == 1 else None,
        engine=engine,
        workers=workers,
        scale=scale,
        seeds=seeds,
        device=device,
        out=None if out is None else Path(out),
        resume=resume,
        quiet=quiet,
        several=each if len(each) > 1 else (),
    )
    folder: list[Path] = []
    try:
        from moiety.cli.run import run_target
        from moiety.cli.seeds import run_seeds

        with show_log(verbose), contextlib.ExitStack() as stack:

            def note_folder(place: Path) -> None:
                folder.append(place)
                if live:
                    from moiety.cli.live import show_live

                    stack.enter_context(show_live(place))

            (run_seeds if request.several else run_target)(request, on_folder=note_folder)
    except KeyboardInterrupt:
        raise Interrupted(request.tell_how_to_continue(folder)) from None


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
        str, typer.Option("--seeds", metavar="N", help="How many seeds (run.seed), from 0; or a list, as in 3,5,8.")
    ] = "5",
    sets: Annotated[list[str] | None, _SET] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", help="How many runs at a time, one on each core; by default on all cores."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Folder of the sweep; by default runs/NAME-sweep.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the closing sentence and the folder, nothing else.")
    ] = False,
) -> None:
    """Run a grid of values with several seeds.

    Names the point that is best on validation rows. If a sweep is stopped, give the same command again to continue it.
    Runs that have ended are not run again, so values
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
            help="Values of the file to search, as in algorithm.shared=0.01..1:log (whole numbers if both"
            " ends are whole), or a list, as in algorithm.name=fedavg,fedalt. Repeatable.",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option("--trials", metavar="N", help="How many trials, including those already in the folder.")
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
    """Search for good values with Optuna.

    Trials are scored on validation rows, and those that fall behind are stopped (pruned). Needs
    pip install 'moiety[tune]'. If a search is stopped, give the same command again to continue it; more
    trials can be added.
    """
    from moiety.cli.sweep import run_tune

    try:
        run_tune(target, space or [], trials, seed, sets or [], out, quiet)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on") from None


@app.command(context_settings=_HELP)
def recommend(
    target: Annotated[str, _FILE],
    budget: Annotated[
        str,
        typer.Option(
            "--budget", metavar="TIME", help="How long to search, as in '10 min', or a number of gradient evaluations."
        ),
    ] = "10 min",
    steps: Annotated[
        str | None,
        typer.Option(
            "--steps", metavar="N,N,N,N", help="Repeat a search that ran short of time: the steps that it named."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="S", help="The seed of the search; by default run.seed of the file.")
    ] = None,
    sets: Annotated[list[str] | None, _SET] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Folder of the search; by default runs/NAME-recommend.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the answer and the folder, nothing else.")
    ] = False,
) -> None:
    """Find out which part should be personal.

    Says which part, by which method, and whether it is worth it, and writes a file that trains the winner. The file
    needs [model], and [data] with validation and test rows. It may have [run] (rounds: the most of one training;
    cohort: that of all trainings), [split] (one more candidate) and [algorithm] (for its batch size and epochs). If a
    search is stopped, give the same command again to continue it.
    """
    from moiety.cli.recommend import run_recommend

    try:
        run_recommend(target, budget, steps, seed, sets or [], out, quiet)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on") from None


@app.command("list", context_settings=_HELP)
def list_(
    what: Annotated[
        str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.", autocompletion=complete_kind)
    ],
) -> None:
    """List what a file can name, one kind at a time.

    The list of data sets also says whether the file of each is there; moiety data fetch downloads it.
    """
    from moiety.cli.listing import show_kind

    show_kind(what)


@app.command(context_settings=_HELP)
def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Folders of finished runs on the same data, or folders that hold such runs."
        ),
    ],
) -> None:
    """Compare finished runs, overall and client by client.

    Prints one row for each run, and then compares the clients of each run with the same clients of the first. Runs that
    differ only in run.seed share one row, with means and 95% intervals over seeds; differences are paired by seed.
    """
    from moiety.cli.compare import compare_folders

    compare_folders(folders)


@app.command(context_settings=_HELP)
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Folders of finished runs on the same data, or folders that hold such runs."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page.")] = Path("report.html"),
) -> None:
    """Write one HTML page about finished runs.

    The page shows curves, every client, those that are hurt, costs and differences. It opens from disk and needs no
    network. It names clients. Runs that differ only in run.seed are shown together; the others are compared with the
    first.
    """
    from moiety.cli.report import report_folders

    report_folders(folders, out)


@app.command(context_settings=_HELP)
def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, or one that holds runs.")],
    port: Annotated[int, typer.Option("--port", metavar="N", help="The port on this machine; 0 takes a free one.")] = 0,
) -> None:
    """Show runs in a browser while they train.

    Serves a page on 127.0.0.1 that follows the folder, until Ctrl-C.
    """
    from moiety.cli.live import watch_folder

    watch_folder(folder, port)


@app.command(context_settings=_HELP)
def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a run, of a pipeline, of a recipe or of data.")
    ],
    data: Annotated[
        bool, typer.Option("--data", help="Also read all data of the runs, and compare it with what they began with.")
    ] = False,
) -> None:
    """Check every file of a folder by its checksum.

    Changes nothing. Exit code 0 with one line if all is well; 2 with a line for each file that is damaged, missing or
    from another run. To check a run on data of your own, use moiety.verify in Python.
    """
    from moiety.cli.verify import verify_folder

    if not verify_folder(folder, data=data):
        raise typer.Exit(2)


for name, (_, about) in GROUPS.items():
    app.add_typer(typer.Typer(cls=LazyGroup), name=name, context_settings=_HELP, help=about)
