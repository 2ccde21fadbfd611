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

from moiety.deploy import answers as answers_file
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
        self.late: set[str] = set()
        self.named: set[str] = set()
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
        tickets = {head.metadata.reply_to_message_id for head in self.heads} & set(request.message_ids)
        assert not tickets & self.named, "the SuperLink would say that there is no such message"
        self.named |= tickets
        pairs = [
            (h, t) for h, t in zip(self.heads, self.trees, strict=True) if h.metadata.reply_to_message_id in tickets
        ]
        return PullAppMessagesResponse(
            messages_list=[head for head, _ in pairs], message_object_trees=[tree for _, tree in pairs]
        )

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        content = self.parts.get(request.object_id)
        if request.object_id in self.late:
            return SimpleNamespace(object_found=True, object_available=False, object_content=b"")
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


def test_nobody_waits_for_an_answer_whose_parts_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node on a slow line, or one that never sends the rest; Flower's own way waits for up to two hours."""
    now = [0.0]
    monkeypatch.setattr(answers_file.time, "monotonic", lambda: now[0])
    link = StandIn()
    body = b"".join(bytes([k]) * PART for k in range(3))
    number = link.add("a", body)
    link.add("b", b"fine")
    link.late = set(sorted(link.parts, key=lambda name: len(link.parts[name]))[-2:])
    grid, late = make_grid(link), {}  # type: ignore[var-annotated]

    def pull(*tickets: str) -> dict[str, Any]:
        return dict(pull_answers(grid, set(tickets), 20 * PART, late))

    assert set(pull("a", "b")) == {"b"}
    now[0] += 10
    assert pull("a") == {}
    assert number not in link.confirmed
    first = min(link.late)
    link.late = {first}
    now[0] += 10
    assert pull("a") == {}
    link.late = set()
    assert pull("c") == {}  # others are waited for meanwhile
    now[0] += 10
    message = pull("a")["a"]
    assert read_message(message, 20 * PART).body == body
    assert number in link.confirmed
    assert not late


def test_a_late_answer_is_refused_as_soon_as_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node sends 10^9 bytes: what has come is counted, and nobody waits for the rest."""
    now = [0.0]
    monkeypatch.setattr(answers_file.time, "monotonic", lambda: now[0])
    link, late = StandIn(), {}  # type: ignore[var-annotated]
    number = link.add("a", b"".join(bytes([k]) * PART for k in range(8)))
    names = [part.object_id for part in iterate_object_tree(link.trees[0])]
    large = [name for name in names if len(link.parts[name]) >= PART]
    assert len(large) == 8
    link.late, grid = set(large), make_grid(link)
    for count in range(3):  # two parts are there at last
        link.late = set(large[count:])
        assert dict(pull_answers(grid, {"a"}, 3 * PART, late)) == {}
        assert not link.confirmed
        now[0] += 1
    before = len(link.pulled)
    assert dict(pull_answers(grid, {"a"}, 3 * PART, late)) == {}
    assert len(link.pulled) == before  # what came before is not pulled again
    now[0] += 1
    link.late = set(large[4:])
    answer = dict(pull_answers(grid, {"a"}, 3 * PART, late))["a"]
    assert f"of at most {3 * PART} bytes" in str(answer)
    assert link.confirmed == [number]
    assert not late


def test_late_answers_that_nobody_waits_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(answers_file.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(answers_file, "MOST_LATE", 3)
    link, late = StandIn(), {}  # type: ignore[var-annotated]
    grid = make_grid(link)
    for k in range(5):
        link.add(f"t{k}", b"x" * (k + 1))
    link.late = set(link.parts)
    assert dict(pull_answers(grid, {f"t{k}" for k in range(5)}, 1 << 20, late)) == {}
    assert list(late) == ["t2", "t3", "t4"]
    now[0] += answers_file.KEEP + 1
    assert dict(pull_answers(grid, {"another"}, 1 << 20, late)) == {}
    assert not late


def test_a_late_answer_that_is_gone_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SuperLink throws away what a node has not sent after three minutes."""
    now = [0.0]
    monkeypatch.setattr(answers_file.time, "monotonic", lambda: now[0])
    link, late = StandIn(), {}  # type: ignore[var-annotated]
    grid = make_grid(link)
    link.add("a", b"x")
    link.late = set(link.parts)
    assert dict(pull_answers(grid, {"a"}, 1 << 20, late)) == {}
    link.late, link.parts = set(), {}
    now[0] += 10
    assert isinstance(dict(pull_answers(grid, {"a"}, 1 << 20, late))["a"], LostError)
    assert not late


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
