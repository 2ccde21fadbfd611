"""No number changes unnoticed: runs of every algorithm, and the tables of every recipe, against their pins.

``make pins`` writes them anew, where a change is meant.
"""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import golden_pins as pins
import pin
import pytest
from golden_cases import CASES
from golden_recipes import list_names, list_rows
from recipe_runs import RECIPES

ROOT = Path(__file__).parents[2]
CHANGELOG = "CHANGELOG.md"
RUNS = [(name, engine) for name, case in CASES.items() for engine in case.engines]


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    return pins.read(pins.PARAMETERS)


@pytest.mark.parametrize(("name", "engine"), RUNS, ids=["/".join(run) for run in RUNS])
def test_parameters(name, engine, runs):
    """One pin for all engines."""
    changes = pins.run_changes(runs[name], pins.pinned(CASES[name].numbers(engine)))
    assert not changes, "\n".join([f"{name} on {engine}:", *changes])


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name, recipe_run):
    changes = pins.recipe_changes(name, pins.read(pins.RECIPES)[name], list_rows(recipe_run(name)))
    assert not changes, "\n" + "\n".join(changes)


def test_all_is_pinned(runs):
    assert set(runs) == set(CASES), "`make pins` writes the pins of new cases"
    assert set(list_names("algorithms")) <= set(CASES)
    assert set(pins.read(pins.RECIPES)) == set(RECIPES) == set(list_names("recipes"))


def test_a_small_change_is_noticed():
    numbers = CASES["fedalt"].numbers()
    old = pins.pinned(numbers)
    assert not pins.run_changes(old, json.loads(json.dumps(old)))
    for change, noticed in ((1e-14, False), (1e-11, True)):
        now = copy.deepcopy(numbers)
        one = now["clients"]["head.weight"]
        one[3, 1, 2] += change * float(one.norm())
        assert bool(pins.run_changes(old, pins.pinned(now))) is noticed
        now = copy.deepcopy(numbers)
        now["history"]["loss"][1] *= 1 + change
        assert bool(pins.run_changes(old, pins.pinned(now))) is noticed
    now = copy.deepcopy(numbers)
    now["ledger"]["up_payload"] += 1
    assert pins.run_changes(old, pins.pinned(now)) == [
        f"ledger up_payload: pinned {old['ledger']['up_payload']}, now {old['ledger']['up_payload'] + 1}"
    ]


def test_a_change_of_a_table_is_named():
    old = [{"row": "fedavg", "ours": 10.0, "interval": [1.0, 2.0], "verdict": "holds"}]
    now = [{"row": "fedavg", "ours": 10.005, "interval": [1.0, 2.01], "verdict": None}]
    assert pins.recipe_changes("some", old, now) == [
        "some, row 1 (fedavg), column interval[1]: pinned 2.0, now 2.01",
        "some, row 1 (fedavg), column verdict: pinned 'holds', now None",
    ]
    assert pins.recipe_changes("some", old, []) == ["some: pinned 1 rows, now 0"]


def test_no_pins_are_written_by_ci(monkeypatch, capsys):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(pins, "write", None)
    assert pin.main([]) == 2
    assert "CI is set" in capsys.readouterr().err


@pytest.mark.parametrize(("before", "after"), [("HEAD^", "HEAD"), ("HEAD", None)], ids=["last commit", "working tree"])
def test_pins_change_together_with_the_changelog(before, after):
    """Where a pin changes or goes, the section *Numerics* changes too; new pins need no words."""
    if git("rev-parse", "--verify", "--quiet", before) is None:
        pytest.skip(f"no {before} to compare with")
    names = []
    for file in (pins.PARAMETERS, pins.RECIPES):
        place = file.relative_to(ROOT).as_posix()
        old, new = (json.loads(content(place, at) or "{}") for at in (before, after))
        names += [name for name in old if old[name] != new.get(name)]
    same = numerics(content(CHANGELOG, before)) == numerics(content(CHANGELOG, after))
    assert not (names and same), f"say in {CHANGELOG}, under Numerics, why these changed: {', '.join(names)}"


def numerics(text: str | None) -> list[str]:
    """The lines of a changelog that stand under a heading *Numerics*."""
    lines, inside = [], False
    for line in (text or "").splitlines():
        inside = line.endswith(" Numerics") if line.startswith("#") else inside
        lines += [line] if inside and line.strip() else []
    return lines


def content(place: str, at: str | None) -> str | None:
    """A file of a commit, or of the working tree; None where it is not there."""
    if at is not None:
        return git("show", f"{at}:{place}")
    return (ROOT / place).read_text() if (ROOT / place).is_file() else None


def git(*words: str) -> str | None:
    """What git prints; None where it fails or is not there."""
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
