"""A SuperNode that looks for messages often, outlives errors that pass, and lets its worker wait for work.

It is ``flower-supernode`` with the same options. That one waits for three seconds when there is no message, and no
option changes it. This one looks after a tenth of a second to a second. To this end it changes parts of Flower that are
not public (``flower_private.py``). With another version of Flower it is Flower's own SuperNode.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, Message

from moiety.deploy.app import show_log
from moiety.deploy.calls import Patience, is_break, store_patiently
from moiety.deploy.flower_private import (
    NodeMessages,
    Rule,
    change_part,
    change_rule,
    is_known,
    shorten_pauses,
    shorten_sender,
    shorten_waits,
    tell_version,
)

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
    """Let a SuperNode call again where a line broke within the handshake of TLS, or the SuperLink has trouble.

    By itself it takes the first for a wrong certificate and stops for good, while its process stays. After the second
    it throws away the message or the answer that it was about to hand over. A certificate that is really wrong still
    ends it.
    """

    def spare_breaks(rule: Rule) -> Rule:
        return lambda error: not is_break(error) and rule(error)

    def change(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: change_rule(change_rule(shorten_pauses(make()), spare_breaks), Patience().soften)

    change_part("make invoker", change)
    change_part("make store", lambda make: lambda store, *rest, **more: make(store_patiently(store), *rest, **more))


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

        def change(acquire: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            def acquire_late(request: Any, state: Any) -> Any:
                self.arrived.clear()
                answer = acquire(request, state)
                if not answer.token and self.arrived.wait(HOLD):
                    answer = acquire(request, state)
                return answer

            return acquire_late

        change_part("acquire", change)


def outlive_errors(pace: Pace) -> None:
    """Let a SuperNode live on where Flower stops it, or lets it wait for ever, for an error that passes.

    By itself a node ends, while its process stays, where the SuperLink answers that it has an error of its own. Where
    that happens to a sign of life it is never seen as connected again, and after a cut line only 20 seconds later. It
    waits for ever for a worker that was killed before it took its message or while it answered, and leaves its worker
    with a message whose parts never come, where the message's run has ended.
    """
    change_part("pull", lambda pull: pull_patiently(pull, pace))
    change_part("push", push_surely)
    change_part("make sender", beat_patiently)


def pull_patiently(pull: Callable[..., int | None], pace: Pace) -> Callable[..., int | None]:
    """A SuperNode's way to take in a message, which outlives errors."""

    def pull_message(**arguments: Any) -> int | None:
        run: int | None = None
        try:
            run = pull(**arguments)
        except Exception as error:
            log.warning("no message: %s", error)
            time.sleep(1.0)
        if run is None:
            forget_unread(NodeMessages(arguments["state"], arguments["object_store"]))
        else:
            pace.note_message()
        return run

    return pull_message


def push_surely(push: Callable[..., None]) -> Callable[..., None]:
    """A SuperNode's way to hand over an answer, which does not wait for a worker that is gone."""

    def push_answers(**arguments: Any) -> None:
        if wait_for_answer(NodeMessages(arguments["state"], arguments["object_store"])):
            push(**arguments)

    return push_answers


def beat_patiently(make_sender: Callable[[Callable[[], bool]], Any]) -> Callable[[Callable[[], bool]], Any]:
    """A SuperNode's way to give signs of life, which outlives errors."""

    def make_patient_sender(beat: Callable[[], bool]) -> Any:
        def try_to_beat() -> bool:
            try:
                return beat()
            except Exception as error:
                log.warning("no sign of life: %s", error)
                return False

        return shorten_sender(make_sender(try_to_beat))

    return make_patient_sender


def forget_unread(inbox: NodeMessages) -> None:
    """Forget messages that a SuperNode has begun to take in and did not; a worker that asks for their parts is told."""
    for message in find_unanswered(inbox):
        inbox.remove(message)
    inbox.fail_tasks("the message was not taken in")


def wait_for_answer(inbox: NodeMessages) -> bool:
    """Wait in a SuperNode for the worker's answer; where none will come, answer in its place that it stopped.

    False where there is nothing to answer.
    """
    count = 0
    while not find_answers(inbox)[0]:
        time.sleep(SOON)
        count += 1
        if count % RARELY or inbox.list_tasks():
            continue
        whole, fragments = find_answers(inbox)
        if not whole:
            for message in fragments:
                inbox.remove(message)
            messages = find_unanswered(inbox)
            for message in messages:
                log.warning("the worker has given no sign of life: its message is answered in its place")
                inbox.add(Message(Error(STOPPED, "the worker stopped"), reply_to=message))
            if not messages:
                return False
    return True


def find_unanswered(inbox: NodeMessages) -> list[Message]:
    """The messages in a SuperNode that have no answer."""
    messages = inbox.list_messages()
    ids = {each.metadata.reply_to_message_id for each in messages}
    return [m for m in messages if not m.metadata.reply_to_message_id and m.metadata.message_id not in ids]


def find_answers(inbox: NodeMessages) -> tuple[list[Message], list[Message]]:
    """The answers in a SuperNode that are whole, and those of which parts are missing."""
    kinds: tuple[list[Message], list[Message]] = [], []
    for message in inbox.list_messages(unsent=True):
        if message.metadata.reply_to_message_id:
            kinds[0 if inbox.has_all_parts(message) else 1].append(message)
    return kinds


def run_node(arguments: Sequence[str]) -> None:
    """Run a SuperNode; one of the known version looks for messages often."""
    show_log()
    if is_known():
        pace = Pace()
        shorten_waits()
        try_again_after_breaks()
        outlive_errors(pace)
        pace.hold_questions()
        change_part("time", lambda _: SimpleNamespace(sleep=pace.wait))
    else:
        print(
            f"{tell_version()}: this is flower-supernode as it is, which looks for messages every few seconds.",
            file=sys.stderr,
        )
    (command,) = entry_points(group="console_scripts", name="flower-supernode")
    sys.argv = [command.name, *arguments]
    command.load()()
