"""The files and commands of the documentation run, page by page.

A file is written under the name in its first line. A part of a file completes that of docs/command.md. Trainings are
cut to two rounds: whether they run does not depend on their length. The Python of the pages is run by the gate.
"""

import csv
import importlib
import re
import shutil
from pathlib import Path

import pytest
import tomli_w
from docs_files import DOCS, blocks, commands, complete, first_file, words_of
from recipe_runs import call_command

import moiety as mo

ROOT = DOCS.parent
PAGES = sorted(DOCS.rglob("*.md"))
NOT_RUN = {
    "make demo": "the network: it installs",
    "pip install": "the network: it installs",
    "moiety data fetch": "the network: it downloads",
    "source ": "a shell of its own: it changes that shell alone",
}
"""What commands begin with that no test runs, and what they need."""
COUNTED = {"start.md": 2, "sweeps.md": 1, "data-sets.md": 1}
"""How many of them each page has: none may join them unnoticed."""
ELSEWHERE = {
    "[track]": ("tests/extras/test_docs_extras.py", "callbacks.md"),
    "moiety tune": ("tests/extras/test_docs_extras.py", "sweeps.md"),
    "moiety deploy demo": ("tests/deploy/processes/test_demo.py", '"deploy", "demo"'),
    "[deploy]": ("tests/deploy/processes/test_deployment_page.py", "with_the_tables_of_the_page"),
    **dict.fromkeys(
        ("cd trial", "export FLWR", "flower-super", "flwr ", "moiety.deploy.worker"),
        ("tests/deploy/processes/test_deployment_page.py", "test_two_laptops"),
    ),
    "moiety deploy run": ("tests/deploy/test_attempts.py", '"deploy", "run"'),
    "moiety deploy status": ("tests/deploy/test_deploy_commands.py", '"deploy", "status"'),
    "moiety deploy export": ("tests/deploy/test_deploy_commands.py", '"deploy", "export"'),
}
"""Files and commands that other tests run: which, and by which words there."""
SHORTER = {'"10 min"': "300000", "moiety run fedalt-speech": "moiety run fedalt-speech --scale ci"}
"""Commands that would take minutes, and what is run in their place: fewer gradient evaluations, a smaller scale."""
MAKES_FILES = ("start.md", "data.md", "experiments.md")
"""Pages whose Python writes what their files read, or declares what they name."""
TABLE = {"name": "table", "path": "visits.csv", "client": "hospital", "target": "outcome", "missing": "mean"}
"""A table of two classes for a part of a file that is about two classes."""


def is_among(words: dict, text: str) -> bool:
    return any(word in text for word in words)


WITH_FILES = [page for page in PAGES if {kind for kind, _ in blocks(page)} & {"toml", "sh"}]


def test_what_is_not_run_is_counted() -> None:
    lines = {
        page.name: [line for kind, text in blocks(page) if kind == "sh" for line in commands(text)] for page in PAGES
    }
    missing = {name: [line for line in some if is_among(NOT_RUN, line)] for name, some in lines.items()}
    print("\nnot run:", *(f"  {name}: {line}" for name, some in missing.items() for line in some), sep="\n")
    assert {name: len(some) for name, some in missing.items() if some} == COUNTED


@pytest.mark.parametrize("words", ELSEWHERE)
def test_what_runs_elsewhere_runs_there(words: str) -> None:
    file, text = ELSEWHERE[words]
    assert text in (ROOT / file).read_text(encoding="utf-8")


def shortened(function):
    return lambda *args, **options: function(*args, **{**options, "rounds": 2})


def write_visits(path: Path) -> None:
    with path.open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["hospital", "age", "ward", "outcome"])
        for at in range(240):
            age = "" if at % 20 == 7 else 30 + at % 40
            write.writerow([f"site-{at % 12}", age, ("day", "night")[at % 2], ("ill", "well")[at // 12 % 2]])


def install_recipe(place: Path, code: str, entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip makes of a package with this entry in its pyproject.toml."""
    group, name, module, attribute = re.fullmatch(
        r'\[project\.entry-points\."(.+)"\]\n(\w+) = "(.+):(\w+)"\n', entry
    ).groups()
    file = place / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(parents=True)
    file.with_name("__init__.py").touch()
    file.write_text(code, encoding="utf-8")
    info = place / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{attribute}\n")
    monkeypatch.syspath_prepend(str(place))
    importlib.invalidate_caches()
    assert call_command("run", name, "--scale", "ci", "--out", "runs/entry")[0] == 0


def run_file(text: str, whole: dict) -> None:
    match = re.match(r"# (\S+\.toml)", text)
    name = match[1] if match else "part.toml"
    if "weight = [1.0, 4.0]" in text:
        whole = {**whole, "data": TABLE}
    Path(name).write_text(tomli_w.dumps(complete(text, whole)), encoding="utf-8")
    words = ("run", name, "--out", "runs/file", "--quiet")
    code, _, problem = call_command(*words)
    assert code == 0, (text, problem)
    shutil.rmtree("runs/file")


def run_line(line: str) -> None:
    for words, shorter in SHORTER.items():
        line = line.replace(words, shorter)
    code, _, problem = call_command(*words_of(line)[1:])
    assert code == 0, (line, problem)


@pytest.mark.parametrize("page", WITH_FILES, ids=lambda page: page.name)
def test_every_file_and_command_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOIETY_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    whole = first_file()
    Path("first.toml").write_text(tomli_w.dumps(complete("", whole)), encoding="utf-8")
    write_visits(Path("visits.csv"))
    monkeypatch.setattr(mo, "fit", shortened(mo.fit))
    names, code = {"mo": mo}, ""
    for kind, text in blocks(page):
        if kind == "python":
            code += text
            if page.name in MAKES_FILES:
                exec(compile(text, page.name, "exec"), names)
        if kind == "toml" and not is_among(ELSEWHERE, text):
            if "entry-points" in text:
                install_recipe(tmp_path / "installed", code, text, monkeypatch)
            else:
                run_file(text, whole)
        for line in commands(text) if kind == "sh" else ():
            if not is_among({**NOT_RUN, **ELSEWHERE}, line):
                run_line(line)
