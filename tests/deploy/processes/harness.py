"""A federation of real processes for tests: started, watched with a limit of time, and always ended."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import site_app
import tomli_w
import torch
from proxy import Proxy
from safetensors.numpy import load_file

import moiety as mo
from moiety import tree
from moiety.clients.cohorts import uniform_cohort
from moiety.deploy.commands import Link
from moiety.deploy.init import project_tables
from moiety.deploy.journal import Journal
from moiety.deploy.local import EXECUTOR, LINK, LocalFederation
from moiety.deploy.processes import wait_until
from moiety.loop import round as loop_round
from moiety.run.folder import read_history, read_id

NODES = [f"site-{k + 1}" for k in range(len(site_app.SIZES))]
LONG = 900.0
"""Seconds after which a test gives up: what it waits for is an event, and a busy machine is slow."""
PHASES = ("joining", "before-storing", "after-storing", "pushing", "evaluating", "ending", "lie")
"""Where ``site_app`` lets a test hold a node, and ``lie``."""
WELCOME = "SuperNode ID"
"""What a node prints when the SuperLink has let it in."""


class Trial(LocalFederation):
    """Four nodes with the data of ``site_app``; folders of devices are ``devices/NAME``."""

    def __init__(self, folder: Path, *, secure: bool = True, persistent: bool = True) -> None:
        super().__init__(folder, NODES, secure=secure, persistent=persistent)
        self.pauses = folder / "pauses"
        self.pauses.mkdir()
        self.proxy: Proxy | None = None
        self.links: dict[str, Link] = {}

    def start(self, proxy: Proxy | None = None, by_proxy: Sequence[str] = ()) -> None:
        """Start everything; some nodes may reach the server by a proxy."""
        self.proxy = proxy
        if proxy is not None:
            self.links = dict.fromkeys(by_proxy, replace(self.link, port=proxy.port))
        self.start_server()
        for node in self.nodes:
            self.start_site(node)

    def start_site(self, node: str) -> None:
        """Start a node and its worker."""
        config = {"name": node, "folder": str(self.folder / "devices" / node)}
        self.start_node(node, config, self.links.get(node))

    def bring_back(self, node: str) -> None:
        """Start a node that was killed, again and again: Flower lets it in when it counts as gone, a minute later."""
        workers = f"{node}-worker"

        def is_in() -> bool:
            if node in self.processes.running and self.processes.has_ended(node):
                self.processes.stop(node, workers)
            if node not in self.processes.running:
                self.seen = len(self.processes.log(node))
                self.processes.stop(workers)
                self.start_site(node)
            return WELCOME in self.processes.log(node)[self.seen :]

        wait_until(is_in, LONG, f"{node} back in the federation")

    def recover(self) -> None:
        """After a test, however it ended: whatever it started ends, and the federation is whole again."""
        end_server_processes(self)
        parts = [*self.nodes, *(f"{node}-worker" for node in self.nodes)] if self.persistent else self.nodes
        self.processes.stop(*(set(self.processes.running) - {LINK, EXECUTOR, *parts}))
        for node in self.nodes:
            for phase in PHASES:
                self.let_go(node, phase)
        if self.proxy is not None:
            self.proxy.mend()
        for name, start in ((LINK, self.start_link), (EXECUTOR, self.start_executor)):
            if name not in self.processes.running or self.processes.has_ended(name):
                self.processes.stop(name)
                start()
        for node in self.nodes:
            if any(
                name not in self.processes.running or self.processes.has_ended(name) for name in parts if node in name
            ):
                self.processes.stop(node, f"{node}-worker")
                self.bring_back(node)

    def home(self, party: str) -> dict[str, str]:
        """The environment of a party; a node has its own folder of pauses."""
        pauses = {} if party == "server" else {"TEST_PAUSES": str(self.pauses / party)}
        if pauses:
            (self.pauses / party).mkdir(exist_ok=True)
        return {**super().home(party), **pauses}

    def hold(self, node: str, phase: str) -> None:
        """Let a node stop at a phase when it next comes there; with ``lie``, let it lie from now on."""
        (self.pauses / node / f"{phase}.want").touch()

    def wait_held(self, node: str, phase: str, seconds: float = LONG) -> None:
        """Wait until the node stands there."""
        wait_until((self.pauses / node / f"{phase}.here").exists, seconds, f"{node} at {phase}")

    def let_go(self, node: str, phase: str) -> None:
        """Let a node that is held go on."""
        for end in ("want", "here"):
            (self.pauses / node / f"{phase}.{end}").unlink(missing_ok=True)

    def submit(self, name: str, **choice: Any) -> Path:
        """Write an app and hand it in; the server's folder of the run."""
        out = self.folder / name
        app = write_app(self.folder / "apps" / name, {"algorithm": "fedalt", **choice, "out": str(out)})
        self.begin(app)
        return out

    def finish(self, out: Path, seconds: float = LONG) -> None:
        """Wait for the end of the run, and see that it is a real one: the ledger is written last.

        ``flwr run`` may lose sight of a run that goes on, so the server's process counts, too.
        """
        self.processes.wait("run", seconds)
        wait_until(lambda: not server_processes(self), seconds, f"the end of the server of {out.name}")
        logs = "\n".join(f"{name}: {self.processes.log(name)[-3000:]}" for name in ("run", EXECUTOR, LINK))
        assert (out / "ledger.json").exists(), logs

    def wait_round(self, out: Path, number: int, seconds: float = LONG) -> None:
        """Wait until the server has finished a round."""
        wait_until(lambda: rounds_of(out) >= number, seconds, f"round {number} of {out.name}")

    def wait_part(self, out: Path, node: str, taken: bool = True) -> None:
        """Wait until a node takes part in a round after this moment, or with ``taken=False`` until it is left out."""
        start, client = rounds_of(out), NODES.index(node)

        def has_come() -> bool:
            cohorts, participants = list_cohorts(out, rounds_of(out))
            rounds = zip(cohorts[start:], participants[start:], strict=True)
            return any(client in cohort and (client in members) == taken for cohort, members in rounds)

        wait_until(has_come, LONG, f"{node} {'taking part' if taken else 'left out'}")


