"""The recipes that decide the claims of Pillutla et al. 2022: their steps, their questions by hand, their pages."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import moiety as mo
from moiety.errors import MoietyError
from moiety.experiments import HOLDS, UNDECIDED
from moiety_recipes import fedalt_holds
from moiety_recipes.fedalt_night import DITTO, LADDER, Pilot, list_steps, sweep_steps
from moiety_recipes.fedalt_night_page import NightComparison, measure_commonest
from moiety_recipes.fedalt_questions import (
    QUESTIONS,
    answer,
    choose_split,
    share_below,
    split_halves,
    take_best_in_other_half,
)
from moiety_recipes.fedalt_settings import plan_labels, plan_numbers, plan_people, plan_roles
from moiety_recipes.fedalt_stages import train_together
from moiety_recipes.tuning import is_end, widen

PLANS = (plan_people, plan_labels, plan_roles, plan_numbers)
T_1 = 63.6567
"""The 99.5% point of Student's t with one degree of freedom, from a printed table."""


class Rates(dict):
    def __missing__(self, name):
        return 0.1


@pytest.fixture(scope="module")
def record(recipe_run):
    run = recipe_run("fedalt-people")
    return run.folder, run.table


def steps_of(setting):
    return {step.name: step for step in list_steps(setting, Rates())}


def test_every_whole_or_partial_method_also_starts_from_fedavg_trained_as_long():
    for plan in PLANS:
        for setting in plan("night").settings:
            steps, stages = steps_of(setting), setting.stages
            longer = steps["fedavg-longer"]
            assert (longer.start, longer.rounds) == ("fedavg", stages.personal_rounds)
            for name in ("full-finetune", DITTO, *(f"{split}-finetune" for split in setting.splits)):
                assert (steps[name].start, steps[f"{name}-longer"].start) == ("fedavg", "fedavg-longer")
                assert steps[name].algorithm.spec == steps[f"{name}-longer"].algorithm.spec
            for name in ("full-pfedme", *(f"{s}-{m}" for s in setting.splits for m in ("fedalt", "fedsim"))):
                assert (steps[name].start, steps[name].rounds) == ("fedavg", stages.personal_rounds)


def test_the_server_has_momentum_in_the_rounds_of_fedavg_alone():
    for plan, momentum in ((plan_people, None), (plan_labels, 0.9), (plan_roles, None), (plan_numbers, 0.9)):
        for setting in plan("night").settings:
            steps = steps_of(setting)
            longer = setting.stages.with_rounds(2 * setting.stages.rounds)
            for stages in (setting.stages, longer):
                server = train_together(stages, 0.1).algorithm.spec.get("server") or {}
                assert server.get("momentum") == momentum
            for name in ("fedavg-longer", "full-pfedme", "output-fedalt", "output-fedsim"):
                assert not steps[name].algorithm.spec.get("server")


def test_a_client_is_asked_as_often_at_both_strengths_of_the_deal():
    for setting in plan_labels("night").settings:
        stages = setting.stages
        assert stages.personal_rounds * stages.cohort == 20 * 50


def test_penalties_without_a_half_are_pulls_of_twice_their_weight():
    (setting,) = plan_roles("night").settings
    steps = steps_of(setting)
    assert steps[DITTO].algorithm.spec["personal"]["pull"] == 0.2  # the weight is 0.1
    spec = steps["output-fedalt-pull-0.01"].algorithm.spec
    assert (spec["personal"]["pull"], spec["shared"].get("pull", 0)) == (0.02, 0)
    spec = steps["output-fedalt-weight_decay-0.01"].algorithm.spec
    assert (spec["personal"]["weight_decay"], spec["shared"].get("weight_decay", 0)) == (0.01, 0)
    assert steps["output-fedalt-dropout-0.3"].dropout == 0.3


def test_clients_without_state_follow_the_authors_rule_in_all_splits():
    for setting in plan_people("night").settings:
        steps = steps_of(setting)
        for split in setting.splits:
            for method in ("fedalt", "fedsim"):
                spec = steps[f"{split}-{method}-stateless"].algorithm.spec
                assert (spec["name"], spec["restart"]) == (method, True)
                assert steps[f"{split}-{method}-stateless-final"].start == f"{split}-{method}-stateless"


