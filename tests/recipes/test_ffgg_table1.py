"""The recipe ffgg-table1: what it writes at scale ci is what its runs show, and scale paper is the paper's."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import moiety as mo
from moiety.experiments import CI_NOTICE, load_recipe
from moiety.run.folder import read_clients, read_config
from moiety_recipes.ffgg_table1 import LAPTOP, NEAREST, ffgg_table1, list_steps, plan

SPLITS = ("input", "output", "adapter")
T_2 = 12.7062
"""The 97.5% point of Student's t with one degree of freedom, from a printed table."""


@pytest.fixture(scope="module")
def record(recipe_run):
    run = recipe_run("ffgg-table1")
    return run.folder, run.printed, run.table


def weighted_mean(rows):
    weights = np.array([row["n_test"] for row in rows], dtype=float)
    return float((weights * [row["metric"] for row in rows]).sum() / weights.sum())


def test_every_row_is_the_weighted_mean_of_its_clients(record):
    folder, _, table = record
    digits = table["settings"][0]
    assert [row["row"] for row in digits["rows"][:5]] == [
        "FedAvg",
        "FFGG (input)",
        "FFGG (output)",
        "FFGG (adapter)",
        "FedAvg, longer (ours)",
    ]
    for row in digits["rows"]:
        each = [weighted_mean(read_clients(folder / "digits" / f"seed-{seed}" / row["step"])) for seed in (0, 1)]
        # Two seeds: the standard deviation of their mean is |a - b| / 2.
        half = 100 * T_2 * abs(each[0] - each[1]) / 2
        middle = 100 * sum(each) / 2
        assert row["ours"] == pytest.approx(middle)
        assert (row["low"], row["high"]) == pytest.approx((middle - half, middle + half), abs=1e-2)


def test_the_paper_s_numbers_stand_beside_ours(record):
    """Table 1, columns FEMNIST and StackOverflow, copied by hand."""
    folder, out, table = record
    paper = {"digits": (93.18, 93.60, 93.58, 94.26), "made_up_words": (23.82, 24.11, 24.92, 24.80)}
    for setting in table["settings"]:
        assert tuple(row["paper"] for row in setting["rows"][:4]) == paper[setting["setting"]]
        assert all(row["paper"] is None for row in setting["rows"][4:])
    page = (folder / "table.md").read_text()
    assert page.strip() in out
    for words in (
        "`moiety run ffgg-table1 --scale ci --engine sequential`",
        mo.__version__,
        table["date"],
        "The paper's column is FEMNIST.",
    ):
        assert words in page
    flat = [row["row"] for row in table["rows"] if row["setting"] == "digits"]
    assert len(flat) == len(set(flat)) == len(table["settings"][0]["rows"]) + len(table["settings"][0]["claims"])
    for name in ("digits", "made_up_words"):
        assert (folder / name / "changes.png").read_bytes().startswith(b"\x89PNG")


def test_claims_are_differences_of_rows(record):
    _, out, table = record
    for setting in table["settings"]:
        rows = {row["row"]: row for row in setting["rows"]}
        claims = {claim["claim"]: claim for claim in setting["claims"]}
        for split in SPLITS:
            claim = claims[f"FFGG ({split}) beats FedAvg"]
            assert claim["ours"] == pytest.approx(rows[f"FFGG ({split})"]["ours"] - rows["FedAvg"]["ours"])
            assert claim["paper"] == pytest.approx(rows[f"FFGG ({split})"]["paper"] - rows["FedAvg"]["paper"])
            claim = claims[f"FFGG ({split}) beats finetuning alone (ours)"]
            other = rows[f"finetuning alone ({split}, ours)"]
            assert claim["ours"] == pytest.approx(rows[f"FFGG ({split})"]["ours"] - other["ours"])
        (best,) = [name for name in claims if name.startswith("the best split (")]
        label = best.partition("(")[2].partition(")")[0]
        assert rows[f"FFGG ({label})"]["ours"] == pytest.approx(
            max(rows[f"FFGG ({split})"]["ours"] for split in SPLITS)
        )
        assert claims[best]["above"] == 0.01
    assert out.splitlines()[-2] == CI_NOTICE


