"""The recipe fedpop-people: who trains and who is new, what is standardised, its page at scale ci."""

from __future__ import annotations

import json

import numpy as np
import pytest

from moiety.recipes import RECIPES
from moiety.recipes.fedpop_people import LABELLED, METHODS, PLANS, people, scored, windows
from moiety.recipes.fedpop_people_report import together

PLAN = PLANS["ci"]


def test_new_people_are_not_in_the_federation():
    fed = windows(PLAN)
    known, new = people(PLAN, fed, 3)
    assert len(known) == len(fed) - PLAN.held_out
    assert not set(map(str, known.ids)) & set(new)
    assert set(known.sizes("train").tolist()) == {LABELLED}
    assert known.sizes("test").max() <= PLAN.test
    # Columns are standardised by the federation's labelled windows: a constant column is only shifted.
    x = np.concatenate([known.client(i)["x"] for i in range(len(known))])
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-5)
    assert x.std(0).max() <= 1 + 1e-5
    again = people(PLAN, fed, 3)
    np.testing.assert_array_equal(again[0].columns["x"], known.columns["x"])
    assert set(people(PLAN, fed, 4)[1]) != set(new) or not np.array_equal(
        people(PLAN, fed, 4)[0].columns["y"], known.columns["y"]
    )


def test_scores_of_a_group_by_hand():
    """Two people: right, right, wrong; right. Sets of 90% have two, one, two and two classes."""
    one = np.array([[0.6, 0.4], [0.95, 0.05], [0.7, 0.3]])
    found = scored([(one, np.array([0, 0, 1])), (np.array([[0.2, 0.8]]), np.array([1]))])["scores"]
    assert (found["n"], found["accuracy"], found["worst"]) == (4, 0.75, pytest.approx(2 / 3))
    assert (found["covered"], found["size"]) == (1.0, 1.75)


def test_bins_of_several_seeds_are_one_heap():
    one = [{"low": 0.5, "high": 1.0, "n": 3, "confidence": 0.8, "accuracy": 1.0}]
    other = [{"low": 0.5, "high": 1.0, "n": 1, "confidence": 0.6, "accuracy": 0.0}]
    (row,) = together([one, other])
    assert (row["n"], row["confidence"], row["accuracy"]) == (4, pytest.approx(0.75), 0.75)


def test_a_page_and_its_numbers(tmp_path):
    outcome = RECIPES["fedpop-people"](scale="ci", out=tmp_path)
    page, table = (tmp_path / "table.md").read_text(), json.loads((tmp_path / "table.json").read_text())
    assert outcome.report in page
    for words in ("`moiety run fedpop-people --scale ci`", "## New people", "## Claims", "Decided here"):
        assert words in page
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")
    seeds = [json.loads((tmp_path / f"seed-{s}.json").read_text()) for s in (0, 1)]
    scores = [row for row in table["rows"] if row["verdict"] is None]
    assert {row["method"] for row in scores} == set(METHODS)
    for row in scores:
        factor = 100 if row["measure"] in ("accuracy", "worst", "ece", "covered") else 1
        values = [seed[row["method"]][row["group"]]["scores"][row["measure"]] for seed in seeds]
        assert row["ours"] == pytest.approx(factor * np.mean(values))
