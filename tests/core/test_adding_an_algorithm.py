"""Adding an algorithm is five things: its file, one line, a conformance row, a page, the changelog.

A copy of the repository gets one by these alone. Two commands write what follows from them, and all that lists
algorithms has it: Python, the command, files, the docs, and every test of every algorithm.
"""

import filecmp
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = "added_sgd"
ALGORITHM, LINES = f"src/moiety/algorithms/{NAME}.py", "src/moiety/algorithms/__init__.py"
ROWS, PAGE, CHANGES = "tests/conformance/conformance_table.py", f"docs/algorithms/{NAME}.md", "CHANGELOG.md"
WRITTEN = {"docs/local-work.md", "docs/comparison.md", "README.md", "tests/golden/pins/parameters.json"}
"""What ``docs/deviations.py`` and ``tests/golden/pin.py`` write."""
LINE = f"from moiety.algorithms.{NAME} import {NAME} as {NAME}\n"
ROW = f"""
    Row(
        "{NAME}",
        lambda **o: flat(mo.{NAME}, lr=0.1, **o),
        {{"steps": 1}},
        (),
        mo.split.nothing,
        weighted=False,
    ),"""
TEXT = f"""# Added SGD

Use it in a test. Source: `{ALGORITHM}`.

```python
mo.{NAME}(shared=0.1)
```

## Local work

| `shared=` | `personal=` | `pull` pulls towards |
|---|---|---|
| any | | |

## Deviations

## Evidence

Tests.
"""
FILE = f"""
model = {{name = "mlp", hidden = [8]}}
split = "output_layer"

[data]
name = "digits"
clients = 4
partition = "iid"

[algorithm]
name = "{NAME}"
shared = {{name = "sgd", lr = 0.1, steps = 2}}

[run]
rounds = 2
cohort = 2
engine = "sequential"
"""
PROGRAM = f"""
import moiety
from moiety.cli import main
assert moiety.__file__.startswith({{folder!r}}), moiety.__file__
assert "{NAME}" in dir(moiety)
assert moiety.{NAME} is moiety.algorithms.ALGORITHMS["{NAME}"]
assert moiety.{NAME}(shared=0.1).spec == {{{{"name": "{NAME}", "shared": 0.1}}}}
assert main(["list", "algorithms"]) == 0
print("listed")
run = ["run", "first.toml", "--out", "runs/first", "--quiet"]
assert main(run) == 0
assert main([*run, "--set", "algorithm.shared.lr=0.1", "--resume", "--rounds", "3"]) == 0
assert moiety.resume("runs/first").history[-1]["round"] == 3
"""
TESTS = (
    "conformance",
    "golden/test_golden.py",
    "core/test_public_names.py",
    "core/test_spec.py",
    "core/test_docs_blocks.py",
)


def copy_repository(to: Path) -> None:
    """All that says something of algorithms."""
    large = shutil.ignore_patterns("__pycache__", "results", "pictures", "*.png")
    for folder in ("src", "docs", "tests/oracles", "tests/conformance", "tests/golden", "tests/core"):
        shutil.copytree(ROOT / folder, to / folder, ignore=large)
    for file in (*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "tests" / "conftest.py"):
        shutil.copy(file, to / file.relative_to(ROOT))


def put(text: str, after: str, path: Path) -> None:
    before = path.read_text(encoding="utf-8")
    assert before.count(after) == 1, (path, after)
    path.write_text(before.replace(after, after + text), encoding="utf-8")


def add_algorithm(root: Path) -> None:
    """The five."""
    skeleton = (root / "src" / "moiety" / "algorithms" / "_skeleton.py").read_text(encoding="utf-8")
    (root / ALGORITHM).write_text(skeleton.replace("skeleton", NAME), encoding="utf-8")
    put(LINE, "from collections.abc import Callable\n\n", root / LINES)
    put(ROW, "\nTABLE = [", root / ROWS)
    (root / PAGE).write_text(TEXT, encoding="utf-8")
    put(f"- `{NAME}`: an algorithm more.\n", "## 0.1.0 (unreleased)\n\n### Added\n\n", root / CHANGES)