def test_all_runs_of_a_seed_start_from_its_fedavg(record):
    """Finetuning leaves FedAvg's shared part; after FFGG it leaves that of FFGG. FFGG's clients keep nothing."""
    folder, _, _ = record
    place = folder / "digits" / "seed-1"
    for name in ("output-finetune", "output-local_ffgg", "output-ffgg"):
        assert read_config(place / name)["run"]["start"] == str(place / "fedavg")
    for name in ("output-local_ffgg", "adapter-ffgg"):
        assert read_config(place / f"{name}-final")["run"]["start"] == str(place / name)
        before, after = (read_clients(place / each) for each in (name, f"{name}-final"))
        assert [row["shared_loss"] for row in after] == [row["shared_loss"] for row in before]
    assert [r["shared_loss"] for r in read_clients(place / "output-finetune")] == [
        r["loss"] for r in read_clients(place / "fedavg")
    ]


def test_what_has_ended_is_not_run_again(record, tmp_path):
    folder, out, _ = record
    folder = shutil.copytree(folder, tmp_path / "run")
    names = []
    again = ffgg_table1.run(out=folder, resume=True, watch=lambda name, place: names.append(name))
    assert names == []
    assert again.page.partition("; engine")[2].strip() in out
    assert load_recipe("ffgg-table1") is ffgg_table1


def test_the_scale_paper_has_the_sizes_of_table_2():
    """Columns EMNIST and StackOverflow of Table 2; three seeds (section 3.3)."""
    *images, words = plan("paper").settings
    for setting in images:
        stages = setting.stages
        assert (stages.seeds, stages.cohort, stages.batch_size, stages.rounds, stages.personal_rounds) == (
            3,
            10,
            32,
            2000,
            500,
        )
        assert (stages.lr, stages.personal_lr, stages.finetune_lr, stages.finetune_epochs) == (
            (0.5,),
            (0.01,),
            (0.01,),
            5,
        )
    stages = words.stages
    assert (stages.seeds, stages.cohort, stages.batch_size, stages.rounds, stages.personal_rounds) == (
        3,
        50,
        64,
        1000,
        500,
    )
    assert (stages.lr, stages.personal_lr, stages.finetune_lr, stages.finetune_epochs) == ((1.0,), (0.1,), (0.1,), 5)
    names = ["fedavg", "fedavg-longer", *(f"{s}-{how}" for s in SPLITS for how in ("finetune", "local_ffgg"))]
    steps = {step.name: step for step in list_steps(words, dict.fromkeys(names, 0.1))}
    spec = steps["adapter-local_ffgg"].algorithm.spec
    assert spec["solver"] == {"name": "sgd", "lr": 0.1, "epochs": 1, "batch_size": 64, "clip": 0.1}
    assert spec["shared"] == {"name": "sgd", "lr": 0.1, "epochs": 1, "batch_size": 64, "clip": 0.1}
    assert spec["personal"] == {"name": "sgd", "lr": 0.1, "clip": 0.1}
    assert spec["server"] == {"name": "adam", "lr": 5e-5}
    assert steps["adapter-local_ffgg"].rounds == 500
    assert steps["adapter-local_ffgg"].algorithm.stateful is False
    assert steps["adapter-ffgg-final"].start == "adapter-ffgg"


def test_every_setting_has_its_column_and_rates():
    for scale in ("ci", "laptop", "paper"):
        for setting in plan(scale).settings:
            assert set(setting.splits) == set(SPLITS)
            assert {"task", "fedavg", *SPLITS} == NEAREST[setting.name].keys()
    assert [setting.name for setting in plan("laptop").settings] == list(LAPTOP)
    assert [setting.stages.personal_lr for setting in plan("laptop").settings] == [(0.03,), (0.1,), (0.3,)]
