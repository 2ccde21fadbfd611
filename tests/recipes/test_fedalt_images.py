"""The recipe fedalt-images: what it writes at scale ci is what its runs show, and scale paper is the paper's."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from recipe_runs import call_command

import moiety as mo
from moiety.errors import MoietyError
from moiety.run.folder import read_clients, read_config
from moiety_recipes.fedalt_images import fedalt_images, plan
from moiety_recipes.fedalt_stages import list_steps

needs_data = pytest.mark.skipif("MOIETY_DATA" not in os.environ, reason="MOIETY_DATA is not set")
T_2 = 12.7062
"""The 97.5% point of Student's t with one degree of freedom, from a printed table."""


@pytest.fixture(scope="module")
def record(recipe_run):
    run = recipe_run("fedalt-images")
    return run.folder, run.printed, run.table


def weighted_mean(rows):
    weights = np.array([row["n_test"] for row in rows], dtype=float)
    return float((weights * [row["metric"] for row in rows]).sum() / weights.sum())


def test_every_score_is_the_weighted_mean_of_its_clients(record):
    folder, _, table = record
    (setting,) = table["settings"]
    for step, score in setting["scores"].items():
        each = [weighted_mean(read_clients(folder / "digits" / f"seed-{seed}" / step)) for seed in (0, 1)]
        assert score["each"] == pytest.approx(each, abs=1e-12), step
        # Two seeds: the standard deviation is |a - b| / sqrt(2), and of their mean |a - b| / 2.
        half = T_2 * abs(each[0] - each[1]) / 2
        assert score["mean"] == pytest.approx(sum(each) / 2)
        assert (score["low"], score["high"]) == pytest.approx((sum(each) / 2 - half, sum(each) / 2 + half), abs=1e-4)


def test_the_cells_of_the_page_are_those_scores(record):
    folder, out, table = record
    page = (folder / "table.md").read_text()
    assert page.strip() in out
    scores = table["settings"][0]["scores"]
    (row,) = [line for line in page.splitlines() if line.startswith("| output | 170 ")]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    for at, step in ((2, "output-finetune"), (4, "output-fedalt-final"), (6, "output-fedsim-final")):
        values = [100 * scores[step][key] for key in ("mean", "low", "high")]
        assert cells[at] == "{:.2f} [{:.2f}, {:.2f}]".format(*values)
    assert [cells[at] for at in (3, 5, 7)] == ["93.37", "93.57", "93.55"]  # Table 4, EMNIST
    for words in (
        "`moiety run fedalt-images --scale ci --engine sequential`",
        mo.__version__,
        "seeds 0, 1",
        table["date"],
        "EMNIST",
    ):
        assert words in page
    for name in ("figure4", "figure5", "figure7-test", "figure7-train", "figure10-weight_decay", "figure11"):
        assert f"digits/{name}.png" in page
        assert (folder / "digits" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_flat_rows_hold_the_same_numbers(record):
    _, _, table = record
    (setting,) = table["settings"]
    rows = {row["row"]: row for row in table["rows"]}
    assert len(rows) == len(table["rows"]) == len(setting["scores"]) + len(setting["claims"])
    cell = rows["adapter-fedalt-final"]
    score = setting["scores"]["adapter-fedalt-final"]
    assert (cell["setting"], cell["paper"], cell["verdict"]) == ("digits", 94.13, None)
    assert [cell["ours"], *cell["interval"]] == pytest.approx([100 * score[key] for key in ("mean", "low", "high")])
    assert rows["fedavg"]["paper"] == 93.18
    for claim in setting["claims"]:
        assert rows[claim["claim"]]["verdict"] == claim["verdict"]


def test_who_is_hurt_is_counted_against_fedavg_of_the_same_seed(record):
    folder, _, table = record
    for step in ("adapter-fedalt-final", "full-finetune", "input-fedsim-final"):
        shares = []
        for seed in (0, 1):
            place = folder / "digits" / f"seed-{seed}"
            plain = {row["client"]: row["metric"] for row in read_clients(place / "fedavg")}
            worse = [row["metric"] < plain[row["client"]] - 1e-9 for row in read_clients(place / step)]
            shares.append(sum(worse) / 6)
        assert table["settings"][0]["scores"][step]["hurt"]["mean"] == pytest.approx(sum(shares) / 2)


def test_all_runs_of_a_seed_start_from_its_fedavg(record):
    """The shared model alone, with first personal values, is FedAvg's own: finetuning has not moved it."""
    folder, _, _ = record
    for seed in (0, 1):
        place = folder / "digits" / f"seed-{seed}"
        plain = read_clients(place / "fedavg")
        for step in ("full-finetune", "input-finetune", "output-finetune", "full-ditto"):
            rows = read_clients(place / step)
            assert [row["shared_loss"] for row in rows] == [row["loss"] for row in plain]
        # The final finetuning leaves the shared part as FedAlt left it.
        before, after = (read_clients(place / name) for name in ("output-fedalt", "output-fedalt-final"))
        assert [row["shared_loss"] for row in after] == [row["shared_loss"] for row in before]
        assert read_config(place / "output-fedalt-final")["run"]["start"] == str(place / "output-fedalt")


def test_rates_are_chosen_on_validation_rows_and_the_rest_trained_on_all(record):
    folder, _, table = record
    (setting,) = table["settings"]
    data = plan("ci").settings[0].data(0)
    scores = {}
    for lr in ("0.05", "0.1"):
        place = folder / "digits" / "tuning" / f"fedavg-{lr}"
        rows = read_clients(place)
        assert read_config(place)["run"]["evaluate_on"] == "validation"
        assert [row["n_test"] for row in rows] == data.sizes("validation").tolist()
        assert [row["n"] for row in rows] == data.sizes("train").tolist()
        scores[lr] = weighted_mean(rows)
    assert setting["tried"] == {"fedavg": pytest.approx(scores)}
    assert setting["rates"]["fedavg"] == float(max(scores, key=scores.__getitem__))
    last = read_clients(folder / "digits" / "seed-1" / "fedavg")
    assert [row["n"] for row in last] == (data.sizes("train") + data.sizes("validation")).tolist()
    assert [row["n_test"] for row in last] == data.sizes("test").tolist()


def test_what_has_ended_is_not_run_again(record, tmp_path):
    folder, _, table = record
    folder = shutil.copytree(folder, tmp_path / "run")
    names = []
    outcome = fedalt_images.run(out=folder, resume=True, watch=lambda name, place: names.append(name))
    assert names == []
    again = json.loads((folder / "table.json").read_text())
    assert again["settings"] == table["settings"]
    assert outcome.page.strip() == (folder / "table.md").read_text().strip()
    with pytest.raises(MoietyError, match="`scale` must be ci, as the recipe began"):
        fedalt_images.run(out=folder, resume=True, scale="paper")
    with pytest.raises(MoietyError, match="`rounds` must be None, as the recipe began"):
        fedalt_images.run(out=folder, resume=True, rounds=7)
    with pytest.raises(MoietyError, match="holds no run yet"):
        fedalt_images.run(out=folder)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["fedalt-images", "--scale", "labtop"], "`scale` must be one of the known names, got 'labtop'. Did you mean"),
        (["fedalt-images", "--scale", "ci", "--rounds", "0"], "`rounds` must be >= 1, got 0."),
        (["some.toml", "--scale", "ci"], "`--scale` must be left out for a file"),
    ],
)
def test_a_bad_scale_is_one_line(words, line, tmp_path):
    code, out, err = call_command("run", *words, "--out", str(tmp_path / "out"))
    assert (code, out) == (2, "")
    assert err.startswith(f"moiety: {line}")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_scale_paper_has_the_sizes_of_table_9():
    for setting in plan("paper").settings:
        stages = setting.stages
        assert (stages.seeds, stages.cohort, stages.batch_size) == (5, 10, 32)
        assert (stages.rounds, stages.personal_rounds, stages.finetune_epochs) == (2000, 500, 5)
        assert (stages.lr, stages.personal_lr, stages.finetune_lr, stages.pull) == ((0.5,), (0.01,), (0.01,), 0.1)
        steps = {step.name: step for step in list_steps(setting, _rates(setting))}
        assert steps["fedavg"].algorithm.spec["schedule"] == {"name": "exponential", "halve_every": 500}
        assert steps["adapter-fedalt"].algorithm.spec["shared"]["lr"] == 0.01
        assert (steps["adapter-fedalt"].rounds, steps["adapter-fedalt-final"].cohort) == (500, None)
        assert steps["adapter-fedsim-stateless"].algorithm.stateful is False


