"""A SuperNode that looks for messages often, outlives errors that pass, and lets its worker wait for work.

It is ``flower-supernode`` with the same options. That one waits for three seconds when there is no message, and no
option changes it. This one looks after a tenth of a second to a second. It uses parts of Flower that are not public, so
it looks at the version: with another one it is Flower's own SuperNode.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, Message

from moiety.deploy.calls import is_break
from moiety.deploy.flower_version import LONGEST, VERSION, is_known, shorten_waits

SOON, RARELY = 0.02, 25
"""Seconds between two looks for a worker's answer; at every so many of them, whether the worker is alive."""
BUSY, IDLE, GROWTH = 0.1, 1.0, 1.25
"""Seconds after which a SuperNode looks for a message again: soon after one came, and then ever later."""
HOLD = 2.0
"""Seconds for which a SuperNode keeps its worker's question for work, if there is none."""
STOPPED = 8
"""Flower's code for an app that stopped responding."""

log = logging.getLogger("moiety")


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

    def pull_patiently(**arguments: Any) -> int | None:
        run: int | None = None
        try:
            run = pull(**arguments)
        except Exception as error:
            log.warning("no message: %s", error)
            time.sleep(1.0)
        if run is None:
            forget_unread(arguments["state"], arguments["object_store"])
        else:
            pace.note_message()
        return run

    def push_surely(**arguments: Any) -> None:
        if wait_for_answer(arguments["state"], arguments["object_store"], names["_insert_message"]):
            push(**arguments)

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
    count = 0
    while not find_answers(state, store)[0]:
        time.sleep(SOON)
        count += 1
        if count % RARELY or find_tasks(state):
            continue
        whole, fragments = find_answers(state, store)
        if not whole:
            for message in fragments:
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
    ids = {each.metadata.reply_to_message_id for each in messages}
    return [m for m in messages if not m.metadata.reply_to_message_id and m.metadata.message_id not in ids]


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


def run_node(arguments: Sequence[str], installed: str) -> None:
    """Run a SuperNode; one of the known version looks for messages often."""
    from flwr.supernode import start_client_internal as internal
    from flwr.supernode.cli import flower_supernode

    shorten_waits(installed)
    if is_known(installed):
        pace = Pace()
        try_again_after_breaks()
        outlive_errors(pace)
        pace.hold_questions()
        vars(internal)["time"] = SimpleNamespace(sleep=pace.wait)
    else:
        print(f"flwr is {installed}, not {VERSION}: it looks for messages as rarely as it likes.", file=sys.stderr)
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()
