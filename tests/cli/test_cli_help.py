"""Help and version: quick, plain, and without anything heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_command import call, shell

import moiety
from moiety.cli import commands, data_commands, deploy

HEAVY = ("torch", "numpy", "sklearn", "pyarrow", "pydantic")
NOT_FOR_HELP = (
    "rich",
    "logging",
    "importlib.metadata",
    "dataclasses",
    "pkgutil",
    "asyncio",
    "shlex",
    "moiety.run",
    "moiety.data",
    "moiety.cli.data_commands",
    "moiety.cli.deploy",
    "moiety.cli.log",
    "moiety.cli.request",
)
NOT_FOR_A_ROUND = (
    *("sklearn", "scipy", "pandas", "narwhals", "pyarrow.compute", "pooch", "requests", "PIL"),
    *("torchmetrics", "torchvision", "torch._dynamo", "torch._inductor", "sympy", "matplotlib"),
    *("ray", "flwr", "optuna", "transformers", "peft", "moiety.deploy"),
)
"""What a run on arrays needs at its end, with some options, or never."""


def find_imports(names, commands):
    """Call the command with each list of words, all in one new process: the names that are imported after each."""
    text = f"""
import sys
from moiety.cli import main
for words in {commands!r}:
    print("begins", flush=True)
    code = main(words)
    print(code, [name for name in {names!r} if name in sys.modules], file=sys.stderr)
"""
    process = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    outputs = process.stdout.split("begins\n")[1:]
    assert len(outputs) == len(commands)
    assert all(outputs)
    return process.stderr.splitlines()


def test_nothing_heavy_is_imported():
    """Neither rich, with one exception: typer (0.20.1) imports it itself to show that an argument is required.

    That is in the help of a command (``TyperArgument.get_help_record``), whether or not typer is told to use rich.
    """
    plain = [["--help"], ["--version"], []]
    assert find_imports((*HEAVY, *NOT_FOR_HELP), plain) == ["0 []"] * 3
    of_a_command = [["run", "--help"], ["list", "-h"], ["compare", "-h"], ["data", "-h"]]
    assert find_imports(HEAVY, of_a_command) == ["0 []"] * 4


@pytest.mark.parametrize("group", [commands.app, data_commands.data, deploy.deploy])
def test_annotations_of_commands_are_values(group):
    """As text, typer would evaluate each of them four times, whatever the command: a sixth of the time of --help."""
    for command in group.registered_commands:
        assert not [name for name, value in command.callback.__annotations__.items() if isinstance(value, str)]


def test_the_first_round_of_a_run_on_arrays_imports_no_more_than_it_needs(tmp_path):
    text = f"""
import sys
import moiety as mo
import moiety.cli.run
class Look(mo.callbacks.Callback):
    def on_round(self, run, record):
        print([name for name in {NOT_FOR_A_ROUND!r} if name in sys.modules], file=sys.stderr)
fed = mo.data.load("digits", clients=3)
model = mo.models.mlp(64, 10, hidden=[4])
split = mo.split.output_layer(model)
mo.fit(model, fed, mo.fedalt(shared=0.1, personal=0.1), split=split, rounds=1, out="run", callbacks=[Look()])
"""
    process = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert (process.returncode, process.stderr) == (0, "[]\n")


def test_lists_of_data_sets_import_neither_torch_nor_what_downloads():
    heavy = ("torch", "sklearn", "scipy", "pyarrow", "pooch", "requests")
    assert find_imports(heavy, [["list", "datasets"], ["data", "list"], ["data", "where"]]) == ["0 []"] * 3


def test_help_names_the_commands_and_the_first_step(capsys):
    result = call(capsys, "--help")
    assert result.code == 0
    for word in ("run", "list", "compare", "data", "moiety run quickstart"):
        assert word in result.out


def test_help_of_run_explains_resume_and_quiet(capsys):
    result = call(capsys, "run", "--help")
    for word in ("--set", "--rounds", "--seed", "--engine", "--out", "--resume", "--quiet", "is refused"):
        assert word in " ".join(result.out.split())


def test_help_names_every_kind_and_engine(capsys):
    text = " ".join(call(capsys, "list", "--help").out.split())
    for kind in ("algorithms", "recipes", "datasets", "partitions", "models", "splits", "servers", "schedules"):
        assert kind in text
    for kind in ("solvers", "kernels", "priors", "aggregators", "attacks", "codecs", "clocks", "times", "engines"):
        assert kind in text
    text = " ".join(call(capsys, "run", "--help").out.split())
    for word in ("sequential, vectorised, processes, or ray", "[aggregator], [codec], [attack], [clock] and [track]"):
        assert word in text


def test_version(capsys):
    assert call(capsys, "--version") == (0, f"moiety {moiety.__version__}\n", "")


def test_closed_pipe_is_no_error(tmp_path: Path):
    text = "import sys; from moiety.cli import main; sys.exit(main(['list', 'engines']))"
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=300) == 1


def test_entry_point_gives_exit_codes(tmp_path: Path):
    assert shell("--version", cwd=tmp_path).code == 0
    bad = shell("list", "absent", cwd=tmp_path)
    assert bad.code == 2
    assert bad.out == ""
    assert "Traceback" not in bad.err


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("moiety run quick", ["quickstart"]),
        ("moiety run own", ["own.toml"]),
        ("moiety run x.toml --set algorithm.name=fedal", ["algorithm.name=fedalt"]),
        ("moiety list alg", ["algorithms"]),
        ("moiety deploy ex", ["export"]),
    ],
)
def test_the_shell_completes_names_without_torch(tmp_path, words, completions):
    """As bash asks for it."""
    (tmp_path / "own.toml").write_text("")
    text = f"""
import sys
from moiety.cli import main
code = main([])
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""
    variables = {"_MOIETY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    process = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | variables,
        cwd=tmp_path,
    )
    assert (process.returncode, process.stderr, process.stdout.split()) == (0, "[]\n", completions)
