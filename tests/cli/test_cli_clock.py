"""``[clock]`` in a file: run, refused where it is wrong, and continued."""

import json

import pytest
from cli_command import PERSONAL, call

CLOCK = """
[clock]
name = "asynchronous"
active = 2
up = 0.5

[clock.compute]
name = "exponential"
mean = [1.0, 2.0, 3.0, 4.0]
"""


def rows(folder):
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "check")} for row in history]


def test_a_clock_in_a_file(tmp_path, capsys):
    file = tmp_path / "slow.toml"
    file.write_text(PERSONAL.replace("cohort = 2\n", "") + CLOCK)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert call(capsys, "run", file, "--rounds", 5, "--out", whole, "--quiet").code == 0
    assert call(capsys, "run", file, "--rounds", 3, "--out", parts, "--quiet").code == 0
    assert call(capsys, "run", file, "--rounds", 5, "--out", parts, "--resume", "--quiet").code == 0
    assert rows(whole) == rows(parts)
    assert [row["round"] for row in rows(whole)] == [1, 2, 3, 4, 5]
    assert rows(whole)[-1]["time"] > 0
    # The folder's own file says it all again.
    again = tmp_path / "again"
    assert call(capsys, "run", whole / "config.toml", "--out", again, "--quiet").code == 0
    assert rows(again) == rows(whole)
    other = call(capsys, "run", file, "--set", "clock.active=3", "--out", parts, "--resume")
    assert other.code == 2
    assert "clock.active" in other.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("clock.name=asynchron", "clock.name"),
        ("clock.activ=2", "activ"),
        ("clock.active=9", "clock.active"),
        ("clock.compute.name=normal", "clock.compute.name"),
        ("clock.compute.mean=0", "mean"),
        ("clock.up=-1", "clock.up"),
        ("run.cohort=3", "cohort"),
    ],
)
def test_a_wrong_clock_gets_one_line(tmp_path, capsys, line, message):
    file = tmp_path / "slow.toml"
    file.write_text(PERSONAL.replace("cohort = 2\n", "") + CLOCK)
    result = call(capsys, "run", file, "--set", line, "--out", tmp_path / "run")
    assert result.code == 2
    assert len(result.err.strip().splitlines()) == 1
    assert message in result.err
