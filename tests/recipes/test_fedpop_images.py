"""The recipes fedpop-small, fedpop-full and fedpop-uncertainty: their deals, their methods, their pages at scale ci."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import moiety as mo
from moiety.evaluation.predictive import Predictive
from moiety.experiments import load_recipe
from moiety_recipes import fedpop_full, fedpop_small, fedpop_uncertainty, fedpop_work
from moiety_recipes.fedpop_full import PAPER, TABLE2
from moiety_recipes.fedpop_images import DIGITS, NOISE, Plan, Scarce, fit_options, shrink
from moiety_recipes.fedpop_uncertainty import keep_predictions


def test_a_share_of_the_clients_is_left_with_few_rows():
    how = {"partition": mo.data.classes_per_client(5), "per_client": 25, "validation": 0.2}
    fed = mo.data.load("digits", clients=10, **how, seed=0)
    cut = shrink(fed, Scarce(share=0.3, pictures=5), 1)
    sizes = cut.sizes("train")
    assert sorted(sizes.tolist())[:3] == [5, 5, 5]
    assert (sizes[sizes != 5] == fed.sizes("train")[sizes != 5]).all()
    for i in range(10):
        for part in ("validation", "test"):
            np.testing.assert_array_equal(cut.client(i, part)["x"], fed.client(i, part)["x"])
    for i in np.flatnonzero(sizes == 5):
        rows = {row.tobytes() for row in fed.client(int(i))["x"]}
        assert all(row.tobytes() in rows for row in cut.client(int(i))["x"])


@pytest.mark.parametrize("method", TABLE2)
def test_every_method_takes_a_round(method):
    plan = Plan(deals=(DIGITS,), methods=(method,), seeds=1, rounds=1, cohort=2)
    run = mo.fit(**fit_options(plan, DIGITS, DIGITS.load(0), method, 0), engine="sequential")
    assert 0 <= run.history[-1]["metric"] <= 1


def test_uncertainty_is_that_of_draws_made_anew():
    """Section 5 draws at the end of training: for a client's own pictures and for strange ones alike."""
    calls = []

    class StubRun:
        def predictive(self, client, x, *, fresh=False):
            calls.append((client, x, fresh))
            return Predictive(np.random.default_rng(len(calls)).normal(size=(2, len(x), 10)))

    deal = replace(DIGITS, strange=NOISE)
    own, strange = deal.load(0), deal.load_strange(0)
    predictions = keep_predictions(own, strange, 2, StubRun())
    inputs = [(client, [fed.client(client, "test")["x"] for fed in (own, strange)]) for client in (0, 1)]
    for (client, x, fresh), (index, pictures) in zip(calls, inputs, strict=True):
        assert (client, fresh) == (index, True)
        np.testing.assert_array_equal(x, np.concatenate(pictures))
    assert len(predictions["entropies"]) == 2
    assert [len(predictions["entropies"][0][kind]) for kind in ("its own", "strange")] == [
        len(each) for each in inputs[0][1]
    ]
    assert keep_predictions(own, None, 2, StubRun())["entropies"] == []


def test_numbers_of_the_paper_stand_beside_their_methods():
    laptop = fedpop_full.plan("laptop")
    assert [deal.name for deal in laptop.deals] == list(PAPER)
    assert [deal.classes for deal in laptop.deals] == [2, 5]
    assert PAPER["2-classes"]["FedSOUL"] == 91.12
    assert PAPER["5-classes"]["FedRep"] == 75.68
    assert PAPER["5-classes"]["local"] == 70.68
    results = {(deal.name, 0, method): {"accuracy": 0.5} for deal in laptop.deals for method in laptop.methods}
    rows = load_recipe("fedpop-full").page(laptop, range(1), results).rows
    numbers = {(row["setting"], row["method"]): row["paper"] for row in rows if row["verdict"] is None}
    assert numbers["2-classes", "FedSOUL"] == 91.12
    assert numbers["5-classes", "L2GD"] == 59.98


