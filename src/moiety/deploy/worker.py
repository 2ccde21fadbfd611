"""A worker that stays: it computes for one SuperNode, message after message, and loads its libraries once.

Flower starts a process for every message, which imports torch anew: seconds a round. This file does what that process
does, again and again. Like ``answers.py`` it uses parts of Flower that are not public, so it looks at the version.
With another version it hands over to ``flower-superexec``, Flower's own way: slower, with the same answers.

    python -m moiety.deploy.worker node --isolation process --port 19000 ...
    python -m moiety.deploy.worker --runtime-api-address 127.0.0.1:19000 --insecure

The first is ``flower-supernode`` with the same options. It looks for messages after a tenth of a second to a second: by
itself it waits for three seconds when there is none, and no option changes that.
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
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, Message

from moiety.deploy.answers import VERSION
from moiety.deploy.calls import is_break, is_unknown_token
from moiety.deploy.letters import tell_sender
from moiety.deploy.modules import forget_modules
from moiety.errors import MoietyError

PAUSE = 0.05
"""Seconds between two looks for work."""
SOON, RARELY = 0.02, 25
"""Seconds between two looks for a worker's answer; at every so many of them, whether the worker is alive."""
BUSY, IDLE, GROWTH = 0.1, 1.0, 1.25
"""Seconds after which a SuperNode looks for a message again: soon after one came, and then ever later."""
HOLD = 2.0
"""Seconds for which a SuperNode keeps its worker's question for work, if there is none."""
LONGEST = 3
"""The longest that a node or worker waits before it calls again after a break; Flower's own is 20."""
RAISED, STOPPED = 2, 8
"""Flower's codes for an app that raised an exception, and for one that stopped responding."""
BEAT = 10.0
"""Seconds between two signs of life during a task; Flower gives a task up after 60 without one."""

log = logging.getLogger("moiety")


def is_known(found: str) -> bool:
    """Whether this is the version of Flower that the worker can work with."""
    return found == VERSION


def hand_over(arguments: Sequence[str], found: str) -> None:
    """Let Flower's own executor take this process's place."""
    print(f"flwr is {found}, not {VERSION}: a process for every message, by flower-superexec.", file=sys.stderr)
    command = Path(sys.executable).with_name("flower-superexec")
    name = str(command) if command.exists() else "flower-superexec"
    os.execvp(name, [name, *arguments, "--disable-runtime-dependency-installation"])


def shorten_waits(found: str) -> None:
    """Let Flower look again soon for parts of a message that are not there yet: by itself it waits for a second."""
    if is_known(found):
        from flwr.supercore.inflatable import inflatable_utils

        for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
            (function.__kwdefaults__ or {})["initial_backoff"] = PAUSE


def try_again_after_breaks() -> None:
    """Let a SuperNode call again where a line broke within the handshake of TLS.

    By itself it takes that for a wrong certificate and stops for good, while its process stays. A certificate that is
    really wrong still ends it.
    """
    from flwr.supercore.retry import exponential
    from flwr.supernode import fleet_http_connection

    names = vars(fleet_http_connection)
    make = names["make_simple_http_retry_invoker"]

    def make_patient() -> Any:
        invoker = make()
        invoker.wait_gen_factory = lambda: exponential(max_delay=LONGEST)
        gives_up = invoker.should_giveup
        invoker.should_giveup = lambda error: not is_break(error) and gives_up is not None and gives_up(error)
        return invoker

    names["make_simple_http_retry_invoker"] = make_patient


class Pace:
    """How often a SuperNode looks for messages, and when its worker hears of one."""

    def __init__(self) -> None:
        self.pause, self.arrived = BUSY, threading.Event()

    def note_message(self) -> None:
        """A message has come: the worker can take it, and the next may come soon."""
        self.pause = BUSY
        self.arrived.set()

    def wait(self, seconds: float) -> None:
        """Wait before the next look, at most ``seconds``."""
        time.sleep(min(seconds, self.pause))
        self.pause = min(self.pause * GROWTH, IDLE)

    def hold_questions(self) -> None:
        """Let a SuperNode answer its worker when there is work, or after a while that there is none.

        By itself it answers at once, and the worker asks again and again, which takes much of a processor.
        """
        from flwr.supernode.servicer.runtime import runtime_handlers

        acquire = runtime_handlers.acquire_task

        def acquire_late(request: Any, state: Any) -> Any:
            self.arrived.clear()
            answer = acquire(request, state)
            if not answer.token and self.arrived.wait(HOLD):
                answer = acquire(request, state)
            return answer

        vars(runtime_handlers)["acquire_task"] = acquire_late