def rounds_of(out: Path) -> int:
    """The newest round whose checkpoint is there."""
    names = (re.fullmatch(r"round-(\d+)", each.name) for each in (out / "checkpoint").glob("round-*"))
    return max((int(name[1]) for name in names if name), default=0)


def write_app(folder: Path, choice: Mapping[str, Any]) -> Path:
    """A Flower app of ``site_app`` with another choice."""
    folder.mkdir(parents=True)
    source = Path(site_app.__file__).read_text()
    text = re.sub(r"^CHOICE: .*$", lambda _: f"CHOICE = {dict(choice)!r}", source, count=1, flags=re.M)
    assert text != source or choice == site_app.CHOICE
    (folder / "federation.py").write_text(text)
    config = {key: choice[key] for key in ("out", "rounds") if key in choice}  # ``flwr run`` may set these anew
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project_tables(config)))
    return folder


def list_cohorts(out: Path, rounds: int, least: int = 1) -> tuple[list[list[int]], list[list[int]]]:
    """For each round the clients that were asked, and those who took part: nobody where fewer than ``least`` did.

    The server's history says who was left out.
    """
    names = site_app.make_data().ids
    absent = set()
    for row in read_history(out):
        pairs = zip(row["dropped"], row.get("dropped_reasons", ()), strict=True)
        absent |= {place for place, why in pairs if not why.startswith("not evaluated")}
    cohorts, participants = [], []
    for t in range(rounds):
        cohorts.append([int(client) for client in uniform_cohort(len(names), 3, seed=5, round=t)])
        members = [client for client in cohorts[-1] if f"{t + 1}:{names[client]}" not in absent]
        participants.append(members if len(members) >= least else [])
    return cohorts, participants


def check_equals_simulation(
    out: Path, folder: Path, algorithm: str, rounds: int, least: int = 1, cohorts: list[list[int]] | None = None
) -> list[list[int]]:
    """Server and devices ended, to the bit, as a simulation of those who took part; the clients of each round.

    The history says who took part where devices were asked three at a time; ``cohorts`` says it otherwise.
    """
    model, method, split = site_app.make_parts(algorithm)
    data = site_app.make_data()
    cohorts = list_cohorts(out, rounds, least)[1] if cohorts is None else cohorts

    def take_part(clients: int, size: int, *, seed: int, round: int) -> np.ndarray:
        return np.array(cohorts[round], dtype=np.int64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_round, "uniform_cohort", take_part)
        options = {"rounds": rounds, "cohort": 3, "seed": 5, "engine": "sequential"}
        simulated = mo.fit(model, data, method, split=split, out=folder / f"simulated-{out.name}", **options)
    newest = f"checkpoint/round-{rounds:08d}/server.safetensors"
    assert read_bits(simulated.folder / newest) == read_bits(out / newest)
    first, run = simulated._loop.problem.first_state(simulated._loop.algorithm), read_id(out)
    for client, name in enumerate(data.ids):
        turns = [t for t, cohort in enumerate(cohorts) if client in cohort]
        state = simulated._loop.progress.store.get([client])[0]
        mine = Journal(folder / "devices" / str(name), run).read_state(turns[-1], first) if turns else first
        assert leaf_bits(mine) == leaf_bits(state if simulated._loop.keeps_states else first), name
    return cohorts


def read_bits(path: Path) -> dict[str, Any]:
    """Every tensor of a file: its type, its shape and its bytes."""
    return {name: (str(each.dtype), each.shape, each.tobytes()) for name, each in load_file(path).items()}


def leaf_bits(value: Any) -> dict[str, bytes]:
    """Every number of a state, as bytes."""
    return {name: torch.as_tensor(each).contiguous().numpy().tobytes() for name, each in tree.leaves(value).items()}


def server_processes(trial: LocalFederation) -> list[psutil.Process]:
    """The processes that run the server's side of apps."""
    executor = trial.processes.running.get(EXECUTOR)
    if executor is None or executor.poll() is not None:
        return []
    return [each for each in psutil.Process(executor.pid).children(recursive=True) if runs_server(each)]


def runs_server(process: psutil.Process) -> bool:
    """Whether a process goes on and runs the server's side of an app."""
    with contextlib.suppress(psutil.NoSuchProcess):  # another one that ends in this moment says nothing of the rest
        return not is_gone(process) and "flwr-serverapp" in " ".join(process.cmdline())
    return False


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended; its parent may never ask for how it did."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return True


def end_server_processes(trial: LocalFederation) -> None:
    """Kill whatever runs the server's side of an app, and nothing else."""
    for process in server_processes(trial):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
        wait_until(lambda process=process: is_gone(process), 60, "the end of the server's process")  # type: ignore[misc]


def kill_server_process(trial: LocalFederation) -> None:
    """Kill the one process that runs the server's side of the app."""
    assert len(server_processes(trial)) == 1
    end_server_processes(trial)
