"""Types as a user sees them: a small program under ``mypy --strict``, against the wheel. It runs, too."""

import shutil
import sys
from pathlib import Path

import pytest
from outside import call

PROGRAM = Path(__file__).with_name("typed_program.py")
WRONG = """
import moiety as mo

mo.Settings(evaluate_every="often")
mo.sgd("fast")
mo.fedalt(shared=0.1, personal=0.1).nonsense
"""


def check_types(program: Path, bin_folder: Path) -> str:
    """What mypy says of a program in a folder without a configuration."""
    words = ("--strict", "--python-executable", str(bin_folder / "python"), "--no-color-output", "--config-file=")
    script = '"$@" || true'  # what it finds is to be read
    return call("bash", "-c", script, "mypy", sys.executable, "-m", "mypy", *words, program.name, cwd=program.parent)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("typed")


def test_a_program_is_well_typed(folder, bin_folder) -> None:
    program = Path(shutil.copy(PROGRAM, folder))
    output = check_types(program, bin_folder)
    assert output.startswith("Success"), output


def test_mistakes_are_found(folder, bin_folder) -> None:
    """The types that were found are those of the package, not ``Any``."""
    program = folder / "wrong.py"
    program.write_text(WRONG, encoding="utf-8")
    output = check_types(program, bin_folder)
    assert [line.rpartition("[")[2] for line in output.splitlines()[:-1]] == ["arg-type]", "arg-type]", "attr-defined]"]


def test_the_program_runs(folder, bin_folder) -> None:
    shutil.copy(PROGRAM, folder)
    output = call("python", PROGRAM.name, cwd=folder, folder=bin_folder)
    assert "refused: " in output
    assert "predicted" in output
