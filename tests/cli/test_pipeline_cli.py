"""``moiety run`` with ``[[stage]]`` tables: begun, watched, killed, continued, summed up, and refused."""

from __future__ import annotations

import os
import signal
import tomllib
from pathlib import Path

import pytest
from cli_command import PERSONAL, SMALL, Result, call, one_line, start
from waiting import wait_until

from moiety.experiments.config import assign
from moiety.run.folder import read_clients, read_config, read_history

STAGED = """
model = {name = "mlp", hidden = [8]}

[data]
name = "digits"
clients = 4
partition = "iid"

[run]
engine = "sequential"

[[stage]]
rounds = 2
cohort = 2
algorithm = {name = "fedavg", shared = 0.3}

[[stage]]
rounds = 3
cohort = 2
split = "output_layer"
evaluate_every = 1
algorithm = {name = "fedalt", shared = 0.5, personal = 0.5}

[[stage]]
rounds = 1
algorithm = {name = "finetune", personal = {name = "sgd", lr = 0.2, epochs = 2}}
"""
NAMES = ("1-fedavg", "2-fedalt", "3-finetune")


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOIETY_DATA", raising=False)
    (tmp_path / "three.toml").write_text(STAGED)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def check_refusal(result: Result, words: str) -> None:
    assert result.code == 2
    assert result.out == ""
    assert one_line(result.err), result.err
    assert words in result.err


def test_stages_are_run_and_summed_up(capsys, cwd):
    result = call(capsys, "run", "three.toml")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    heads = [line for line in lines if " clients a round, " in line]
    assert heads == [
        "1-fedavg: fedavg on digits, split nothing, 2 clients a round, seed 0, engine sequential,"
        " in runs/three/1-fedavg",
        "2-fedalt: fedalt on digits, split output_layer, 2 clients a round, seed 0, engine sequential,"
        " in runs/three/2-fedalt",
        "3-finetune: finetune on digits, split output_layer, 4 clients a round, seed 0, engine sequential,"
        " in runs/three/3-finetune",
    ]
    assert [line.split("  ")[0] for line in lines if line.startswith("round")] == [
        "round 1/2",
        "round 2/2",
        "round 1/3",
        "round 2/3",
        "round 3/3",
        "round 1/1",
    ]
    # By hand from the rows of the three folders, in percentage points.
    metrics = [{r["client"]: 100 * r["metric"] for r in read_clients(cwd / "runs/three" / name)} for name in NAMES]
    means = [sum(each.values()) / 4 for each in metrics]
    for k, name in enumerate(NAMES):
        row = next(line.split() for line in lines if line.startswith(f"{name} "))
        assert row[4] == f"{means[k]:.1f}%"
        if k:
            changes = [metrics[k][c] - metrics[k - 1][c] for c in metrics[k]]
            assert float(row[6]) == pytest.approx(sum(changes) / 4, abs=0.051)
            assert [int(n) for n in row[7:10]] == [
                sum(d > 1e-9 for d in changes),
                sum(abs(d) <= 1e-9 for d in changes),
                sum(d < -1e-9 for d in changes),
            ]
    changes = [metrics[2][c] - metrics[0][c] for c in metrics[0]]
    text = ", ".join(f"{name} {m:.1f}%" for name, m in zip(("fedavg", "fedalt", "finetune"), means, strict=True))
    assert lines[-2].startswith(f"3 stages on digits, accuracy on average over 4 clients: {text}; from the first to")
    assert f"{sum(d > 1e-9 for d in changes)} helped, " in lines[-2]
    assert lines[-1] == "results in runs/three"


def test_quiet(capsys, cwd):
    result = call(capsys, "run", "three.toml", "--quiet", "--out", "there")
    sentence, folder = result.out.splitlines()
    assert sentence.startswith("3 stages on digits")
    assert folder == "results in there"


@pytest.mark.filterwarnings("ignore:.updates. must be finite for some client")
def test_a_pipeline_remembers_what_was_set_and_tells_what_was_dropped(capsys, cwd):
    # Squared errors at such a rate come apart within two steps: of 2 rounds of 2 clients in stage 1 nothing is left.
    wild = ["--set", "run.loss=mse", "--set", "stage.1.algorithm.shared=1e30", "--seed", 5]
    result = call(capsys, "run", "three.toml", "-q", *wild)
    counts = [sum(len(row["dropped"]) for row in read_history(cwd / "runs/three" / name)) for name in NAMES]
    assert counts[0] == 4
    assert result.out.splitlines()[0].endswith(f"; {sum(counts)} updates were dropped.")
    again = call(capsys, "run", "three.toml", "-q", "--resume")
    assert (again.code, again.err) == (0, "")
    assert again.out.splitlines()[0] == result.out.splitlines()[0]


