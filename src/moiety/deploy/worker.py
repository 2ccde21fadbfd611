"""A worker that stays: it computes for one SuperNode, message after message, and loads its libraries once.

Flower starts a process for every message, which imports torch anew: seconds a round. This file does what that process
does, again and again, with parts of Flower that are not public (``flower_private.py``). With another version of Flower
it hands over to ``flower-superexec``, Flower's own way: slower, with the same answers.

    python -m moiety.deploy.worker node --isolation process --port 19000 ...
    python -m moiety.deploy.worker --runtime-api-address 127.0.0.1:19000 --insecure
    python -m moiety.deploy.worker executor --runtime-api-address 192.168.1.5:9092 ...

The first is ``flower-supernode`` with the same options, by ``node.py``; the third, for the server, is
``flower-superexec``, by ``executor.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Error, Message

from moiety.deploy import flower_private
from moiety.deploy.calls import is_unknown_token
from moiety.deploy.executor import run_executor
from moiety.deploy.flower_private import PAUSE, Rule, Task, is_known, shorten_waits, tell_version
from moiety.deploy.letters import tell_sender
from moiety.deploy.modules import forget_modules
from moiety.deploy.node import run_node
from moiety.errors import MoietyError

RAISED = 2
"""Flower's code for an app that raised an exception."""
BEAT = 10.0
"""Seconds between two signs of life during a task; Flower gives a task up after 60 without one."""

log = logging.getLogger("moiety")


def hand_over(arguments: Sequence[str]) -> None:
    """Let Flower's own executor take this process's place."""
    print(f"{tell_version()}: a process for every message, by flower-superexec.", file=sys.stderr)
    command = Path(sys.executable).with_name("flower-superexec")
    name = str(command) if command.exists() else "flower-superexec"
    os.execvp(name, [name, *arguments])


def make_calm_invoker() -> Any:
    """Flower's way to call again after a break, which leaves this process alive where a task is lost.

    By itself it ends the process where the SuperNode does not know the token of a task any more. That is so after a
    pause of a minute (a laptop asleep, a machine that was halted), and where the SuperNode was started again.
    """

    def give_tasks_up(rule: Rule) -> Rule:
        return lambda error: is_unknown_token(error) or rule(error)

    return flower_private.change_rule(flower_private.shorten_pauses(flower_private.make_invoker()), give_tasks_up)


class Worker:
    """Takes tasks of one SuperNode and answers them, one after the other."""

    def __init__(self, address: str, certificates: bytes | None, secret: bytes | None) -> None:
        self.address, self.certificates = address, certificates
        self.apps: dict[str, Callable[..., Message]] = {}
        """ClientApps by the hash of their package, each loaded once."""
        self.line = flower_private.connect_worker(address, certificates, make_calm_invoker(), secret)

    @contextlib.contextmanager
    def open_task(self, token: str) -> Iterator[Any]:
        """The line to the SuperNode for one task, with signs of life while it lasts."""
        line = flower_private.connect_task(self.address, self.certificates, make_calm_invoker(), token)
        end = threading.Event()

        def beat() -> None:
            while not end.wait(BEAT):
                with contextlib.suppress(Exception):  # what comes next says that the task is lost
                    flower_private.send_beat(line)

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield line
        finally:
            end.set()
            line.close()

    def load(self, task: Task) -> Callable[..., Message]:
        """The ClientApp of a task, loaded once in this process."""
        number = task.fab.hash_str
        if number not in self.apps:
            forget_modules(flower_private.find_apps_folder())
            self.apps[number] = flower_private.load_client_app(task)
        return self.apps[number]

    def serve(self, token: str) -> None:
        """Do one task: pull the message, let the app answer it, push the answer."""
        with self.open_task(token) as line:
            task, failure = flower_private.pull_task(line), ""
            try:
                answer = self.load(task)(message=task.message, context=task.context)
            except Exception as error:
                log.exception("the app raised an exception")
                failure = tell_sender(error)  # its text may hold data
                answer = Message(Error(code=RAISED, reason=failure), reply_to=task.message)
            flower_private.push_answer(line, answer, task.context, failure)

    def serve_for_ever(self) -> None:
        """Take tasks until the process is asked to end; a SuperNode that is away is waited for."""
        while True:
            began = time.monotonic()
            try:
                token = flower_private.acquire_token(self.line)
                if token is not None:
                    self.serve(token)
                    gc.collect(0)
                    continue
            except Exception as error:
                log.warning("no task: %s", error)
                time.sleep(1.0)
            # A SuperNode of Flower's own does not keep a question.
            time.sleep(max(0.0, began + PAUSE - time.monotonic()))


def main(arguments: Sequence[str]) -> int:
    """The command."""
    if arguments[:1] == ["node"]:
        run_node(arguments[1:])
        return 0
    if arguments[:1] == ["executor"]:
        run_executor(arguments[1:])
        return 0
    parser = argparse.ArgumentParser(prog="python -m moiety.deploy.worker", description=__doc__.partition("\n")[0])
    parser.add_argument("--runtime-api-address", required=True, help="where the SuperNode listens for its worker")
    parser.add_argument("--insecure", action="store_true", help="without TLS, for an address of this machine")
    parser.add_argument("--root-certificates", help="the certificate of the authority, with TLS")
    parser.add_argument("--superexec-auth-secret-file", help="the secret that the SuperNode was started with")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("flwr").propagate = False  # it prints its lines itself
    if not is_known():
        hand_over(arguments)
    try:
        if options.insecure == bool(options.root_certificates):
            raise MoietyError("`--insecure` must be given, or `--root-certificates`, got both or none.")
        secret = flower_private.read_secret(options.superexec_auth_secret_file)
        certificates = None if options.insecure else Path(options.root_certificates).read_bytes()
    except (MoietyError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    shorten_waits()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt):
        Worker(options.runtime_api_address, certificates, secret).serve_for_ever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