def test_titles_follow_the_sizes():
    """What --set changes, the page shows."""
    titles = [deal.heading for deal in fedpop_small.plan("laptop").deals]
    assert len(titles) == 6
    assert titles[0] == "10% of the clients with 5 pictures"
    assert titles[-1] == "90% of the clients with 10 pictures"
    assert fedpop_small.plan("ci").deals[0].heading == "Digits, 50% with 5"
    assert fedpop_full.plan("laptop").deals[0].heading == "CIFAR-10, 2 classes a client"
    heading = "MNIST, 5 classes a client, shown Fashion-MNIST"
    assert fedpop_uncertainty.plan("laptop").deals[-1].heading == heading
    recipe = load_recipe("fedpop-small")
    changes = {"share": 0.25, "pictures": 4}
    page = recipe.run(scale="ci", rounds=1, seeds=1, changes=changes, engine="sequential").page
    assert "## Digits, 25% with 4" in page


@pytest.mark.parametrize("name", ["fedpop-small", "fedpop-full"])
def test_a_page_and_its_numbers(name, recipe_run):
    run = recipe_run(name)
    page = (run.folder / "table.md").read_text()
    assert page.strip() in run.printed
    for words in (f"`moiety run {name} --scale ci --engine sequential`", "## Differences", "Decided here"):
        assert words in page
    (folder,) = [path for path in run.folder.iterdir() if path.is_dir()]
    for row in (row for row in run.table["rows"] if row["verdict"] is None):
        results = [json.loads((folder / f"seed-{s}" / f"{row['method']}.json").read_text())["result"] for s in (0, 1)]
        assert row["ours"] == pytest.approx(np.mean([100 * each["accuracy"] for each in results]))
    assert not list(run.folder.glob("*.png"))


def test_the_page_of_uncertainty_and_its_numbers(recipe_run):
    """Rows are means of what the cells kept, claims are differences of two of them."""
    run = recipe_run("fedpop-uncertainty")
    assert {path.name for path in run.folder.glob("*.png")} == {"reliability-digits.png", "entropy-digits.png"}

    def read_score(seed, method, regime, measure):
        file = run.folder / f"seed-{seed}/digits/{method}-{regime.replace(chr(32), chr(95))}.json"
        return json.loads(file.read_text())["result"]["scores"][measure]

    rows = [row for row in run.table["rows"] if row["verdict"] is None]
    assert len(rows) == 2 * 3 * 7
    for row in rows:
        factor = 1 if row["measure"] in ("nll", "brier") else 100
        each = [read_score(s, row["method"], row["regime"], row["measure"]) for s in (0, 1)]
        assert row["ours"] == pytest.approx(factor * np.mean(each))
    claims = {row["row"].partition(": ")[2]: row for row in run.table["rows"] if row.get("headline")}
    assert len(claims) == 8
    gain = [
        read_score(s, "FedRep", "equal work", "ece") - read_score(s, "FedSOUL", "equal work", "ece") for s in (0, 1)
    ]
    assert claims["FedSOUL is better calibrated than FedRep"]["ours"] == pytest.approx(100 * np.mean(gain))
    chance = [read_score(s, "FedSOUL", "equal work", "auroc_information") - 0.5 for s in (0, 1)]
    text = "FedSOUL tells strange pictures better than chance, by mutual information"
    assert claims[text]["ours"] == pytest.approx(100 * np.mean(chance))


def test_models_that_diverged_have_equal_probabilities():
    class StubRun:
        def predictive(self, client, x, *, fresh):
            return Predictive(np.full((1, len(x), 4), client))  # refused where that is not finite

    x = np.zeros((3, 2))
    for client in (np.inf, np.nan, 1.0):
        prediction = fedpop_work.predict_anew(StubRun(), client, x, classes=4)
        np.testing.assert_allclose(prediction.probabilities, 0.25, rtol=1e-12)
        np.testing.assert_allclose(prediction.entropy, 1.3862943611198906, rtol=1e-12)  # log 4
        np.testing.assert_allclose(prediction.mutual_information, 0.0, atol=1e-12)
    with pytest.raises(mo.MoietyError, match="shape"):
        fedpop_work.predict_anew(StubRun(), 1.0, np.zeros((0, 2)), classes=4)


