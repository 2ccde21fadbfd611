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
    "fedalt-roles": "vectorised",
    "fedalt-labels": "vectorised",
    "fedalt-numbers": "sequential",
    "ffgg-splits": "vectorised",
    "ffgg-diagnosis": "vectorised",
    "ffgg-speeds": "sequential vectorised",
    "ffgg-byzantine": "vectorised",
    "ffgg-readings": "-",
    "ffgg-theorem8": "-",
    "glocal-readings": "-",
    "fedspa-sparsity": "vectorised",
    "fedpop-work": "vectorised",
}
"""Every recipe that decides for the papers of FedAlt and FFGG, and one of each kind of the others, with the engine that
its page names; ``-`` where it trains by formulas of its own. Where a page names two, each cell names its own."""
OTHERS = {"fedalt-roles": {"sequential"}}
"""Engines that a page names for cells with dropout, which are not among the first."""
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
    return run_here(list(CELLS.items())), run_elsewhere(reversed(CELLS.items()))


@pytest.mark.parametrize(("name", "engine"), CELLS.items())
def test_a_cell_gives_the_same_numbers_again(name, engine, both):
    """Every number that is kept, bit for bit: JSON holds doubles exactly."""
    first, second = (rows[f"{name} {engine}"] for rows in both)
    assert first == second
    assert len(first) >= 1
    if engine != "-":
        assert {row["engine"] for row in first.values() if "engine" in row} == set(engine.split())


@pytest.mark.parametrize(("name", "engine"), CELLS.items())
def test_pages_name_the_engine_that_is_tried_here(name, engine):
    table = PAGES / name / "table.json"
    if not table.is_file():
        pytest.skip(f"{name} has no page")
    engines = set() if engine == "-" else set(engine.split())
    assert set(json.loads(table.read_text())["engines"]) == engines | OTHERS.get(name, set())


def test_no_recipe_that_decides_for_fedalt_or_ffgg_is_left_out():
    tables = [json.loads(file.read_text()) for file in PAGES.glob("f[ef][dg]*/table.json")]
    decided = {table["recipe"] for table in tables if table.get("scale") == "night"}
    assert {name for name in decided if name.startswith(("fedalt-", "ffgg-"))} <= set(CELLS)
    assert len(decided) >= 10
