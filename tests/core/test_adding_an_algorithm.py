"""Adding an algorithm is adding its file and one line: the public name, the list and files find it."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import moiety

FILE = """
model = {name = "mlp", hidden = [8]}
split = "output_layer"

[data]
name = "digits"
clients = 4
partition = "iid"

[algorithm]
name = "mine"
shared = {name = "sgd", lr = 0.1, steps = 2}

[run]
rounds = 2
cohort = 2
engine = "sequential"
"""
PROGRAM = """
import moiety
from moiety.cli import main
assert moiety.__file__.startswith({folder!r}), moiety.__file__
assert "mine" in dir(moiety)
assert moiety.mine is moiety.algorithms.ALGORITHMS["mine"]
assert moiety.mine(shared=0.1).spec == {{"name": "mine", "shared": 0.1}}
assert main(["list", "algorithms"]) == 0
print("listed")
run = ["run", "first.toml", "--out", "runs/first", "--quiet"]
assert main(run) == 0
assert main([*run, "--set", "algorithm.shared.lr=0.1", "--resume", "--rounds", "3"]) == 0
assert moiety.resume("runs/first").history[-1]["round"] == 3
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the package with an algorithm more."""
    folder = tmp_path_factory.mktemp("house")
    package = folder / "moiety"
    shutil.copytree(Path(moiety.__file__).parent, package)
    algorithms = package / "algorithms"
    text = (algorithms / "_skeleton.py").read_text(encoding="utf-8")
    assert text.count("def skeleton(") == 1
    (algorithms / "mine.py").write_text(text.replace("def skeleton(", "def mine("), encoding="utf-8")
    table = algorithms / "__init__.py"
    before = table.read_text(encoding="utf-8")
    above = "from moiety.algorithms.local_only import local_only as local_only\n"
    assert above in before
    after = before.replace(above, above + "from moiety.algorithms.mine import mine as mine\n")
    table.write_text(after, encoding="utf-8")
    return folder


def test_python_the_command_and_a_file_know_it(house):
    """One process does all of it, with the copied package before the installed one."""
    (house / "first.toml").write_text(FILE)
    env = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")}
    env["PYTHONPATH"] = str(house)
    words = [sys.executable, "-c", PROGRAM.format(folder=str(house))]
    process = subprocess.run(words, capture_output=True, text=True, cwd=house, env=env, timeout=600)
    assert (process.returncode, process.stderr) == (0, "")
    rows = [line.split() for line in process.stdout.partition("listed\n")[0].splitlines()]
    assert [row[0] for row in rows if row].count("mine") == 1
    config = tomllib.loads((house / "runs" / "first" / "config.toml").read_text(encoding="utf-8"))
    assert config["algorithm"] == {"name": "mine", "shared": {"name": "sgd", "lr": 0.1, "steps": 2}}
