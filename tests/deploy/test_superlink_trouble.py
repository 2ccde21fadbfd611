"""A SuperLink that answers 500, as where its database is locked: no process ends, no message is thrown away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from flwr.proto.message_pb2 import PullObjectResponse, PushObjectRequest, PushObjectResponse
from flwr.proto.runtime_pb2 import (
    AcquireTaskResponse,
    GetNodesResponse,
    PushAppMessagesResponse,
    SendTaskHeartbeatResponse,
)
from flwr.supercore.heartbeat import make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.retry import make_simple_http_retry_invoker as flowers_own
from flwr.superlink.grid import HttpGrid
from flwr.supernode import fleet_http_connection
from test_answers import StandIn, make_grid

from moiety.deploy import calls, executor, flower_private, mailbox
from moiety.deploy import node as nodes
from moiety.deploy.answers import pull_answers
from moiety.deploy.calls import PATIENCE, QUIET, Patience
from moiety.deploy.letters import Letter, LostError
from moiety.deploy.processes import wait_until

LONG = 600.0
OWN = {
    "make_simple_http_retry_invoker": flowers_own,
    "make_push_object_fn_protobuf": make_push_object_fn_protobuf,
}
"""Parts of Flower's node as they are by themselves."""
ANSWERS = {
    "acquire-task": AcquireTaskResponse(),
    "send-task-heartbeat": SendTaskHeartbeatResponse(success=True),
    "get-nodes": GetNodesResponse(),
    "pull-object": PullObjectResponse(),
}


class Link:
    """Stands for a SuperLink: answers calls over HTTP, and the first ``bad`` of each kind with 500."""

    def __init__(self, bad: int) -> None:
        self.bad = bad
        self.calls: Counter[str] = Counter()
        link = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                kind = self.path.rsplit("/")[-1]
                link.calls[kind] += 1
                status = 500 if link.calls[kind] <= link.bad else 200
                body = ANSWERS[kind].SerializeToString() if status == 200 else b'{"detail": "database is locked"}'
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.place = f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def start_link() -> Iterator[Callable[[int], Link]]:
    links: list[Link] = []

    def start(bad: int) -> Link:
        links.append(Link(bad))
        threading.Thread(target=links[-1].server.serve_forever, daemon=True).start()
        return links[-1]

    yield start
    for link in links:
        link.server.shutdown()
        link.server.server_close()


def start_executor(*command: str, link: Link) -> subprocess.Popen[str]:
    words = [sys.executable, *command, "--runtime-api-address", link.place, "--insecure"]
    environment = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.01", "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    environment |= {"FLWR_DISABLE_UPDATE_CHECK": "1", **os.environ}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_executor_goes_on_in_the_same_process(start_link: Callable[[int], Link]) -> None:
    link = start_link(3)
    process = start_executor("-m", "moiety.deploy.worker", "executor", link=link)
    try:
        wait_until(lambda: link.calls["acquire-task"] > 6 or process.poll() is not None, LONG, "calls after errors")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        text = process.communicate(timeout=LONG)[0]
    finally:
        process.kill()
    assert process.returncode == 0, text
    assert text.count("the executor begins again") == 3


def test_flowers_own_executor_ends_at_the_first_error(start_link: Callable[[int], Link]) -> None:
    """Why there is one of moiety's. Where this fails, Flower may have mended it."""
    link = start_link(1)
    program = "import sys; sys.argv[0] = 'flower-superexec'\nfrom flwr.supercore.cli import flower_superexec as f; f()"
    process = start_executor("-c", program, link=link)
    text = process.communicate(timeout=LONG)[0]
    assert process.returncode != 0
    assert "500 Internal Server Error" in text
    assert link.calls["acquire-task"] == 1


class Command:
    """Stands for the entry point of Flower's executor, which ends in a row of ways."""

    name = "flower-superexec"

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)

    def load(self) -> Callable[[], None]:
        def execute() -> None:
            signal.signal(signal.SIGTERM, lambda *_: None)  # as Flower does
            end = self.ends.pop(0)
            if end is not None:
                raise end

        return execute


