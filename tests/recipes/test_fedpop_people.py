"""The recipe fedpop-people: who trains and who is new, what is standardised, its page at scale ci."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from moiety.evaluation.predictive import Predictive
from moiety_recipes.fedpop_pages import pool_bins
from moiety_recipes.fedpop_people import (
    GROUPS,
    LABELLED,
    METHODS,
    cells,
    draw_people,
    judge_methods,
    load_windows,
    plan,
    score,
    score_people,
)

PLAN = plan("ci")


def test_new_people_are_not_in_the_federation():
    fed = load_windows(PLAN)
    members, new = draw_people(PLAN, fed, 3)
    names = {person["name"] for person in new}
    assert len(members) == len(fed) - PLAN.held_out
    assert not set(map(str, members.ids)) & names
    assert set(members.sizes("train").tolist()) == {LABELLED}
    assert members.sizes("test").max() <= PLAN.test
    # Columns are standardised by the federation's labelled windows: a constant column is only shifted.
    x = np.concatenate([members.client(name)["x"] for name in members.ids])
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-5)
    assert x.std(0).max() <= 1 + 1e-5
    again = draw_people(PLAN, fed, 3)
    np.testing.assert_array_equal(again[0].columns["x"], members.columns["x"])
    others, strangers = draw_people(PLAN, fed, 4)
    same_people = {person["name"] for person in strangers} == names
    assert not same_people or not np.array_equal(others.columns["y"], members.columns["y"])


def test_new_people_are_served_with_the_passes_that_people_of_the_federation_have_had():
    """What is asked of runs that are not made.

    FedPop's rule for newcomers has its burn-in, finetuning and local training are one long pass, FedAvg has none; a
    head of FedRep has ten epochs in a pass, and five passes are the fifty epochs of finetuning.
    """
    calls = []

    class StubRun:
        def __init__(self, algorithm):
            self.algorithm = algorithm

        def predictive(self, client, x, *, fresh=False, passes=1):
            calls.append((self.algorithm.name, client, len(x), fresh, passes))
            return Predictive(np.zeros((1, len(x), PLAN.classes)))

    members, new = draw_people(PLAN, load_windows(PLAN), 3)
    by_key = {cell.key: cell for cell in cells(PLAN, range(3, 4))}
    assert set(by_key) == {(3, method) for method in METHODS}
    assert by_key[3, "finetuning"].start == (3, "FedAvg")
    counts = {"fedpop": 1, "fedrep": 5, "finetune": 1, "fedavg": 1, "local_only": 1}
    for method, (name, passes) in zip(METHODS, counts.items(), strict=True):
        calls.clear()
        options = by_key[3, method].fit()
        assert (
            options["rounds"] == options["settings"].evaluate_every == (1 if method in ("finetuning", "alone") else 3)
        )
        assert set(by_key[3, method].keep(StubRun(options["algorithm"]))) == set(GROUPS)
        assert len(calls) == len(members) + len(new)
        assert {(who, fresh, p) for who, _, _, fresh, p in calls} == {(name, False, passes)}
        assert [client for _, client, _, _, _ in calls[: len(members)]] == list(members.ids)
        for (_, rows, size, _, _), person in zip(calls[len(members) :], new, strict=True):
            np.testing.assert_array_equal(rows["x"], person["x"][:LABELLED])
            np.testing.assert_array_equal(rows["y"], person["y"][:LABELLED])
            assert size == len(person["y"]) - LABELLED


def test_scores_of_a_group_by_hand():
    """Two people: right, right, wrong; right. Sets of 90% have two, one, two and two classes: masses 1, 0.95, 1, 1."""
    one = np.array([[0.6, 0.4], [0.95, 0.05], [0.7, 0.3]])
    scores = score_people([(one, np.array([0, 0, 1])), (np.array([[0.2, 0.8]]), np.array([1]))])["scores"]
    assert (scores["n"], scores["accuracy"], scores["worst"]) == (4, 0.75, pytest.approx(2 / 3))
    assert (scores["covered"], scores["mass"], scores["size"]) == (1.0, pytest.approx(3.95 / 4), 1.75)


def test_sets_are_judged_by_their_mass_and_not_by_their_level():
    """Sets that hold what they weigh (0.96) beat sets that hold 0.9 of the windows and weigh 0.98, in all seeds."""
    same = [(np.full((2, 2), 0.5), np.array([0, 1]))]
    base = score_people(same)["scores"]
    assert base["gap"] == pytest.approx(abs(base["covered"] - base["mass"]))

    def scores(coverage, mass):
        return {"scores": {**base, "covered": coverage, "mass": mass, "gap": abs(coverage - mass)}}

    results = {}
    for seed, shift in enumerate((0.001, -0.001, 0.002)):
        for method in METHODS:
            coverage, mass = (0.96, 0.96) if method == "FedPop" else (0.90, 0.98)
            results[seed, method] = dict.fromkeys(GROUPS, scores(coverage + shift, mass))
    verdicts = [row for row in judge_methods(range(3), results) if row["measure"] == "gap"]
    assert {row["verdict"] for row in verdicts} == {"holds"}
    assert verdicts[0]["ours"] == pytest.approx(np.mean([0.079 - 0.001, 0.081 - 0.001, 0.078 - 0.002]))
    rows = score(range(3), results)
    ours = {(row["method"], row["measure"]): row["ours"] for row in rows if row["group"] == "new"}
    assert ours["FedPop", "gap"] == pytest.approx(100 * np.mean([0.001, 0.001, 0.002]))
    assert ours["FedRep", "mass"] == pytest.approx(98)


def test_bins_of_several_seeds_are_one_heap():
    one = [{"low": 0.5, "high": 1.0, "n": 3, "confidence": 0.8, "accuracy": 1.0}]
    other = [{"low": 0.5, "high": 1.0, "n": 1, "confidence": 0.6, "accuracy": 0.0}]
    (row,) = pool_bins([one, other])
    assert (row["n"], row["confidence"], row["accuracy"]) == (4, pytest.approx(0.75), 0.75)


def test_a_page_and_its_numbers(recipe_run):
    run = recipe_run("fedpop-people")
    page = (run.folder / "table.md").read_text()
    assert page.strip() in run.printed
    for words in (
        "`moiety run fedpop-people --scale ci --engine sequential`",
        "## New people",
        "## Differences",
        "Decided here",
    ):
        assert words in page
    assert not re.search("holds|does not hold|not decided", page.partition("## Decided here")[0])
    assert (run.folder / "reliability.png").read_bytes().startswith(b"\x89PNG")
    seeds = [
        {method: json.loads((run.folder / f"seed-{seed}/{method}.json").read_text())["result"] for method in METHODS}
        for seed in (0, 1)
    ]
    scores = [row for row in run.table["rows"] if row["verdict"] is None]
    assert {row["method"] for row in scores} == set(METHODS)
    for row in scores:
        factor = 1 if row["measure"] in ("nll", "brier", "size") else 100
        each = [seed[row["method"]][row["group"]]["scores"] for seed in seeds]
        gap = row["measure"] == "gap"
        values = [abs(s["covered"] - s["mass"]) if gap else s[row["measure"]] for s in each]
        assert row["ours"] == pytest.approx(factor * np.mean(values))
