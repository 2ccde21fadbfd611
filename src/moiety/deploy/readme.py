"""The README that ``moiety deploy init`` writes: every command of a trial, ready to be copied."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from moiety.deploy.commands import (
    CONNECTION,
    EAGER,
    QUIET,
    Link,
    executor_command,
    export_command,
    link_command,
    node_command,
    register_command,
    train_command,
    worker_command,
)
from moiety.deploy.keys import DAYS

WORKER_PORT = 9094
"""The port at which a node's worker takes its work, on the node's own machine."""
HOME = "flwr"

_LOUD = """
> **WITHOUT TLS AND AUTHENTICATION** (`--insecure`). Everybody on the network can read what crosses, change it, and
> join as a node. Use this on one machine, with data that nobody minds losing, and for nothing else.
"""

_TEXT = Template("""\
# A federation of moiety
$loud
`app/` is a Flower app. Server and devices run the same file, `app/federation.py`; what is trained stands in
`app/federation.toml`. `flwr run` packs `app/` and sends it to every node, so put no key and no data there.

Every machine needs `pip install "moiety[flower]"`. Run all commands in the folder of this file; keep it as it is, since
keys and settings are found by their place. Set these first, in every terminal:

```
$environment
```

## The server

It listens at port $port, for all of this: nodes, commands and its own executor. Let nodes reach it, and nobody else who
should not start runs: **in Flower 1.41 whoever reaches `/v1/control` at this port can start a run**, and a run is code
that nodes execute. On a network that is not all yours, put a proxy in front that lets nodes through to `/v1/fleet`
alone (docs/deployment.md of moiety has one).

1. The SuperLink, and its executor in a second terminal:

   ```
   $link
   ```

   ```
   $executor
   ```
$register
## Each node
$carry
Bring `app` there too, next to `keys`: whoever is responsible for the device reads what it will run, and to export its
model (below) takes the app as well.

Node 1 (of $count), and its worker in a second terminal:

```
$node
```

```
$worker
```

For node 2 write `node-2` for `node-1`, and `partition-id=1`. `name` is what the server calls this device. `folder` is
where the device keeps its personal state, its model and its journal: it is private (0700), it is never sent, and it
must be the same at every start. Node and worker may be stopped and started again at any time; after a kill, Flower lets
a node back in when a minute has passed. Other keys of `--node-config` go to the function that loads data, as in
`data="visits.csv"`.

## Train

```
$run
```

The run is in the folder `federation` of the server. This command calls `flwr run app $connection --stream`, and calls
it again if the run ends before all rounds are done. Each run continues after the last round, and devices notice
nothing. If the SuperLink or the executor was killed, start it again; if this command was, give it again. More rounds:
`--run-config "rounds=20"`.

```
moiety deploy status federation          # on the server: rounds, bytes, who took part
moiety deploy status devices/node-1      # on a device
$export
```

`--node-config` is what the node was started with, as far as the loading of data needs it.
$replace""")

_REGISTER = Template("""
2. Tell it the public key of each node, once:

   ```
   $commands
   ```
""")

_CARRY = """
Bring `keys/node-1` to the first node, `keys/node-2` to the second and so on, by a way that nobody can listen to. A node
needs its own folder and nothing else of `keys`; on the server no folder of a node is needed once its key is registered.
Never bring `keys/ca` anywhere: who has it can pretend to be the server.
"""

_REPLACE = Template("""
## Keys: how long they last, how to revoke and to replace them

The certificates of authority and server end together, $days days after they were made. Keys of nodes do not end by
themselves.

- **A node's key is lost or its machine stolen.** Look the node up and take it out; from then on it is refused:

  ```
  flwr supernode list $connection
  flwr supernode unregister NODE-ID $connection
  ```

  To let the device back in, give it a new key: move `keys/node-1` away, then

  ```
  moiety deploy keys . $addresses --nodes $count
  $again
  ```

  and bring the new `keys/node-1` to the device. Its folder stays, with all its personal state. To the server the device
  is the same client as long as its `name` is the same.
- **Another node.** `moiety deploy keys . $addresses --nodes $more` makes what is missing, and no more.
- **The server's key is lost, or its address changes.** Move `keys/server` away, run
  `moiety deploy keys . $addresses --nodes $count`, and start SuperLink and executor again. Nodes need nothing new.
- **The certificates end, or the authority's key is lost.** Move `keys/ca` and `keys/server` away, run
  `moiety deploy keys . $addresses --nodes $count`, and start SuperLink and executor again. Bring the new
  `keys/server/ca.crt` to every node, in place of its `ca.crt`, and start the node again. Keys of nodes stay.
- **After the trial** remove `keys`, and the nodes' copies.

These keys are for a trial. In an institution take the server's certificate from its own authority, keep it where that
authority says, and give nodes the authority's certificate as `ca.crt`.
""")


def write_readme(link: Link, addresses: Sequence[str], nodes: Sequence[str]) -> str:
    """The text; paths of ``link`` are as seen from the folder of the README."""
    secure = link.keys is not None
    options = " ".join(f"--address {shlex.quote(address)}" for address in addresses)
    register = "\n   ".join(shlex.join(register_command(link, node)) for node in nodes) if secure else ""
    config: Mapping[str, str | int] = {"partition-id": 0, "name": nodes[0], "folder": f"devices/{nodes[0]}"}
    environment = {"FLWR_HOME": f'"$PWD/{HOME}"', **QUIET, **EAGER, "OMP_NUM_THREADS": "1"}
    return _TEXT.substitute(
        loud="" if secure else _LOUD,
        environment="\n".join(f"export {key}={value}" for key, value in environment.items()),
        port=link.port,
        link=_fold(link_command(link, "0.0.0.0", Path("superlink.db")), "   "),
        executor=_fold(executor_command(link), "   "),
        register=_REGISTER.substitute(commands=register) if secure else "",
        carry=_CARRY if secure else "",
        count=len(nodes),
        node=_fold(node_command(link, nodes[0], config, WORKER_PORT, isolation="process")),
        worker=_fold(worker_command(link, nodes[0], WORKER_PORT)),
        run=_fold(train_command(Path("app"))),
        connection=CONNECTION,
        export=shlex.join(export_command(f"devices/{nodes[0]}", {"partition-id": 0})),
        replace=_REPLACE.substitute(
            days=DAYS,
            connection=CONNECTION,
            addresses=options,
            count=len(nodes),
            again=shlex.join(register_command(link, nodes[0])),
            more=len(nodes) + 1,
        )
        if secure
        else "",
    )


def _fold(command: Sequence[str], indent: str = "", width: int = 100) -> str:
    """A command over several lines of about ``width``, broken before options."""
    lines: list[str] = []
    for word in command:
        if not lines or (word.startswith("--") and len(lines[-1]) > width - 45):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return f" \\\n{indent}    ".join(lines)