def run(root: Path, *words: str) -> str:
    """What Python prints, with the copied packages before the installed ones."""
    env = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS", "CI") and "XDIST" not in k}
    env["PYTHONPATH"] = str(root / "src")
    process = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=root, env=env, timeout=600)
    assert (process.returncode, process.stderr) == (0, ""), process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the repository with an algorithm more, after the two commands."""
    root = tmp_path_factory.mktemp("house")
    copy_repository(root)
    add_algorithm(root)
    written = run(root, "docs/deviations.py")
    assert written == f"written: local-work.md, README.md, comparison.md, {NAME}.md\n"
    run(root, "tests/golden/pin.py", NAME)
    return root


def test_python_the_command_and_a_file_know_it(house):
    """One process does all of it."""
    (house / "first.toml").write_text(FILE)
    listing, _, _ = run(house, "-c", PROGRAM.format(folder=str(house))).partition("listed\n")
    rows = [line.split() for line in listing.splitlines()]
    assert [row[0] for row in rows if row].count(NAME) == 1
    config = tomllib.loads((house / "runs" / "first" / "config.toml").read_text(encoding="utf-8"))
    assert config["algorithm"] == {"name": NAME, "shared": {"name": "sgd", "lr": 0.1, "steps": 2}}


def test_the_docs_have_it(house):
    table = (house / "docs" / "local-work.md").read_text(encoding="utf-8")
    assert f"\n| [`{NAME}`](algorithms/{NAME}.md) | any | | |\n" in table
    assert f"| algorithms | `{NAME}`, `apfl`, " in (house / "README.md").read_text(encoding="utf-8")
    page = (house / PAGE).read_text(encoding="utf-8")
    assert "\n\n## Deviations\n\nNone.\n" in page
    assert page.endswith("\n\n## Evidence\n\nTests.\n")
    numbers = {
        int(re.search(r"(\d+) algorithms[,:]", (root / page).read_text(encoding="utf-8"))[1])
        for root, page in ((house, "README.md"), (house, "docs/comparison.md"))
    }
    assert numbers == {len(list((house / "src" / "moiety" / "algorithms").glob("[!_]*.py")))}


def test_every_test_of_algorithms_has_it_and_passes(house):
    """Tests with its name, which are many, and those that have no cases: lists are complete in these."""
    words = (
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-o",
        "addopts=",
        "-v",
        "-k",
        f"{NAME} or not [",
    )
    printed = run(house, *words, *(f"tests/{place}" for place in TESTS))
    passed = {line.split()[0].removeprefix("tests/") for line in printed.splitlines() if " PASSED" in line}
    its_own = {test for test in passed if NAME in test}
    assert len({test.partition("[")[0] for test in its_own}) >= 20
    for engine in ("sequential", "vectorised"):
        assert f"golden/test_golden.py::test_parameters[{NAME}/{engine}]" in its_own
    assert f"conformance/test_conformance_convergence.py::test_reaches_the_solution[{NAME}-examples]" in its_own
    assert f"conformance/test_conformance_optimisers.py::test_engines_agree[{NAME}]" in its_own
    assert f"core/test_docs_blocks.py::test_every_page_runs[{PAGE}]" in its_own
    assert {
        "golden/test_golden.py::test_all_is_pinned",
        "core/test_public_names.py::test_every_algorithm_has_its_page",
    } <= passed


def test_nothing_else_was_touched(house):
    """Files that differ from the repository: the five, and those that the two commands write."""
    files = {path.relative_to(house) for part in ("src", "docs", "tests") for path in (house / part).rglob("*.*")}
    files |= {path.relative_to(house) for path in house.glob("*.*") if path.name != "first.toml"}
    kept = {path for path in files if "__pycache__" not in path.parts and (house / path).is_file()}
    new = {path for path in kept if not (ROOT / path).is_file()}
    changed = {path for path in kept - new if not filecmp.cmp(house / path, ROOT / path, shallow=False)}
    assert {path.as_posix() for path in new} == {ALGORITHM, PAGE}
    assert {path.as_posix() for path in changed} == {LINES, ROWS, CHANGES, *WRITTEN}
