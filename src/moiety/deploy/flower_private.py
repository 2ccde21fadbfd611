"""All that moiety uses of Flower that is not public. No other file imports such parts; a test checks that.

Flower may change these parts in any release, so they are used with one version only, ``VERSION``. With any other
version ``is_known`` says so, and moiety goes Flower's public way: slower, with the same answers.

| file | what it does with these parts | the public way |
|---|---|---|
| ``worker.py`` | one process answers message after message | ``flower-superexec``: a process for every message |
| ``node.py`` | a SuperNode that looks for messages often and outlives errors that pass | ``flower-supernode`` |
| ``answers.py`` | answers are pulled part by part, and bounded before they are read | ``Grid.pull_messages`` |
| ``mailbox.py`` | the server's process outlives errors of the SuperLink | ``moiety deploy run`` starts it again |

The functions here are thin: what to do with them is decided in those files. They import what they need when they are
called, because with another version it may not be there.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from flwr.app import Array, Context, Message
from flwr.serverapp import Grid

from moiety.deploy.letters import LostError

VERSION = "1.41.0"
"""The version that is known."""
PAUSE = 0.05
"""Seconds between two looks for work, or for parts of a message."""
LONGEST = 3
"""The longest that a node or worker waits before it calls again after a break; Flower's own is 20."""

Rule = Callable[[Exception], bool]
"""Whether a call that failed with an error is given up, and not tried again."""

version = functools.cache(importlib.metadata.version)
"""The installed version of a package. It is asked for at every message, and read from a file."""


def is_known() -> bool:
    """Whether the installed version is the one whose parts are known."""
    return version("flwr") == VERSION


def tell_version() -> str:
    """The installed version and the known one, for a message."""
    return f"flwr is {version('flwr')}, not {VERSION}"


def shorten_waits() -> None:
    """Let Flower look again soon for parts of a message that are not there yet: by itself it waits for a second."""
    if is_known():
        from flwr.supercore.inflatable import inflatable_utils

        for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
            (function.__kwdefaults__ or {})["initial_backoff"] = PAUSE


def shorten_pauses(invoker: Any) -> Any:
    """Let an invoker (Flower's way to call again after an error) never pause for long."""
    from flwr.supercore.retry import exponential

    invoker.wait_gen_factory = lambda: exponential(max_delay=LONGEST)
    return invoker


def change_rule(invoker: Any, change: Callable[[Rule], Rule]) -> Any:
    """Let an invoker give up by another rule than its own."""
    invoker.should_giveup = change(invoker.should_giveup or (lambda error: False))
    return invoker


# What a worker asks of its SuperNode.


class Task(NamedTuple):
    """A message that a worker is to answer, and the app that answers it."""

    message: Message
    context: Context
    run: Any
    fab: Any


def make_invoker() -> Any:
    """Flower's own way to call again after an error."""
    from flwr.supercore.retry import make_simple_http_retry_invoker

    return make_simple_http_retry_invoker()


def read_secret(path: str | None) -> bytes | None:
    """The secret that a worker shows, from the file that its SuperNode was started with too; None without a file."""
    from flwr.supercore.auth import load_superexec_auth_secret

    return load_superexec_auth_secret(secret_file=path)


def connect_worker(address: str, certificates: bytes | None, invoker: Any, secret: bytes | None) -> Any:
    """The line by which a worker asks its SuperNode for work."""
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor

    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    if secret is not None:
        methods = frozenset({"/flwr.proto.Runtime/AcquireTask"})
        interceptors.append(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods))
    return _connect(address, certificates, invoker, interceptors)


def connect_task(address: str, certificates: bytes | None, invoker: Any, token: str) -> Any:
    """The line by which a worker does one task."""
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor

    interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), RuntimeTokenHttpInterceptor(token)]
    return _connect(address, certificates, invoker, interceptors)


def _connect(address: str, certificates: bytes | None, invoker: Any, interceptors: list[Any]) -> Any:
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=certificates is None,
        root_certificates=certificates,
        interceptors=interceptors,
        retry_invoker=invoker,
    )


