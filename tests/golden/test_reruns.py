"""A page's numbers come out again from its seed on the engine that it names, in another process and another order.

One of the two processes is that of the tests, where much else was trained before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import rerun_cells

CELLS = {
    "fedalt-people": "vectorised",
    "fedalt-numbers": "sequential",
    "ffgg-splits": "vectorised",
    "ffgg-byzantine": "vectorised",
    "ffgg-readings": "-",
    "glocal-readings": "-",
    "fedspa-sparsity": "vectorised",
    "fedpop-work": "vectorised",
}
"""A recipe of each kind, with the engine that its page names; ``-`` where it trains by formulas of its own."""
PROGRAM, PAGES = Path(__file__).with_name("rerun_cells.py"), Path(__file__).parents[2] / "docs/results"


def run_here(pairs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return json.loads(json.dumps(rerun_cells.run_all(pairs)))


def run_elsewhere(pairs):
    words = [word for pair in pairs for word in pair]
    process = subprocess.run([sys.executable, str(PROGRAM), *words], capture_output=True, text=True, check=True)
    return json.loads(process.stdout)


@pytest.fixture(scope="module")
def both():
    return run_here(CELLS.items()), run_elsewhere(reversed(CELLS.items()))


@pytest.mark.parametrize(("name", "engine"), CELLS.items())
def test_a_cell_gives_the_same_numbers_again(name, engine, both):
    """Every number that is kept, bit for bit: JSON holds doubles exactly."""
    first, second = (rows[f"{name} {engine}"] for rows in both)
    assert first == second
    assert len(first) >= 1
    if engine != "-":
        assert {row["engine"] for row in first.values() if "engine" in row} == {engine}


@pytest.mark.parametrize(("name", "engine"), CELLS.items())
def test_pages_name_the_engine_that_is_tried_here(name, engine):
    table = PAGES / name / "table.json"
    if not table.is_file():
        pytest.skip(f"{name} has no page")
    assert json.loads(table.read_text())["engines"] == ([] if engine == "-" else [engine])
