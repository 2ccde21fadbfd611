"""A worker that stays: it computes for one SuperNode, message after message, and loads its libraries once.

Flower starts a process for every message, which imports torch anew: seconds a round. This file does what that process
does, again and again. Like ``node.py`` and ``answers.py`` it uses parts of Flower that are not public, so it looks at
the version. With another one it hands over to ``flower-superexec``, Flower's own way: slower, with the same answers.

    python -m moiety.deploy.worker node --isolation process --port 19000 ...
    python -m moiety.deploy.worker --runtime-api-address 127.0.0.1:19000 --insecure

The first is ``flower-supernode`` with the same options, by ``node.py``.
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
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.app import Error, Message

from moiety.deploy.calls import is_unknown_token
from moiety.deploy.flower_version import LONGEST, PAUSE, VERSION, is_known, shorten_waits
from moiety.deploy.letters import tell_sender
from moiety.deploy.modules import forget_modules
from moiety.deploy.node import run_node
from moiety.errors import MoietyError

RAISED = 2
"""Flower's code for an app that raised an exception."""
BEAT = 10.0
"""Seconds between two signs of life during a task; Flower gives a task up after 60 without one."""

log = logging.getLogger("moiety")


def hand_over(arguments: Sequence[str], installed: str) -> None:
    """Let Flower's own executor take this process's place."""
    print(f"flwr is {installed}, not {VERSION}: a process for every message, by flower-superexec.", file=sys.stderr)
    command = Path(sys.executable).with_name("flower-superexec")
    name = str(command) if command.exists() else "flower-superexec"
    os.execvp(name, [name, *arguments, "--disable-runtime-dependency-installation"])


def make_calm_invoker() -> Any:
    """Flower's way to call again after a break, which leaves this process alive where a task is lost.

    By itself it ends the process where the SuperNode does not know the token of a task any more. That is so after a
    pause of a minute (a laptop asleep, a machine that was halted), and where the SuperNode was started again.
    """
    from flwr.supercore.retry import exponential, make_simple_http_retry_invoker

    invoker = make_simple_http_retry_invoker()
    invoker.wait_gen_factory = lambda: exponential(max_delay=LONGEST)
    gives_up = invoker.should_giveup
    invoker.should_giveup = lambda error: is_unknown_token(error) or (gives_up is not None and gives_up(error))
    return invoker


class Worker:
    """Takes tasks of one SuperNode and answers them, one after the other."""

    def __init__(self, address: str, certificates: bytes | None, secret: bytes | None) -> None:
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
        from flwr.supercore.protobuf.client import ProtobufClientInterceptor

        self.address, self.certificates = address, certificates
        self.apps: dict[str, Callable[..., Message]] = {}
        """ClientApps by the hash of their package, each loaded once."""
        interceptors: list[ProtobufClientInterceptor] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
        if secret is not None:
            methods = frozenset({"/flwr.proto.Runtime/AcquireTask"})
            interceptors.append(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods))
        self.client = self._connect(interceptors)

    def _connect(self, interceptors: list[Any]) -> Any:
        from flwr.supercore.runtime import RuntimeHttpClient

        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.certificates is None,
            root_certificates=self.certificates,
            interceptors=interceptors,
            retry_invoker=make_calm_invoker(),
        )

    def acquire(self) -> str | None:
        """The token of a task that waits, if there is one."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType

        answer = self.client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        return str(answer.token) if answer.HasField("task") and answer.token else None

    @contextlib.contextmanager
    def task_client(self, token: str) -> Iterator[Any]:
        """The way to the SuperNode for one task, with signs of life while it lasts."""
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor

        client = self._connect(
            [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), RuntimeTokenHttpInterceptor(token)]
        )
        end = threading.Event()

        def beat() -> None:
            while not end.wait(BEAT):
                with contextlib.suppress(Exception):  # what comes next says that the task is lost
                    client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield client
        finally:
            end.set()
            client.close()

    def load(self, run: Any, fab: Any) -> Callable[..., Message]:
        """The ClientApp of a run, loaded once in this process."""
        from flwr.cli.install import install_from_fab
        from flwr.clientapp.utils import get_load_client_app_fn
        from flwr.common.constant import APP_DIR
        from flwr.supercore.utils import get_flwr_home

        if fab.hash_str not in self.apps:
            forget_modules(get_flwr_home() / APP_DIR)
            install_from_fab(fab.content, skip_prompt=True)
            load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
            self.apps[fab.hash_str] = load(run.fab_id, run.fab_version, fab.hash_str)
        return self.apps[fab.hash_str]

    def serve(self, token: str) -> None:
        """Do one task: pull the message, let the app answer it, push the answer."""
        from flwr.common.constant import SubStatus
        from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

        with self.task_client(token) as client:
            message, context, run, fab = pull_task_input(client)
            status, details = SubStatus.COMPLETED, ""
            try:
                answer = self.load(run, fab)(message=message, context=context)
            except Exception as error:
                log.exception("the app raised an exception")
                status, details = SubStatus.FAILED, tell_sender(error)  # its text may hold data
                answer = Message(Error(code=RAISED, reason=details), reply_to=message)
            push_message(client, answer, context)
            push_task_output(client, context, status, details)

    def serve_for_ever(self) -> None:
        """Take tasks until the process is asked to end; a SuperNode that is away is waited for."""
        while True:
            began = time.monotonic()
            try:
                token = self.acquire()
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
        run_node(arguments[1:], version("flwr"))
        return 0
    parser = argparse.ArgumentParser(prog="python -m moiety.deploy.worker", description=__doc__.partition("\n")[0])
    parser.add_argument("--runtime-api-address", required=True, help="where the SuperNode listens for its worker")
    parser.add_argument("--insecure", action="store_true", help="without TLS, for an address of this machine")
    parser.add_argument("--root-certificates", help="the certificate of the authority, with TLS")
    parser.add_argument("--superexec-auth-secret-file", help="the secret that the SuperNode was started with")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    installed = version("flwr")
    if not is_known(installed):
        hand_over(arguments, installed)
    try:
        if options.insecure == bool(options.root_certificates):
            raise MoietyError("`--insecure` must be given, or `--root-certificates`, got both or none.")
        from flwr.supercore.auth import load_superexec_auth_secret

        path = options.superexec_auth_secret_file
        secret = None if path is None else load_superexec_auth_secret(secret_file=path)
        certificates = None if options.insecure else Path(options.root_certificates).read_bytes()
    except (MoietyError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    shorten_waits(installed)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt):
        Worker(options.runtime_api_address, certificates, secret).serve_for_ever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
