"""Processes of a federation on this machine: started, watched, stopped, and never left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from moiety.deploy.commands import QUIET, Link
from moiety.deploy.keys import CA_CERTIFICATE, SERVER
from moiety.errors import must, refuse
from moiety.files import make_folder, open_stream

GRACE = 5.0
"""Seconds that a process has to end before it is killed."""


class Processes:
    """Processes by name, each with a log of its own in ``folder``; leaving the block ends them all.

    A process and all it starts are one group, so that nothing survives it. On Linux they end with this process too,
    even where it is killed.
    """

    def __init__(self, folder: Path):
        self.folder = make_folder(folder)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(*self.running)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a command; what it prints is added to its log."""
        must(name not in self.running, "process", "one that does not run", name)
        with open_stream(self.folder / f"{name}.log", append=True) as log:
            self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log.fileno(),
                stderr=subprocess.STDOUT,
                env={**os.environ, **QUIET, "PATH": search_path(), **(environment or {})},
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    def kill(self, name: str) -> None:
        """End a process and all it started at once, without a chance to tidy up."""
        process = self.running.pop(name)
        _signal(process, signal.SIGKILL)
        process.wait()

    def stop(self, *names: str) -> None:
        """Ask processes to end, and kill those that do not."""
        processes = [self.running.pop(name) for name in names if name in self.running]
        for process in processes:
            _signal(process, signal.SIGTERM)
        end = time.monotonic() + GRACE
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(end - time.monotonic(), 0.01))
            _signal(process, signal.SIGKILL)  # whatever is left of its group
            process.wait()

    def wait(self, name: str, seconds: float) -> int:
        """Wait for a process to end by itself; its exit code."""
        process = self.running[name]
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            refuse(name, f"ended within {seconds:g} s", "a process that goes on", self.tell(name))
        _signal(process, signal.SIGKILL)
        del self.running[name]
        return code

    def has_ended(self, name: str) -> bool:
        """Whether a process has ended by itself."""
        return self.running[name].poll() is not None

    def log(self, name: str) -> str:
        """What a process has printed."""
        with contextlib.suppress(OSError):
            return (self.folder / f"{name}.log").read_text(errors="replace")
        return ""

    def tell(self, name: str) -> str:
        """The end of a log, for a message."""
        return f"Its log ends: {self.log(name)[-300:]}"


def wait_until(ready: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until ``ready()``; one line where that takes longer than ``seconds``."""
    end = time.monotonic() + seconds
    while not ready():
        must(time.monotonic() < end, what, f"there within {seconds:g} s", "nothing")
        time.sleep(0.05)


def is_reachable(link: Link) -> bool:
    """Whether the SuperLink answers at its address, with the certificate that nodes expect."""
    scheme, context = "http", None
    if link.keys is not None:
        scheme = "https"
        context = ssl.create_default_context(cafile=str(link.keys / SERVER / CA_CERTIFICATE))
    try:
        with urllib.request.urlopen(f"{scheme}://{link.place}/health", timeout=2, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens at now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def search_path() -> str:
    """The search path, with the commands of the environment that this Python belongs to first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _end_with_parent() -> None:
    """In the new process: let Linux end it when its parent dies (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
