"""The candidates of ``recommend``: which parts a model offers, and how long each may train."""

import pytest
from torch import nn

import moiety as mo
from moiety import MoietyError
from moiety.analysis.candidates import Candidate, group_layers, list_candidates, list_splits
from moiety.experiments.halving import Rung, count_evaluations, make_plan, make_rungs, read_budget


def make_fed(rows=40):
    return mo.data.load("digits", clients=6, per_client=rows, validation=0.2, seed=0)


def test_a_perceptron_offers_its_layers_and_lora():
    splits = list_splits(mo.models.mlp(64, 10, hidden=(16, 16), seed=0))
    assert list(splits) == ["output layer", "input layer", "LoRA", "layer hidden2"]
    assert splits["layer hidden2"].personal == ("hidden2.weight", "hidden2.bias")
    assert all(split.trained_shared for split in splits.values())


def test_a_transformer_offers_adapters_norms_and_blocks():
    model = mo.models.transformer_lm(vocabulary=20, length=4, width=8, blocks=2, heads=2, feed_forward=16, seed=0)
    splits = list_splits(model)
    assert {"norms", "adapters"} <= set(splits)
    assert len(splits) <= 5 + 8


def test_many_layers_are_grouped_by_the_modules_they_are_in():
    model = nn.ModuleDict({f"block{k}": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for k in range(6)})
    assert group_layers(model) == [[f"block{k}.0", f"block{k}.1"] for k in range(6)]
    chain = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))
    assert [len(group) for group in group_layers(chain)] == [3] * 6 + [2]


def test_titles_begin_a_sentence_and_end_no_clause():
    """They stand in the middle of sentences too: "its best rival, a ..., 95.3%"."""
    model = mo.models.mlp(64, 10, hidden=(16,), seed=0)
    for each in list_candidates(model, make_fed(), mo.sgd(0.1), list_splits(model), loss="cross_entropy"):
        assert each.title[0].isupper()
        assert each.title[-1].isalnum() or each.title[-1] == ")"


def test_fedpop_joins_where_rows_are_few_and_own_candidates_always():
    model, fed = mo.models.mlp(64, 10, hidden=(16,), seed=0), make_fed()
    own = {
        "mine": mo.split.by_name(model, personal=["head.bias"]),
        "apfl": lambda rate: mo.apfl(shared=rate, personal=rate),
    }
    how = {"loss": "cross_entropy", "own": own}
    few = [c.name for c in list_candidates(model, fed, mo.sgd(0.1), list_splits(model), **how)]
    assert few[0] == "one model"
    assert {"finetuning", "local only", "Ditto", "output layer, FedPop", "mine", "apfl"} <= set(few)
    many = mo.data.load("digits", clients=6, per_client=100, validation=0.2, seed=0)
    assert "output layer, FedPop" not in [
        c.name for c in list_candidates(model, many, mo.sgd(0.1), list_splits(model), loss="cross_entropy")
    ]
    with pytest.raises(MoietyError, match="`also` must be names that no other candidate has"):
        list_candidates(model, fed, mo.sgd(0.1), {}, loss="mse", own={"Ditto": own["mine"]})
    with pytest.raises(MoietyError, match="`also` must be splits, or functions"):
        list_candidates(model, fed, mo.sgd(0.1), {}, loss="mse", own={"mine": 3})


@pytest.mark.parametrize(("text", "seconds"), [("90 s", 90.0), ("10 min", 600.0), (".5h", 1800.0), (7, 7)])
def test_budgets_are_times_or_numbers(text, seconds):
    assert read_budget(text) == seconds


@pytest.mark.parametrize("text", ["10", "ten min", "0 s", "-1 min", None, 0, 2.5])
def test_other_budgets_are_refused_in_one_line(text):
    with pytest.raises(MoietyError, match="`budget` must be") as refusal:
        read_budget(text)
    assert "\n" not in str(refusal.value)


def make_candidates(count):
    one = Candidate("one model", "", lambda rate, shared: mo.fedavg(shared=rate))
    return [one, *(Candidate(f"c{k}", "", one.build, passes=2) for k in range(count - 1))]


def test_evaluations_are_counted_as_by_hand():
    """Nine rivals, two rates, a full length of 18 rounds: rungs of 2, 6 and 18 rounds with 9, 4 and 3 rivals."""
    assert make_rungs(18, 9, 2) == (Rung(2, 2, 9), Rung(6, 2, 4), Rung(18, 1, 3))
    start = 2 * 3 + 9  # two rates for a third of nine rounds, then nine
    rungs = 2 * (2 + 9 * 2) + 2 * (6 + 4 * 6) + (18 + 3 * 18)
    final = 5 * (9 + 18 + 18)
    assert count_evaluations(18, make_candidates(10), 2, 100.0) == 100 * (start + rungs + final)


def test_a_plan_keeps_to_its_budget_and_drops_candidates_before_runs_are_too_short():
    every = make_candidates(12)
    whole = make_plan(every, budget=10**6, most=500, rates=4, rows=100.0)
    assert whole.candidates == 12
    assert whole.evaluations <= 10**6 < count_evaluations(whole.full + 1, every, 4, 100.0)
    small = make_plan(every, budget=50_000, most=500, rates=4, rows=100.0)
    assert small.candidates < 12
    assert small.evaluations <= 50_000
    with pytest.raises(MoietyError, match=r"`budget` must be at least [\d,]+ gradient evaluations here, got 9,000"):
        make_plan(every, budget=9_000, most=500, rates=4, rows=100.0)
