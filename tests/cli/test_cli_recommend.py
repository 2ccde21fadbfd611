"""``moiety recommend``: the answer in the shell, its folder, the winner's file, and one line for what is wrong."""

from __future__ import annotations

import pytest
from cli_command import call, one_line

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
    ],
)
def test_bad_input_is_one_line(capsys, file, words, message):
    result = call(capsys, "recommend", file, *words)
    assert result.code == 2
    assert one_line(result.err)
    assert message in result.err
