"""``moiety deploy``: a federation of real devices, through Flower."""

# No annotations as text (`from __future__ import annotations`): typer would evaluate each four times.

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from moiety.errors import must, whole

_HELP = {"help_option_names": ["-h", "--help"]}
deploy = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
_ADDRESS = typer.Option(
    "--address", metavar="HOST", help="Host name or IP address under which nodes reach the server. Repeatable."
)


@deploy.command(context_settings=_HELP)
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="FILE.toml", help="What to train, as for moiety run; by default a small example."
        ),
    ] = None,
    address: Annotated[list[str] | None, _ADDRESS] = None,
    port: Annotated[int, typer.Option("--port", metavar="N", help="The server's port.")] = 9092,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="How many nodes get keys.")] = 4,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no authentication: for a trial on one machine.")
    ] = False,
) -> None:
    """Write a complete Flower app into a new folder.

    The folder has the app, keys for a trial, and a README with every command. Only their owner can read the keys
    (0600). They are valid for 30 days, lie outside the app, and are never overwritten or printed.
    """
    _need_flower()
    from moiety.cli.output import say
    from moiety.deploy.init import write_app

    write_app(folder, address or _ask_address(), file=file, port=port, nodes=nodes, secure=not insecure)
    if insecure:
        _warn_insecure()
    say(f"Wrote {folder}: every command is in {folder / 'README.md'}")


@deploy.command(context_settings=_HELP)
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of moiety deploy init.")],
    address: Annotated[list[str] | None, _ADDRESS] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", metavar="N", help="How many nodes the federation has then; by default those of DIR/keys."
        ),
    ] = None,
) -> None:
    """Make the keys that are missing.

    These are keys of new nodes, or of the authority, the server or a node whose folder of keys was moved away.
    """
    _need_flower()
    from moiety.cli.output import say
    from moiety.deploy.init import KEYS, MOST_NODES, count_nodes, name_nodes
    from moiety.deploy.keys import explain_strangers, make_keys

    has_keys = (folder / KEYS).is_dir()
    must(has_keys, "DIR", "a folder of moiety deploy init with keys", folder, "Run moiety deploy init.")
    if nodes is not None:
        whole("nodes", nodes, 1, MOST_NODES)
    count = count_nodes(folder / KEYS) if nodes is None else nodes
    names = name_nodes(count)
    new = make_keys(folder / KEYS, address or _ask_address(), names)
    text = f"All keys of the server and {count} {'node' if count == 1 else 'nodes'} are there"
    say(f"Made {', '.join(str(each) for each in new)}" if new else f"{text}; nothing was changed.")
    for line in explain_strangers(folder / KEYS, names):
        say(line)


@deploy.command(context_settings=_HELP)
def demo(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder to keep; by default a temporary one.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", help="How many rounds to train.")] = 10,
) -> None:
    """Train with a server and four nodes on this machine.

    Kills one node during training and ends with a table. Everything is as on a network: separate processes, TLS, a key
    for each node, a folder for each device.
    """
    import tempfile

    _need_flower()
    from moiety.cli.output import say
    from moiety.deploy.demo import run_demo

    with tempfile.TemporaryDirectory(prefix="moiety-demo-") as scratch:
        status = run_demo(out or Path(scratch) / "demo", rounds, say)
    _show(*status)
    if out is not None:
        say(f"{out} has everything: try moiety deploy status {out / 'federation'}")


@deploy.command(context_settings=_HELP)
def run(
    app: Annotated[Path, typer.Argument(metavar="APP", help="The app: a folder of moiety deploy init.")],
    config: Annotated[
        str, typer.Option("--run-config", metavar="TEXT", help="As for flwr run: values that this run changes.")
    ] = "",
) -> None:
    """Train until all rounds are done.

    Calls flwr run. If the run ends early, because a process was killed or the SuperLink was away, it is started again,
    and continues after its last round. Gives up after seven attempts in a row that bring no new round.
    """
    _need_flower()
    from moiety.cli.output import say
    from moiety.deploy.attempts import run_until_done
    from moiety.deploy.commands import read_node_config

    run_until_done(app, read_node_config(config, "run-config"), say)


@deploy.command(context_settings=_HELP)
def status(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a federation on its server, or that of a device.")
    ],
) -> None:
    """Show the state of a federation, or of a device.

    For a federation: how far it is, and who was left out. For a device: what it has. Changes nothing.
    """
    _need_flower()
    from moiety.deploy.folders import read_status

    _show(*read_status(folder))


@deploy.command(context_settings=_HELP)
def export(
    device: Annotated[Path, typer.Argument(metavar="DEVICE", help="The folder of a device.")],
    target: Annotated[Path, typer.Argument(metavar="FILE.safetensors", help="Where the parameters go.")],
    app: Annotated[
        Path, typer.Option("--app", metavar="DIR", help="The app: a folder of moiety deploy init, or a Python file.")
    ] = Path("app"),
    config: Annotated[
        str, typer.Option("--node-config", metavar="TEXT", help="As for flower-supernode, if the app's data needs it.")
    ] = "",
) -> None:
    """Write the model that a device uses now.

    It has the shared part that the device received last, and its personal part.
    """
    _need_flower()
    from moiety.cli.output import say
    from moiety.deploy.folders import load_app, write_model

    count = write_model(load_app(app), device, target, config)
    say(f"Wrote {count} parameters to {target}")


def _show(sentence: str, head: list[str], rows: list[list[str]]) -> None:
    from moiety.cli.output import say, show
    from moiety.reports.console import table

    say(sentence)
    if rows:
        show(table(head, rows, text=(0, 1, len(head) - 1)))


def _need_flower() -> None:
    """Say how to install Flower where it is not there."""
    installed = all(importlib.util.find_spec(name) is not None for name in ("flwr", "cryptography"))
    hint = "As in: pip install 'moiety[flower]'."
    must(installed, "deploy", "used where flwr and cryptography are installed", "an environment without", hint)


def _ask_address() -> list[str]:
    """Ask for the server's addresses, where somebody is there to answer."""
    hint = "Give --address HOST: where nodes reach the server."
    must(sys.stdin.isatty(), "address", "given", "nothing", hint)
    answer: str = typer.prompt("Address under which nodes reach the server (host name or IP; several with spaces)")
    return answer.split()


def _warn_insecure() -> None:
    line = "=" * 78
    print(
        f"{line}\nmoiety: INSECURE: no TLS, no authentication. Everybody on the network can read what\n"
        f"crosses, change it, and join as a node. Use it on one machine, with nothing secret.\n{line}",
        file=sys.stderr,
    )