def _rates(setting):
    names = ["fedavg", "fedavg-longer", "full-finetune", "full-pfedme"]
    names += [f"{split}-{how}" for split in setting.splits for how in ("finetune", "fedalt", "fedsim")]
    return dict.fromkeys(names, 0.01)


def test_the_scale_paper_has_the_parameters_of_table_7():
    setting = plan("paper").settings[0]
    model = setting.model(seed=0)
    counts = {"input": (704, 11_198_782), "output": (31_806, 11_167_680), "adapter": (1_408_128, 11_191_678)}
    for name, expected in counts.items():
        split = setting.splits[name](model)
        own = dict((split.model or model).named_parameters())
        assert tuple(sum(own[n].numel() for n in part) for part in (split.personal, split.shared)) == expected


@needs_data
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_the_data_of_the_larger_scales(scale):
    chars, fashion = (setting.data(0) for setting in plan(scale).settings)
    assert len(chars) == 55
    for writer in range(55):
        labels = {*chars.client(writer)["y"].tolist(), *chars.client(writer, "validation")["y"].tolist()}
        assert labels.isdisjoint(chars.client(writer, "test")["y"].tolist())
        assert (len(labels), chars.sizes("test")[writer]) == (50, 12)
    least, side = (100, 28) if scale == "paper" else (25, 14)
    rows = fashion.sizes("train") + fashion.sizes("validation")
    assert rows.min() >= least
    assert rows.max() > 2 * rows.min()
    assert fashion.columns["x"].shape[1:] == chars.columns["x"].shape[1:] == (1, side, side)
    if scale == "laptop":
        assert len(fashion) == 30
        pixels = mo.data.load("chars74k", test=0.2, validation=0.16, seed=0).columns["x"][7, 0]
        assert chars.columns["x"][7, 0, 3, 5] == pytest.approx(float(pixels[6:8, 10:12].mean()))
