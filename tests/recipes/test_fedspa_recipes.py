"""The recipes of FedSpa: the paper's bills, tables that say what the runs show, and larger scales as described."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import moiety as mo
from moiety.clients import uniform_cohort
from moiety.errors import MoietyError
from moiety.experiments import CI_NOTICE, Cell, count_verdicts
from moiety.run.folder import read_clients, read_config
from moiety_recipes import fedspa_holds
from moiety_recipes import fedspa_table1 as table1
from moiety_recipes import fedspa_table2 as table2
from moiety_recipes import fedspa_tasks as tasks
from moiety_recipes import fedspa_theorem1 as theorem1
from moiety_recipes.fedspa_ablations import GLOBAL_DST, fedspa_ablations
from moiety_recipes.fedspa_page import Statement, TaskResults, draw_bytes, judge
from moiety_recipes.fedspa_rounds import first_round, judge_rounds, round_row, show_rounds
from moiety_recipes.fedspa_sparsity import best_sparsities, row_name
from moiety_recipes.fedspa_table1 import fedspa_table1, list_bills
from moiety_recipes.fedspa_tasks import (
    DIGITS,
    DITTO,
    DST,
    FEDAVG,
    IID,
    LOCAL,
    RSM,
    SETTINGS,
    SUB,
    SUBSAMPLING,
    A,
    B,
    build_methods,
    plan_resnet,
)

needs_data = pytest.mark.skipif("MOIETY_DATA" not in os.environ, reason="MOIETY_DATA is not set")
T_2 = 12.7062
"""The 97.5% point of Student's t with one degree of freedom, from a printed table."""
METHODS = (DST, RSM, DITTO, FEDAVG, SUB, LOCAL, SUBSAMPLING)


@pytest.fixture(scope="module")
def record(recipe_run, tmp_path_factory):
    run = recipe_run("fedspa-table1")
    folder = shutil.copytree(run.folder, tmp_path_factory.mktemp("fedspa") / "run")
    return folder, fedspa_table1.run(out=folder, resume=True), run.table


def test_the_bill_of_the_papers_runs_is_the_papers(record):
    """Table 1 (IID). VGG-11 has 9,231,114 parameters: 4 bytes, 10 clients, 2 ways, 1,000 rounds make 738.489 GB.

    FLOPs: 229.3e14 dense and 172.9e14 at half density with the search; 833.2e14 and 705.1e14 for ResNet-18.
    """
    bills = {row["row"]: row["ours"] for row in record[2]["accounting"]}
    assert bills["vgg11, FedAvg: bytes (1e9)"] == 4 * 9_231_114 * 10 * 2 * 1000 / 1e9
    paper = {
        "vgg11, FedAvg: bytes (1e9)": 738.5,
        "vgg11, FedSpa (DST): bytes (1e9)": 369.2,
        "vgg11, Subsampling: bytes (1e9)": 553.9,
        "vgg11, FedAvg: FLOPs (1e14)": 229.3,
        "vgg11, FedSpa (DST): FLOPs (1e14)": 172.9,
        "resnet18, FedAvg: bytes (1e9)": 897.6,
        "resnet18, FedSpa (DST): bytes (1e9)": 448.8,
        "resnet18, FedAvg: FLOPs (1e14)": 833.2,
        "resnet18, FedSpa (DST): FLOPs (1e14)": 705.1,
    }
    for row, number in paper.items():
        assert bills[row] == pytest.approx(number, rel=0.005), row
    assert record[2]["accounting"] == list(list_bills())
    page = table1.page(table1.plan("ci"), range(2), record[1].results)
    assert page.sentence.startswith("16 of 18 bills are the paper's; ")
    assert page.sentence.endswith(count_verdicts(record[2]["rows"]))
    assert record[1].sentence == CI_NOTICE


def place(folder, setting, seed, method):
    return folder / Cell(key=("digits", setting, seed, method)).place


def test_accuracies_are_those_of_the_runs(record):
    """The mean over clients, weighted by test rows, read from the run folders; its interval from two seeds."""
    folder, _, table = record
    rows = [row for row in table["rows"] if "setting" in row]
    assert [(row["setting"], row["row"]) for row in rows] == [(s, m) for s in SETTINGS for m in METHODS]
    for row in rows:
        each = []
        for seed in (0, 1):
            clients = read_clients(place(folder, row["setting"], seed, row["row"]))
            each.append(100 * np.average([c["metric"] for c in clients], weights=[c["n_test"] for c in clients]))
        np.testing.assert_allclose(row["each"], each, atol=1e-9)
        mean, half = np.mean(each), T_2 * abs(each[0] - each[1]) / 2
        assert row["ours"] == pytest.approx(mean)
        assert row["interval"] == pytest.approx([mean - half, mean + half], abs=1e-3)


