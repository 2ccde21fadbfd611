"""``moiety deploy init``: a folder with a complete Flower app, the keys of a trial, and a README of exact commands.

DIR/README.md            every command, for the server and for each node
DIR/app/                 what ``flwr run`` packs and sends to every node; it holds no key
DIR/app/federation.toml  what is trained, as a file of ``moiety run`` says it
DIR/keys/                one folder for each party (``keys.py``); absent with ``--insecure``
DIR/flwr/config.toml     where ``flwr`` finds the server (``FLWR_HOME``)
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from moiety.deploy.commands import PORT, Link, connection_tables
from moiety.deploy.keys import make_keys, read_addresses
from moiety.deploy.readme import HOME, write_readme
from moiety.errors import must, whole
from moiety.files import make_folder, write_file

APP, KEYS, FILE, OUT = "app", "keys", "federation.toml", "federation"
MOST_NODES = 1000
"""The most nodes that get keys."""

DEFAULT = """\
# What the devices train together. Server and devices read this same file.
[data]
name = "digits"
clients = 4
seed = 0

[data.partition]
name = "dirichlet"
alpha = 0.3

[model]
name = "mlp"
hidden = [32]
seed = 0

[split]
name = "output_layer"

[algorithm]
name = "fedalt"
shared = 0.5
personal = 0.5

[run]
rounds = 10
seed = 0
"""

FEDERATION = '''\
"""Both sides of the federation: this file runs on the server and, the same, on every device."""

from pathlib import Path

import moiety as mo

declared = mo.deploy.read_file(Path(__file__).with_name("federation.toml"))

# To load rows in your own way, write a function from the node's configuration to data of one client, and set
# declared["data"] = load_site. It runs on the device; what it gives stays there.
app = mo.deploy.app(**declared)
client = app.client
server = app.server
'''


def write_app(
    folder: Path,
    addresses: Sequence[str],
    *,
    file: Path | None = None,
    port: int = PORT,
    nodes: int = 4,
    secure: bool = True,
) -> None:
    """Write all of it into a new folder.

    Args:
        folder: a folder that is not there yet, or an empty one.
        addresses: host names or IP addresses under which nodes reach the server; the first is written into commands.
        file: a file as for ``moiety run``; by default a small one on handwritten digits.
        port: the server's port.
        nodes: how many nodes get keys.
        secure: with TLS and authentication of nodes; without them everybody on the network can read and join.
    """
    whole("nodes", nodes, 1, MOST_NODES)
    whole("port", port, 1, 65535)
    read_addresses(addresses)
    empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    must(empty, "folder", "a new or an empty one", f"{folder}, which holds something", "Nothing was written.")
    rounds = tomllib.loads(DEFAULT)["run"]["rounds"] if file is None else _try_file(file)
    content = DEFAULT.encode() if file is None else file.read_bytes()
    make_folder(folder)
    make_folder(folder / APP, private=False)
    names = name_nodes(nodes)
    for name, text in {
        "pyproject.toml": tomli_w.dumps(project_tables({"rounds": rounds, "out": OUT})).encode(),
        "federation.py": FEDERATION.encode(),
        FILE: content,
        ".gitignore": b"*.fab\n__pycache__/\n",
    }.items():
        write_file(folder / APP / name, text, private=False)
    link = Link(addresses[0], port, (folder / KEYS) if secure else None)
    if secure:
        make_keys(folder / KEYS, addresses, names)
    write_connection(folder / HOME, link)
    write_file(
        folder / "README.md",
        write_readme(replace(link, keys=Path(KEYS) if secure else None), addresses, names).encode(),
        private=False,
    )


def _try_file(file: Path) -> int:
    """Refuse a file that no app can be made of, here and not first on a device; its rounds."""
    from moiety.deploy.app import app  # loads what trains, which nothing else here needs
    from moiety.deploy.declared import read_file

    return app(**read_file(file)).plan.rounds


def write_connection(home: Path, link: Link) -> None:
    """Write the file in which ``flwr`` finds the SuperLink."""
    make_folder(home)
    write_file(home / "config.toml", tomli_w.dumps(connection_tables(link)).encode())


def name_nodes(count: int) -> list[str]:
    """The names of a trial's nodes: ``node-1``, ``node-2`` and so on."""
    return [f"node-{number}" for number in range(1, count + 1)]


def count_nodes(keys: Path) -> int:
    """How many nodes have keys: the highest number of their folders, for one before it may have been moved away."""
    matches = (re.fullmatch(r"node-([1-9]\d{0,3})", each.name) for each in keys.iterdir() if each.is_dir())
    return max((int(match[1]) for match in matches if match), default=0)


def project_tables(config: Mapping[str, str | int | float]) -> dict[str, Any]:
    """The tables of ``pyproject.toml``: what Flower must know of the app. ``flwr run`` may set ``config`` anew."""
    flower = {
        "publisher": "moiety",
        "components": {"serverapp": "federation:server", "clientapp": "federation:client"},
        "config": dict(config),
    }
    project = {
        "name": "federation",
        "version": "1.0.0",
        "description": "A federation of moiety",
        "license": "Apache-2.0",
        "dependencies": ["moiety[flower]"],
    }
    return {"project": project, "tool": {"flwr": {"app": flower}}}
