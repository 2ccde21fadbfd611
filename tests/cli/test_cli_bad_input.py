"""Bad input of every kind: exit code 2, exactly one line, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_command import PERSONAL, SMALL, call, one_line

COMMANDS = {
    "unknown command": (["rn"], "Did you mean 'run'"),
    "unknown option": (["run", "small.toml", "--roundz", "3"], "--rounds"),
    "missing target": (["run"], "Missing argument"),
    "empty target": (["run", ""], "a recipe or a TOML file"),
    "two targets": (["run", "a.toml", "b.toml"], "unexpected extra argument"),
    "rounds no number": (["run", "small.toml", "--rounds", "ten"], "valid integer"),
    "rounds without a value": (["run", "small.toml", "--rounds"], "requires an argument"),
    "no such file": (["run", "absent.toml"], "Recipes: "),
    "nearly a recipe": (["run", "quickstrat"], "Did you mean quickstart?"),
    "a folder": (["run", "."], "the folder ."),
    "out is nothing": (["run", "small.toml", "--out", ""], "`out` must be a folder, got nothing."),
    "out is a file": (["run", "small.toml", "--out", "small.toml"], "a folder"),
    "out below a file": (["run", "small.toml", "--out", "small.toml/x"], "can be written"),
    "resume without a run": (["run", "small.toml", "--resume"], "none in runs/small*"),
    "resume an absent folder": (["run", "small.toml", "--resume", "--out", "away"], "a run to resume, got away"),
    "resume a recipe without a run": (["run", "quickstart", "--resume"], "none in runs/quickstart*"),
    "rounds without end": (["run", "small.toml", "--rounds", "1" + "0" * 400], "`rounds` must be <= 1000000000"),
    "no such workers": (["run", "small.toml", "--workers", "-1"], "`workers` must be >= 1, got -1."),
    "too many workers": (["run", "small.toml", "--workers", "5000"], "`workers` must be <= 1024, got 5000."),
    "recipe with rounds without end": (["run", "quickstart", "--rounds", "1" + "0" * 400], "must be <= 1000000000"),
    "recipe with set": (["run", "quickstart", "--set", "run.rounds=3"], "a field of the plan"),
    "recipe with no rounds": (["run", "quickstart", "--rounds", "0"], "`rounds` must be >= 1, got 0."),
    "recipe with a negative seed": (["run", "quickstart", "--seed", "-1"], "`seed`"),
    "recipe with an unknown engine": (["run", "quickstart", "--engine", "fast"], "sequential, vectorised"),
    "list of nothing": (["list"], "Missing argument"),
    "list of an unknown kind": (["list", "algoritms"], "Did you mean algorithms?"),
    "list of what is far from all kinds": (["list", "zzz"], "solvers, splits, times."),
    "compare nothing": (["compare"], "Missing argument"),
    "compare one": (["compare", "a"], "at least two, got 1"),
    "compare what is no run": (["compare", "a", "b"], "a run folder with a config.toml, got a."),
}

SETS = {
    "foo": "of the form section.key=value, got foo",
    "=3": "of the form",
    "run..rounds=3": "of the form",
    "modle.name=mlp": "Did you mean model?",
    "run=3": "a key of [run]",
    "run.rounds.x=3": "run.rounds, which is none",
    "run.roundz=3": "Did you mean rounds?",
    "run.zzz=3": "participation, precision, rounds, safeguard, seed, start, worker_timeout, workers.",
    "run.codec=qsgd": "`run` must be a table of known keys, got codec. It is a section of its own, [codec].",
    "run.inputs=x": "`run.inputs` must be a list, as in ['x'], got 'x'.",
    "run.inputs=[3]": "`run.inputs.1` must be a text, got 3.",
    "run.rounds=true": "`run.rounds` must be a whole number, got True.",
    "run.rounds=1.5": "`run.rounds` must be a whole number, got 1.5.",
    "run.rounds=0": ">= 1",
    "run.cohort=5": "<= 4, the number of clients",
    "run.engine=fast": "sequential, vectorised",
    "run.device=abacus": "a device of this machine",
    "run.device=meta": "a device to train on",
    "run.loss=mae": "cross_entropy, ctc, huber, mse",
    "run.evaluate_on=validation": "has rows",
    "run.inputs=['z']": "columns of the data",
    "run.inputs=[]": "at least one column",
    "data=5": "`data` must be a table, got 5.",
    "data.clints=5": "Did you mean clients?",
    "data.partition=3": "a name or a table",
    "data.partition={name='dirichlet', alpha='abc'}": "`data.partition.alpha` must be a number, got 'abc'.",
    "data.partition=dirichlett": "Did you mean dirichlet?",
    "data.own=mine": "named in the file",
    "model.name=mpl": "`model.name`",
    "model.outputs=2": "a label from 0 to 1",
    "model={name='mlp', hidden=64}": "`model.hidden` must be a list, as in [64], got 64.",
    "model={name='mlp', hidden=[8, 'a']}": "`model.hidden.2` must be a whole number, got 'a'.",
    "model={name='mlp', hidden=[1000000000000000000000]}": "<= 1000000000",
    "model={name='mlp', hidden=[300000, 300000000]}": "`model` must be such that it fits the free memory",
    "run.rounds=1e400": "`run.rounds` must be a whole number, got inf.",
    f"run.rounds={'9' * 5000}": "`run.rounds` must be a whole number, got '999",
    f"run.rounds={'[' * 5000}": "`run.rounds` must be a whole number, got '[[[",
    "run.worker_timeout=0": "`worker_timeout` must be > 0",
    "algorithm.shared.batch_size=true": "`algorithm.shared.batch_size` must be a whole number or a text, got True.",
    "algorithm.shared.steps='1'": "`algorithm.shared.steps` must be a whole number, got '1'.",
    "algorithm.shared.steps=1000000000000": "`steps` must be <= 1000000000, got 1000000000000.",
    f"algorithm.shared.steps=1{'0' * 19}": "`steps` must be <= 1000000000, got 1",
    f"algorithm.shared.steps=1{'0' * 400}": "`steps` must be <= 1000000000, got 1",
    "algorithm.shared.steps=1000000000": "at most 100,000,000 rows, got 1,000,000,000, or 32,000,000,000 rows.",
    "algorithm.shared={name='sgd', lr=0.1, epochs=9000000}": "`epochs` must be such that a client's turn has at most",
    f"algorithm.shared.lr=1{'0' * 400}": "`algorithm.shared.lr` must be",
    "algorithm.shared.lr=true": "`algorithm.shared.lr` must be a number, got True.",
    "algorithm.shared.lrr=3": "Did you mean lr?",
    "algorithm.zzz=3": "schedule, server, shared, weighting.",
    "algorithm.shared.lr=fast": "`algorithm.shared.lr` must be a number, got 'fast'.",
    "algorithm.shared.batch_size=x": "`batch_size` must be a whole number, got 'x'.",
    "algorithm.shared.shuffle=maybe": "`algorithm.shared.shuffle` must be true or false, got 'maybe'.",
    "algorithm.server=adm": "Did you mean adam?",
    "algorithm={name='fedalt', shared=0.1, personal=0.1}": "`split` must be given for fedalt",
    "split=output_layer": "nothing personal for fedavg",
}

FILES = {
    "no TOML": ("[run\nrounds = 3\n", "(at line 1, column 5)"),
    "a later line": ("[run]\nrounds = \n", "(at line 2, column 10)"),
    "no text": (b"\xff\xfe\x00", "UTF-8"),
    "empty": ("", "Add a section [data]"),
    "unknown section": (SMALL + "\n[datta]\n", "Did you mean data?"),
    "a key of run above all sections": ("rounds = 3\n" + SMALL, "It is a key of [run]: write run.rounds."),
    "unknown key of run": (SMALL + "\nevaluate_evry = 2\n", "Did you mean evaluate_every"),
    "section is a number": ("run = 5\n" + SMALL.partition("[run]")[0], "`run` must be a table, got 5."),
    "nested too deeply": (
        f"x = {'[' * 3000}{']' * 3000}\n" + SMALL,
        "must be readable TOML in UTF-8, got RecursionError",
    ),
    "a number of too many digits": (SMALL.replace("rounds = 2", f"rounds = {'9' * 5000}"), "readable TOML"),
    "no rounds": (SMALL.replace("rounds = 2", ""), "use --rounds"),
    "no clients": (SMALL.replace("clients = 4", ""), "`clients`"),
    "no learning rate": (SMALL.replace("lr = 0.1, ", ""), "no lr"),
}


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOIETY_DATA", raising=False)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def check_refusal(capsys: pytest.CaptureFixture[str], cwd: Path, argv: list[str], words: str) -> None:
    before = sorted(cwd.rglob("*"))
    result = call(capsys, *argv)
    assert result.code == 2
    assert result.out == ""
    assert one_line(result.err), result.err
    assert words in result.err
    assert sorted(cwd.rglob("*")) == before


@pytest.mark.parametrize("case", COMMANDS)
def test_commands(capsys, cwd, case):
    check_refusal(capsys, cwd, *COMMANDS[case])


@pytest.mark.parametrize("assignment", SETS)
def test_assignments(capsys, cwd, assignment):
    check_refusal(capsys, cwd, ["run", "small.toml", "--set", assignment], SETS[assignment])


@pytest.mark.parametrize("case", FILES)
def test_files(capsys, cwd, case):
    text, words = FILES[case]
    (cwd / "bad.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    check_refusal(capsys, cwd, ["run", "bad.toml"], words)


def test_data_that_is_not_there_names_the_file_and_the_variable(capsys, cwd):
    check_refusal(capsys, cwd, ["run", "small.toml", "--set", "data=mnist"], "MOIETY_DATA")


def test_what_no_longer_fits_a_run_is_refused_on_resume(capsys, cwd):
    (cwd / "own.toml").write_text(PERSONAL)
    assert call(capsys, "run", "own.toml", "--quiet").code == 0
    for assignment, words in {
        "algorithm.shared.lr=0.1": "`algorithm.shared.lr` must be 0.5, as runs/own began, got 0.1.",
        "algorithm.shared.momentum=0.5": "`algorithm.shared.momentum` must be left out, as runs/own began, got 0.5.",
        "data.partition=shards": "`data.partition.name` must be 'iid', as runs/own began, got 'shards'.",
        "model.hidden=[9]": "`model.hidden` must be [8]",
        "split=everything": "`split.name` must be 'output_layer'",
        "run.seed=3": "`run.seed` must be 0, as runs/own began, got 3.",
        "run.rounds=1": "`rounds` must be >= 2, the rounds already trained, got 1.",
    }.items():
        check_refusal(capsys, cwd, ["run", "own.toml", "--resume", "--set", assignment], words)
    hint = "Only rounds, engine and workers may change; begin another run for the rest, or keep it with --set 'model"
    check_refusal(capsys, cwd, ["run", "own.toml", "--resume", "--set", "model.hidden=[9]"], f"{hint}.hidden")
    check_refusal(capsys, cwd, ["run", "own.toml", "--resume", "--seed", "3"], "as runs/own began")
    check_refusal(capsys, cwd, ["run", "own.toml", "--out", "runs/own"], "holds no run yet")
    check_refusal(capsys, cwd, ["run", "quickstart", "--resume", "--out", "runs/own"], "a single run")


ON_RESUME = {
    "--workers=-1": "`workers` must be >= 1, got -1.",
    "--workers=0": "`workers` must be >= 1, got 0.",
    f"--rounds=1{'0' * 400}": "`rounds` must be <= 1000000000",
    "--set=codec=3": "`codec` must be a table, got 3.",
    "--set=codec=false": "`codec` must be a table, got False.",
    "--set=algorithm.nonsense=false": "`algorithm` must be a table of known keys for fedavg, got nonsense.",
    "--set=algorithm.shared.steps='1'": "`algorithm.shared.steps` must be a whole number, got '1'.",
    "--set=algorithm.shared.steps=true": "`algorithm.shared.steps` must be a whole number, got True.",
    "--set=model.nonsense=false": "`model` must be a table of known keys for linear, got nonsense.",
    "--set=clock={name='synchronous', compute=false}": "`clock.compute` must be a name or a table",
}


@pytest.mark.parametrize("option", ON_RESUME)
def test_a_resume_takes_no_more_than_a_start(capsys, cwd, option):
    assert call(capsys, "run", "small.toml", "-q", "--out", "runs/one").code == 0
    check_refusal(capsys, cwd, ["run", "small.toml", "--resume", "--out", "runs/one", option], ON_RESUME[option])
