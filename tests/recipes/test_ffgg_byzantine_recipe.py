"""The recipe ffgg-byzantine: what it writes at scale ci is what its runs show, and the larger scales are as said."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import torch

import moiety as mo
from moiety.errors import MoietyError
from moiety.experiments import CI_NOTICE
from moiety.reports import heat_map
from moiety.run.folder import read_clients, read_config
from moiety_recipes.ffgg_byzantine import NONE, build_aggregators, build_attacks, ffgg_byzantine, plan, write_sentence

needs_data = pytest.mark.skipif("MOIETY_DATA" not in os.environ, reason="MOIETY_DATA is not set")
T_2 = 12.7062
"""The 97.5% point of Student's t with one degree of freedom, from a printed table."""
ATTACKS, AGGREGATORS = (NONE, "sign flip", "label flip", "not finite"), ("mean", "median", "mixing, trimmed mean")
FOLDERS = {"sign flip": "sign_flip", "label flip": "label_flip", "not finite": "not_finite", NONE: NONE}
FOLDERS |= {"mean": "mean", "median": "median", "mixing, trimmed mean": "mixing-trimmed_mean"}


@pytest.fixture(scope="module")
def record(recipe_run):
    run = recipe_run("ffgg-byzantine")
    return run.folder, run.printed, run.table


def place(folder, seed, attack, aggregator):
    return folder / f"seed-{seed}" / FOLDERS[attack] / FOLDERS[aggregator]


def test_runs_are_what_their_names_say(record):
    """Of ten clients two attack, the same in all runs of a seed."""
    folder, _, _ = record
    attacks, aggregators = build_attacks(), build_aggregators(clients=10, byzantine=2)
    for seed in (0, 1):
        evil = set()
        for attack in ATTACKS:
            for aggregator in AGGREGATORS:
                config = read_config(place(folder, seed, attack, aggregator))
                assert config["aggregator"] == aggregators[aggregator].spec
                assert config.get("attack") == (None if attack == NONE else attacks[attack].spec)
                assert (config["algorithm"]["name"], config["split"]["name"]) == ("ffgg", "output_layer")
                evil |= set() if attack == NONE else {tuple(config["run"]["attackers"])}
        assert len(evil) == 1
        assert len(*evil) == 2


def honest_mean(folder, seed, attack, aggregator):
    evil = read_config(place(folder, seed, "not finite", "mean"))["run"]["attackers"]
    rows = [r for r in read_clients(place(folder, seed, attack, aggregator)) if r["client"] not in evil]
    assert len(rows) == 8
    return 100 * np.average([r["metric"] for r in rows], weights=[r["n_test"] for r in rows])


def test_every_cell_is_of_honest_clients_and_judged_by_its_interval(record):
    """Two seeds: the standard deviation is |a - b| / sqrt(2), and that of their mean |a - b| / 2."""
    folder, _, table = record
    assert [(row["attack"], row["aggregator"]) for row in table["rows"]] == [
        (a, g) for a in ATTACKS for g in AGGREGATORS
    ]
    for row in table["rows"]:
        each = np.array([honest_mean(folder, seed, row["attack"], row["aggregator"]) for seed in (0, 1)])
        best = np.array([honest_mean(folder, seed, "not finite", "mean") for seed in (0, 1)])
        np.testing.assert_allclose(row["each"], each, atol=1e-9)
        half = T_2 * abs(each[0] - each[1]) / 2
        np.testing.assert_allclose(
            [row["ours"], *row["interval"]], each.mean() + half * np.array([0, -1, 1]), atol=1e-3
        )
        change = each - best
        half = T_2 * abs(change[0] - change[1]) / 2
        low, high = change.mean() - half, change.mean() + half
        verdict = "holds" if low > -3 else "does not hold" if high < -3 else "not decided at this scale"
        assert row["verdict"] == verdict
        assert row["change"]["mean"] == pytest.approx(change.mean(), abs=1e-9)


