"""``moiety run``: files, options, folders, resuming, and what is printed."""

from __future__ import annotations

import os
import signal
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from cli_command import PERSONAL, SMALL, call, one_line, start

import moiety as mo
from moiety.experiments.config import check_tables, fill_sizes, make_parts
from moiety.run.folder import read_clients, read_config, read_history


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "own.toml").write_text(PERSONAL)
    return tmp_path


def test_a_file_is_run_and_summed_up(capsys, cwd):
    result = call(capsys, "run", "own.toml")
    assert (result.code, result.err) == (0, "")
    rows, last = read_clients(cwd / "runs/own"), read_history(cwd / "runs/own")[-1]
    lines = result.out.splitlines()
    assert lines[0] == (
        "own: fedalt on digits, split output_layer, 2 clients a round, seed 0, engine sequential, in runs/own"
    )
    assert [line.split("  ")[0] for line in lines[1:3]] == ["round 1/2", "round 2/2"]
    assert f"accuracy {100 * last['metric']:.1f}%" in lines[2]
    helped, hurt = sum(r["gain"] > 1e-6 for r in rows), sum(r["gain"] < -1e-6 for r in rows)
    assert f"clients helped     {helped} of 4, against the shared model alone" in lines
    assert any(line.startswith(f"clients hurt       {hurt}") for line in lines)
    mean = sum(r["metric"] for r in rows) / 4
    assert any(line.split()[:5] == ["accuracy,", "mean", "over", "clients", f"{100 * mean:.1f}%"] for line in lines)
    assert lines[-1] == "results in runs/own"
    for words in ("worst tenth", "shared model alone", "sent down, up", "FLOP", "memory per device", "time in rounds"):
        assert words in result.out


def test_quiet_prints_the_sentence_and_the_folder(capsys, cwd):
    result = call(capsys, "run", "own.toml", "--quiet")
    sentence, folder = result.out.splitlines()
    assert sentence.startswith("fedalt on digits, accuracy on average over 4 clients: ")
    assert sentence.endswith(".")
    assert folder == "results in runs/own"


@pytest.mark.filterwarnings("ignore:.updates. must be finite for some client")
def test_dropped_updates_are_told_in_the_sentence(capsys, cwd):
    # Squared errors of a linear model: two steps at 1e30 leave weights near 1e60, which single precision has not.
    # So no upload of 2 rounds of 2 clients is kept.
    wild = ["--set", "run.loss=mse", "--set", "algorithm.shared.lr=1e30", "--set", "algorithm.shared.steps=2"]
    result = call(capsys, "run", "small.toml", "-q", *wild)
    assert result.code == 0
    assert result.out.splitlines()[0].endswith("with the shared model alone; 4 updates were dropped.")
    assert sum(len(row["dropped"]) for row in read_history(cwd / "runs/small")) == 4


def test_nothing_personal_is_said_so(capsys, cwd):
    result = call(capsys, "run", "small.toml", "-q")
    assert "for every client the same" in result.out


def test_options_override_the_file(capsys, cwd):
    argv = ["--rounds", 3, "--seed", 7, "--engine", "vectorised", "--out", "there"]
    assert (
        call(capsys, "run", "small.toml", "-q", "--set", "run.rounds=9", "--set", "algorithm.shared.lr=1", *argv).code
        == 0
    )
    config = read_config(cwd / "there")
    assert [config["run"][k] for k in ("rounds", "seed", "engine")] == [3, 7, "vectorised"]
    assert config["algorithm"]["shared"]["lr"] == 1.0
    assert not (cwd / "runs").exists()


def test_a_folders_own_configuration_runs_again_to_the_same_numbers(capsys, cwd):
    call(capsys, "run", "own.toml", "-q")
    assert "engine_reason" in read_config(cwd / "runs/own")["run"]
    assert call(capsys, "run", "runs/own/config.toml", "-q").out.endswith("results in runs/own-2\n")
    assert read_clients(cwd / "runs/own") == read_clients(cwd / "runs/own-2")


def test_a_new_folder_is_chosen_each_time(capsys, cwd):
    (cwd / "runs/small-2").mkdir(parents=True)
    (cwd / "runs/small-2/notes.txt").write_text("mine")
    ends = [call(capsys, "run", "small.toml", "-q").out.splitlines()[-1] for _ in range(2)]
    assert ends == ["results in runs/small", "results in runs/small-3"]
    assert (cwd / "runs/small-2/notes.txt").read_text() == "mine"


def test_resume_trains_on_from_where_it_was(capsys, cwd):
    call(capsys, "run", "own.toml", "-q", "--rounds", 4, "--out", "whole")
    call(capsys, "run", "own.toml", "-q", "--rounds", 2, "--set", "run.evaluate_every=1")
    result = call(capsys, "run", "own.toml", "--rounds", 4, "--resume")
    assert [line[:9] for line in result.out.splitlines()[1:3]] == ["round 3/4", "round 4/4"]
    assert read_clients(cwd / "whole") == read_clients(cwd / "runs/own")


