"""Parts of Flower that are not public: one file uses them, with one version of Flower; with another all goes on."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
from local_grid import LocalGrid, serve_here
from test_misbehaviour import make

from moiety.deploy import flower_private
from moiety.deploy import node as nodes
from moiety.deploy.commands import read_node_config
from moiety.errors import MoietyError

SOURCE = Path(flower_private.__file__).parents[1]
PUBLIC = {"flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp"}
"""The modules that Flower's reference describes, as far as moiety uses them."""


def find_imports(text: str) -> set[str]:
    """The modules of Flower that a program imports: by statements, by text that is run, or by name."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {str(node.module)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.replace('"', " ").replace("'", " ").split()
            modules |= {word for word in words if word.startswith("flwr.") and word.replace(".", "").isidentifier()}
    return {name for name in modules if name.split(".")[0] == "flwr"}


def test_one_file_alone_uses_parts_of_flower_that_are_not_public() -> None:
    users = {
        path.relative_to(SOURCE).as_posix(): find_imports(path.read_text()) - PUBLIC
        for path in sorted(SOURCE.rglob("*.py"))
    }
    assert [path for path, modules in users.items() if modules] == ["deploy/flower_private.py"]
    assert len(users["deploy/flower_private.py"]) > 10


def test_private_imports_are_found() -> None:
    """The search above sees each way to import a module."""
    assert find_imports("def f():\n    from flwr.cli.app import app") == {"flwr.cli.app"}
    assert find_imports("import flwr.cli.app as app, torch") == {"flwr.cli.app"}
    assert find_imports("run('import sys\\nfrom flwr.cli.app import app')") == {"flwr.cli.app"}
    assert find_imports("import_module('flwr.cli')") == {"flwr.cli"}


def test_the_version_that_is_installed_is_known_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flower_private.is_known()
    for other in ("1.41.1", "1.42.0", "1.4", ""):
        monkeypatch.setattr(flower_private, "version", lambda name, other=other: other)
        assert not flower_private.is_known()


def test_the_extra_asks_for_the_version_that_is_known() -> None:
    assert version("flwr") == flower_private.VERSION
    assert f'"flwr=={flower_private.VERSION}"' in (SOURCE.parents[1] / "pyproject.toml").read_text()


def test_every_part_of_a_node_that_is_changed_is_there() -> None:
    for place, name in flower_private.PARTS.values():
        assert hasattr(importlib.import_module(place), name), (place, name)


def test_parts_of_a_message_are_looked_for_soon_in_the_known_version_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.inflatable import inflatable_utils

    functions = (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree)
    for function in functions:
        monkeypatch.setitem(function.__kwdefaults__, "initial_backoff", function.__kwdefaults__["initial_backoff"])
    plain = [function.__kwdefaults__["initial_backoff"] for function in functions]
    with monkeypatch.context() as patch:
        patch.setattr(flower_private, "version", lambda name: "9.9.9")
        flower_private.shorten_waits()
    assert [function.__kwdefaults__["initial_backoff"] for function in functions] == plain
    flower_private.shorten_waits()
    assert {function.__kwdefaults__["initial_backoff"] for function in functions} == {flower_private.PAUSE}


OTHER_VERSION = """
import importlib.abc
import importlib.metadata
import os
import sys

import flwr.app, flwr.clientapp, flwr.serverapp

sys.argv, own = ["test"], importlib.metadata.version
importlib.metadata.version = lambda name: "9.9.9" if name == "flwr" else own(name)


class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith("flwr."):
            raise ImportError(f"{name} is not there in this version")


for name in [name for name in sys.modules if name.startswith("flwr.")]:
    if name.split(".")[1] not in ("app", "clientapp", "serverapp", "common", "proto"):
        sys.modules[name] = None
sys.modules["flwr.common.constant"] = sys.modules["flwr.common.config"] = None
sys.meta_path.insert(0, Refuse())
import moiety.deploy
from moiety.deploy import answers, app, commands, executor, flower_private, folders, mailbox, node, server, worker

try:
    import flwr.supercore.retry
except ImportError:
    print("private parts are gone")
flower_private.shorten_waits()


class Grid:
    def pull_messages(self, tickets):
        return []


print(list(answers.pull_answers(Grid(), {"a"}, 10)), commands.read_node_config("a=1"))


mailbox.outlive_trouble(Grid())


class Command:
    def __init__(self, name):
        self.name = name

    def load(self):
        return lambda: print(*sys.argv)


node.entry_points = executor.entry_points = lambda group, name: (Command(name),)
worker.main(["node", "--superlink", "here"])
worker.main(["executor", "--runtime-api-address", "here"])
os.execvp = lambda name, words: sys.exit(" ".join([name.rsplit("/")[-1], *words[1:]]))
worker.main(["--runtime-api-address", "here", "--insecure"])
"""


def test_another_version_without_these_parts_goes_flowers_public_way() -> None:
    """In a process where Flower is another version, of which nothing that is not public can be imported."""
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", OTHER_VERSION], capture_output=True, text=True)
    assert process.stdout.splitlines() == [
        "private parts are gone",
        "[] {'a': 1}",
        "flower-supernode --superlink here",
        "flower-superexec --runtime-api-address here",
    ], process.stderr
    assert process.stderr.splitlines() == [
        "flwr is 9.9.9, not 1.41.0: this is flower-supernode as it is, which looks for messages every few seconds.",
        "flwr is 9.9.9, not 1.41.0: a process for every message, by flower-superexec.",
        "flower-superexec --runtime-api-address here --insecure",
    ]


def test_a_server_with_another_version_reads_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_private, "version", lambda name: "9.9.9")
    app, grid = make(tmp_path, rounds=2)
    assert isinstance(grid, LocalGrid)
    assert [row["dropped"] for row in serve_here(app, grid).history] == [[]] * 2


def test_the_node_is_the_command_that_flower_installs() -> None:
    (command,) = nodes.entry_points(group="console_scripts", name="flower-supernode")
    assert command.value == "flwr.supernode.cli:flower_supernode"


@pytest.mark.parametrize(
    "text",
    ["", "partition-id=0", "a=1 b='two words' c=\"x=y\"  d=true e=1.5 f=-3", 'where.file="visits.csv"', "a=0x1f"],
)
def test_a_configuration_is_read_as_flower_reads_it(text: str) -> None:
    assert read_node_config(text) == parse_config_args([text])


def test_a_configuration_in_a_file_is_read_as_flower_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('partition-id = 3\n[where]\nfile = "visits.csv"\n')
    assert (
        read_node_config(str(file)) == parse_config_args([str(file)]) == {"partition-id": 3, "where.file": "visits.csv"}
    )


@pytest.mark.parametrize("text", ["partition-id 0", "a=1 b", "a=[1", "a=1 a=2", "name=north", "nowhere.toml"])
def test_a_configuration_that_cannot_be_read_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(MoietyError) as error:
        read_node_config(text)
    assert "\n" not in str(error.value)
    assert "node-config" in str(error.value) or text.endswith(".toml")
