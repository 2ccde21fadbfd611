"""``moiety compare`` on run folders made by hand, with numbers worked out by hand.

Five clients with 10 test rows each but for the last, which has none. Run ``one`` has accuracies 0.5, 0.6, 0.7, 0.8 with
personal models; run ``two`` has 0.9, 0.6, 0.2, 0.7, the second of them off by what single precision leaves. The shared
model alone has 0.6 for everyone. So the means are 0.65 and 0.6; the worst tenth (one client) 0.5 and 0.2; personal
models hurt client a in run one (0.5 < 0.6), and client c in run two; against run one, run two is better for a (+0.4),
equal for b, worse for c (-0.5) and d (-0.1), in the mean -0.05.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_command import call, one_line

from moiety.run import folder
from moiety.seals import write_sealed

ONE = {"a": 0.5, "b": 0.6, "c": 0.7, "d": 0.8}
TWO = {"a": 0.9, "b": 0.6 + 2e-8, "c": 0.2, "d": 0.7}


def write_run(
    path: Path,
    metrics: dict[str, float],
    *,
    metric: str = "accuracy",
    shared: float = 0.6,
    higher: bool = True,
    **data: object,
) -> Path:
    path.mkdir(parents=True)
    config = {
        "data": {"name": "digits", "clients": 5, **data},
        "model": {"name": "linear"},
        "split": {"name": "output_layer"},
        "algorithm": {"name": f"alg_{path.name}"},
        "run": {"rounds": 7, "cohort": 2, "seed": 0, "engine": "sequential"},
    }
    write_sealed(path / "identity.json", {}, "0123")
    folder.write_config(path, config, "0123")
    sign = 1 if higher else -1
    rows = [
        {
            "client": name,
            "n": 20,
            "n_test": 10,
            "loss": 1.0,
            "metric": value,
            "shared_loss": 1.0,
            "shared_metric": shared,
            "gain": sign * (value - shared),
            "hurt": sign * (value - shared) < 0,
        }
        for name, value in metrics.items()
    ]
    nan = float("nan")
    untested = {"loss": nan, "metric": nan, "shared_loss": nan, "shared_metric": nan, "gain": nan, "hurt": False}
    rows.append({"client": "e", "n": 20, "n_test": 0, **untested})
    ledger = {"up_payload": 1_500_000, "down_payload": 500_000, "flops": 1e9, "device_memory": 1000}
    folder.write_results(path, rows, {**ledger, "rounds": 7}, "0123")
    last = {"round": 7, "part": "test", "metric_name": metric, "seconds": 1.5, "train_loss": 0.5, "dropped": []}
    folder.append_history(path, last, "0123")
    return path


def rows_of(out: str, name: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.startswith(f"{name} ")]


def test_known_numbers(capsys, tmp_path):
    one, two = write_run(tmp_path / "one", ONE), write_run(tmp_path / "two", TWO)
    result = call(capsys, "compare", one, two)
    assert (result.code, result.err) == (0, "")
    assert rows_of(result.out, "one") == [
        ["one", "alg_one", "output_layer", "7", "65.0%", "65.0%", "50.0%", "60.0%", "1", "2", "MB"]
    ]
    assert rows_of(result.out, "two") == [
        ["two", "alg_two", "output_layer", "7", "60.0%", "60.0%", "20.0%", "60.0%", "1", "2", "MB"],
        ["two", "1", "1", "2", "-5.0", "c", "(-50.0),", "d", "(-10.0)"],
    ]


def test_one_meaning_a_screen(capsys, tmp_path):
    # Columns against the shared model say so; those of the second table are against the first run, as its head says.
    one, two = write_run(tmp_path / "one", ONE), write_run(tmp_path / "two", TWO)
    out = call(capsys, "compare", one, two).out
    assert "hurt" not in out
    assert out.splitlines()[1].split()[-2:] == ["shared", "sent"]
    assert "below shared: clients whose own model is worse than that" in out
    assert "client by client against one," in out


def test_lower_is_better(capsys, tmp_path):
    # As squared errors the same numbers turn round: a is worse off by 0.4, c and d are better off.
    one = write_run(tmp_path / "one", ONE, metric="mse", higher=False)
    two = write_run(tmp_path / "two", TWO, metric="mse", higher=False)
    result = call(capsys, "compare", one, two)
    assert rows_of(result.out, "one")[0][4:9] == ["0.65", "0.65", "0.8", "0.6", "2"]
    assert rows_of(result.out, "two")[1] == ["two", "2", "1", "1", "+0.05", "a", "(-0.4)"]


def test_a_metric_of_the_users_own_shows_its_direction(capsys, tmp_path):
    one = write_run(tmp_path / "one", ONE, metric="cost", higher=False)
    two = write_run(tmp_path / "two", TWO, metric="cost", higher=False)
    assert rows_of(call(capsys, "compare", one, two).out, "two")[1][1:4] == ["2", "1", "1"]


def test_three_runs_and_folders_of_one_name(capsys, tmp_path):
    paths = [write_run(tmp_path / n / "same", m) for n, m in (("x", ONE), ("y", TWO), ("z", ONE))]
    result = call(capsys, "compare", *paths)
    assert result.code == 0
    assert "0.0  none" in result.out
    assert len([line for line in result.out.splitlines() if line.rstrip().endswith("2 MB")]) == 3


def test_names_cannot_steer_the_terminal(capsys, tmp_path):
    one, two = (write_run(tmp_path / n, {"\x1b[31m[bold]x": v}) for n, v in (("one", 0.9), ("two", 0.1)))
    result = call(capsys, "compare", one, two)
    assert "\x1b" not in result.out
    assert "?[31m[bold]x (-80.0)" in result.out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrics": {**TWO, "f": 0.5}}, "`clients` must be the same in all runs, got f in only one of one and two."),
        ({"metric": "mse"}, "`metric_name` must be the same in all runs, got accuracy and mse in one and two."),
        ({"seed": 3}, "`data` must be the same in all runs, got seed none and seed 3 in one and two."),
    ],
)
def test_runs_that_cannot_be_compared(capsys, tmp_path, change, words):
    change = dict(change)
    one, two = write_run(tmp_path / "one", ONE), write_run(tmp_path / "two", change.pop("metrics", TWO), **change)
    result = call(capsys, "compare", one, two)
    assert (result.code, result.out) == (2, "")
    assert one_line(result.err)
    assert words in result.err


@pytest.mark.parametrize("file", ["config.toml", "history.jsonl", "clients.parquet", "ledger.json"])
@pytest.mark.parametrize("how", ["absent", "cut", "other"])
def test_broken_folders(capsys, tmp_path, file, how):
    one, two = write_run(tmp_path / "one", ONE), write_run(tmp_path / "two", TWO)
    content = (two / file).read_bytes()
    (two / file).unlink()
    if how == "cut":
        (two / file).write_bytes(content[: len(content) // 2])
    if how == "other":
        (two / file).write_text(json.dumps({"a": 1}))
    result = call(capsys, "compare", one, two)
    assert (result.code, result.out) == (2, "")
    assert one_line(result.err)
    assert file in result.err


@pytest.mark.parametrize("value", ["0.9", None, [0.9], True])
@pytest.mark.parametrize("key", ["metric", "gain", "n_test"])
def test_values_that_are_no_numbers(capsys, tmp_path, key, value):
    one, two = write_run(tmp_path / "one", ONE), write_run(tmp_path / "two", TWO)
    rows, ledger = folder.read_results(two, "0123", ())
    folder.write_results(two, [{**row, key: value} for row in rows], ledger, "0123")
    result = call(capsys, "compare", one, two)
    assert (result.code, result.out) == (2, "")
    assert one_line(result.err)
    assert f"`clients.parquet: {key}` must be a number" in result.err


@pytest.mark.parametrize("key", ["n_test", "weight"])
def test_weights_below_zero(capsys, tmp_path, key):
    one, two = write_run(tmp_path / "one", ONE), write_run(tmp_path / "two", TWO)
    rows, ledger = folder.read_results(two, "0123", ())
    folder.write_results(two, [{**row, key: -3} for row in rows], ledger, "0123")
    result = call(capsys, "compare", one, two)
    assert (result.code, result.out) == (2, "")
    assert f"`clients.parquet: {key}` must be a number >= 0, got -3 in" in result.err
