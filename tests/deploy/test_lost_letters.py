"""Letters that are lost on the way, tasks whose worker is gone: whoever lives is asked again, nobody waits for ever."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import Status, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.retry import make_simple_http_retry_invoker as flowers_own
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.nodestate import NodeStateFactory
from local_grid import LocalGrid, serve_here
from test_misbehaviour import make

from moiety.deploy import flower_version, mailbox, questions, worker
from moiety.deploy import node as nodes

UNAVAILABLE = "Error: Message Unavailable - The requested message could not be found in the database."


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again soon where a letter is lost, and never where a node refuses."""
    monkeypatch.setattr(questions, "SOON", 0.001)
    monkeypatch.setattr(questions, "FIRST", 0.02)
    monkeypatch.setattr(questions, "REFUSED", 1e9)
    monkeypatch.setattr("moiety.deploy.federation.PAUSE", 0.01)


@pytest.mark.parametrize("kind", ["query.hello", "query.welcome"])
@pytest.mark.parametrize("told", [True, False], ids=["Flower says so", "silence"])
def test_a_node_whose_letters_are_lost_takes_part_in_the_end(
    kind: str, told: bool, eager: None, tmp_path: Path
) -> None:
    """All nodes lose their first letters of a kind, c1 three: nobody can begin without them."""
    app, grid = make(tmp_path, least=3, deadline=60.0)  # all answer in the end, so nothing waits so long
    letters: Counter[int] = Counter()

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message | None:
        if message.metadata.message_type != kind:
            return call(message)
        node = message.metadata.dst_node_id
        letters[node] += 1
        if letters[node] > (3 if grid.nodes[node]["name"] == "c1" else 1):
            return call(message)
        return Message(Error(3, UNAVAILABLE), reply_to=message) if told else None

    grid.deliver = deliver
    run = run_again(app, grid)
    assert [row["dropped"] for row in run.history] == [[]] * 5
    more = kind == "query.welcome"  # which the server says anew when it begins again
    assert sorted(letters.values()) == [2 + more, 2 + more, 2 + more, 4 + more]


def run_again(app: Any, grid: LocalGrid) -> Any:
    """The server is killed after its second round, and begins again."""
    serve_here(app, grid, rounds=2)
    return serve_here(app, grid)


def test_whoever_refuses_is_not_asked_again_at_once(eager: None, tmp_path: Path) -> None:
    app, grid = make(tmp_path, least=2)
    welcomes: Counter[str] = Counter()

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        welcomes[grid.nodes[message.metadata.dst_node_id]["name"]] += message.metadata.message_type == "query.welcome"
        refused = message.metadata.message_type == "query.welcome" and is_c1(grid, message)
        return Message(Error(400, "no room"), reply_to=message) if refused else call(message)

    grid.deliver = deliver
    run = run_again(app, grid)
    assert welcomes == dict.fromkeys(("c0", "c1", "c2", "c3"), 2)  # once by each server
    assert {name.split(":")[1] for row in run.history for name in row["dropped"]} == {"c1"}


