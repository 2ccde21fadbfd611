"""The commands that start a federation's processes, said once: the README of ``init``, ``demo`` and the tests use them.

Everything goes through one port of the server. Each process of Flower that computes (an executor) shows a secret to
the SuperLink or SuperNode that it takes work from; without one, anybody who reaches the port could take that work.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moiety.deploy.keys import CA_CERTIFICATE, CERTIFICATE, KEY, NODE_KEY, NODE_PUBLIC, SECRET, SERVER
from moiety.errors import must, report_errors
from moiety.files import read_toml
from moiety.run.trackers import flatten_config

PORT = 9092
"""The port of the SuperLink, unless another is given."""
CONNECTION = "trial"
"""What ``flwr`` calls the SuperLink in its ``config.toml``."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""The environment of every process: Flower asks nobody outside the federation anything."""
EAGER = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
"""The environment of executors: how often, in seconds, they look for work."""

EXAMPLES = {"node-config": "as in 'partition-id=0 data=\"visits.csv\"'", "run-config": "as in 'rounds=20'"}
"""What the options look like that hold a configuration."""
_PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")
"""A key and its value, as Flower finds them."""
WORKER = ("python", "-m", "moiety.deploy.worker")
"""What computes for a node; with ``node`` or ``executor``, Flower's process of that kind, made to last."""


@dataclass(frozen=True)
class Link:
    """How the SuperLink is reached.

    Attributes:
        address: the host name or IP address that nodes use.
        port: its port.
        keys: the folder of ``make_keys``; None for a federation without TLS and authentication.
    """

    address: str
    port: int = PORT
    keys: Path | None = None

    @property
    def place(self) -> str:
        """Host and port, as Flower's commands take them."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    def trust(self, party: str) -> list[str]:
        """How a ``party`` (a folder of the keys) knows the server for the right one."""
        return ["--insecure"] if self.keys is None else ["--root-certificates", str(self.keys / party / CA_CERTIFICATE)]


def link_command(link: Link, host: str, database: Path) -> list[str]:
    """Start the SuperLink: it listens at ``host``, and keeps messages in ``database`` so that it can be restarted."""
    command = ["flower-superlink", "--isolation", "process", "--disable-runtime-dependency-installation"]
    command += ["--database", str(database), "--host", host, "--port", str(link.port)]
    if link.keys is None:
        return [*command, "--insecure"]
    own = link.keys / SERVER
    command += ["--ssl-ca-certfile", str(own / CA_CERTIFICATE), "--ssl-certfile", str(own / CERTIFICATE)]
    command += ["--ssl-keyfile", str(own / KEY), "--superexec-auth-secret-file", str(own / SECRET)]
    return [*command, "--enable-supernode-auth"]


def executor_command(link: Link) -> list[str]:
    """Start the process beside the SuperLink that runs the server's side of the app, and outlives errors that pass."""
    command = [*WORKER, "executor", "--runtime-api-address", link.place, *link.trust(SERVER)]
    return (
        command if link.keys is None else [*command, "--superexec-auth-secret-file", str(link.keys / SERVER / SECRET)]
    )


def node_command(
    link: Link, node: str, config: Mapping[str, str | int], port: int, *, isolation: str = "subprocess"
) -> list[str]:
    """Start a SuperNode with its own key; ``config`` is told to the app, and never leaves the node.

    With ``isolation="process"`` a worker takes the node's work through ``port`` of this machine alone, and the node
    looks for messages often (``moiety.deploy.worker`` says how).
    """
    start = [*WORKER, "node"] if isolation == "process" else ["flower-supernode"]
    command = [*start, "--superlink", link.place, *link.trust(node), "--port", str(port)]
    if link.keys is not None:
        command += ["--auth-supernode-private-key", str(link.keys / node / NODE_KEY)]
    if isolation == "process":
        command += ["--isolation", "process"]
        if link.keys is not None:
            command += ["--superexec-auth-secret-file", str(link.keys / node / SECRET)]
    return [*command, "--node-config", _write_config(config)]


def worker_command(link: Link, node: str, port: int) -> list[str]:
    """Start the process that computes for a node: it loads its libraries once and answers message after message."""
    command = [*WORKER, "--runtime-api-address", f"127.0.0.1:{port}", "--insecure"]
    return command if link.keys is None else [*command, "--superexec-auth-secret-file", str(link.keys / node / SECRET)]


def register_command(link: Link, node: str) -> list[str]:
    """Tell the SuperLink the public key of a node."""
    assert link.keys is not None
    return ["flwr", "supernode", "register", str(link.keys / node / NODE_PUBLIC), CONNECTION]


_REGISTER = """
import sys
from importlib.metadata import entry_points
(flwr,) = entry_points(group="console_scripts", name="flwr")
command = flwr.load()
for key in sys.argv[2:]:
    command(["supernode", "register", key, sys.argv[1]], standalone_mode=False)
"""


def register_all(link: Link, nodes: Sequence[str]) -> list[str]:
    """The same for many nodes, in one process: to start ``flwr`` takes a second or more."""
    return [sys.executable, "-c", _REGISTER, CONNECTION, *(register_command(link, node)[3] for node in nodes)]


def run_command(app: Path, config: Mapping[str, str | int | float] | None = None) -> list[str]:
    """Start a run of the app in ``app`` and show its log until it ends."""
    command = ["flwr", "run", str(app), CONNECTION, "--stream"]
    return [*command, "--run-config", _write_config(config)] if config else command


def train_command(app: Path) -> list[str]:
    """Run the app in ``app`` until all rounds are done, with new attempts where the run ends early."""
    return ["moiety", "deploy", "run", str(app)]


def export_command(device: str, config: Mapping[str, str | int]) -> list[str]:
    """Write the model of a device, whose node has this ``config``, to a file."""
    return ["moiety", "deploy", "export", device, "model.safetensors", "--node-config", _write_config(config)]


def _write_config(config: Mapping[str, str | int | float]) -> str:
    """A configuration as Flower's commands take it."""
    return " ".join(f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in config.items())


def read_node_config(text: str, name: str = "node-config") -> dict[str, Any]:
    """A configuration that was written as Flower's commands take it: pairs, or the name of a TOML file.

    ``name`` is the option's.

    >>> read_node_config('partition-id=0 data="visits of May.csv"')
    {'partition-id': 0, 'data': 'visits of May.csv'}
    """
    if text.endswith(".toml"):
        return flatten_config(read_toml(Path(text).expanduser()))
    pairs = _PAIR.findall(text)
    rest = _PAIR.sub("", text).strip()
    example = EXAMPLES[name]
    must(not rest, name, example, rest)
    with report_errors(name, example, tomllib.TOMLDecodeError):
        return flatten_config(tomllib.loads("\n".join(f"{key} = {value}" for key, value in pairs)))


def connection_tables(link: Link) -> dict[str, object]:
    """What ``flwr`` needs to find the SuperLink: the tables of ``config.toml`` in its folder ``FLWR_HOME``."""
    table: dict[str, object] = {"address": link.place}
    if link.keys is None:
        table["insecure"] = True
    else:
        table["root-certificates"] = str((link.keys / SERVER / CA_CERTIFICATE).absolute())
    return {"superlink": {"default": CONNECTION, CONNECTION: table}}