def test_bills_of_runs_by_hand(record):
    """64 * 16 + 16 + 16 * 10 + 10 = 1,210 parameters; 2 rounds of 3 clients: 6 times down and 6 times up, 4 bytes.

    Sparse models have half of them, 605; subsampling sends 605 up; local training sends nothing. A step on one row
    costs 2 (1,024 + 160) forward, as much for the weights' gradients, and 2 * 160 for the hidden layer's.
    """
    rows = {(row["setting"], row["row"]): row for row in record[2]["rows"] if "setting" in row}
    for setting in SETTINGS:
        values = {m: (rows[setting, m]["down_values"], rows[setting, m]["up_values"]) for m in METHODS}
        dense, half = 6 * 4 * 1210, 6 * 4 * 605
        assert values[DST] == values[RSM] == (half, half)
        assert values[FEDAVG] == values[DITTO] == (dense, dense)
        assert values[SUBSAMPLING] == (dense, half)
        assert values[LOCAL] == (0, 0)
        assert rows[setting, DST]["down_payload"] > half
        assert rows[setting, DST]["search_flops"] > 0 == rows[setting, RSM]["search_flops"]
    assert set(DIGITS.load(IID, 0).sizes("train")) == {16}
    assert rows[IID, FEDAVG]["flops"] == 6 * 2 * 16 * (2 * 2 * 1184 + 2 * 160)


def test_clients_that_were_never_asked_are_counted(record):
    """By the cohorts of 3 of 6 clients in 2 rounds: the others keep the first weights of Local."""
    _, outcome, _ = record
    for seed in (0, 1):
        cohorts = [uniform_cohort(6, 3, seed=seed, round=t) for t in range(2)]
        for setting in SETTINGS:
            never = outcome.results["digits", setting, seed, LOCAL]["never_asked"]
            assert never == 6 - len({int(client) for cohort in cohorts for client in cohort})


def test_claims_are_judged_by_the_interval_of_the_difference(record):
    rows = {(row["setting"], row["row"]): row["each"] for row in record[2]["rows"] if "setting" in row}
    claims = [row for row in record[2]["rows"] if "setting" not in row]
    assert len(claims) == 7
    assert claims[0]["row"] == f"{B}: {DST} is ahead of {FEDAVG}"
    differences = np.subtract(rows[B, DST], rows[B, FEDAVG])
    mean, half = differences.mean(), T_2 * abs(differences[0] - differences[1]) / 2
    assert claims[0]["ours"] == pytest.approx(mean)
    verdict = "holds" if mean - half > 0 else "does not hold" if mean + half < 0 else "not decided at this scale"
    assert claims[0]["verdict"] == verdict


def test_runs_are_what_their_names_say(record):
    folder, outcome, _ = record
    config = {method: read_config(place(folder, B, 1, method)) for method in METHODS}
    assert {c["run"]["seed"] for c in config.values()} == {1}
    assert {c["run"]["cohort"] for c in config.values()} == {3}
    names = {method: c["algorithm"]["name"] for method, c in config.items()}
    assert names == dict(
        zip(METHODS, ("fedspa", "fedspa", "ditto", "fedavg", "sub_fedavg", "local_only", "subsampling"), strict=True)
    )
    assert config[RSM]["algorithm"]["search"] == "rsm"
    parts = [c["algorithm"][part] for c in config.values() for part in ("shared", "personal") if part in c["algorithm"]]
    assert all(part["weight_decay"] == 5e-4 for part in parts)
    assert all(c["algorithm"]["schedule"] == {"name": "geometric", "factor": 0.998} for c in config.values())
    assert (folder / "digits.png").is_file()
    assert (folder / "table.md").read_text() == outcome.page + "\n"
    assert "![Accuracy along the rounds, digits](digits.png)" in outcome.page


def test_what_has_ended_is_not_run_again(record):
    folder, outcome, table = record
    names = []
    again = fedspa_table1.run(out=folder, resume=True, watch=lambda name, where: names.append(where))
    assert again.sentence == outcome.sentence
    assert again.results == outcome.results
    assert len(again.results) == 3 * 2 * 7
    assert json.loads((folder / "table.json").read_text())["rows"] == table["rows"]
    assert names == []
    with pytest.raises(MoietyError, match=r"^`out` must be a folder that holds no run yet"):
        fedspa_table1.run(scale="ci", out=folder)


