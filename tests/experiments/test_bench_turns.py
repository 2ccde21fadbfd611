"""Turns of the bench are run again where what they measured has changed, and only there."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import results, source, turns


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with some measured files, and a function that writes one of them."""

    def write(name: str, text: str) -> None:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        source.source.cache_clear()

    for name in ("src/moiety/loop/round.py", "src/moiety/cli/run.py", "benchmarks/runners/bare.py", *source.BESIDE):
        write(name, "first")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "stamp", lambda: {"machine": "two cores"})
    monkeypatch.setattr(turns, "KEPT", tmp_path / "turns.json")
    yield write
    source.source.cache_clear()


def count_runs(name: str, count: int, **who: int) -> int:
    calls = []
    rows = turns.keep_turns(name, who, count, lambda turn: calls.append(turn) or {"row": {"whole": 1.0}})
    assert len(rows) == count
    return len(calls)


def test_a_bench_that_was_stopped_goes_on(checkout):
    assert count_runs("a", 2) == 2
    assert count_runs("a", 5) == 3
    assert count_runs("d", 1) == 1
    assert count_runs("a", 5) == 0
    assert count_runs("a", 5, rounds=3) == 5


@pytest.mark.parametrize(
    ("name", "again", "start_up_again"),
    [
        ("src/moiety/loop/round.py", 2, 2),
        ("src/moiety/loop/new.py", 2, 2),
        ("src/moiety/cli/run.py", 0, 2),
        ("benchmarks/runners/bare.py", 2, 2),
        ("benchmarks/work.py", 2, 2),
        ("benchmarks/variants.py", 2, 2),
        ("benchmarks/tables.py", 0, 0),
        ("docs/benchmarks.md", 0, 0),
    ],
)
def test_what_must_be_measured_again(checkout, name, again, start_up_again):
    count_runs("a", 2)
    count_runs(source.START_UP, 2)
    checkout(name, "second")
    assert count_runs("a", 2) == again
    assert count_runs(source.START_UP, 2) == start_up_again
    checkout(name, "second")
    assert count_runs("a", 2) == 0


def test_another_machine_measures_anew(checkout, monkeypatch):
    count_runs("a", 2)
    source.source.cache_clear()
    monkeypatch.setattr(results, "stamp", lambda: {"machine": "four cores"})
    assert count_runs("a", 2) == 2


def test_a_turn_that_failed_is_run_again(checkout):
    turns.keep_turns("a", {}, 1, lambda turn: {"row": {"error": ["no output"]}})
    assert count_runs("a", 1) == 1
