"""Sweeps with odd grids, seeds and places: refused in one line, or the scores are those of ``moiety.fit``."""

from __future__ import annotations

import functools
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from fuzz_classes import SLOW_CASES, call_command, classify, counted, slowly_fuzzed
from hypothesis import given
from hypothesis import strategies as st
from test_fuzz_runs import KEYS
from test_fuzz_runs import ODD as WORDS

import moiety as mo
from moiety.seals import read_sealed

TABLES = {
    "model": {"name": "linear"},
    "data": {"name": "digits", "clients": 3, "partition": "iid", "per_client": 20, "validation": 0.25},
    "algorithm": {"name": "fedavg", "shared": {"name": "sgd", "lr": 0.1, "steps": 1}},
    "run": {"rounds": 1, "engine": "sequential"},
}
RATE = "algorithm.shared.lr"
VALUES: list[Any] = [
    [0.1],
    [0.1, 0.3],
    (0.3, np.float64(0.1)),
    [0.1, 0.1],
    [],
    0.1,
    "0.1",
    [None],
    [math.nan],
    [-1],
    [math.inf],
    ["x"],
    [[0.1]],
    [{"lr": 0.1}],
    [object()],
    ["\ud800"],
    [10**400],
    [True],
    {"x": 1},
    None,
]
SEEDS: list[Any] = [
    1,
    2,
    [3],
    [0, 7],
    np.int64(1),
    range(2),
    0,
    -1,
    1.5,
    "2",
    None,
    [],
    [1, 1],
    [-1],
    [2**70],
    ["x"],
    True,
]
JOBS: list[Any] = [1, 1, 1, 0, -1, 1.5, "x", 10**9]


@functools.cache
def score_by_fit(lr: float, seed: int) -> float:
    """The share of right test rows of a run by itself."""
    fed = mo.data.load("digits", clients=3, partition=mo.data.iid(), per_client=20, validation=0.25)
    model, algorithm = mo.models.linear(64, 10), mo.fedavg(shared=mo.sgd(lr, steps=1))
    run = mo.fit(model, fed, algorithm, rounds=1, seed=seed, engine="sequential")
    tests = [fed.at(client, "test") for client in range(len(fed))]
    right = sum((run.predict(c, {"x": each["x"]}) == each["y"]).sum() for c, each in enumerate(tests))
    return float(right / sum(len(each["y"]) for each in tests))


def own_function(point: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``fit`` at a point; an odd value is the builder's to refuse."""
    fed = mo.data.load("digits", clients=3, partition=mo.data.iid(), per_client=20, validation=0.25)
    algorithm = mo.fedavg(shared=mo.sgd(point.get(RATE, 0.1), steps=1))
    return {"model": mo.models.linear(64, 10), "data": fed, "algorithm": algorithm, "rounds": 1, "engine": "sequential"}


TARGETS: dict[str, Any] = {
    "tables": TABLES,
    "function": own_function,
    "no table": {"x": 1},
    "no arguments": lambda point: None,
    "too few": lambda point: {"rounds": 1},
    "nothing": None,
    "number": 3,
    "no file": "nothing.toml",
    "empty": "",
    "folder": ".",
}


def check_rows(rows: list[Any], values: Any, seeds: Any) -> bool:
    """A row for each rate, with the score of each seed as ``fit`` gives it."""
    numbers = list(range(seeds)) if isinstance(seeds, int | np.integer) else list(seeds)
    rates = [float(value) for value in values]
    scores = [row["metric"]["each"] for row in rows]
    return np.allclose(scores, [[score_by_fit(rate, seed) for seed in numbers] for rate in rates], atol=1e-6)


@counted("sweeps", SLOW_CASES)
@slowly_fuzzed
@given(
    st.sampled_from(["tables", "function"] * 4 + sorted(TARGETS)),
    st.sampled_from([RATE, RATE, RATE, "run.seed", "nonsense", "", 3, "a.b.c.d"]),
    st.sampled_from([*VALUES, *VALUES[:3] * 5]),
    st.sampled_from([*SEEDS, *SEEDS[:6] * 2]),
    st.sampled_from(JOBS),
    st.sampled_from(["folder", "folder", "memory", "taken", "file", "\0", 3]),
)
def test_sweeps(target: str, key: Any, values: Any, seeds: Any, jobs: Any, out: Any) -> None:
    place = Path(tempfile.mkdtemp())
    (place / "file").write_text("x")
    (place / "taken").mkdir()
    (place / "taken/mine.txt").write_text("x")
    where = None if out == "memory" else place / out if isinstance(out, str) else out

    def call() -> mo.Sweep:
        return mo.sweep(TARGETS[target], {key: values}, seeds=seeds, jobs=jobs, out=where)

    def is_right(result: Any) -> bool:
        if target not in ("tables", "function") or out in ("taken", "file", "\0", 3):
            return False
        rates = values if key == RATE else [0.1] * len(values)
        fine = check_rows(result.rows, rates, seeds)
        if where is not None:
            again = mo.sweep(TARGETS[target], {key: values}, seeds=seeds, jobs=jobs, out=where)
            fine = fine and again.rows == result.rows and mo.verify(where) == []
        return fine

    try:
        classify("sweeps", call, is_right)
    finally:
        mine = (place / "taken/mine.txt").read_text()
        shutil.rmtree(place)
        assert mine == "x"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweeps") / "small.toml"
    path.write_text(tomli_w.dumps(TABLES))
    return path


@counted("the command sweep", SLOW_CASES)
@slowly_fuzzed
@given(
    st.lists(
        st.tuples(st.sampled_from([*KEYS, *[RATE] * 20]), st.sampled_from([*WORDS, *["0.1,0.3"] * 10])), max_size=2
    ),
    st.sampled_from(["1", "2", "0,3", "0", "-1", "x", "", "1,1", "9" * 30, "1e3"]),
    st.sampled_from(["1", "1", "1", "0", "x", "9" * 30]),
)
def test_the_command(file: Path, grid: list[tuple[str, str]], seeds: str, jobs: str) -> None:
    out = Path(tempfile.mkdtemp()) / "out"
    words = [word for key, value in grid for word in ("--grid", f"{key}={value}")]
    command = ["sweep", str(file), *words, "--seeds", seeds, "--jobs", jobs, "--out", str(out), "--quiet"]

    def call() -> Any:
        code, _, lines = call_command(command)
        if code == 2:
            assert len(lines) == 1, lines
            raise mo.MoietyError(lines[0])
        return read_sealed(out / "table.json", format=2)["rows"]

    def is_right(rows: list[Any]) -> bool:
        """The folder is whole; where the rate alone is swept, its scores are those of ``fit``."""
        numbers = [int(each) for each in seeds.split(",")]
        if [key for key, _ in grid] == [RATE]:
            rates = [row["point"][RATE] for row in rows]
            return mo.verify(out) == [] and check_rows(rows, rates, numbers[0] if len(numbers) == 1 else numbers)
        ended = all(row["metric"] is None or np.isfinite(row["metric"]["each"]).all() for row in rows)
        return mo.verify(out) == [] and len(rows) > 0 and ended

    try:
        classify("the command sweep", call, is_right)
    finally:
        shutil.rmtree(out.parent)