def test_a_plan_can_be_changed():
    """What is changed reaches the runs and the page, in all tasks."""
    outcome = fedspa_table1.run(
        scale="ci", seeds=1, rounds=1, changes={"prune_rate": 0.2, "gamma": [0.9, 0.1]}, engine="sequential"
    )
    assert "### B: Dirichlet(0.1)" in outcome.page
    assert "Sub-FedAvg prunes 20% of what is left in a turn, where the paper prunes 5%" in outcome.page
    assert {tuple(row["rounds"]) for row in outcome.results.values()} == {(1,)}


def course(scores, rounds=(4, 8, 12), shared=(0.0, 0.0, 0.0)):
    return {"rounds": list(rounds), "scores": list(scores), "shared": list(shared), "ledger": {}}


def collect(task, courses):
    """Results of a task from courses by setting and method, one a seed."""
    cells = {("digits", s, seed, m): c for (s, m), each in courses.items() for seed, c in enumerate(each)}
    return TaskResults(task, range(2), cells)


def test_rounds_to_a_target():
    """At 50%: DST in rounds 8 and 4, FedAvg in 12 and never, which counts as 12: 4 and 8 rounds saved."""
    courses = {(s, m): [course((0.1, 0.2, 0.3))] * 2 for s in SETTINGS for m in METHODS}
    courses[B, DST] = [course((0.4, 0.5, 0.6)), course((0.5, 0.4, 0.7))]
    courses[B, FEDAVG] = [course((0.1, 0.2, 0.5)), course((0.1, 0.2, 0.3))]
    assert [first_round(c, 50.0) for c in (*courses[B, DST], *courses[B, FEDAVG])] == [8, 4, 12, None]
    results = collect(replace(DIGITS, rounds=12), courses)
    (row, *_) = judge_rounds(results, [50.0])
    assert row["each"] == [4.0, 8.0]
    assert row["row"] == "B: FedSpa (DST) needs fewer rounds to 50% than FedAvg"
    assert row["verdict"] == "not decided at this scale"
    both, one, none = (round_row(results, B, method, 50.0) for method in (DST, FEDAVG, DITTO))
    assert (both["ours"], both["each"], both["more_than"]) == (6.0, [8, 4], None)
    assert (one["ours"], one["interval"], one["each"], one["more_than"]) == (None, None, [12, None], 12)
    cells = [line["50"] for line in show_rounds([both, one, none])]
    assert cells == ["6.0 [-19.4, 31.4]", "> 12 (1 of 2 seeds: [12])", "> 12"]


def test_the_papers_rounds_stand_beside_its_own_targets():
    """Table 2: CIFAR-10 with VGG-11, setting B, FedSpa (DST) to 75% in 206.3 rounds. No other target has a number."""
    (task,) = table2.plan("paper").tasks
    results = TaskResults(task, range(1), {("cifar10-vgg11", B, 0, DST): course((0.1, 0.2, 0.3))})
    assert [round_row(results, B, DST, target)["paper"] for target in (75.0, 74.0)] == [206.3, None]


def test_the_best_sparsity_and_global_rows():
    """The highest accuracy of each seed; of equal ones the less sparse."""
    courses = {(B, row_name(s)): [course((0, 0, s)), course((0, 0, 0.5))] for s in (0.2, 0.4, 0.5, 0.6, 0.8)}
    dense = row_name(0)
    courses[B, dense] = [course((0, 0, 0.7), shared=(0, 0, 0.2)), course((0, 0, 0.1))]
    results = collect(DIGITS, courses)
    assert best_sparsities(results, B) == [0.8, 0.2]
    assert results.scores(B, dense) == pytest.approx([70, 10])
    assert results.scores(B, f"global {dense}") == pytest.approx([20, 0])
    statements = [Statement(B, row_name(0.4), row_name(0.4), within=1.0), Statement(B, row_name(0.8), row_name(0.6))]
    near, ahead = judge(results, statements)
    assert (near["verdict"], near["row"]) == ("holds", "B: sparsity 0.4 is within 1 points of sparsity 0.4")
    assert ahead["each"] == pytest.approx([20, 0])
    assert count_verdicts([near, ahead]) == "1 of 2 claims holds, 0 do not, 1 is not decided at this scale."