def test_a_device_that_is_deaf_is_not_waited_for_in_every_round(
    eager: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c1 hears nothing of the first rounds: two wait for it. When it hears again, it takes part."""
    monkeypatch.setattr(questions, "FIRST", 0.0)
    app, grid = make(tmp_path, cohort=4, rounds=6, deadline=0.2)
    counts: Counter[str] = Counter()

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message | None:
        kind, bad = message.metadata.message_type, is_c1(grid, message)
        counts[kind if bad else "others"] += 1
        others = int(message.metadata.group_id) if kind == "train" else 0
        counts["round"] = max(counts["round"], others)
        return None if bad and (kind == "train" or counts["train"]) and counts["round"] < 4 else call(message)

    grid.deliver = deliver
    run = serve_here(app, grid)
    dropouts = [name for row in run.history for name in row["dropped"]]
    assert dropouts == [f"{t}:c1" for t in range(1, 6)]
    assert counts["train"] == 3, "two rounds waited for it, and it was in the last"


def is_c1(grid: LocalGrid, message: Message) -> bool:
    return bool(grid.nodes[message.metadata.dst_node_id]["name"] == "c1")


def test_a_server_error_of_the_superlink_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "PAUSES", (0.0,) * 3)
    app, grid = make(tmp_path, deadline=60.0)
    calls: Counter[str] = Counter()
    for name in ("push_messages", "pull_messages", "get_node_ids"):
        monkeypatch.setattr(grid, name, fail_at_times(name, getattr(grid, name), calls))
    run = run_again(app, grid)
    assert [row["dropped"] for row in run.history] == [[]] * 5
    assert min(calls.values()) > 5


def fail_at_times(name: str, call: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    def failing(*arguments: Any) -> Any:
        calls[name] += 1
        if calls[name] % 4:
            raise_status(503 if calls[name] % 2 else 500)
        return call(*arguments)

    return failing


def raise_status(code: int) -> None:
    request = httpx.Request("POST", "http://here/")
    httpx.Response(code, request=request).raise_for_status()


def test_a_lost_task_does_not_end_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own rule sends SIGINT to its process where the node no longer knows a task's token."""
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    monkeypatch.setattr("flwr.supercore.retry.http_retry.FORCE_EXIT_TIMEOUT_SECONDS", -1)
    with pytest.raises(httpx.HTTPStatusError) as error:
        raise_status(401)
    flowers_own().should_giveup(error.value)
    assert len(signals) == 1
    assert worker.make_calm_invoker().should_giveup(error.value)
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        worker.make_calm_invoker().invoke(raise_status, 401)
    assert len(signals) == 1


class Node:
    """A SuperNode's own state with one message, and a task for it that a worker has begun."""

    def __init__(self) -> None:
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state: Any = factory.state()
        self.store = factory.objectstore_factory.store()
        self.state.set_node_id(7)
        self.message = Message(RecordDict({"c": ConfigRecord({"a": 1})}), dst_node_id=7, message_type="train", ttl=60.0)
        self.message.metadata.__dict__["_run_id"] = 1
        start_client_internal._insert_message(self.message, self.state, self.store)
        self.task = self.state.create_task(task_type=TaskType.CLIENT_APP, run_id=1)
        assert self.state.claim_task(self.task)
        assert self.state.activate_task(self.task)

    def finish(self, status: str) -> None:
        assert self.state.finish_task(self.task, status, "")
        assert not self.state.get_tasks(statuses=[Status.RUNNING])

    def wait(self) -> bool:
        return nodes.wait_for_answer(self.state, self.store, start_client_internal._insert_message)

    def answers(self) -> list[Message]:
        return list(self.state.get_messages_legacy(is_reply=True))


@pytest.mark.parametrize("when", ["before it took the message", "while it handed over its answer"])
def test_a_node_answers_for_a_worker_that_was_killed(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own loop would wait for ever: no answer is there, or a part of it never comes."""
    monkeypatch.setattr(nodes, "SOON", 0.0)
    node = Node()
    if when == "while it handed over its answer":
        answer = Message(RecordDict({"c": ConfigRecord({"a": 2})}), reply_to=node.message)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        tree = get_object_tree(answer)
        assert node.state.store_message_and_object_tree(answer, tree, node.state.start_session(1))[0]
    node.finish(SubStatus.FAILED)
    assert node.wait()
    (answer,) = node.answers()
    assert answer.error.code == 8
    assert answer.metadata.reply_to_message_id == node.message.metadata.message_id
    node.state.delete_messages(message_ids=list(node.state.msg_store))
    assert not node.wait()


def test_a_node_waits_for_a_worker_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    node, looks = Node(), Counter[str]()

    def sleep(seconds: float) -> None:
        looks["all"] += 1
        if looks["all"] == 4 * nodes.RARELY:
            answer = Message(RecordDict({"c": ConfigRecord({"a": 2})}), reply_to=node.message)
            start_client_internal._insert_message(answer, node.state, node.store)

    monkeypatch.setattr(nodes.time, "sleep", sleep)
    assert node.wait()
    (answer,) = node.answers()
    assert answer.has_content()


def test_a_node_forgets_a_message_whose_run_ended_while_it_was_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own pull says None then, and leaves a task whose message has no parts: a worker would look for ever."""
    node, message = (
        Node(),
        Message(RecordDict({"c": ConfigRecord({"b": 2})}), dst_node_id=7, message_type="train", ttl=9.0),
    )
    node.finish(SubStatus.FAILED)
    nodes.forget_unread(node.state, node.store)
    message.metadata.__dict__.update(_run_id=1, _message_id=message.object_id)
    tree = get_object_tree(message)

    def stop(*arguments: Any) -> bytes:
        raise RunNotRunningException

    calls: dict[str, Any] = {"receive": lambda: (message, tree), "pull_object": stop, "confirm_message_received": stop}
    calls |= {"get_run": stop, "get_fab": stop, "node_config": {}, "trusted_entities": None}
    node.state.store_run(Run.create_empty(run_id=1))
    for name in ("_pull_and_store_message", "_push_messages"):  # what the call below changes would stay
        monkeypatch.setattr(start_client_internal, name, getattr(start_client_internal, name))
    monkeypatch.setattr(fleet_http_connection, "HeartbeatSender", None)
    nodes.outlive_errors(nodes.Pace())
    pull = start_client_internal._pull_and_store_message
    assert pull(state=node.state, object_store=node.store, **calls) is None
    assert not node.state.get_tasks(statuses=[Status.PENDING, Status.STARTING, Status.RUNNING])
    assert not node.state.msg_store
    assert len(node.state.get_tasks()) == 2  # the second was there, and has ended


def test_a_node_outlives_errors_of_the_superlink(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**arguments: Any) -> None:
        raise_status(500)

    monkeypatch.setattr(nodes.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(start_client_internal, "_pull_and_store_message", fail)
    monkeypatch.setattr(start_client_internal, "_push_messages", fail)
    monkeypatch.setattr(fleet_http_connection, "HeartbeatSender", HeartbeatSender)  # what the call changes would stay
    nodes.outlive_errors(nodes.Pace())
    node = Node()
    assert start_client_internal._pull_and_store_message(state=node.state, object_store=node.store) is None
    sender = fleet_http_connection.HeartbeatSender(fail)
    assert sender.heartbeat_fn() is False
    assert max(itertools.islice(sender._retry_invoker.wait_gen_factory(), 20)) == flower_version.LONGEST
    assert fleet_http_connection.HeartbeatSender(lambda: True).heartbeat_fn() is True