def test_resume_remembers_what_was_set(capsys, cwd):
    options = ["--set", "algorithm.personal.lr=0.2", "--set", "model.hidden=[6]", "--seed", 7]
    call(capsys, "run", "own.toml", "-q", "--rounds", 3, "--out", "whole", *options)
    call(capsys, "run", "own.toml", "-q", "--rounds", 1, *options)
    result = call(capsys, "run", "own.toml", "-q", "--resume", "--rounds", 3)
    assert (result.code, result.err) == (0, "")
    assert read_clients(cwd / "whole") == read_clients(cwd / "runs/own")
    again = ["run", "own.toml", "-q", "--resume", "--out", "runs/own"]
    assert call(capsys, *again, *options).code == 0  # to repeat it is allowed
    other = call(capsys, *again, "--set", "algorithm.personal.lr=0.3")
    assert "must be 0.2, as runs/own began, got 0.3" in other.err
    # What the file says otherwise by now, and the command line had not set, is refused still.
    (cwd / "own.toml").write_text(PERSONAL.replace("lr = 0.5}", "lr = 0.4}"))
    assert "`algorithm.shared.lr` must be 0.5, as runs/own began, got 0.4." in call(capsys, *again).err


def test_a_folder_that_does_not_remember_says_what_to_repeat(capsys, cwd):
    call(capsys, "run", "own.toml", "-q", "--set", "algorithm.personal.lr=0.2")
    (cwd / "runs/own/command.json").unlink()
    result = call(capsys, "run", "own.toml", "-q", "--resume")
    assert result.code == 2
    assert result.err.endswith("or keep it with --set algorithm.personal.lr=0.2.\n")
    # Once repeated, where rounds are left to train, it is remembered.
    again = ["run", "own.toml", "-q", "--resume", "--out", "runs/own"]
    assert call(capsys, *again, "--set", "algorithm.personal.lr=0.2", "--rounds", 3).code == 0
    assert call(capsys, *again, "--rounds", 4).code == 0
    (cwd / "runs/own/command.json").write_text("[1]")
    result = call(capsys, "run", "own.toml", "-q", "--resume")
    assert one_line(result.err)
    assert "`command.json` must be as it was written" in result.err


def test_resume_takes_the_newest_and_does_not_train_what_has_ended(capsys, cwd):
    call(capsys, "run", "small.toml", "-q")
    call(capsys, "run", "small.toml", "-q")
    past = time.time() - 100
    os.utime(cwd / "runs/small-2/config.toml", (past, past))
    result = call(capsys, "run", "small.toml", "--resume")
    assert result.out.endswith("results in runs/small\n")
    assert "round" not in result.out.splitlines()[0]


def test_lower_is_better_keeps_signs_and_words_right(capsys, cwd):
    result = call(capsys, "run", "own.toml", "--set", "run.loss=mse")
    assert result.code == 0
    rows = read_clients(cwd / "runs/own")
    row = next(line.split() for line in result.out.splitlines() if line.startswith("mse, mean over clients"))
    personal, shared = (sum(r[k] for r in rows) / 4 for k in ("metric", "shared_metric"))
    assert row[4:] == [f"{personal:.4g}", f"{shared:.4g}", f"{shared - personal:+.4g}"]
    helped = sum(r["metric"] < r["shared_metric"] * (1 - 1e-6) for r in rows)
    assert f"clients helped     {helped} of 4" in result.out


def test_sizes_follow_from_the_data():
    config = check_tables({**tomllib.loads(SMALL), "run": {"rounds": 1}})
    data = make_parts(config).data
    assert fill_sizes({"name": "mlp"}, data, config.options) == {"name": "mlp", "inputs": 64, "outputs": 10}
    assert fill_sizes({"name": "mlp", "outputs": 12}, data, config.options)["outputs"] == 12
    assert fill_sizes({"name": "cnn"}, data, config.options) == {"name": "cnn", "classes": 10}
    regression = replace(config.options, loss="mse")
    assert fill_sizes({"name": "linear"}, data, regression)["outputs"] == 1


def test_interrupted_says_how_to_continue_and_can_be_continued(capsys, cwd):
    process = start("run", "own.toml", "--rounds", "100000", "--set", "run.checkpoint_every=1", cwd=cwd)
    assert process.stdout is not None
    process.stdout.readline()  # the heading: the first round is done
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert one_line(err)
    command = "moiety run own.toml --set run.checkpoint_every=1 --rounds 100000 --resume --out runs/own"
    assert err.rstrip().endswith(f"interrupted; continue with: {command}")
    rounds = int(next((cwd / "runs/own/checkpoint").glob("round-*")).name.removeprefix("round-"))
    again = ["run", "own.toml", "--set", "run.checkpoint_every=1", "--resume", "--out", "runs/own", "-q"]
    assert call(capsys, *again, "--rounds", rounds + 1).code == 0
    assert read_history(cwd / "runs/own")[-1]["round"] == rounds + 1


def test_data_of_ones_own_in_a_folder(capsys, cwd):
    """From Python into a folder, from there by a file, and on by its own command."""
    mo.data.load("digits", clients=4, per_client=12).save(cwd / "hospitals")
    text = tomllib.loads(PERSONAL) | {"data": {"name": "folder", "path": "hospitals"}}
    (cwd / "mine.toml").write_text(tomli_w.dumps(text))
    result = call(capsys, "run", "mine.toml")
    assert result.code == 0
    assert " on hospitals, " in result.out.splitlines()[0]
    assert " on hospitals, " in result.out
    assert call(capsys, "run", "mine.toml", "--resume", "--rounds", 3, "-q").code == 0
    assert call(capsys, "run", "runs/mine/config.toml", "--out", "again", "-q").code == 0
    assert read_clients(cwd / "again") == read_clients(cwd / "runs/mine")