def test_nothing_is_tuned_on_seeds_that_are_reported_and_all_have_grids_of_one_length():
    for plan in PLANS:
        for setting in plan("night").settings:
            stages = setting.stages
            assert not set(stages.pilot_seeds) & {*setting.seeds([0]), *setting.seeds([10])}
            assert stages.seeds >= 5
            assert len(stages.lr) == len(stages.personal_lr) == len(stages.finetune_lr)


def test_a_sweep_begins_with_fedalt_itself():
    (setting,) = plan_roles("night").settings
    for sweep in setting.stages.sweeps:
        names = sweep_steps(sweep)
        assert names[0.0] == "output-fedalt"
        assert set(names.values()) <= set(steps_of(setting))


def test_there_is_no_scale_paper():
    for plan in PLANS:
        with pytest.raises(MoietyError, match="`scale` must be ci, laptop or night"):
            plan("paper")


def change(**tests):
    return [{"client": client, "n": 1, "n_test": 1, "test": test, "train": None} for client, test in tests.items()]


def test_losers_of_one_half_of_the_seeds_are_looked_at_in_the_other():
    """Over the first and third seed a and c lose 2 and 1 on average, b wins 1: a and c are looked at in the others."""
    seeds = [change(a=-1, b=1, c=0), change(a=-4, b=-9, c=-2), change(a=-3, b=1, c=-2), change(a=0, b=-9, c=2)]
    assert split_halves(seeds) == [3, -1]
    assert split_halves([change(a=1), change(a=-1)]) == []
    assert split_halves([change(a=-1)]) == []


def tries(**scores):
    """Pilot rows of a metric that is better where it is higher, by rate."""
    rows = {float(rate[1:].replace("_", ".")): score for rate, score in scores.items()}
    zeros = dict.fromkeys(("loss", "shared_loss", "shared_metric", "gain"), 0.0)
    client = {"client": "a", "n": 1, "n_test": 1, **zeros}
    return {rate: {"metric": "accuracy", "clients": [{**client, "metric": score}]} for rate, score in rows.items()}


def test_a_search_goes_on_where_its_best_value_is_at_an_end():
    for scores, more in (
        ({0.01: 0.1, 0.03: 0.3, 0.1: 0.2}, []),
        ({0.01: 0.1, 0.03: 0.2, 0.1: 0.3}, [0.3]),
        ({0.1: 0.1, 0.2: 0.2, 0.4: 0.3}, [1.0]),
        ({0.01: 0.3, 0.03: 0.2, 0.1: 0.1}, [0.003]),
        ({0.01: 0.3, 0.03: 0.3, 0.1: 0.1}, []),  # no better than its neighbour
        ({0.01: 0.3}, []),  # nothing to choose
        ({3.0: 0.1, 10.0: 0.2}, []),  # the ladder ends
    ):
        assert widen(scores, LADDER) == more


def test_a_pilot_knows_what_its_search_tried():
    """The grid ends at 0.1, which is best: 0.3 is tried, then 1, which is worse. The best of others is inside."""
    setting = plan_people("night").settings[0]
    curve = {0.003: 0.1, 0.01: 0.2, 0.03: 0.3, 0.1: 0.4, 0.3: 0.5, 1.0: 0.2}

    class Rows(dict):
        def __missing__(self, key):
            name, value = key[-1].rsplit("-", 1)
            inside = {0.01: 0.0, 0.03: 1.0, 0.1: 0.5}.get(float(value), 0.0)
            return tries(r1=curve[float(value)] if name == "output-finetune" else inside)[1.0]

    pilot = Pilot(setting, Rows())
    assert pilot.scores["output-finetune"] == {f"{rate:g}": score for rate, score in curve.items()}
    assert pilot.rates["output-finetune"] == 0.3
    assert pilot.rates["input-fedsim-stateless-final"] == 0.03
    assert set(pilot.scores["input-fedsim"]) == {"0.01", "0.03", "0.1", "0.3"}


def test_every_finetuning_has_a_rate_of_its_own():
    setting = plan_people("night").settings[0]
    rates = Rates({"output-finetune": 0.3, "output-fedalt-final": 0.01, "output-fedsim-stateless-final": 1.0})
    steps = {step.name: step for step in list_steps(setting, rates)}
    names = ("output-finetune", "output-finetune-longer", "output-fedalt-final", "output-fedsim-stateless-final")
    assert [steps[name].algorithm.spec["personal"]["lr"] for name in names] == [0.3, 0.3, 0.01, 1.0]


