"""Help and version: quick, plain, and without anything heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_command import call, shell

import moiety

HEAVY = ("torch", "numpy", "sklearn", "pyarrow", "pydantic")


@pytest.mark.parametrize(
    "argv", [["--help"], ["run", "--help"], ["list", "-h"], ["compare", "-h"], ["data", "-h"], ["--version"], []]
)
def test_nothing_heavy_is_imported(argv):
    """Neither rich, with one exception: typer (0.20.1) imports it itself to show that an argument is required.

    That is in the help of a command (``TyperArgument.get_help_record``), whether or not typer is told to use rich.
    """
    of_a_command = len(argv) == 2
    heavy = HEAVY if of_a_command else (*HEAVY, "rich")
    text = f"""
import sys
from moiety.cli import main
code = main({argv!r})
print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert done.stdout


@pytest.mark.parametrize("argv", [["list", "datasets"], ["data", "list"], ["data", "where"]])
def test_lists_of_data_sets_import_neither_torch_nor_what_downloads(argv):
    heavy = ("torch", "sklearn", "scipy", "pyarrow", "pooch", "requests")
    text = f"""
import sys
from moiety.cli import main
code = main({argv!r})
print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_help_names_the_commands_and_the_first_step(capsys):
    found = call(capsys, "--help")
    assert found.code == 0
    for word in ("run", "list", "compare", "data", "moiety run quickstart"):
        assert word in found.out


def test_help_of_run_explains_resume_and_quiet(capsys):
    found = call(capsys, "run", "--help")
    for word in ("--set", "--rounds", "--seed", "--engine", "--out", "--resume", "--quiet", "is refused"):
        assert word in " ".join(found.out.split())


def test_help_names_every_kind_and_engine(capsys):
    found = " ".join(call(capsys, "list", "--help").out.split())
    for kind in ("algorithms", "recipes", "datasets", "partitions", "models", "splits", "servers", "schedules"):
        assert kind in found
    for kind in ("solvers", "kernels", "priors", "aggregators", "attacks", "codecs", "clocks", "times", "engines"):
        assert kind in found
    found = " ".join(call(capsys, "run", "--help").out.split())
    for word in ("sequential, vectorised, processes, or ray", "[aggregator], [codec], [attack], [clock] and [track]"):
        assert word in found


def test_version(capsys):
    assert call(capsys, "--version") == (0, f"moiety {moiety.__version__}\n", "")


def test_closed_pipe_is_no_error(tmp_path: Path):
    text = "import sys; from moiety.cli import main; sys.exit(main(['list', 'recipes']))"
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=300) == 1


def test_entry_point_gives_exit_codes(tmp_path: Path):
    assert shell("--version", cwd=tmp_path).code == 0
    bad = shell("run", "absent.toml", cwd=tmp_path)
    assert bad.code == 2
    assert bad.out == ""
    assert "Traceback" not in bad.err


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("moiety run quick", ["quickstart"]),
        ("moiety run own", ["own.toml"]),
        ("moiety run x.toml --set algorithm.name=fedal", ["algorithm.name=fedalt"]),
        ("moiety list alg", ["algorithms"]),
    ],
)
def test_the_shell_completes_names_without_torch(tmp_path, words, wanted):
    """As bash asks for it."""
    (tmp_path / "own.toml").write_text("")
    text = f"""
import sys
from moiety.cli import main
code = main([])
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""
    asked = {"_MOIETY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=300, env=os.environ | asked, cwd=tmp_path
    )
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "[]\n", wanted)
