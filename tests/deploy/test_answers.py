"""Answers are bounded before they are read, and one that cannot be read is nobody else's trouble.

The SuperLink here is a stand-in that speaks Flower's own messages; ``processes/test_real_faults.py`` has the real one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.superlink.grid.http_grid import HttpGrid
from local_grid import federation  # noqa: F401  sets the ids that Flower's messages need

from moiety.deploy.answers import count_bytes, pull_answers, refuse_large_parts
from moiety.deploy.letters import Letter, LostError, read_message, write_record
from moiety.errors import MoietyError

PART = 5 << 20
"""Flower's parts of an array have so many bytes."""


class StandIn:
    """A SuperLink that gives messages and their parts, and counts what is pulled."""

    def __init__(self) -> None:
        self.heads: list[Any] = []
        self.trees: list[Any] = []
        self.parts: dict[str, bytes] = {}
        self.pulled: list[int] = []
        self.confirmed: list[str] = []
        self._client = httpx.Client()

    def add(self, ticket: str, body: bytes, claims: str | None = None) -> str:
        """Put an answer to a ticket here; the message itself may claim that it answers another."""
        question = Message(RecordDict(), dst_node_id=7, message_type="train")
        question.metadata.__dict__["_message_id"] = claims or ticket
        message = Message(write_record(Letter({"round": 0}, body)), reply_to=question)
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto

        message.metadata.__dict__["_message_id"] = message.object_id
        head = message_to_proto(remove_content_from_message(message))
        head.metadata.reply_to_message_id = ticket
        self.heads.append(head)
        self.trees.append(get_object_tree(message))
        self.parts |= {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        return str(head.metadata.message_id)

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        return PullAppMessagesResponse(messages_list=self.heads, message_object_trees=self.trees)

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        content = self.parts.get(request.object_id)
        self.pulled.append(len(content or b""))
        return SimpleNamespace(object_found=content is not None, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)


def make_grid(link: StandIn) -> HttpGrid:
    grid = HttpGrid(token="t")
    grid._client = link  # type: ignore[assignment]
    grid._run = SimpleNamespace(run_id=1)  # type: ignore[assignment]
    grid.__class__ = type("Grid", (HttpGrid,), {"run": property(lambda self: self._run)})
    return grid


def test_an_answer_that_is_too_large_is_not_read_to_its_end_and_others_are_read() -> None:
    """Twelve parts of five MiB where ten MiB are allowed; a few are pulled at a time."""
    link = StandIn()
    body = b"".join(bytes([k]) * PART for k in range(12))
    large, small = link.add("a", body), link.add("b", b"fine")
    answers = dict(pull_answers(make_grid(link), {"a", "b"}, 2 * PART))
    assert isinstance(answers["a"], MoietyError)
    assert f"of at most {2 * PART} bytes" in str(answers["a"])
    assert "\n" not in str(answers["a"])
    message = answers["b"]
    assert isinstance(message, Message)
    assert read_message(message, 100).body == b"fine"
    assert sum(link.pulled) < 8 * PART
    assert link.confirmed == [large, small]  # the SuperLink need not keep what was refused


def test_a_part_that_stands_in_an_array_many_times_is_counted_as_often() -> None:
    """Flower sends parts that are the same once: these 600 MiB cross as five."""
    link = StandIn()
    link.add("a", bytes(120 * PART))
    answer = dict(pull_answers(make_grid(link), {"a"}, 4 * PART))["a"]
    assert isinstance(answer, MoietyError)
    assert f"of at most {4 * PART} bytes" in str(answer)
    assert sum(link.pulled) < 2 * PART


def test_an_answer_that_cannot_be_read_or_that_lies_about_its_question_hurts_nobody_else() -> None:
    """A part of other bytes; and a message that says it answers another ticket than the one it was sent for."""
    link = StandIn()
    link.add("a", b"broken")
    for part in iterate_object_tree(link.trees[0]):
        link.parts[part.object_id] = b"rubbish"
    link.add("b", b"forged", claims="c")
    link.add("c", b"fine")
    answers = dict(pull_answers(make_grid(link), {"a", "b", "c"}, 1 << 20))
    assert isinstance(answers["a"], MoietyError)
    bodies = {ticket: read_message(answers[ticket], 100).body for ticket in "bc"}  # type: ignore[arg-type]
    assert bodies == {"b": b"forged", "c": b"fine"}


def test_parts_that_are_missing_count_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    link = StandIn()
    link.add("a", b"fine")
    link.parts.clear()
    assert isinstance(dict(pull_answers(make_grid(link), {"a"}, 1 << 20))["a"], LostError)


def test_a_part_that_says_it_is_too_large_is_refused_before_it_is_read() -> None:
    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Any:
            raise AssertionError("nobody reads it")

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-length": str(10**9)}, stream=Body())

    client = httpx.Client(transport=httpx.MockTransport(answer))
    refuse_large_parts(client, 10**6)
    with pytest.raises(MoietyError, match="at most 1000000 bytes, got 1000000000"):
        client.post("http://here/v1/runtime/pull-object")


def test_bytes_are_counted_over_all_parts() -> None:
    pull = count_bytes(lambda name: bytes(400), 1000)
    assert len(pull("a") + pull("b")) == 800
    with pytest.raises(MoietyError, match="at most 1000 bytes"):
        pull("c")
