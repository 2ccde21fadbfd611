"""Every command of the README that ``moiety deploy init`` writes: Flower's by its own parsers, moiety's by running it.

And no key is ever printed.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from local_grid import LocalGrid, serve_here
from safetensors.torch import load_file

from moiety.cli import main
from moiety.deploy import worker
from moiety.deploy.app import read_run_config
from moiety.deploy.commands import read_node_config
from moiety.deploy.folders import load_app

NODE, WORKER = "python -m moiety.deploy.worker node", "python -m moiety.deploy.worker"
EXECUTOR = "python -m moiety.deploy.worker executor"


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial of two nodes, of which both have trained for a round."""
    folder = tmp_path_factory.mktemp("readme") / "trial"
    words = ["--address", "127.0.0.1", "--address", "fed.example.org", "--nodes", "2"]
    assert main(["deploy", "init", str(folder), *words]) == 0
    app = load_app(folder / "app")
    nodes = {
        k: {"partition-id": k, "name": f"node-{k + 1}", "folder": str(folder / "devices" / f"node-{k + 1}")}
        for k in range(2)
    }
    serve_here(app, LocalGrid(app, nodes), rounds=1, clients=2, out=folder / "federation", deadline=5.0)
    return folder


def fenced(text: str) -> list[str]:
    """Every line of the blocks of commands, without the breaks of long ones."""
    blocks = re.findall(r"^ *```\n(.*?)\n *```$", text, re.M | re.S)
    texts = [re.sub(r"\\\n *", "", block) for block in blocks]
    return [line.strip() for block in texts for line in block.splitlines()]


def inline(text: str) -> list[str]:
    """Every command that stands in a sentence."""
    prose = re.sub(r"^ *```\n.*?\n *```$", "", text, flags=re.M | re.S)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    return [
        span
        for span in spans
        if span.split()[0] in ("moiety", "flwr", "flower-superlink", "--run-config") and " " in span
    ]


def read_flower(words: list[str]) -> None:
    """Let Flower's own parser read a command; every file that it names must be there."""
    from flwr.cli.app import app as flwr
    from flwr.supercore.cli.flower_superexec import _parse_args
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode
    from typer.main import get_command

    parsers: dict[str, Callable[[], Any]] = {
        "flower-superlink": _parse_args_run_superlink,
        "flower-superexec": _parse_args,
        "flower-supernode": _parse_args_run_supernode,
    }
    name, *rest = words
    if name in parsers:
        parsers[name]().parse_args(rest)
    else:
        assert name == "flwr"
        group: Any = get_command(flwr)
        while rest and hasattr(group, "commands"):
            group = group.commands[rest.pop(0)]
        group.make_context("flwr", ["1" if word == "NODE-ID" else word for word in rest])
    for word in words:
        assert not word.startswith("keys/") or Path(word).is_file(), word