def outlive_errors(pace: Pace) -> None:
    """Let a SuperNode live on where Flower stops it, or lets it wait for ever, for an error that passes.

    By itself a node ends, while its process stays, where the SuperLink answers that it has an error of its own. Where
    that happens to a sign of life it is never seen as connected again, and after a cut line only 20 seconds later. It
    waits for ever for a worker that was killed before it took its message or while it answered, and leaves its worker
    with a message whose parts never come, where the message's run has ended.
    """
    from flwr.supercore.retry import exponential
    from flwr.supernode import fleet_http_connection, start_client_internal

    names, connection = vars(start_client_internal), vars(fleet_http_connection)
    pull, push, make_sender = names["_pull_and_store_message"], names["_push_messages"], connection["HeartbeatSender"]

    def pull_patiently(**given: Any) -> int | None:
        run: int | None = None
        try:
            run = pull(**given)
        except Exception as error:
            log.warning("no message: %s", error)
            time.sleep(1.0)
        if run is None:
            forget_unread(given["state"], given["object_store"])
        else:
            pace.note_message()
        return run

    def push_surely(**given: Any) -> None:
        if wait_for_answer(given["state"], given["object_store"], names["_insert_message"]):
            push(**given)

    def make_patient_sender(beat: Callable[[], bool]) -> Any:
        def try_to_beat() -> bool:
            try:
                return beat()
            except Exception as error:
                log.warning("no sign of life: %s", error)
                return False

        sender = make_sender(try_to_beat)
        sender._retry_invoker.wait_gen_factory = lambda: exponential(max_delay=LONGEST)
        return sender

    names["_pull_and_store_message"], names["_push_messages"] = pull_patiently, push_surely
    connection["HeartbeatSender"] = make_patient_sender


def forget_unread(state: Any, store: Any) -> None:
    """Forget messages that a SuperNode has begun to take in and did not; a worker that asks for their parts is told."""
    from flwr.common.constant import SubStatus

    for message in find_unanswered(state):
        state.delete_messages(message_ids=[message.metadata.message_id])
        store.delete(message.metadata.message_id)
    for task in find_tasks(state):
        state.finish_task(task.task_id, sub_status=SubStatus.FAILED, details="the message was not taken in")


def find_tasks(state: Any) -> Sequence[Any]:
    """The tasks in a SuperNode that have not ended; asked so, Flower ends those without a sign of life."""
    from flwr.common.constant import Status

    tasks: Sequence[Any] = state.get_tasks(statuses=(Status.PENDING, Status.STARTING, Status.RUNNING))
    return tasks


def wait_for_answer(state: Any, store: Any, insert: Callable[[Message, Any, Any], None]) -> bool:
    """Wait in a SuperNode for the worker's answer; where none will come, answer in its place that it stopped.

    False where there is nothing to answer.
    """
    look = 0
    while not find_answers(state, store)[0]:
        time.sleep(SOON)
        look += 1
        if look % RARELY or find_tasks(state):
            continue
        whole, broken = find_answers(state, store)
        if not whole:
            for message in broken:
                state.delete_messages(message_ids=[message.metadata.message_id])
                store.delete(message.metadata.message_id)
            messages = find_unanswered(state)
            for message in messages:
                insert(Message(Error(STOPPED, "the worker stopped"), reply_to=message), state, store)
            if not messages:
                return False
    return True


def find_unanswered(state: Any) -> list[Message]:
    """The messages in a SuperNode that have no answer."""
    with state.lock_msg_store:
        messages = [each.message for each in state.msg_store.values()]
    answered = {each.metadata.reply_to_message_id for each in messages}
    return [m for m in messages if not m.metadata.reply_to_message_id and m.metadata.message_id not in answered]


def find_answers(state: Any, store: Any) -> tuple[list[Message], list[Message]]:
    """The answers in a SuperNode that are whole, and those of which parts are missing."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    with state.lock_msg_store:
        messages = [each.message for each in state.msg_store.values() if not each.is_retrieved]
    kinds: tuple[list[Message], list[Message]] = [], []
    for message in messages:
        if message.metadata.reply_to_message_id:
            parts = iterate_object_tree(store.get_object_tree(message.metadata.message_id))
            kinds[0 if all(store.get(part.object_id) for part in parts) else 1].append(message)
    return kinds


def run_node(arguments: Sequence[str], found: str) -> None:
    """Run a SuperNode; one of the known version looks for messages often."""
    from flwr.supernode import start_client_internal as internal
    from flwr.supernode.cli import flower_supernode

    shorten_waits(found)
    if is_known(found):
        pace = Pace()
        try_again_after_breaks()
        outlive_errors(pace)
        pace.hold_questions()
        vars(internal)["time"] = SimpleNamespace(sleep=pace.wait)
    else:
        print(f"flwr is {found}, not {VERSION}: it looks for messages as rarely as it likes.", file=sys.stderr)
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


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
        done = threading.Event()

        def beat() -> None:
            while not done.wait(BEAT):
                with contextlib.suppress(Exception):  # what comes next says that the task is lost
                    client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield client
        finally:
            done.set()
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
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    found = version("flwr")
    if not is_known(found):
        hand_over(arguments, found)
    try:
        if given.insecure == bool(given.root_certificates):
            raise MoietyError("`--insecure` must be given, or `--root-certificates`, got both or none.")
        from flwr.supercore.auth import load_superexec_auth_secret

        path = given.superexec_auth_secret_file
        secret = None if path is None else load_superexec_auth_secret(secret_file=path)
        certificates = None if given.insecure else Path(given.root_certificates).read_bytes()
    except (MoietyError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    shorten_waits(found)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt):
        Worker(given.runtime_api_address, certificates, secret).serve_for_ever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