def test_the_folders_are_ordinary_and_say_where_they_started(capsys, cwd):
    call(capsys, "run", "three.toml", "-q")
    folder = cwd / "runs/three"
    assert sorted(p.name for p in folder.iterdir()) == [*NAMES, "pipeline.toml", "report.html"]
    assert "start" not in read_config(folder / "1-fedavg")["run"]
    assert read_config(folder / "3-finetune")["run"]["start"] == "runs/three/2-fedalt"
    assert call(capsys, "compare", "runs/three/1-fedavg", "runs/three/3-finetune").code == 0
    # Both files run again to the same numbers: the pipeline's, and a stage's own, from the stage before.
    assert call(capsys, "run", "runs/three/pipeline.toml", "-q").out.endswith("results in runs/three-2\n")
    assert call(capsys, "run", "runs/three/3-finetune/config.toml", "-q", "--out", "last").code == 0
    for other in (cwd / "runs/three-2/3-finetune", cwd / "last"):
        assert read_clients(other) == read_clients(folder / "3-finetune")


def test_options_and_assignments(capsys, cwd):
    sets = ["--set", "stage.1.rounds=1", "--set", "stage.2.algorithm.personal=0.1", "--set", "stage.3.cohort=3"]
    assert call(capsys, "run", "three.toml", "-q", *sets, "--seed", 3, "--engine", "vectorised").code == 0
    configs = [read_config(cwd / "runs/three" / name) for name in NAMES]
    assert [(c["run"]["rounds"], c["run"]["seed"], c["run"]["engine"]) for c in configs] == [
        (1, 3, "vectorised"),
        (3, 3, "vectorised"),
        (1, 3, "vectorised"),
    ]
    assert configs[1]["algorithm"]["personal"] == 0.1
    assert configs[2]["run"]["cohort"] == 3


def test_assign_makes_a_table_of_a_name():
    tables = tomllib.loads(STAGED)
    assign(tables, "stage.2.split.running_stats=shared")
    assert tables["stage"][1]["split"] == {"name": "output_layer", "running_stats": "shared"}


def test_killed_in_the_second_stage_and_continued(capsys, cwd):
    """A real SIGKILL from outside, once the second stage has a row of history."""
    rounds = ["--set", "stage.2.rounds=40", "--set", "stage.2.checkpoint_every=7"]
    process = start("run", "three.toml", "-q", *rounds, cwd=cwd)
    history = cwd / "runs/three/2-fedalt/history.jsonl"
    assert wait_until(history.exists)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode in (-signal.SIGKILL, 0)  # a busy machine may look up too late
    check_refusal(call(capsys, "run", "three.toml", "-q", *rounds, "--out", "runs/three"), "holds no run yet")
    assert call(capsys, "run", "three.toml", "-q", *rounds, "--resume").code == 0
    assert call(capsys, "run", "three.toml", "-q", *rounds, "--out", "whole").code == 0
    for name in NAMES:
        assert read_clients(cwd / "runs/three" / name) == read_clients(cwd / "whole" / name)
        rows = [
            [{k: v for k, v in row.items() if k != "seconds"} for row in read_history(cwd / folder / name)]
            for folder in ("runs/three", "whole")
        ]
        assert rows[0] == rows[1]


def test_interrupted_says_how_to_continue(cwd):
    process = start("run", "three.toml", "--set", "stage.1.rounds=100000", cwd=cwd)
    assert process.stdout is not None
    process.stdout.readline()  # the heading: the first round is done
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    again = "moiety run three.toml --set stage.1.rounds=100000 --resume --out runs/three"
    assert err.rstrip().endswith(f"interrupted; continue with: {again}")


def test_a_single_run_from_where_another_has_ended(capsys, cwd):
    (cwd / "own.toml").write_text(PERSONAL)
    assert call(capsys, "run", "own.toml", "-q").code == 0
    text = PERSONAL.replace("rounds = 2", 'rounds = 1\nstart = "runs/own"')
    (cwd / "more.toml").write_text(text)
    assert call(capsys, "run", "more.toml", "-q").code == 0
    assert read_config(cwd / "runs/more")["run"]["start"] == "runs/own"
    check_refusal(call(capsys, "run", "more.toml", "-q", "--set", "run.start=away"), "a run folder with a config.toml")