def start_worker(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the worker as far as its first question to the node."""
    workers: list[worker.Worker] = []
    monkeypatch.setattr(worker.Worker, "serve_for_ever", lambda self: workers.append(self))
    monkeypatch.setattr(worker, "shorten_waits", lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert worker.main(words) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(workers) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower uses what its libraries have given up
def test_every_command_of_flower_and_of_the_worker_is_taken(trial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trial)
    kinds = set()
    for line in fenced((trial / "README.md").read_text()):
        words = shlex.split(line, comments=True)
        kinds.add(words[0])
        if line.startswith(NODE):
            read_flower(["flower-supernode", *words[4:]])  # which has the same options
        elif line.startswith(EXECUTOR):
            read_flower(["flower-superexec", *words[4:]])
        elif line.startswith(WORKER):
            start_worker(words[3:], monkeypatch)
        elif words[0] not in ("moiety", "export"):
            read_flower(words)
    assert kinds == {"export", "flower-superlink", "flwr", "python", "moiety"}


def test_the_environment_leads_to_the_connection_of_the_trial(trial: Path) -> None:
    """A shell reads the lines; ``flwr`` looks for its file in FLWR_HOME."""
    lines = [line for line in fenced((trial / "README.md").read_text()) if line.startswith("export")]
    script = "\n".join(["set -eu", *lines, "env"])
    process = subprocess.run(["bash", "-c", script], cwd=trial, capture_output=True, text=True, check=True)
    variables = dict(line.split("=", 1) for line in process.stdout.splitlines() if "=" in line)
    assert (Path(variables["FLWR_HOME"]) / "config.toml").is_file()
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
    assert {line.split()[1].split("=")[0] for line in lines} <= set(variables)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_more_rounds_are_asked_for_as_it_says(trial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.common.config import parse_config_args

    monkeypatch.chdir(trial)
    text = (trial / "README.md").read_text()
    (more,) = [span for span in inline(text) if span.startswith("--run-config")]
    (run,) = {span for span in inline(text) if span.startswith("flwr run") and "--stream" in span}
    read_flower(shlex.split(f"{run} {more}"))
    values = parse_config_args([shlex.split(more)[1]])
    assert values == read_node_config(shlex.split(more)[1])
    assert read_run_config(load_app(trial / "app").plan, values).rounds == 20


def secrets_of(folder: Path) -> list[str]:
    """Every piece of 24 characters of every key and secret, without breaks; what surrounds a key left out."""
    pieces = []
    for path in [*folder.rglob("*.key"), *folder.rglob("*.secret")]:
        lines = path.read_text().splitlines()
        body = "".join(line for line in lines if "-----" not in line)
        common = "b3BlbnNzaC1rZXktdjE"  # the first bytes of any key of OpenSSH
        pieces += [body[k : k + 24] for k in range(len(body) - 23) if common not in body[k : k + 24]]
    assert len(pieces) > 100
    return pieces


def test_every_command_of_moiety_does_what_it_says_and_prints_no_key(
    trial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the order of the README, with what its sentences say to do before."""
    monkeypatch.chdir(trial)
    text = (trial / "README.md").read_text()
    commands = [line for line in (*fenced(text), *inline(text)) if line.startswith("moiety")]
    assert commands.pop(0) == "moiety deploy run app"  # a test of its own runs it
    keys = [line for line in commands if " keys " in line]
    assert [shlex.split(line, comments=True)[2] for line in commands if line not in keys] == [
        "status",
        "status",
        "export",
    ]
    before = secrets_of(trial)
    outputs = []
    folders = {3: ["node-1"], 5: ["server"], 6: ["ca", "server"]}  # what the sentences before these commands say
    for number, line in enumerate(commands):
        for name in folders.get(number, []):
            Path("keys", name).rename(tmp_path / f"{number}-{name}")
        assert main(shlex.split(line, comments=True)[1:]) == 0, line
        out, problem = capfd.readouterr()
        assert problem == "", line
        outputs.append(out)
    status, device, export, node, more, server, renewed = outputs
    assert all(name in status for name in ("node-1", "node-2", "1 of 1 rounds"))
    assert "joined 1 run" in device
    model = load_file("model.safetensors")
    assert f"Wrote {sum(each.numel() for each in model.values())} parameters" in export
    first_device = load_app(trial / "app").device({"partition-id": 0, "name": "node-1", "folder": "devices/node-1"})
    assert all(bool((model[name] == each).all()) for name, each in first_device.own_run().parameters("node-1").items())
    assert [out.strip() for out in (node, more, server)] == [
        "Made keys/node-1",
        "Made keys/node-3",
        "Made keys/server",
    ]
    first, *rest = renewed.strip().splitlines()
    assert first == "Made keys/ca, keys/server"
    copies = [f"keys/node-{k}/ca.crt is not of keys/ca: copy keys/server/ca.crt over it" for k in (1, 2)]
    assert [line.partition(", on the node")[0] for line in rest] == copies
    assert not [piece for piece in {*before, *secrets_of(trial)} if piece in re.sub(r"\s", "", "".join(outputs))]


def test_keys_are_made_for_the_nodes_that_there_are(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A trial of two nodes does not get four because nobody said how many; and nothing of a key is printed."""
    folder = tmp_path / "trial"
    assert main(["deploy", "init", str(folder), "--address", "127.0.0.1", "--nodes", "2"]) == 0
    again = ["deploy", "keys", str(folder), "--address", "127.0.0.1"]
    assert main(again) == 0
    assert "All keys of the server and 2 nodes are there; nothing was changed." in capfd.readouterr().out
    (folder / "keys" / "node-1").rename(tmp_path / "away")
    assert main(again) == 0
    out, problem = capfd.readouterr()
    assert out.strip() == f"Made {folder / 'keys' / 'node-1'}"
    assert problem == ""
    assert sorted(each.name for each in (folder / "keys").iterdir() if each.is_dir()) == [
        "ca",
        "node-1",
        "node-2",
        "server",
    ]
    # Whatever else goes wrong with keys says where, never what.
    (folder / "keys" / "ca" / "ca.key").write_text((folder / "keys" / "node-2" / "node.key").read_text())
    (folder / "keys" / "server").rename(tmp_path / "old")
    assert main(again) == 2
    out, problem = capfd.readouterr()
    assert len(problem.splitlines()) == 1
    assert not [piece for piece in secrets_of(folder) if piece in re.sub(r"\s", "", out + problem)]
