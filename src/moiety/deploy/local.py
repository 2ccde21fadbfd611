"""A whole federation on this machine: SuperLink, executor, nodes and their workers, each with its own folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from moiety.deploy.commands import (
    EAGER,
    Link,
    executor_command,
    link_command,
    node_command,
    register_all,
    run_command,
    worker_command,
)
from moiety.deploy.init import write_connection
from moiety.deploy.keys import make_keys
from moiety.deploy.processes import Processes, free_ports, is_reachable, wait_until
from moiety.errors import must
from moiety.files import make_folder

HERE = "127.0.0.1"
LINK, EXECUTOR, RUN = "link", "executor", "run"
PATIENCE = 120.0
"""Seconds that a process has to be ready; a busy machine takes long to load libraries."""


class LocalFederation:
    """Starts and ends the processes of a federation in ``folder``; leaving the block ends all of them.

    Attributes:
        persistent: a worker of moiety computes for each node, and loads its libraries once; else Flower starts a
            process for every message.
        link: how the SuperLink is reached.
        processes: what runs, by name: ``link``, ``executor``, and for each node ``NAME`` and ``NAME-worker``.
    """

    def __init__(self, folder: Path, nodes: Sequence[str], *, secure: bool = True, persistent: bool = True) -> None:
        self.folder, self.nodes, self.persistent = make_folder(folder), list(nodes), persistent
        keys = folder / "keys" if secure else None
        if keys is not None:
            make_keys(keys, [HERE], self.nodes)
        port, *rest = free_ports(1 + len(self.nodes))
        self.link = Link(HERE, port, keys)
        self.worker_ports = dict(zip(self.nodes, rest, strict=True))
        self.processes = Processes(folder / "logs")
        self.environment = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **EAGER}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.processes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def home(self, party: str) -> dict[str, str]:
        """The environment of a party: its own folder of Flower."""
        return {**self.environment, "FLWR_HOME": str(make_folder(self.folder / "flwr" / party))}

    def start_server(self) -> None:
        """Start SuperLink and executor, and tell the SuperLink the nodes' keys."""
        self.start_link()
        self.start_executor()
        write_connection(self.folder / "flwr" / "server", self.link)
        if self.link.keys is not None:
            self.call("register", register_all(self.link, self.nodes))

    def start_link(self) -> None:
        """Start the SuperLink, or start it again, and wait until it answers."""
        self.processes.start(LINK, link_command(self.link, HERE, self.folder / "superlink.db"), self.home("server"))
        wait_until(lambda: self._alive(LINK) and is_reachable(self.link), PATIENCE, "SuperLink")

    def start_executor(self) -> None:
        """Start the process that runs the server's side of the app."""
        self.processes.start(EXECUTOR, executor_command(self.link), self.home("server"))

    def start_node(self, node: str, config: Mapping[str, str | int], link: Link | None = None) -> None:
        """Start a node and its worker; it may reach the SuperLink by another ``link``."""
        target, port = link or self.link, self.worker_ports[node]
        isolation = "process" if self.persistent else "subprocess"
        self.processes.start(node, node_command(target, node, config, port, isolation=isolation), self.home(node))
        if self.persistent:
            self.start_worker(node)

    def start_worker(self, node: str) -> None:
        """Start the process that computes for a node."""
        command = worker_command(self.link, node, self.worker_ports[node])
        self.processes.start(f"{node}-worker", command, self.home(node))

    def kill_node(self, node: str) -> None:
        """Kill a node and its worker, as a power cut does."""
        self.processes.kill(node)
        if self.persistent:
            self.processes.kill(f"{node}-worker")

    def begin(self, app: Path, config: Mapping[str, str | int | float] | None = None) -> None:
        """Hand the app in: its run begins as soon as the executor takes it."""
        self.processes.start(RUN, run_command(app, config), self.home("server"))

    def call(self, name: str, command: Sequence[str], seconds: float = PATIENCE) -> str:
        """Run a command to its end; what it printed."""
        before = len(self.processes.log(name))
        self.processes.start(name, command, self.home("server"))
        code = self.processes.wait(name, seconds)
        must(code == 0, name, "a command that succeeds", f"exit code {code}", self.processes.tell(name))
        return self.processes.log(name)[before:]

    def _alive(self, name: str) -> bool:
        must(
            not self.processes.has_ended(name), name, "a process that runs", "one that ended", self.processes.tell(name)
        )
        return True
