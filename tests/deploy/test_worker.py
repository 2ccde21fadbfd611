"""The worker that stays: one version of Flower, others left to Flower's own executor; apps that are kept apart."""

from __future__ import annotations

import importlib
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.supercore.retry import make_simple_http_retry_invoker as plain
from flwr.supernode import fleet_http_connection

from moiety.deploy import flower_private, worker
from moiety.deploy import node as nodes
from moiety.deploy.calls import is_break
from moiety.deploy.modules import forget_modules


def test_another_version_is_handed_over_to_flowers_own_executor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def replace_process(name: str, command: list[str]) -> None:
        commands.append(command)
        raise SystemExit(0)

    monkeypatch.setattr(worker.os, "execvp", replace_process)
    monkeypatch.setattr(flower_private, "version", lambda name: "9.9.9")
    with pytest.raises(SystemExit):
        worker.main(["--runtime-api-address", "127.0.0.1:1", "--insecure"])
    assert Path(commands[0][0]).name == "flower-superexec"
    assert commands[0][1:] == ["--runtime-api-address", "127.0.0.1:1", "--insecure"]
    from flwr.supercore.cli.flower_superexec import _parse_args

    options = _parse_args().parse_args(commands[0][1:])  # Flower's own parser takes them
    assert options.runtime_api_address == "127.0.0.1:1"
    assert "9.9.9" in capsys.readouterr().err


def test_a_node_of_the_known_version_never_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supernode import cli, start_client_internal

    plain, waits = start_client_internal.time, []
    for name in ("try_again_after_breaks", "shorten_waits", "outlive_errors"):  # what they change would stay
        monkeypatch.setattr(nodes, name, lambda *arguments: None)
    monkeypatch.setattr(nodes.Pace, "hold_questions", lambda self: None)
    monkeypatch.setattr(nodes, "show_log", lambda: None)
    monkeypatch.setattr(nodes.time, "sleep", waits.append)
    monkeypatch.setattr(cli, "flower_supernode", lambda: [start_client_internal.time.sleep(3) for _ in range(20)])
    monkeypatch.setattr(sys, "argv", [])
    try:
        nodes.run_node(["--insecure"])
        assert sys.argv == ["flower-supernode", "--insecure"]
    finally:
        start_client_internal.time = plain
    assert waits[0] == nodes.BUSY
    assert waits[-1] == max(waits) == nodes.IDLE


def test_what_a_node_says_is_seen() -> None:
    """Nobody has asked for moiety's log in a process that is a node: its owner reads it all the same."""
    script = """
import logging, sys
from types import SimpleNamespace
from moiety.deploy import node, worker
command = SimpleNamespace(name="flower-supernode", load=lambda: lambda: node.log.warning("no message: x"))
node.entry_points = lambda **place: (command,)
worker.main(["node", "--insecure"])
"""
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert process.stderr.splitlines() == ["no message: x"]


def test_a_node_keeps_its_workers_question_until_there_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself it says at once that there is none."""
    from flwr.supernode.servicer.runtime import runtime_handlers

    nothing, task = SimpleNamespace(token=""), SimpleNamespace(token="t")
    answers = [nothing, task, nothing, nothing]
    monkeypatch.setattr(runtime_handlers, "acquire_task", lambda request, state: answers.pop(0))
    monkeypatch.setattr(nodes, "HOLD", 600.0)
    pace = nodes.Pace()
    pace.hold_questions()
    with ThreadPoolExecutor(1) as other:
        question = other.submit(runtime_handlers.acquire_task, None, None)
        while len(answers) == 4:
            time.sleep(0.001)
        assert not question.done()
        pace.note_message()
        assert question.result() is task
    monkeypatch.setattr(nodes, "HOLD", 0.0)
    assert runtime_handlers.acquire_task(None, None) is nothing
    assert len(answers) == 1


def test_bad_arguments_are_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.logging, "basicConfig", lambda **options: None)
    assert worker.main(["--runtime-api-address", "127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_apps_with_modules_of_the_same_name_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    values = []
    for app in ("one", "two"):
        folder = tmp_path / "apps" / app
        folder.mkdir(parents=True)
        (folder / "same_name_of_apps.py").write_text(f"value = {app!r}\n")
        forget_modules(tmp_path / "apps")
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        values.append(importlib.import_module("same_name_of_apps").value)
    assert values == ["one", "two"]
    forget_modules(tmp_path / "apps")
    assert "same_name_of_apps" not in sys.modules
    assert not [each for each in sys.path if each.startswith(str(tmp_path))]


def test_a_node_calls_again_after_a_break_but_not_after_a_wrong_certificate(monkeypatch):
    """Flower's own rule takes both for the same; the texts are those of OpenSSL."""
    name = "make_simple_http_retry_invoker"
    monkeypatch.setattr(fleet_http_connection, name, plain)
    end = ssl.SSLEOFError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol (_ssl.c:1006)")
    wrong = ssl.SSLCertVerificationError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:1006)")
    assert plain().should_giveup(end)
    nodes.try_again_after_breaks()
    patient = getattr(fleet_http_connection, name)()
    assert not patient.should_giveup(end)
    assert patient.should_giveup(wrong)
    assert is_break(ConnectionResetError(104, "Connection reset by peer"))
