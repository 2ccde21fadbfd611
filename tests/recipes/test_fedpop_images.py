"""The recipes fedpop-small, fedpop-full and fedpop-uncertainty: their deals, their methods, their pages at scale ci."""

from __future__ import annotations

import json

import numpy as np
import pytest

import moiety as mo
from moiety.evaluation.predictive import Predictive
from moiety.recipes import RECIPES
from moiety.recipes.fedpop_full import TABLE2, plans
from moiety.recipes.fedpop_images import METHODS, Plan, network, shrunk
from moiety.recipes.fedpop_small import digits
from moiety.recipes.fedpop_small import plans as small_plans
from moiety.recipes.fedpop_uncertainty import looked_at, noise


def test_a_share_of_the_clients_is_left_with_few_rows():
    fed = mo.data.load("digits", clients=10, partition=mo.data.classes_per_client(5), per_client=25, seed=0)
    cut = shrunk(fed, 0.3, 5, 1)
    sizes = cut.sizes("train")
    assert sorted(sizes.tolist())[:3] == [5, 5, 5]
    assert (sizes[sizes != 5] == fed.sizes("train")[sizes != 5]).all()
    np.testing.assert_array_equal(cut.sizes("test"), fed.sizes("test"))
    for i in np.flatnonzero(sizes == 5):
        known = {row.tobytes() for row in fed.client(int(i))["x"]}
        assert all(row.tobytes() in known for row in cut.client(int(i))["x"])
        np.testing.assert_array_equal(cut.client(int(i), "test")["x"], fed.client(int(i), "test")["x"])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_a_round(method):
    fed, plan = digits(0), Plan(settings=(), seeds=1, rounds=1, cohort=2)
    net = network(fed, 0)
    algorithm, split = METHODS[method](plan, net)
    run = mo.fit(net, fed, algorithm, split=split, rounds=1, cohort=2, engine="sequential")
    assert 0 <= run.history[-1]["metric"] <= 1


def test_uncertainty_is_that_of_draws_made_anew():
    """Section 5 draws at the end of training: for a client's own pictures and for strange ones alike."""
    asked = []

    class Unmade:
        def predictive(self, client, x, *, refresh=False):
            asked.append((client, x, refresh))
            return Predictive(np.random.default_rng(len(asked)).normal(size=(2, len(x), 10)))

    own, strange = digits(0), noise(0)
    found = looked_at(Unmade(), own, strange, 2)
    shown = [(client, fed.client(client, "test")["x"]) for client in (0, 1) for fed in (own, strange)]
    for (client, x, refresh), (wanted, pictures) in zip(asked, shown, strict=True):
        assert (client, refresh) == (wanted, True)
        np.testing.assert_array_equal(x, pictures)
    assert len(found["entropies"]) == 2


def test_numbers_of_the_paper_stand_beside_their_methods():
    by_name = {s.name: s.paper for s in plans("laptop").settings}
    assert by_name["2-classes"]["FedSOUL"] == 91.12
    assert by_name["5-classes"]["FedRep"] == 75.68
    assert by_name["5-classes"]["local"] == TABLE2[5][0] == 70.68
    assert len(small_plans("laptop").settings) == 6


@pytest.mark.parametrize("name", ["fedpop-small", "fedpop-full", "fedpop-uncertainty"])
def test_a_page_and_its_numbers(name, tmp_path):
    outcome = RECIPES[name](scale="ci", out=tmp_path, engine="sequential")
    page, table = (tmp_path / "table.md").read_text(), json.loads((tmp_path / "table.json").read_text())
    assert outcome.report in page
    for words in (f"`moiety run {name} --scale ci`", "## Claims", "Decided here"):
        assert words in page
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    seeds = [json.loads((folder / f"seed-{s}.json").read_text()) for s in (0, 1)]
    for row in (row for row in table["rows"] if row["verdict"] is None):
        if name == "fedpop-uncertainty":
            factor = 100 if row["measure"] in ("accuracy", "ece", "client_ece", "auroc") else 1
            values = [factor * seed[row["method"]]["scores"][row["measure"]] for seed in seeds]
        else:
            values = [100 * seed[row["method"]] for seed in seeds]
        assert row["ours"] == pytest.approx(np.mean(values))
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == ({"reliability-digits.png", "entropy-digits.png"} if name == "fedpop-uncertainty" else set())