def status_error(code: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://here/")
    return httpx.HTTPStatusError(f"{code}", request=request, response=httpx.Response(code, request=request))


@pytest.fixture
def run_executor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Command]:
    monkeypatch.setattr(executor, "PAUSE", 0.0)
    monkeypatch.setattr(executor, "show_log", lambda: None)
    monkeypatch.setattr(sys, "argv", [])
    handler = signal.getsignal(signal.SIGTERM)

    def run(*ends: Exception | None) -> Command:
        command = Command(*ends)
        monkeypatch.setattr(executor, "entry_points", lambda group, name: (command,))
        try:
            executor.run_executor(["--insecure"])
        finally:
            signal.signal(signal.SIGTERM, handler)
        return command

    return run


def test_only_errors_that_pass_begin_the_executor_again(run_executor: Callable[..., Command]) -> None:
    cut = httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol")
    assert not run_executor(status_error(500), status_error(503), cut, None).ends
    assert sys.argv == ["flower-superexec", "--insecure"]
    for lasting in (status_error(401), httpx.ConnectError("certificate verify failed"), ValueError("wrong")):
        with pytest.raises(type(lasting)):
            run_executor(status_error(500), lasting, None)


def test_a_signal_reaches_whoever_had_it_before(run_executor: Callable[..., Command]) -> None:
    """Flower's handler of an executor that ended does nothing for the next."""
    seen = []
    command = Command(status_error(500), None)
    load = command.load

    def look() -> Callable[[], None]:
        execute = load()

        def run() -> None:
            seen.append(signal.getsignal(signal.SIGTERM))
            execute()

        return run

    command.load = look  # type: ignore[method-assign]
    before = signal.getsignal(signal.SIGTERM)
    executor_points, executor.entry_points = executor.entry_points, lambda group, name: (command,)  # type: ignore[assignment, misc, return-value]
    try:
        executor.run_executor([])
    finally:
        executor.entry_points = executor_points
        signal.signal(signal.SIGTERM, before)
    assert seen == [before, before]


def test_the_servers_process_gives_signs_of_life_after_errors(start_link: Callable[[int], Link]) -> None:
    """Flower's own thread ends at the first error, and the SuperLink ends the run a minute later."""
    for patient in (False, True):
        link = start_link(3)
        grid = HttpGrid(runtime_api_address=link.place, insecure=True, token="t")
        if patient:
            mailbox.outlive_trouble(grid)
        beat = make_task_heartbeat_fn_http(grid._runtime_client)
        if not patient:
            with pytest.raises(httpx.HTTPStatusError, match="500"):
                beat()
            continue
        assert beat() is True
        assert link.calls["send-task-heartbeat"] == 4
        assert list(grid.get_node_ids()) == []
        grid.close()


def test_a_grid_of_another_kind_or_version_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = HttpGrid(runtime_api_address="127.0.0.1:1", insecure=True, token="t")
    rule = grid._retry_invoker.should_giveup
    with monkeypatch.context() as patch:
        patch.setattr(flower_private, "version", lambda name: "9.9.9")
        mailbox.outlive_trouble(grid)
    mailbox.outlive_trouble(object())  # type: ignore[arg-type]
    assert grid._retry_invoker.should_giveup is rule


def mend_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the parts of Flower's node, until the test ends."""
    for name, own in OWN.items():
        monkeypatch.setattr(fleet_http_connection, name, own)
    nodes.try_again_after_breaks()