def test_the_best_regulariser_is_chosen_in_one_half_of_the_seeds_and_judged_in_the_other():
    """In the first and third seed b lowers the share by 3 on average, a by 2; in the others b adds 1 and 5."""
    drops = {"a": [1, 9, 3, 9], "b": [2, -1, 4, -5]}
    assert take_best_in_other_half(drops) == {"b": [1, 5]}
    assert take_best_in_other_half({"a": [1]}) == {}


def test_the_end_of_a_grid_is_marked():
    scores = {"0.1": 0.5, "0.3": 0.5, "1": 0.4}
    assert not is_end(0.1, scores)
    assert is_end(0.1, {**scores, "0.3": 0.4})
    assert is_end(1.0, {**scores, "1": 0.6})
    assert not is_end(0.1, {"0.1": 0.5})


def test_the_share_hurt_below_and_above_a_median():
    """At or below the median 2 of the measure: a hurt, b not: 1/2. Above: c not hurt: 0."""
    rows = change(a=-1, b=0, c=1)
    assert share_below(rows, {"a": 1, "b": 2, "c": 3}) == 0.5
    assert share_below(rows, {"a": 3, "b": 2, "c": 1}) == -1
    assert share_below(rows, {"a": 1, "b": 2, "c": 2}) == 1  # nobody above the median: a against b and c


def read_result(folder, seed, step):
    return json.loads((folder / "digits" / f"seed-{seed}" / f"{step}.json").read_text())["result"]


def mean(row):
    total = sum(client["n_test"] for client in row["clients"])
    return sum(client["n_test"] * client["metric"] for client in row["clients"]) / total


def test_verdicts_are_those_of_the_clients_rows(record):
    folder, table = record
    (setting,) = table["settings"]
    claims = {row["question"]: row for row in setting["claims"]}
    assert set(claims) <= set(QUESTIONS)
    for question, new, old in (
        ("alt-sim-before", "{}-fedalt", "{}-fedsim"),
        ("sim-ft-longer", "{}-fedsim-final", "{}-finetune-longer"),
        ("state-sim", "{}-fedsim-final", "{}-fedsim-stateless-final"),
    ):
        seeds = []
        for seed in (0, 1):
            both = [
                (read_result(folder, seed, new.format(s)), read_result(folder, seed, old.format(s)))
                for s in ("input", "output", "adapter")
            ]
            seeds.append(sum(mean(a) - mean(b) for a, b in both) / 3)
        row = claims[question]
        assert row["mean"] == pytest.approx(sum(seeds) / 2, abs=1e-12)
        if seeds[0] == pytest.approx(seeds[1], rel=1e-12):  # seeds that agree decide nothing
            assert (row["high"], row["verdict"]) == (None, UNDECIDED)
            continue
        assert row["high"] - row["mean"] == pytest.approx(T_1 * abs(seeds[0] - seeds[1]) / 2, rel=1e-4, abs=1e-12)
        above = row["low"] > QUESTIONS[question].above
        assert (row["verdict"] == HOLDS) == above


def test_the_pilot_is_scored_on_validation_rows_and_chooses_the_split(record):
    folder, table = record
    (setting,) = table["settings"]
    (design,) = plan_people("ci").settings
    data = design.data(0)
    means = {}
    for split in ("input", "output", "adapter"):
        row = json.loads((folder / "digits/tuning/seed-100" / f"{split}-fedalt-0.05.json").read_text())["result"]
        assert [client["n_test"] for client in row["clients"]] == data.sizes("validation").tolist()
        means[split] = mean(row)
    assert setting["validation"] == pytest.approx(means)
    assert setting["best"] == max(means, key=means.__getitem__)
    rates = {0.05: "fedavg-0.05", 0.1: "fedavg-0.1"}
    scores = {
        lr: mean(json.loads((folder / f"digits/tuning/seed-100/{name}.json").read_text())["result"])
        for lr, name in rates.items()
    }
    twice = mean(json.loads((folder / "digits/tuning/seed-100/fedavg-twice.json").read_text())["result"])
    assert setting["converged"]["gain"] == pytest.approx(twice - max(scores.values()))