FILES = {
    "both": (
        STAGED + '\n[algorithm]\nname = "fedavg"\nshared = 0.1\n',
        "`algorithm` must be left out where there are stages",
    ),
    "a split": (STAGED + '\n[split]\nname = "norms"\n', "`split` must be left out where there are stages"),
    "neither": (STAGED.partition("[[stage]]")[0], "Add a section [algorithm], or tables [[stage]]"),
    "no stage": ("stage = []\n" + STAGED.partition("[[stage]]")[0], "at least one table [[stage]], got none"),
    "no list": ("stage = 3\n" + STAGED.partition("[[stage]]")[0], "`stage` must be a list of tables"),
    "rounds of the run": (STAGED.replace("[run]", "[run]\nrounds = 3"), "`run.rounds` must be left out"),
    "cohort of the run": (STAGED.replace("[run]", "[run]\ncohort = 3"), "stage.1.cohort=3"),
    "start": (STAGED.replace("[run]", '[run]\nstart = "x"'), "`run.start` must be left out"),
    "unknown key": (STAGED.replace("evaluate_every", "evaluate_evry"), "`stage.2` must be a table of known keys"),
    "near key": (STAGED.replace("evaluate_every", "evaluate_evry"), "Did you mean evaluate_every"),
    "no rounds": (STAGED.replace("rounds = 3", ""), "`stage.2.rounds` must be given, got nothing."),
    "no algorithm": (
        STAGED.replace('algorithm = {name = "fedavg", shared = 0.3}', ""),
        "`stage.1.algorithm` must be given, got nothing.",
    ),
    "odd rounds": (STAGED.replace("rounds = 3", 'rounds = "3"'), "`stage.2.rounds` must be a whole number, got '3'."),
    "no table": (STAGED.replace('split = "output_layer"', "split = 3"), "`stage.2.split` must be a table, got 3."),
    "unknown algorithm": (STAGED.replace('"fedalt"', '"fedlat"'), "`stage.2.algorithm.name`"),
    "unknown option": (STAGED.replace("personal = 0.5", "personl = 0.5"), "Did you mean personal"),
    "unknown split": (STAGED.replace('"output_layer"', '"output_lyer"'), "Did you mean output_layer?"),
    "server is a number": (STAGED.replace("shared = 0.3", "shared = 0.3, server = 3"), "`stage.1.algorithm.server`"),
    "its own": (
        STAGED.replace('{name = "fedavg", shared = 0.3}', '{own = "mine"}'),
        "`stage.1.algorithm` must be named",
    ),
    "no split": (STAGED.replace('split = "output_layer"', ""), "`stage.2.split` must be given for fedalt"),
    "large cohort": (STAGED.replace("cohort = 2", "cohort = 9"), "`stage.1.cohort` must be <= 4"),
    "no rounds at all": (STAGED.replace("rounds = 1", "rounds = 0"), "`rounds` must be >= 1, got 0."),
}
SETS = {
    "stage.0.rounds=3": "for one of 3 stages, counted from 1, got stage.0.",
    "stage.4.rounds=3": "for one of 3 stages",
    "stage.x.rounds=3": "for one of 3 stages",
    "stage.1=3": "for a key of a stage",
    "stage=3": "for a key of a stage",
    "stage.1.roundz=3": "`stage.1` must be a table of known keys, got roundz. Did you mean rounds?",
    "stage.1.rounds.x=3": "stage.1.rounds, which is none",
    "algorithm.shared=3": "`algorithm` must be left out where there are stages",
    "run.loss=mae": "`loss`",
}


@pytest.mark.parametrize("case", FILES)
def test_bad_files(capsys, cwd, case):
    text, words = FILES[case]
    (cwd / "bad.toml").write_text(text)
    before = sorted(cwd.rglob("*"))
    check_refusal(call(capsys, "run", "bad.toml"), words)
    assert sorted(cwd.rglob("*")) == before


@pytest.mark.parametrize("assignment", SETS)
def test_bad_assignments(capsys, cwd, assignment):
    before = sorted(cwd.rglob("*"))
    check_refusal(call(capsys, "run", "three.toml", "--set", assignment), SETS[assignment])
    assert sorted(cwd.rglob("*")) == before


def test_bad_options(capsys, cwd):
    check_refusal(call(capsys, "run", "three.toml", "--rounds", 3), "--set stage.1.rounds=3")
    check_refusal(call(capsys, "run", "small.toml", "--set", "stage.1.rounds=3"), "for one of 0 stages")
    check_refusal(call(capsys, "run", "three.toml", "--resume"), "none in runs/three*")


def test_what_no_longer_fits_is_refused_on_resume(capsys, cwd):
    assert call(capsys, "run", "three.toml", "-q").code == 0
    assert call(capsys, "run", "small.toml", "-q").code == 0
    again = ["run", "three.toml", "--resume"]
    check_refusal(
        call(capsys, *again, "--set", "stage.2.rounds=5"), "`stage.2.rounds` must be 3, as runs/three began, got 5."
    )
    check_refusal(call(capsys, *again, "--set", "stage.1.algorithm.shared=1"), "`stage.1.algorithm.shared` must be 0.3")
    check_refusal(call(capsys, *again, "--set", "stage.2.split=norms"), "`stage.2.split.name` must be 'output_layer'")
    check_refusal(call(capsys, *again, "--seed", 3), "`run.seed` must be 0, as runs/three began, got 3.")
    check_refusal(call(capsys, *again, "--out", "runs/small"), "a folder with a pipeline.toml")
    check_refusal(
        call(capsys, "run", "small.toml", "--resume", "--out", "runs/three"), "a run folder with a config.toml"
    )
    (cwd / "three.toml").write_text(STAGED.rpartition("[[stage]]")[0])
    check_refusal(call(capsys, *again), "`stage` must be 3 stages, as runs/three began, got 2.")