def test_claims_of_the_night_have_the_papers_differences():
    """Table 1, setting B: 96.5 and 90.9 with LeNet-5, 88.2 and 81.4 with VGG-11. Table 2 to 75%: 327.3 and 206.3."""
    courses = {(s, m): [course((0.1, 0.2, 0.3)), course((0.1, 0.2, 0.4))] for s in SETTINGS for m in METHODS}
    results = replace(collect(replace(DIGITS, network="small", rounds=12), courses), rates=(0.1,))
    numbers = {name: table1.list_numbers(each) for name, each in (("a", table1.EMNIST), ("b", table1.CIFAR10))}
    (row,) = judge(results, [Statement(B, DST, FEDAVG)], numbers)
    assert row["paper"] == "+5.6 (a), +6.8 (b)"
    assert row["headline"]
    assert row["unit"] == "points"
    (row, *others) = judge_rounds(results, [70.0, 75.0, 80.0])
    assert (row["paper"], row["unit"]) == ("+121.0 (VGG-11)", "rounds")
    assert all(each["headline"] for each in others)
    assert round_row(results, B, DST, 75.0)["paper"] == 206.3
    assert judge(results, [Statement(B, DST, FEDAVG)])[0]["paper"] is None


def test_what_holds_of_fedspa_is_made_from_all_claims_of_the_night(tmp_path):
    results = replace(collect(DIGITS, {(B, DST): [course((0, 0, 0.8)), course((0, 0, 0.9))]}), rates=(0.1,))
    claims = [results.claim("one", [5.0, 5.1], paper="+6.8 (VGG-11)"), results.claim("two", [1.0, -1.0], unit="rounds")]
    table = {"recipe": "fedspa-table1", "command": "moiety run fedspa-table1", "date": "today", "rows": claims}
    (tmp_path / "table.json").write_text(json.dumps(table))
    assert fedspa_holds.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out/README.md").read_text()
    assert "1 hold, 0 do not, 1 are not decided" in page
    assert "[Tables 1 and 2](../fedspa-table1/README.md) | one | +6.8 (VGG-11) | +5.05 [" in page
    assert "Not on this page, since it was not run: Table 3 and Figure 4 (`fedspa-sparsity`)" in page


def test_figure_1_has_bytes_both_ways(record, monkeypatch):
    """Of FedAvg on the digits: 6 turns of 1,210 values of 4 bytes, down and up."""
    drawing = {}
    monkeypatch.setattr(mo.reports, "bands", lambda panels, **labels: drawing.update(panels))
    results = TaskResults(DIGITS, range(2), record[1].results)
    draw_bytes(results, {FEDAVG: (FEDAVG,), "sparse": (DST, SUBSAMPLING)})
    assert list(drawing) == ["IID", "A: Dirichlet(0.5)", "B: Dirichlet(0.3)"]
    assert [p["x"] for p in drawing["IID"][FEDAVG]] == [pytest.approx(2 * 6 * 4 * 1210 / 1e9)]
    assert [p["x"] for p in drawing["IID"]["sparse"]] == pytest.approx([6 * 4 * 1210 / 1e9, 6 * 4 * 1815 / 1e9])
    rows = {row["row"]: row["ours"] for row in record[2]["rows"] if row.get("setting") == IID}
    assert drawing["IID"][FEDAVG][0]["mean"] == pytest.approx(rows[FEDAVG])


def test_the_pages_of_the_other_recipes(recipe_run, tmp_path):
    rounds = recipe_run("fedspa-table2").printed
    assert "### B: Dirichlet(0.3)" in rounds
    assert "to 20%" in rounds
    assert "| Local |" not in rounds
    assert "the best sparsity is larger in B than in IID" in recipe_run("fedspa-sparsity").printed
    ablations = recipe_run("fedspa-ablations")
    assert GLOBAL_DST in ablations.printed
    parts = fedspa_ablations.run(out=shutil.copytree(ablations.folder, tmp_path / "run"), resume=True)
    page = fedspa_ablations.page(plan_resnet("ci"), range(1), parts.results)
    assert page.sentence.split(" claims")[0].endswith("of 14")
    assert set(page.figures) == {f"digits-figure{n}.png" for n in (5, 6, 7, 8)}


