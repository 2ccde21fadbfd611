"""The recipe fedpop-people: who trains and who is new, what is standardised, its page at scale ci."""

from __future__ import annotations

import json

import numpy as np
import pytest

import moiety as mo
from moiety.evaluation.predictive import Predictive
from moiety.recipes import RECIPES
from moiety.recipes.base import unwatched
from moiety.recipes.fedpop_people import GROUPS, LABELLED, METHODS, PLANS, people, scored, trained, windows
from moiety.recipes.fedpop_people_report import claims, table, together

PLAN = PLANS["ci"]


def test_new_people_are_not_in_the_federation():
    fed = windows(PLAN)
    known, new = people(PLAN, fed, 3)
    assert len(known) == len(fed) - PLAN.held_out
    assert not set(map(str, known.ids)) & set(new)
    assert set(known.sizes("train").tolist()) == {LABELLED}
    assert known.sizes("test").max() <= PLAN.test
    # Columns are standardised by the federation's labelled windows: a constant column is only shifted.
    x = np.concatenate([known.client(name)["x"] for name in known.ids])
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-5)
    assert x.std(0).max() <= 1 + 1e-5
    again = people(PLAN, fed, 3)
    np.testing.assert_array_equal(again[0].columns["x"], known.columns["x"])
    assert set(people(PLAN, fed, 4)[1]) != set(new) or not np.array_equal(
        people(PLAN, fed, 4)[0].columns["y"], known.columns["y"]
    )


def test_new_people_are_served_with_the_passes_that_people_of_the_federation_have_had(monkeypatch):
    """What predictions ask of runs that are not made.

    FedPop's rule for newcomers has its burn-in, finetuning and local training are one long pass, FedAvg has none; a
    head of FedRep has ten epochs in a pass, and five passes are the fifty epochs of finetuning.
    """
    asked = []

    class Unmade:
        def __init__(self, algorithm):
            self.algorithm = algorithm

        def predictive(self, client, x, *, refresh=False, passes=1):
            asked.append((self.algorithm.name, client, refresh, passes))
            return Predictive(np.zeros((1, len(x), PLAN.classes)))

    monkeypatch.setattr(mo, "fit", lambda net, fed, algorithm, **options: Unmade(algorithm))
    known, _ = people(PLAN, windows(PLAN), 3)
    predicted = trained(PLAN, known, 3, "sequential", unwatched)
    assert tuple(predicted) == METHODS
    for predict in predicted.values():
        assert predict("someone", np.zeros((2, 3))).shape == (2, PLAN.classes)
    wanted = {"fedpop": 1, "fedrep": 5, "finetune": 1, "fedavg": 1, "local_only": 1}
    assert asked == [(name, "someone", False, passes) for name, passes in wanted.items()]


def test_scores_of_a_group_by_hand():
    """Two people: right, right, wrong; right. Sets of 90% have two, one, two and two classes: masses 1, 0.95, 1, 1."""
    one = np.array([[0.6, 0.4], [0.95, 0.05], [0.7, 0.3]])
    found = scored([(one, np.array([0, 0, 1])), (np.array([[0.2, 0.8]]), np.array([1]))])["scores"]
    assert (found["n"], found["accuracy"], found["worst"]) == (4, 0.75, pytest.approx(2 / 3))
    assert (found["covered"], found["mass"], found["size"]) == (1.0, pytest.approx(3.95 / 4), 1.75)


def test_sets_are_judged_by_their_mass_and_not_by_their_level():
    """Sets that hold what they weigh (0.96) beat sets that hold 0.9 of the windows and weigh 0.98, in all seeds."""
    shown = {"accuracy": 0.5, "worst": 0.5, "ece": 0.1, "nll": 1.0, "brier": 0.5, "size": 2.0}

    def seed(shift):
        right = {"scores": {**shown, "covered": 0.96 + shift, "mass": 0.96}}
        level = {"scores": {**shown, "covered": 0.90 + shift, "mass": 0.98}}
        return {method: dict.fromkeys(GROUPS, right if method == "FedPop" else level) for method in METHODS}

    found = {0: seed(0.001), 1: seed(-0.001), 2: seed(0.002)}
    judged = [row for row in claims(found) if row["measure"] == "gap"]
    assert {row["verdict"] for row in judged} == {"holds"}
    assert judged[0]["ours"] == pytest.approx(np.mean([0.079 - 0.001, 0.081 - 0.001, 0.078 - 0.002]))
    ours = {(row["method"], row["measure"]): row["ours"] for row in table(found) if row["group"] == "new"}
    assert ours["FedPop", "gap"] == pytest.approx(100 * np.mean([0.001, 0.001, 0.002]))
    assert ours["FedRep", "mass"] == pytest.approx(98)


def test_bins_of_several_seeds_are_one_heap():
    one = [{"low": 0.5, "high": 1.0, "n": 3, "confidence": 0.8, "accuracy": 1.0}]
    other = [{"low": 0.5, "high": 1.0, "n": 1, "confidence": 0.6, "accuracy": 0.0}]
    (row,) = together([one, other])
    assert (row["n"], row["confidence"], row["accuracy"]) == (4, pytest.approx(0.75), 0.75)


def test_a_page_and_its_numbers(tmp_path):
    outcome = RECIPES["fedpop-people"](scale="ci", out=tmp_path)
    page, known = (tmp_path / "table.md").read_text(), json.loads((tmp_path / "table.json").read_text())
    assert outcome.report in page
    for words in ("`moiety run fedpop-people --scale ci`", "## New people", "## Claims", "Decided here"):
        assert words in page
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")
    seeds = [json.loads((tmp_path / f"seed-{s}.json").read_text()) for s in (0, 1)]
    scores = [row for row in known["rows"] if row["verdict"] is None]
    assert {row["method"] for row in scores} == set(METHODS)
    for row in scores:
        factor = 1 if row["measure"] in ("nll", "brier", "size") else 100
        each = [seed[row["method"]][row["group"]]["scores"] for seed in seeds]
        gap = row["measure"] == "gap"
        values = [abs(s["covered"] - s["mass"]) if gap else s[row["measure"]] for s in each]
        assert row["ours"] == pytest.approx(factor * np.mean(values))