def test_a_node_hands_its_answer_over_after_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own gives up at once, and throws the answer away."""
    mend_node(monkeypatch)
    invoker = fleet_http_connection.make_simple_http_retry_invoker()
    invoker.wait_function = lambda seconds: None
    ends: list[Exception | None] = [status_error(500), status_error(500), None]

    def push() -> str:
        end = ends.pop(0)
        if end is not None:
            raise end
        return "taken"

    assert invoker.invoke(push) == "taken"
    with pytest.raises(httpx.HTTPStatusError):
        flowers_own().invoke(lambda: (_ for _ in ()).throw(status_error(500)))


def test_patience_ends() -> None:
    now = [0.0]
    patience = Patience(lambda: now[0])
    assert patience.bears(status_error(500))
    for _ in range(10):
        now[0] += PATIENCE / 10 - 0.1
        assert patience.bears(status_error(500))
    now[0] += 2
    assert not patience.bears(status_error(500))
    now[0] += QUIET  # nothing since: the next is new
    assert patience.bears(status_error(502))
    assert not patience.bears(status_error(404))
    assert not patience.bears(ValueError())
    rule = patience.soften(lambda error: True)
    assert not rule(status_error(500))
    assert rule(status_error(404))


def test_trouble_with_one_answer_costs_that_answer_alone() -> None:
    """The SuperLink gives no answer twice: those that are here must not be lost because another cannot be had."""
    link = StandIn()
    bad, *_ = [link.add(ticket, ticket.encode() * 10) for ticket in ("a", "b", "c")]
    pull, confirm = link.PullObject, link.ConfirmMessageReceived

    def pull_object(request: Any) -> Any:
        if request.object_id == bad:
            raise status_error(500)
        return pull(request)

    def confirm_received(request: Any) -> None:
        confirm(request)
        raise status_error(500)

    link.PullObject, link.ConfirmMessageReceived = pull_object, confirm_received  # type: ignore[method-assign]
    answers = dict(pull_answers(make_grid(link), {"a", "b", "c"}, 1 << 20))
    assert {ticket: isinstance(each, LostError) for ticket, each in answers.items()} == {
        "a": True,
        "b": False,
        "c": False,
    }


def test_the_mailbox_is_patient_for_longer_than_a_database_is_locked() -> None:
    assert sum(mailbox.PAUSES) > 90
    assert calls.PATIENCE > 90


class Storage:
    """A SuperLink that takes letters, and says of the first ``bad`` parts that it did not store them."""

    def __init__(self, bad: int) -> None:
        self.bad = bad
        self.messages: list[list[str]] = []
        self.parts: dict[str, bytes] = {}
        self.sessions: list[str] = []
        self._client = httpx.Client()

    def PushMessages(self, request: Any) -> Any:  # noqa: N802
        tickets = [each.metadata.message_id for each in request.messages_list]
        taken = {each for tickets in self.messages for each in tickets}
        self.messages.append(tickets)
        names = {part.object_id for tree in request.message_object_trees for part in iterate_object_tree(tree)}
        return PushAppMessagesResponse(
            message_ids=["" if each in taken else each for each in tickets],
            objects_to_push=sorted(names),
            session_id=f"session-{len(self.messages)}",
        )

    def PushObject(self, request: PushObjectRequest) -> PushObjectResponse:  # noqa: N802
        self.bad -= 1
        if self.bad >= 0:
            return PushObjectResponse(stored=False)
        self.parts[request.object_id] = request.object_content
        self.sessions.append(request.session_id)
        return PushObjectResponse(stored=True)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "STORE_PAUSES", (0.0,) * 7)
    monkeypatch.setattr(mailbox, "PAUSES", (0.0,) * 3)


def send_letter(storage: Storage, patient: bool) -> list[str]:
    grid = make_grid(storage)  # type: ignore[arg-type]
    if patient:
        grid._retry_invoker = flowers_own()
        mailbox.outlive_trouble(grid)
    return mailbox.Mailbox(grid, 100).send("train", [(7, Letter({"round": 0}, b"u" * 10))], "0", 60.0)


@pytest.mark.usefixtures("no_pauses")
def test_the_server_hands_a_part_over_again_where_it_was_not_stored() -> None:
    """A SuperLink whose database is locked answers so, and not with 500. By itself Flower raises an error."""
    storage = Storage(5)
    assert send_letter(storage, patient=True) == storage.messages[0]
    assert len(storage.messages) == 1
    assert set(storage.sessions) == {"session-1"}
    assert any(content.endswith(b"u" * 10) for content in storage.parts.values())


@pytest.mark.usefixtures("no_pauses")
def test_a_letter_whose_parts_are_never_stored_is_sent_anew() -> None:
    """The SuperLink takes no message twice, so the second is a new one. In the end the error is told in one line."""
    storage = Storage(1)
    assert send_letter(storage, patient=False) == storage.messages[1] != storage.messages[0]
    with pytest.raises(LostError, match="did not store"):
        send_letter(Storage(10**6), patient=False)


@pytest.mark.usefixtures("no_pauses")
def test_a_node_hands_a_part_over_again_where_it_was_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own throws the answer away."""
    mend_node(monkeypatch)
    for make, taken in (
        (fleet_http_connection.make_push_object_fn_protobuf, True),
        (make_push_object_fn_protobuf, False),
    ):
        storage = Storage(3)
        push = make(storage.PushObject, None, 1, "session")
        if taken:
            push("part", b"v")
            assert storage.parts == {"part": b"v"}
        else:
            with pytest.raises(ObjectPushError):
                push("part", b"v")
