"""Several seeds: ``compare`` on folders made by hand, ``run --seed 0,1``, ``sweep`` and ``tune`` in the shell."""

from __future__ import annotations

import sys

import pytest
from cli_command import SMALL, call, one_line
from test_cli_compare import rows_of, write_run

from moiety.run import folder


def with_seed(path, seed, algorithm, metrics, rounds=7):
    """A run made by hand with that seed and algorithm."""
    write_run(path, metrics)
    config = folder.read_config(path)
    config["run"] |= {"seed": seed, "engine": f"engine-{seed}"}
    config["algorithm"] = {"name": algorithm}
    folder.write_config(path, config, "0123")
    return path


def everyone(value):
    return dict.fromkeys("abcd", value)


def test_runs_of_one_configuration_are_one_row_and_differences_are_paired(capsys, tmp_path):
    """By hand: 50% and 60% have mean 55% and s = 7.07, so t s / sqrt(2) = 12.706 x 5 = 63.5 either way.

    The differences of seeds 0 and 1 are +10 and +12, so +11 and 12.706 x 1 = 12.7 either way. Seed 2 has no partner.
    """
    for seed, (one, two) in enumerate([(0.5, 0.6), (0.6, 0.72)]):
        with_seed(tmp_path / "one" / f"seed-{seed}", seed, "first", everyone(one))
        with_seed(tmp_path / "two" / f"seed-{seed}", seed, "second", everyone(two))
    with_seed(tmp_path / "two" / "seed-2", 2, "second", everyone(0.9))
    result = call(capsys, "compare", tmp_path / "one", tmp_path / "two")
    assert (result.code, result.err) == (0, "")
    table, pairs = result.out.split("against one")
    assert rows_of(table, "one")[0][:6] == ["one", "first", "2", "55.0%", "[-8.5%,", "118.5%]"]
    assert rows_of(table, "two")[0][:4] == ["two", "second", "3", "74.0%"]
    assert rows_of(pairs, "two") == [["two", "2", "+11.0", "[-1.7,", "+23.7]", "4", "0", "0"]]


def test_a_seed_that_comes_twice_is_no_seed_of_one_group(capsys, tmp_path):
    for name in ("one", "two"):
        with_seed(tmp_path / name, 0, "same", everyone(0.5))
    out = call(capsys, "compare", tmp_path / "one", tmp_path / "two").out
    assert "client by client against one" in out


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return file


def test_several_seeds_are_runs_of_their_own(capsys, small, tmp_path):
    """Each is as if it had been run by itself; what has ended is not run again."""
    result = call(capsys, "run", small, "--seed", "0,3", "--out", "both")
    assert (result.code, result.err) == (0, "")
    assert rows_of(result.out, "both")[0][:3] == ["both", "fedavg", "2"]
    assert call(capsys, "run", small, "--seed", "3", "--out", "alone").code == 0
    read = lambda place: [row | {"seconds": 0} for row in folder.read_history(tmp_path / place)]  # noqa: E731
    assert read("both/seed-3") == read("alone")
    assert read("both/seed-0") != read("alone")
    before = (tmp_path / "both/seed-3/identity.json").read_bytes()
    assert call(capsys, "run", small, "--seed", "0,3,4", "--out", "both", "--resume").code == 0
    assert (tmp_path / "both/seed-3/identity.json").read_bytes() == before
    assert len(folder.read_history(tmp_path / "both/seed-4")) == 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "quickstart", "--seed", "0,1"], "`--seed` must be one number for the recipe quickstart"),
        (["run", "small.toml", "--seed", "0,x"], "`seed` must be a whole number, or several"),
        (["run", "small.toml", "--seed", "1,1"], "`seed` must be different numbers"),
        (["sweep", "small.toml", "--grid", "algorithm.shared"], "`--grid` must be of the form"),
        (["sweep", "small.toml", "--seeds", "none"], "`seeds` must be a whole number"),
        (["tune", "small.toml"], "`space` must be at least one key to search"),
        (["tune", "small.toml", "--space", "run.cohort=4..2"], "`high` must be > 4, the low end, got 2"),
        (["tune", "small.toml", "--space", "run.cohort=1..2"], "`tune` must be run where optuna is installed"),
    ],
)
def test_bad_input_is_one_line(capsys, small, monkeypatch, tmp_path, argv, message):
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = call(capsys, *argv)
    assert result.code == 2
    assert one_line(result.err)
    assert message in result.err
    assert not (tmp_path / "runs").exists()


def test_a_sweep_without_validation_rows_names_no_best(capsys, small, tmp_path):
    words = ["sweep", small, "--grid", "algorithm.shared.lr=0.2", "--seeds", "2,5", "--jobs", "1", "--quiet"]
    result = call(capsys, *words)
    assert (result.code, result.err) == (0, "")
    first, last = result.out.splitlines()
    assert first.startswith("No best is named: the data has no validation rows")
    assert last == "results in runs/small-sweep"
    assert len(list(tmp_path.glob("runs/small-sweep/*/seed-[25]/ledger.json"))) == 2