def test_the_page_shows_them(record):
    folder, out, table = record
    page = (folder / "table.md").read_text()
    assert page.strip() in out
    marks = {"holds": "holds", "does not hold": "fails", "not decided at this scale": "open"}
    for attack in ATTACKS:
        (line,) = [x for x in page.split("## Which")[0].splitlines() if x.startswith(f"| {attack} |")]
        cells = [cell.strip() for cell in line.split("|")[2:-1]]
        own = [row for row in table["rows"] if row["attack"] == attack]
        assert cells == [f"{row['ours']:.1f} {marks[row['verdict']]}" for row in own]
    for words in (
        "# ffgg-byzantine, scale ci",
        "`moiety run ffgg-byzantine --scale ci --engine sequential`",
        mo.__version__,
        table["date"],
    ):
        assert words in page
    assert "(matrix.png)" in page
    assert (folder / "matrix.png").read_bytes().startswith(b"\x89PNG")
    assert out.splitlines()[-2] == CI_NOTICE


def test_the_sentence_counts():
    small = plan("ci")
    verdicts = {"mean": ["does not hold", "holds", "holds"], "median": ["holds", "not decided at this scale", "holds"]}
    verdicts["mixing, trimmed mean"] = ["holds"] * 3
    rows = [
        {"attack": attack, "aggregator": name, "verdict": verdict}
        for name, own in verdicts.items()
        for attack, verdict in zip(ATTACKS, ["does not hold", *own], strict=True)
    ]
    expected = "mixing, trimmed mean holds under all 3 attacks; 1 of 3 aggregators fail under one or more."
    assert write_sentence(small, rows) == expected


def test_what_has_ended_is_not_run_again(record, tmp_path):
    folder, _, table = record
    folder = shutil.copytree(folder, tmp_path / "run")
    place(folder, 0, "sign flip", "median").with_suffix(".json").unlink()
    names = []
    outcome = ffgg_byzantine.run(out=folder, resume=True, watch=lambda name, place: names.append(name))
    assert names == ["seed 0 sign flip median"]
    assert [row["each"] for row in json.loads((folder / "table.json").read_text())["rows"]] == [
        row["each"] for row in table["rows"]
    ]
    assert "# ffgg-byzantine, scale ci" in outcome.page
    with pytest.raises(MoietyError, match="`scale` must be ci, as the recipe began, got laptop"):
        ffgg_byzantine.run(out=folder, resume=True, scale="laptop")


@needs_data
@pytest.mark.parametrize(("scale", "clients"), [("laptop", 20), ("paper", 100)])
def test_the_larger_scales(scale, clients):
    """All attacks and aggregators, which need no more uploads than the honest four fifths send."""
    setup = plan(scale)
    attacks, aggregators = build_attacks(), build_aggregators(clients=clients, byzantine=clients // 5)
    assert {attacks[name].spec["name"] for name in setup.attacks if name != NONE} == set(mo.attack.ATTACKS)
    assert {aggregators[name].spec["name"] for name in setup.aggregators} == set(mo.aggregator.AGGREGATORS)
    assert max(a.least for a in aggregators.values()) <= 0.8 * clients
    assert setup.pictures.clients == clients
    if scale == "laptop":
        data = setup.pictures.load(0)
        assert len(data) == clients
        assert set(data.sizes("train")) == set(data.sizes("test")) == {100}
        assert setup.pictures.model(0)(torch.as_tensor(data.columns["x"][:2])).shape == (2, 10)


def test_a_heat_map_of_nothing_is_refused():
    with pytest.raises(MoietyError, match="`rows` must be at least one"):
        heat_map({}, ["a"], label="")
    with pytest.raises(MoietyError, match="`rows` must be of 2 numbers each, got another in b"):
        heat_map({"a": [1.0, 2.0], "b": [1.0]}, ["x", "y"], label="")
