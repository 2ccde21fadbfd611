"""The recipes of FedSpa: the paper's bills, tables that say what the runs show, and larger scales as described."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from moiety.errors import MoietyError
from moiety.recipes import fedspa_ablations, fedspa_sparsity, fedspa_table1, fedspa_table2
from moiety.recipes.fedspa_ablations import GLOBAL
from moiety.recipes.fedspa_report import Says, counted, judged, scores
from moiety.recipes.fedspa_runs import IID, SETTINGS, A, B, Course, slug
from moiety.recipes.fedspa_runs import read as read_course
from moiety.recipes.fedspa_sparsity import DENSE, best, named
from moiety.recipes.fedspa_sparsity import tasks as sparsity_tasks
from moiety.recipes.fedspa_table1 import accounting
from moiety.recipes.fedspa_table1 import tasks as table1_tasks
from moiety.recipes.fedspa_table2 import judged as judged_rounds
from moiety.recipes.fedspa_table2 import tasks as table2_tasks
from moiety.recipes.fedspa_tasks import DITTO, DST, FEDAVG, LOCAL, RSM, SUB, SUBSAMPLING
from moiety.run.folder import read_clients, read_config

needs_data = pytest.mark.skipif("MOIETY_DATA" not in os.environ, reason="MOIETY_DATA is not set")
T_2 = 12.7062
"""The 97.5% point of Student's t with one degree of freedom, from a printed table."""
METHODS = (DST, RSM, DITTO, FEDAVG, SUB, LOCAL, SUBSAMPLING)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fedspa") / "out"
    outcome = fedspa_table1(scale="ci", out=folder, engine="sequential")
    return folder, outcome, json.loads((folder / "table.json").read_text())