def acquire_token(line: Any) -> str | None:
    """The token of a task that waits, if there is one."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    answer = line.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
    return str(answer.token) if answer.HasField("task") and answer.token else None


def send_beat(line: Any) -> None:
    """Tell the SuperNode that the worker still does its task."""
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    line.SendTaskHeartbeat(SendTaskHeartbeatRequest())


def pull_task(line: Any) -> Task:
    """What a worker needs to do a task."""
    from flwr.supernode.runtime.run_clientapp import pull_task_input

    return Task(*pull_task_input(line))


def push_answer(line: Any, answer: Message, context: Context, failure: str) -> None:
    """Hand over the answer, and how the task ended: ``failure`` says why it failed, or is empty."""
    from flwr.common.constant import SubStatus
    from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

    push_message(line, answer, context)
    push_task_output(line, context, SubStatus.FAILED if failure else SubStatus.COMPLETED, failure)


def find_apps_folder() -> Path:
    """Where Flower unpacks apps."""
    from flwr.common.constant import APP_DIR
    from flwr.supercore.utils import get_flwr_home

    return Path(get_flwr_home() / APP_DIR)


def load_client_app(task: Task) -> Callable[..., Message]:
    """Unpack the app of a task, and load its ClientApp."""
    from flwr.cli.install import install_from_fab
    from flwr.clientapp.utils import get_load_client_app_fn

    install_from_fab(task.fab.content, skip_prompt=True)
    load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    app: Callable[..., Message] = load(task.run.fab_id, task.run.fab_version, task.fab.hash_str)
    return app


# What a SuperNode is made of.

_NODE, _LINE = "flwr.supernode.start_client_internal", "flwr.supernode.fleet_http_connection"
PARTS = {
    "pull": (_NODE, "_pull_and_store_message"),
    "push": (_NODE, "_push_messages"),
    "time": (_NODE, "time"),
    "make invoker": (_LINE, "make_simple_http_retry_invoker"),
    "make sender": (_LINE, "HeartbeatSender"),
    "make store": (_LINE, "make_push_object_fn_protobuf"),
    "acquire": ("flwr.supernode.servicer.runtime.runtime_handlers", "acquire_task"),
}
"""The parts of a SuperNode that can be changed: modules, and names in them."""


def change_part(part: str, change: Callable[[Any], Any]) -> None:
    """Let Flower's SuperNode in this process use ``change(part)`` in a part's place."""
    place, name = PARTS[part]
    names = vars(importlib.import_module(place))
    names[name] = change(names[name])


def shorten_sender(sender: Any) -> Any:
    """Let what sends a SuperNode's signs of life call again soon after a break."""
    shorten_pauses(sender._retry_invoker)
    return sender


class NodeMessages:
    """The messages that a SuperNode holds, their parts, and its tasks."""

    def __init__(self, state: Any, store: Any) -> None:
        self.state, self.store = state, store

    def list_messages(self, unsent: bool = False) -> list[Message]:
        """All messages, or only those that have not been handed to anybody."""
        with self.state.lock_msg_store:
            return [each.message for each in self.state.msg_store.values() if not (unsent and each.is_retrieved)]

    def has_all_parts(self, message: Message) -> bool:
        """Whether all parts of a message are here."""
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        parts = iterate_object_tree(self.store.get_object_tree(message.metadata.message_id))
        return all(self.store.get(part.object_id) for part in parts)

    def add(self, message: Message) -> None:
        """Put a whole message here."""
        from flwr.supernode.start_client_internal import _insert_message

        _insert_message(message, self.state, self.store)

    def remove(self, message: Message) -> None:
        """Forget a message and its parts."""
        self.state.delete_messages(message_ids=[message.metadata.message_id])
        self.store.delete(message.metadata.message_id)

    def list_tasks(self) -> Sequence[Any]:
        """The tasks that have not ended; asked so, Flower ends those without a sign of life."""
        from flwr.common.constant import Status

        tasks: Sequence[Any] = self.state.get_tasks(statuses=(Status.PENDING, Status.STARTING, Status.RUNNING))
        return tasks

    def fail_tasks(self, why: str) -> None:
        """End all tasks."""
        from flwr.common.constant import SubStatus

        for task in self.list_tasks():
            self.state.finish_task(task.task_id, sub_status=SubStatus.FAILED, details=why)


