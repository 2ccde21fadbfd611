"""``moiety recommend``: the answer in the shell, its folder, the winner's file, and one line for what is wrong."""

from __future__ import annotations

import pytest
from cli_command import call, one_line

from moiety.experiments.search import Search

FILE = """
[data]
name = "digits"
clients = 5
per_client = 80
partition = { name = "dirichlet", alpha = 0.1 }
validation = 0.3
test = 0.3

[model]
name = "mlp"
hidden = [8]

[split]
name = "by_name"
personal = ["head.bias"]

[algorithm]
name = "fedavg"
shared = { name = "sgd", lr = 0.1, batch_size = 16 }

[run]
rounds = 45
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(FILE)
    return path


def test_the_answer_and_the_winner_that_the_file_trains(capsys, file, tmp_path):
    words = ["recommend", file, "--budget", "300000", "--quiet"]
    result = call(capsys, *words)
    assert (result.code, result.err) == (0, "")
    sentence, command, last = result.out.splitlines()
    assert sentence.endswith(".")
    assert last == "results in runs/small-recommend"
    page = (tmp_path / "runs/small-recommend/table.md").read_text()
    assert sentence in page
    assert "split of the file" in page
    assert call(capsys, *words).out.splitlines()[0] == sentence  # read, not run again
    assert call(capsys, *command.removeprefix("train it with: moiety ").split(), "--quiet").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "1000"], "`budget` must be at least"),
        (["--budget", "a while"], "`budget` must be a time"),
        (["--steps", "3,1"], "`steps` must be four whole numbers"),
        (["--set", "data.validation=0.0"], "`data` must be of some validation rows"),
        (["--set", "data.clients=3"], "`data` must be those of at least 4 clients"),
        (["--set", "data.clients=1"], "`data` must be those of at least 4 clients"),
        (["--set", "data.clints=5"], "Did you mean clients?"),
        (["--set", "model.name=mpl"], "`model.name` must be"),
        (["--set", "split.personal=['body']"], "body"),
        (["--set", "split.name=ouput_layer"], "Did you mean output_layer"),
        (["--set", "algorithm.shared={name='sgd', lr=0.1, batchsize=4}"], "Did you mean batch_size?"),
        (["--set", "run.rounds=1"], "`rounds` must be >= 2, got 1"),
        (["--out", "small.toml"], "`out` must be a folder"),
        (["--out", "/proc/none"], "`out` must be a folder that can be written"),
        (["--seed", "-1"], "`seed` must be >= 0, got -1"),
    ],
)
def test_bad_input_is_one_line(capsys, file, words, message):
    result = call(capsys, "recommend", file, *words)
    assert result.code == 2
    assert one_line(result.err)
    assert message in result.err


def test_a_file_that_is_missing_or_has_stages_is_one_line(capsys, file):
    result = call(capsys, "recommend", "absent.toml")
    assert result.code == 2
    assert one_line(result.err)
    assert "absent.toml" in result.err
    file.write_text(FILE + "\n[[stage]]\nrounds = 3\n")
    result = call(capsys, "recommend", file)
    assert result.code == 2
    assert one_line(result.err)
    assert "Leave them out: recommend makes stages of its own." in result.err


def test_a_search_that_was_stopped_goes_on_with_its_own_budget_alone(capsys, file, monkeypatch):
    """Ctrl-C is one line. Another budget is another search, and the refusal says so."""
    words = ["recommend", file, "--budget", "300000", "--quiet"]

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(Search, "run_candidate", stop)
        result = call(capsys, *words)
    assert result.code == 130
    assert one_line(result.err)
    assert "the same command goes on" in result.err
    result = call(capsys, "recommend", file, "--budget", "200000", "--quiet")
    assert result.code == 2
    assert one_line(result.err)
    assert "`budget` must be what the recommend in runs/small-recommend began with" in result.err
    assert "got 200000 instead of 300000. Choose another folder." in result.err