@needs_data
def test_the_laptop_scale_is_as_its_page_says():
    """100 clients of 64 rows; in B label ratios differ more than in A, and not at all when dealt alike."""
    plan = table1.plan("laptop")
    first, second = plan.tasks
    assert (first.name, first.rounds, plan.seeds) == ("fashion_mnist", 25, 3)
    assert (second.name, second.rounds) == ("mnist", 15)
    assert sum(p.numel() for p in first.model(0).parameters()) == 61_706
    spread = {}
    for setting in SETTINGS:
        data = first.load(setting, 0)
        assert len(data) == 100
        assert set(data.sizes("train")) == {64}
        assert set(data.sizes("test")) == {50}
        counts = np.array([np.bincount(data.client(i)["y"], minlength=10) for i in range(100)]) / 64
        spread[setting] = counts.std(axis=0).mean()
    assert spread[IID] < 0.05 < spread[A] < spread[B]
    methods = build_methods(first, prune_rate=plan.prune_rate)
    options = methods[DST].spec["shared"]
    assert (options["lr"], options["epochs"], options["batch_size"]) == (0.1, 5, 16)
    assert methods[SUB].spec["prune_rate"] == 0.2


def test_the_scale_of_the_paper_has_its_sizes():
    """Section 5.1: 1,000 rounds, 10 clients a round, five epochs, batches of 128; Ditto 2 and 3 epochs, lambda 0.5."""
    plan = table1.plan("paper")
    vgg, resnet = plan.tasks
    assert (vgg.rounds, vgg.cohort, plan.seeds, vgg.gamma) == (1000, 10, 3, (0.5, 0.3))
    assert (vgg.clients, vgg.rows, vgg.test) == (100, 500, 100)
    assert (vgg.name, resnet.name) == ("cifar10-vgg11", "cifar10-resnet18")
    methods = build_methods(vgg, prune_rate=plan.prune_rate)
    ditto = methods[DITTO].spec
    assert (ditto["shared"]["epochs"], ditto["personal"]["epochs"], ditto["personal"]["pull"]) == (2, 3, 0.5)
    assert methods[SUB].spec["prune_rate"] == 0.05
    assert methods[DST].spec["shared"]["batch_size"] == 128


def test_gradients_of_theorem_1_against_numpy():
    """Softmax regression: the gradient of a client is X^T (p - y) / n, that of the bias the mean of p - y."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 3)).astype("float32"), rng.integers(0, 2, n)) for n in (4, 7)]
    layer = nn.Linear(3, 2)
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    each = []
    for x, y in data:
        logits = x @ weight.T + bias
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        gap = (p - np.eye(2)[y]) / len(y)
        each.append(np.concatenate([(gap.T @ x).reshape(-1), gap.sum(0)]))
    gap = np.stack(each) - np.mean(each, axis=0)
    columns = {name: np.concatenate([rows[i] for rows in data]) for i, name in enumerate("xy")}
    fed = mo.data.from_arrays(columns, client=np.repeat([0, 1], [4, 7]), test=0.0)
    gradients = theorem1.measure_gradients(
        SimpleNamespace(model=lambda seed: nn.Linear(3, 2)),
        fed,
        SimpleNamespace(shared_parameters=lambda: dict(layer.state_dict())),
    )
    assert gradients["dissimilarity"] == pytest.approx(np.abs(gap).max(), rel=1e-5)
    assert gradients["largest"] == pytest.approx(np.abs(each).max(), rel=1e-5)
    assert gradients["spread"] == pytest.approx(np.square(gap).sum(1).mean(), rel=1e-5)


def test_distance_of_masks_by_hand():
    one, other = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])
    assert theorem1.mean_distance([(one, other), (one, one)]) == 0.25


def test_night_chooses_each_methods_rate_on_validation_rows(tmp_path):
    """The best of the rates that were tried is the one that the reported runs have."""
    plan = tasks.Plan(tasks=(tasks.DIGITS,), seeds=1, rates=(0.01, 0.1))
    cells = tasks.run_cells(plan, [0], build=lambda task: {"FedAvg": tasks.build_fedavg(task)})
    pilot = next(cells)
    assert [cell.key[3:] for cell in pilot] == [("FedAvg", "0.01"), ("FedAvg", "0.1")]
    assert all(cell.fit()["settings"].evaluate_on == "validation" and cell.fit()["seed"] == 100 for cell in pilot)
    rates = {"IID": 0.1, "A": 0.01, "B": 0.01}
    runs = []
    for setting in tasks.SETTINGS:
        scores = {0.1: [0.2, 0.4], 0.01: [0.9, 0.3]} if setting == "IID" else {0.1: [0.5], 0.01: [0.5]}
        runs = cells.send([{"scores": scores[rate]} for rate in (0.01, 0.1)])
    for setting in tasks.SETTINGS:
        (cell,) = runs
        assert cell.key[1] == setting
        assert cell.fit()["algorithm"].spec["shared"]["lr"] == rates[setting]
        assert cell.fit()["settings"].evaluate_on == "test"
        runs = next(cells, None)
