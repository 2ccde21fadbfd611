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
IN_PYTHON = """
import moiety
assert moiety.__file__.startswith({folder!r}), moiety.__file__
assert "mine" in dir(moiety)
assert moiety.mine is moiety.algorithms.ALGORITHMS["mine"]
print(moiety.mine(shared=0.1).spec)
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the package with an algorithm more."""
    folder = tmp_path_factory.mktemp("house")
    package = folder / "moiety"
    shutil.copytree(Path(moiety.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
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


def python(house, *words):
    """Python with the copied package before the installed one."""
    env = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")}
    env["PYTHONPATH"] = str(house)
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=house, env=env, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_it_has_a_public_name(house):
    assert python(house, "-c", IN_PYTHON.format(folder=str(house))) == "{'name': 'mine', 'shared': 0.1}\n"


def test_the_command_lists_it(house):
    rows = [line.split() for line in python(house, "-m", "moiety", "list", "algorithms").splitlines()]
    assert [row[0] for row in rows if row].count("mine") == 1


def test_a_file_trains_it_and_its_folder_is_continued(house):
    (house / "first.toml").write_text(FILE)
    python(house, "-m", "moiety", "run", "first.toml", "--out", "runs/first", "--quiet")
    more = ("--set", "algorithm.shared.lr=0.1", "--resume", "--rounds", "3")
    python(house, "-m", "moiety", "run", "first.toml", "--out", "runs/first", "--quiet", *more)
    config = tomllib.loads((house / "runs" / "first" / "config.toml").read_text(encoding="utf-8"))
    assert config["algorithm"] == {"name": "mine", "shared": {"name": "sgd", "lr": 0.1, "steps": 2}}
    code = "import moiety; print(moiety.resume('runs/first').history[-1]['round'])"
    assert python(house, "-c", code) == "3\n"