def test_scores_of_draws_are_counted_by_hand():
    """The mean over clients of the share of rows that get their own label, by draws made anew."""
    plan = fedpop_work.plan("ci")
    (deal,) = plan.deals
    fed = fedpop_work.load(deal, 0)

    class StubRun:
        history, ledger, clients = [{"metric_unweighted": 0.25}], {"flops": 7.0}, [{"effective_draws": 1.0}]

        def predictive(self, client, x, *, fresh):
            assert fresh
            logits = np.zeros((2, len(x), 10))
            logits[..., client] = 1.0  # every row of client i is called class i
            return Predictive(logits)

    scores = fedpop_work.keep_accuracy(deal, 0, "test", StubRun())
    labels = [fed.client(i, "test")["y"] for i in range(len(fed))]
    assert scores == {"score": np.mean([(y == i).mean() for i, y in enumerate(labels)]), "kept": 0.25, "flops": 7.0}
    StubRun.clients = [{}]
    assert fedpop_work.keep_accuracy(deal, 0, "test", StubRun()) == {"score": 0.25, "flops": 7.0}


def test_claims_of_equal_work_have_the_papers_differences():
    """Table 2, FedSOUL minus FedRep: 91.12 - 87.70 and 79.48 - 75.68, 3.61 on average. Figure 3 has no numbers."""
    plan = fedpop_work.plan("night")
    results = {
        (seed, deal.name, f"{method}, {regime}"): {"score": 0.5 + 0.01 * seed}
        for seed in (0, 1)
        for deal in plan.deals
        for method in plan.methods_of(deal)
        for regime in ("equal work", "equal rounds")
    }
    claims = {row["row"]: row for row in fedpop_work.judge(plan, (0, 1), results)}
    pooled = claims["Table 2, equal work: FedSOUL beats FedRep"]
    assert (pooled["paper"], pooled["headline"]) == ("+3.6", True)
    assert claims["CIFAR-10, 2 classes a client, equal rounds: FedSOUL beats FedRep"]["paper"] == "+3.4"
    figure3 = claims["Figure 3, equal work: FedSOUL beats APFL"]
    assert (figure3["paper"], figure3["headline"]) == (None, True)


def test_the_pilot_chooses_rounds_by_work_and_rates_by_validation():
    plan = fedpop_work.plan("ci")
    steps = fedpop_work.cells(plan, [0])
    first = next(steps)
    flops = {"FedAvg": 10.0, "FedRep": 4.0, "APFL": 20.0, "FedSOUL": 5.0}  # of one round each
    methods = [cell.key[2].removeprefix("one round, ") for cell in first]
    second = steps.send([{"flops": flops[method]} for method in methods])
    rounds = {cell.key[2]: cell.fit()["rounds"] for cell in second}
    assert rounds == {f"{m}, {f}": n for m, n in zip(methods, (2, 5, 1, 4), strict=True) for f in (1, 3)}
    assert methods == ["FedAvg", "FedRep", "APFL", "FedSOUL"]
    choices = steps.send([{"score": 0.1 * i} for i in range(len(second))]).work()["chosen"]
    assert {own["factor"] for own in choices.values()} == {3.0}  # the second of two was the better for each
    runs = steps.send({})
    assert [cell.fit()["rounds"] for cell in runs] == [2, 2, 5, 2, 1, 2, 4, 2]
    assert {cell.fit()["settings"].evaluate_on for cell in second} == {"validation"}
    assert {cell.fit()["settings"].evaluate_on for cell in runs} == {"test"}