def test_every_number_can_be_had_again_from_the_cells(record):
    """The comparison that a page is made of needs the kept results alone."""
    folder, table = record
    (setting,) = plan_people("ci").settings
    results = {}
    for file in folder.glob("digits/**/*.json"):
        content = json.loads(file.read_text())
        if "cell" in content:
            results[tuple(content["cell"])] = content["result"]
    comparison, pilot = NightComparison(setting, range(2), results), Pilot(setting, results)
    assert choose_split(comparison, pilot) == table["settings"][0]["best"]
    again = answer(comparison, pilot)
    assert {row["question"]: row["each"] for row in table["settings"][0]["claims"]} == again


def made_up(name, best, finals, differences):
    claims = [{"question": "alt-sim-before", "each": {"input": differences, "output": differences}}]
    return {
        "setting": name,
        "validation": {"input": 0.9 if best == "input" else 0.1, "output": 0.5},
        "best": best,
        "parts": {"input": 0.75, "output": 0.02},
        "finals": finals,
        "sign": 1,
        "converged": {"yes": True, "gain": 0.0},
        "theory": {"input": {"better": "fedalt"}, "output": {"better": "undecided"}},
        "claims": claims,
    }


def test_the_pooled_page_by_hand(tmp_path):
    """Over both settings the output layer is best on validation rows: 0.5 + 0.6 against 0.9 + 0.1.

    In ``one`` its own best, the input layer, has 0.2 and 0.4 above the output layer; in ``two`` nothing: 0.
    """
    one = made_up("one", "input", {"input": [0.7, 0.9], "output": [0.5, 0.5]}, [0.01, 0.03])
    two = made_up("two", "output", {"input": [0.1, 0.1], "output": [0.8, 0.8]}, [0.02, 0.02])
    two["validation"]["output"] = 0.6
    rows = fedalt_holds.pool([one, two])
    assert rows["own-split"]["each"] == {"one": pytest.approx([0.2, 0.4]), "two": [0, 0]}
    row = rows["alt-sim-before"]
    assert (row["mean"], row["verdict"]) == (pytest.approx(0.02), UNDECIDED)
    assert row["high"] - row["mean"] == pytest.approx(T_1 * 0.01 / 2, rel=1e-4)  # the second setting has no spread
    for name, table in (("first", one), ("second", two)):
        (tmp_path / name).mkdir()
        content = {"settings": [table], "command": f"moiety run {name}", "date": "today", "commit": "abc"}
        (tmp_path / name / "table.json").write_text(json.dumps(content))
    folders = [str(tmp_path / "first"), str(tmp_path / "second")]
    assert fedalt_holds.main([*folders, "--out", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page/README.md").read_text()
    assert "| +2.00 [-29.83, +33.83] | > 0 | **not decided** |" in page
    assert "The theory prefers one method in 2 of 4 splits; the sign agrees in 2." in page
    assert "`moiety run first`, today, commit abc" in page
    assert (tmp_path / "page/alt-sim-before.png").read_bytes().startswith(b"\x89PNG")


def test_the_pooled_page_refuses_what_it_cannot_read(tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/table.json").write_text(json.dumps({"settings": [{"setting": "digits"}]}))
    for name in ("nothing", "other"):
        assert fedalt_holds.main([str(tmp_path / name), "--out", str(tmp_path / "page")]) == 2
        assert "`runs` must be" in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


def test_margins_and_rules_are_those_of_the_plan():
    assert QUESTIONS["partial-full"].above == -0.01
    assert [name for name, q in QUESTIONS.items() if q.within] == [
        "final-little",
        "finetune-ditto",
        "finetune-pfedme",
    ]
    assert QUESTIONS["regulariser-hurt"].above == -0.05
    assert all(math.isfinite(q.above) for q in QUESTIONS.values())


def test_the_commonest_class_is_counted_in_test_rows():
    """Test rows 1, 1, 2 of one client and 1, 0 of the other: three of five."""
    bounds = np.array([[0, 1, 1, 4], [4, 5, 5, 7]])
    fed = mo.FederatedData({"x": np.zeros(7), "y": np.array([2, 1, 1, 2, 2, 1, 0])}, bounds, ["a", "b"])
    assert measure_commonest(fed) == pytest.approx(0.6)