# Letters to the SuperLink, and answers that wait there.


class Head(NamedTuple):
    """An answer before it is read: which message it answers, its own number, and the names of its parts."""

    ticket: str
    number: str
    parts: list[str]


def has_parts(grid: Grid) -> bool:
    """Whether answers can be pulled part by part: the version is known, and the grid leads to a SuperLink."""
    if not is_known():
        return False
    from flwr.superlink.grid.http_grid import HttpGrid

    return isinstance(grid, HttpGrid)


def find_http_client(grid: Any) -> httpx.Client:
    """What calls the SuperLink."""
    client: httpx.Client = grid._runtime_client._client
    return client


def find_invoker(grid: Any) -> Any:
    """What calls the SuperLink again after an error, for all calls of the server's process: signs of life, too."""
    return grid._retry_invoker


def change_store(grid: Any, change: Callable[[Any], Any]) -> None:
    """Let the server's process hand parts of messages over by another way than Flower's."""
    line = grid._runtime_client
    line.PushObject = change(line.PushObject)


def push_letters(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Hand messages over; a ticket for the answer to each."""
    if not has_parts(grid):
        return list(grid.push_messages(messages))
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

    try:
        return list(grid.push_messages(messages))
    except ObjectPushError as error:
        raise LostError(f"the SuperLink did not store the message: {error}") from error


def pull_heads(grid: Any, tickets: set[str]) -> Iterator[Head]:
    """The answers to these tickets that are there now."""
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    answer = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=tickets))
    for head, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
        names = [part.object_id for part in iterate_object_tree(tree)]
        yield Head(head.metadata.reply_to_message_id, head.metadata.message_id, names)


def pull_parts(
    grid: Any, names: Sequence[str], watch: Callable[[Callable[[str], bytes]], Callable[[str], bytes]]
) -> dict[str, bytes]:
    """Those of the parts that are there now, by name; ``watch`` gets the function that pulls one, and may refuse more.

    Flower's own way waits for parts that its sender has announced and not sent, for up to two hours.
    """
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects

    call = grid._runtime_client.PullObject
    pull = watch(make_pull_object_fn_protobuf(pull_object_protobuf=call, node=grid.node, run_id=grid.run.run_id))
    parts: dict[str, bytes] = {}

    def pull_now(name: str) -> bytes:
        with contextlib.suppress(ObjectUnavailableError):
            parts[name] = pull(name)
        return b""

    try:
        pull_objects(list(names), pull_now)
    except ObjectPullError as error:
        raise LostError(f"parts of the answer are not there: {error}") from error
    return parts


def confirm_answer(grid: Any, head: Head) -> None:
    """Tell the SuperLink that it need not keep an answer."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

    request = ConfirmMessageReceivedRequest(node=grid.node, run_id=grid.run.run_id, message_object_id=head.number)
    grid._runtime_client.ConfirmMessageReceived(request)


def list_array_parts(content: bytes) -> list[str]:
    """The names of the parts that an array consists of, in order; none where the content is no array's."""
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_body,
        get_object_head_values_from_object_content,
    )

    kind, names, _ = get_object_head_values_from_object_content(content)
    if kind != Array.__qualname__:
        return []
    return [names[place] for place in json.loads(get_object_body(content, Array))["arraychunk_ids"]]


def join_parts(head: Head, contents: dict[str, bytes]) -> object:
    """The answer that its parts make. Parts that were used are removed from ``contents``."""
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    return inflate_object_from_contents(head.number, contents)
