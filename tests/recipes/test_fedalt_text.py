"""The recipe fedalt-text: what it writes at scale ci is what its models predict; scale paper is the paper's."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
import torch

import moiety as mo
from moiety.experiments.runner import Runner
from moiety.run.folder import read_clients, read_config
from moiety_recipes.fedalt_stages import build_cell, finetune, list_steps, personalise, pfedme
from moiety_recipes.fedalt_text import plan

needs_data = pytest.mark.skipif("MOIETY_DATA" not in os.environ, reason="MOIETY_DATA is not set")


@pytest.fixture(scope="module")
def record(recipe_run):
    run = recipe_run("fedalt-text")
    return run.folder, run.table


def test_made_up_sentences_are_numbered_as_said():
    """Twelve words 0 to 11, then 12 unknown, 13 padding, 14 begin, 15 end; client k steps by k, modulo twelve."""
    data = plan("ci").settings[0].data(0)
    x, y, mask = (data.columns[name] for name in ("x", "y", "counted"))
    assert (x[:, 0] == 14).all()
    assert (mask == ((y >= 0) & (y < 12))).all()
    for row in range(len(x)):
        real = int((y[row] != -100).sum())
        assert (x[row, 1:real] == y[row, : real - 1]).all()  # y is x, one further on
        assert (y[row, real:] == -100).all()
        assert (x[row, real + 1 :] == 13).all()
        assert (y[row, :real] == 15).sum() == (0 if real == 6 and y[row, -1] != 15 else 1)
    for client, name in enumerate(data.ids):
        start, stop = data.bounds[client][[0, 3]]
        before, after = x[start:stop, 1:], y[start:stop, 1:]
        both = (before < 12) & (after >= 0) & (after < 12)
        assert both.any()
        assert ((after - before)[both] % 12 == int(name)).all()
    assert {12, 15, -100} < set(y.ravel().tolist())


@pytest.mark.parametrize("step", ["fedavg", "output-fedalt-final", "adapter-finetune", "full-ditto"])
def test_token_accuracy_is_that_of_the_models_that_are_left(record, step):
    """Logits of the exported model, NumPy for the rest: 12 (unknown), 15 (end) and padding are not asked for.

    A client's score is right words over words; the table's is the same over all clients, which is their mean weighted
    by words, and not the mean weighted by rows.
    """
    folder, table = record
    (setting,) = plan("ci").settings
    data, model = setting.data(0), setting.model(seed=0)
    split = setting.split(step.split("-")[0], model) if step.startswith(("output", "adapter")) else None
    place = folder / "made_up_words" / "seed-0" / step
    run = mo.resume(place, model=model, data=data.with_validation_in_train(), split=split, metric="token_accuracy")
    right_of_all, words_of_all = [], []
    for at, (name, row) in enumerate(zip(data.ids, read_clients(place), strict=True)):
        assert row["client"] == name
        begin, end = data.bounds[at][2:]
        with torch.no_grad():
            logits = run.export(name)(torch.from_numpy(data.columns["x"][begin:end])).numpy()
        y = data.columns["y"][begin:end]
        mask = ~np.isin(y, (-100, 12, 15))
        right, words = int((logits.argmax(-1)[mask] == y[mask]).sum()), int(mask.sum())
        assert (row["n_test"], row["weight"]) == (end - begin, words)
        assert row["metric"] == pytest.approx(right / words, abs=1e-6)
        right_of_all.append(right)
        words_of_all.append(words)
    assert len(set(words_of_all)) > 1
    score = table["settings"][0]["scores"][step]
    assert score["each"] == pytest.approx([sum(right_of_all) / sum(words_of_all)], abs=1e-6)
    assert score["mean"] == score["each"][0]


def test_something_is_learned_and_differs_between_clients(record):
    """Else the test before would compare zeros."""
    folder, _ = record
    rows = read_clients(folder / "made_up_words" / "seed-0" / "full-ditto")
    assert len({row["metric"] for row in rows}) > 1


def test_cells_stand_beside_those_of_table_4(record):
    folder, table = record
    (setting,) = table["settings"]
    assert (setting["metric"], setting["higher_is_better"], setting["seeds"]) == ("token_accuracy", True, [0])
    page = (folder / "table.md").read_text()
    paper = {"input": (24.96, 24.44, 24.81), "output": (24.93, 25.05, 25.02), "adapter": (24.71, 24.82, 24.74)}
    for split, theirs in paper.items():
        (row,) = [line for line in page.split("### Claims")[0].splitlines() if line.startswith(f"| {split} |")]
        cells = [cell.strip() for cell in row.split("|")[3:-1]]
        names = [f"{split}-finetune", f"{split}-fedalt-final", f"{split}-fedsim-final"]
        ours = [f"{100 * setting['scores'][name]['mean']:.2f}" for name in names]
        assert cells == [text for pair in zip(ours, map(str, theirs), strict=True) for text in pair]
    assert "| paper (Stack Overflow) | 23.82 | - | 25.20 | 25.20 | 25.21 |" in page
    assert "token accuracy in per cent, higher is better" in page


def test_with_dropout_there_is_other_training_and_no_dropout_in_scores(record):
    """The finetuned model is not the one without; a model that was not finetuned scores the same with dropout in it."""
    folder, table = record
    place = folder / "made_up_words" / "seed-0"
    plain, dropout = (read_clients(place / name) for name in ("output-finetune", "output-dropout-0.3"))
    assert read_config(place / "output-dropout-0.3")["model"]["dropout"] == 0.3
    assert [row["shared_loss"] for row in plain] == [row["shared_loss"] for row in dropout]
    assert all(a["loss"] != b["loss"] for a, b in zip(plain, dropout, strict=True))
    assert [row["value"] for row in table["settings"][0]["sweeps"]["dropout"]["rows"]] == [0.0, 0.3]


def test_a_step_with_dropout_leaves_an_engine_that_cannot_draw_it():
    """Where the other steps are vectorised, this one is not, gives what sequential gives, and says nothing."""
    (setting,) = plan("ci").settings
    data = setting.data(0).with_validation_in_train()
    steps = {step.name: step for step in list_steps(setting, _rates(setting))}
    scores = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for engine in ("vectorised", "sequential"):
            runner = Runner(None, engine)
            plain = runner.run(build_cell(setting, data, steps["fedavg"], 0))
            scores[engine] = runner.run(build_cell(setting, data, steps["output-dropout-0.3"], 0))
            assert (plain["engine"], scores[engine]["engine"]) == (engine, "sequential")
    one, two = ([row["loss"] for row in scores[engine]["clients"]] for engine in ("vectorised", "sequential"))
    assert one == pytest.approx(two, rel=1e-4)


def _rates(setting):
    names = ["fedavg", "fedavg-longer", "full-finetune", "full-pfedme"]
    names += [f"{split}-{how}" for split in setting.splits for how in ("finetune", "fedalt", "fedsim")]
    return dict.fromkeys(names, 0.1)


def test_the_scale_paper_has_the_sizes_of_table_9():
    (setting,) = plan("paper").settings
    stages = setting.stages
    assert (stages.seeds, stages.cohort, stages.batch_size) == (5, 50, 64)
    assert (stages.rounds, stages.personal_rounds, stages.finetune_epochs) == (1000, 500, 5)
    assert (stages.lr, stages.personal_lr, stages.finetune_lr) == ((1.0,), (0.1,), (0.1,))
    steps = {step.name: step for step in list_steps(setting, _rates(setting))}
    linear = {"name": "linear", "warmup": 0.1}
    for name, rate in (("fedavg", 5e-4), ("output-fedalt", 5e-5), ("adapter-fedsim", 5e-5), ("full-pfedme", 5e-5)):
        spec = steps[name].algorithm.spec
        parts = ("personal",) if name == "full-pfedme" else ("shared", "personal")  # its step on w has no gradient
        assert {spec[part]["clip"] for part in parts if part in spec} == {0.1}
        assert (spec["schedule"], spec["shared"]["batch_size"]) == (linear, 64)
        assert (spec["server"]["name"], spec["server"]["lr"]) == ("adam", rate)
    assert personalise(stages, "output", "fedalt", 0.1).algorithm.spec["shared"]["lr"] == 0.1
    assert finetune(stages, "output", 0.1).algorithm.spec["personal"]["clip"] == 0.1
    assert steps["full-ditto"].algorithm.spec["personal"]["pull"] == 2e-3  # appendix B.3, without 1/2
    assert pfedme(stages, 0.1).algorithm.spec["personal"]["pull"] == 1e-4
    assert {"output-dropout-0.3", "adapter-weight_decay-0.01", "output-fedsim-stateless-final"} < set(steps)


def test_the_scale_paper_has_the_parameters_of_table_5():
    """10,004 tokens of width 256 and 20 positions; blocks of 4 x 256^2 + 2 x 256 x 1024 + 1280 + 4 x 256 = 788,736.

    With one bias for each token: 10,004 x 257 + 20 x 256 + 4 x 788,736 = 5,731,092. An adapter has 2 x 16 x 256 + 272;
    with eight of them and eight norms of 512, 71,808 are personal.
    """
    (setting,) = plan("paper").settings
    model = setting.model(seed=0)
    block, adapters = 4 * 256**2 + 2 * 256 * 1024 + 1280 + 4 * 256, 8 * (2 * 16 * 256 + 272 + 512)
    total = 10_004 * 257 + 20 * 256 + 4 * block
    assert (block, adapters, total) == (788_736, 71_808, 5_731_092)
    counts = {"input": (block, total - block), "output": (block, total - block), "adapter": (adapters, 5_726_996)}
    for name, expected in counts.items():
        split = setting.splits[name](model)
        own = dict((split.model or model).named_parameters())
        assert tuple(sum(own[n].numel() for n in part) for part in (split.personal, split.shared)) == expected
    assert all(name.startswith("blocks.0.") for name in setting.splits["input"](model).personal)
    assert all(name.startswith("blocks.3.") for name in setting.splits["output"](model).personal)


@needs_data
@pytest.mark.parametrize(("scale", "roles", "words", "length"), [("laptop", 40, 2_000, 12), ("paper", 100, 10_000, 20)])
def test_the_data_and_models_of_the_larger_scales(scale, roles, words, length):
    (setting,) = plan(scale).settings
    data = setting.data(0)
    assert (len(data), data.classes, data.columns["x"].shape[1]) == (roles, words + 4, length)
    train, test = data.sizes("train") + data.sizes("validation"), data.sizes("test")
    assert (data.sizes("validation") > 0).all()
    assert test.min() >= 10  # as the paper asks
    with torch.no_grad():
        logits = setting.model(seed=0)(torch.from_numpy(data.columns["x"][:2]))
    assert logits.shape == (2, length, words + 4)
    if scale == "laptop":
        assert (train + test).max() == 200
        # What the notes say: one label in ten is out of the vocabulary; the most frequent word would score 3.7.
        y, mask = (data.columns[name] for name in ("y", "counted"))
        assert (y == words).sum() / (y != -100).sum() == pytest.approx(0.10, abs=0.005)
        rows = data.all_rows("test")
        assert 100 * (y[rows][mask[rows]] == 0).mean() == pytest.approx(3.7, abs=0.05)
    else:
        assert (train < 100).sum() == 3
