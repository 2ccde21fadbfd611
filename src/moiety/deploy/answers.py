"""Answers of nodes, pulled from the SuperLink one by one: bounded before they are read, each refused for itself.

Flower's own grid pulls answers together. It reads each whole, however large it is, an answer that it cannot read ends
the call for all, and whom an answer is for is what its sender wrote into it. This file uses parts of Flower that are
not public, so it looks at the version. With another version it asks Flower's grid.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from moiety.deploy.flower_version import is_known
from moiety.deploy.letters import LostError
from moiety.errors import MoietyError, must, refuse, tell_error

MOST_PARTS = 4096
"""The most parts of an answer. Flower cuts arrays into parts of 5 MiB."""
PATH = "/v1/runtime/pull-object"
"""Where the SuperLink gives a part of a message."""

Answer = tuple[str, Message | MoietyError]
"""The ticket of a letter, and what was answered, or why that cannot be read."""


def pull_answers(grid: Grid, tickets: set[str], largest: int) -> Iterator[Answer]:
    """The answers that are there now; of one with more than ``largest`` bytes no more than these are read."""
    from flwr.superlink.grid.http_grid import HttpGrid

    if is_known(version("flwr")) and isinstance(grid, HttpGrid):
        yield from _pull_apart(grid, tickets, largest)
        return
    for message in grid.pull_messages(tickets):
        yield message.metadata.reply_to_message_id, message


def _pull_apart(grid: Any, tickets: set[str], largest: int) -> Iterator[Answer]:
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    client, run = grid._runtime_client, grid.run.run_id
    refuse_large_parts(client._client, largest)
    answer = client.PullMessages(PullAppMessagesRequest(message_ids=tickets))
    for head, parts in zip(answer.messages_list, answer.message_object_trees, strict=True):
        number = head.metadata.message_id
        message: Message | MoietyError
        try:
            message = _pull_one(client, grid.node, run, number, parts, largest)
        except httpx.HTTPError:  # the SuperLink's own trouble
            raise
        except ObjectPullError as error:
            message = LostError(f"parts of the answer are not there: {error}")
        except Exception as error:
            message = MoietyError(f"`message` must be one that can be read, got {tell_error(error, 200)}")
        # Also of one that is refused: the SuperLink need not keep it.
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=number)
        )
        yield head.metadata.reply_to_message_id, message


def _pull_one(client: Any, node: Any, run: int, number: str, parts: Any, largest: int) -> Message:
    """One answer. Its parts are counted as they come."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

    names = [part.object_id for part in iterate_object_tree(parts)]
    must(len(names) <= MOST_PARTS, "message", f"of at most {MOST_PARTS} parts", len(names))
    pull = make_pull_object_fn_protobuf(pull_object_protobuf=client.PullObject, node=node, run_id=run)
    contents = pull_objects(names, count_bytes(pull, largest))
    size = measure_arrays(contents)
    must(size <= largest, "message", f"of at most {largest} bytes", size)
    message = inflate_object_from_contents(number, contents)
    if not isinstance(message, Message):
        refuse("message", "a message of Flower", type(message).__name__)
    return message


def measure_arrays(contents: Mapping[str, bytes]) -> int:
    """The bytes of all arrays among the parts of an answer, written out: an array may name one part many times."""
    from flwr.app import Array
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_body,
        get_object_head_values_from_object_content,
    )

    size = 0
    for content in contents.values():
        kind, names, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            places = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            size += sum(len(contents[names[place]]) for place in places)
    return size


def count_bytes(pull: Callable[[str], bytes], largest: int) -> Callable[[str], bytes]:
    """``pull``, which gives a part by its name, until parts have more than ``largest`` bytes together."""
    size, lock = 0, threading.Lock()

    def pull_part(name: str) -> bytes:
        nonlocal size
        part = pull(name)
        with lock:
            size += len(part)
            must(size <= largest, "message", f"of at most {largest} bytes", "more")
        return part

    return pull_part


def refuse_large_parts(client: httpx.Client, largest: int) -> None:
    """Let a client refuse a part of a message that says it is larger than ``largest`` bytes, before it reads it."""

    def look_at_length(response: httpx.Response) -> None:
        size = int(response.headers.get("content-length") or 0)
        if response.request.url.path == PATH:
            must(size <= largest, "message", f"of at most {largest} bytes", size)

    client.event_hooks = {**client.event_hooks, "response": [look_at_length]}