def test_the_bill_of_the_papers_runs_is_the_papers(ended):
    """Table 1 (IID). VGG-11 has 9,231,114 parameters: 4 bytes, 10 clients, 2 ways, 1,000 rounds make 738.489 GB.

    FLOPs: 229.3e14 dense and 172.9e14 at half density with the search; 833.2e14 and 705.1e14 for ResNet-18.
    """
    found = {row["row"]: row["ours"] for row in ended[2]["accounting"]}
    assert found["vgg11, FedAvg: bytes (1e9)"] == 4 * 9_231_114 * 10 * 2 * 1000 / 1e9
    printed = {
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
    for row, number in printed.items():
        assert found[row] == pytest.approx(number, rel=0.005), row
    assert ended[2]["accounting"] == accounting()
    assert ended[1].sentence.startswith("12 of 12 bills are the paper's within 0.5%; ")


def place(folder, setting, seed, method):
    return folder / "digits" / setting / f"seed-{seed}" / slug(method)


def test_accuracies_are_those_of_the_runs(ended):
    """The mean over clients, weighted by test rows, read from the run folders; its interval from two seeds."""
    folder, _, table = ended
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


def test_bills_of_runs_by_hand(ended):
    """64 * 16 + 16 + 16 * 10 + 10 = 1,210 parameters; 2 rounds of 3 clients: 6 times down and 6 times up, 4 bytes.

    Sparse models have half of them, 605; subsampling sends 605 up; local training sends nothing. A step on one row
    costs 2 (1,024 + 160) forward, as much for the weights' gradients, and 2 * 160 for the hidden layer's.
    """
    rows = {(row["setting"], row["row"]): row for row in ended[2]["rows"] if "setting" in row}
    for setting in SETTINGS:
        found = {m: (rows[setting, m]["down_values"], rows[setting, m]["up_values"]) for m in METHODS}
        dense, half = 6 * 4 * 1210, 6 * 4 * 605
        assert found[DST] == found[RSM] == (half, half)
        assert found[FEDAVG] == found[DITTO] == (dense, dense)
        assert found[SUBSAMPLING] == (dense, half)
        assert found[LOCAL] == (0, 0)
        assert rows[setting, DST]["down_payload"] > half
        assert rows[setting, DST]["search_flops"] > 0 == rows[setting, RSM]["search_flops"]
    data = table1_tasks("ci")[0].data(IID, 0)
    assert set(data.sizes("train")) == {16}
    assert rows[IID, FEDAVG]["flops"] == 6 * 2 * 16 * (2 * 2 * 1184 + 2 * 160)


def test_claims_are_judged_by_the_interval_of_the_difference(ended):
    rows = {(row["setting"], row["row"]): row["each"] for row in ended[2]["rows"] if "setting" in row}
    claims = [row for row in ended[2]["rows"] if "setting" not in row]
    assert len(claims) == 7
    assert claims[0]["row"] == f"{B}: {DST} is ahead of {FEDAVG}"
    differences = np.subtract(rows[B, DST], rows[B, FEDAVG])
    mean, half = differences.mean(), T_2 * abs(differences[0] - differences[1]) / 2
    assert claims[0]["ours"] == pytest.approx(mean)
    wanted = "holds" if mean - half > 0 else "does not hold" if mean + half < 0 else "not decided at this scale"
    assert claims[0]["verdict"] == wanted


def test_runs_are_what_their_names_say(ended):
    folder, outcome, _ = ended
    config = {method: read_config(place(folder, B, 1, method)) for method in METHODS}
    assert {c["run"]["seed"] for c in config.values()} == {1}
    assert {c["run"]["cohort"] for c in config.values()} == {3}
    names = {method: c["algorithm"]["name"] for method, c in config.items()}
    assert names == dict(
        zip(METHODS, ("fedspa", "fedspa", "ditto", "fedavg", "sub_fedavg", "local_only", "subsampling"), strict=True)
    )
    assert config[RSM]["algorithm"]["search"] == "rsm"
    assert all(c["algorithm"]["weight_decay"] == 5e-4 for c in config.values())
    assert all(c["algorithm"]["schedule"] == {"name": "geometric", "factor": 0.998} for c in config.values())
    assert (folder / "table.md").read_text() == outcome.report + "\n"
    assert (folder / "digits.png").is_file()


def test_what_has_ended_is_not_run_again(ended):
    folder, outcome, table = ended
    names = []
    again = fedspa_table1(out=folder, resume=True, watch=lambda name, where: names.append(where))
    assert again.sentence == outcome.sentence
    assert json.loads((folder / "table.json").read_text())["rows"] == table["rows"]
    assert len(names) == 3 * 2 * 7
    with pytest.raises(MoietyError, match=r"^`out` must be a folder that holds no run yet"):
        fedspa_table1(scale="ci", out=folder)
    broken = folder / "broken.json"
    broken.write_text("{")
    with pytest.raises(MoietyError, match=r"^`broken.json` must be as it was written, got .* Remove the file"):
        read_course(broken)


def course(scores, rounds=(4, 8, 12), shared=(0.0, 0.0, 0.0)):
    return Course(list(rounds), list(scores), list(shared), {}, "sequential", 0.0)


def test_rounds_to_a_target():
    """At 50%: DST in rounds 8 and 4, FedAvg in 12 and never, which counts as 12: 4 and 8 rounds saved."""
    task = table2_tasks("ci")[0]
    courses = {(s, m): [course((0.1, 0.2, 0.3))] * 2 for s in SETTINGS for m in METHODS}
    courses[B, DST] = [course((0.4, 0.5, 0.6)), course((0.5, 0.4, 0.7))]
    courses[B, FEDAVG] = [course((0.1, 0.2, 0.5)), course((0.1, 0.2, 0.3))]
    assert [c.reached(0.5) for c in (*courses[B, DST], *courses[B, FEDAVG])] == [8, 4, 12, None]
    (row, *_) = judged_rounds(replace(task, rounds=12), courses, 50.0)
    assert row["each"] == [4.0, 8.0]
    assert row["row"] == "B: FedSpa (DST) needs fewer rounds to 50% than FedAvg"
    assert row["verdict"] == "not decided at this scale"


def test_the_best_sparsity_and_global_rows():
    """The highest accuracy of each seed; of equal ones the less sparse."""
    courses = {(B, named(s)): [course((0, 0, s)), course((0, 0, 0.5))] for s in (0.2, 0.4, 0.5, 0.6, 0.8)}
    courses[B, DENSE] = [course((0, 0, 0.7), shared=(0, 0, 0.2)), course((0, 0, 0.1))]
    assert best(courses, B) == [0.8, 0.2]
    assert scores(courses, B, DENSE) == pytest.approx([70, 10])
    assert scores(courses, B, f"global {DENSE}") == pytest.approx([20, 0])
    task = sparsity_tasks("ci")[0]
    near, ahead = judged(task, courses, [Says(B, named(0.4), named(0.4), within=1.0), Says(B, named(0.8), named(0.6))])
    assert (near["verdict"], near["row"]) == ("holds", "B: sparsity 0.4 is within 1 points of sparsity 0.4")
    assert ahead["each"] == pytest.approx([20, 0])
    assert counted([near, ahead]) == "1 of 2 claims hold, 0 do not, 1 are not decided."


def test_the_other_recipes_end_at_scale_ci():
    """One round each, without a folder; what they say is in their pages."""
    rounds = fedspa_table2(scale="ci", rounds=1, engine="sequential")
    assert "### B: Dirichlet(0.3)" in rounds.report
    assert "to 20%" in rounds.report
    sparse = fedspa_sparsity(scale="ci", rounds=1, engine="sequential")
    assert "the best sparsity is larger in B than in IID" in sparse.report
    parts = fedspa_ablations(scale="ci", rounds=1, engine="sequential")
    assert GLOBAL in parts.report
    assert parts.sentence.split(" claims")[0].endswith("of 14")


@needs_data
def test_the_laptop_scale_is_as_its_page_says():
    """100 clients of 64 rows; in B label ratios differ more than in A, and not at all when dealt alike."""
    first, second = table1_tasks("laptop")
    assert (first.name, first.rounds, first.seeds) == ("fashion_mnist", 25, 3)
    assert (second.name, second.rounds, second.seeds) == ("mnist", 15, 3)
    assert sum(p.numel() for p in first.model(0).parameters()) == 61_706
    spread = {}
    for setting in SETTINGS:
        data = first.data(setting, 0)
        assert len(data) == 100
        assert set(data.sizes("train")) == {64}
        assert set(data.sizes("test")) == {50}
        counts = np.array([np.bincount(data.client(i)["y"], minlength=10) for i in range(100)]) / 64
        spread[setting] = counts.std(axis=0).mean()
    assert spread[IID] < 0.05 < spread[A] < spread[B]
    options = first.methods[DST].spec
    assert (options["lr"], options["epochs"], options["batch_size"]) == (0.1, 5, 16)
    assert first.methods[SUB].spec["prune_rate"] == 0.2


def test_the_scale_of_the_paper_has_its_sizes():
    """Section 5.1: 1,000 rounds, 10 clients a round, five epochs, batches of 128; Ditto 2 and 3 epochs, lambda 0.5."""
    vgg, resnet = table1_tasks("paper")
    assert (vgg.rounds, vgg.cohort, vgg.seeds, vgg.gamma) == (1000, 10, 3, (0.5, 0.3))
    assert (vgg.name, resnet.name) == ("cifar10-vgg11", "cifar10-resnet18")
    ditto = vgg.methods[DITTO].spec
    assert (ditto["epochs"], ditto["personal_epochs"], ditto["pull"]) == (2, 3, 0.5)
    assert vgg.methods[SUB].spec["prune_rate"] == 0.05
    assert vgg.methods[DST].spec["batch_size"] == 128
