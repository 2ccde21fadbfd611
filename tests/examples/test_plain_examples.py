"""The examples run, at a small size, and show what they say they show."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

import moiety as mo

EXAMPLES = Path(__file__).parents[2] / "examples"
OURS = ("do_no_harm", "hospital", "own_algorithm", "sklearn_grid", "which_part")


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", OURS)
def test_an_example_is_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40


def test_every_hospital_is_named_with_its_gain(capsys):
    run = load("hospital").main(rounds=8)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:8]] == [f"site-{k}" for k in range(8)]
    assert sum(row["gain"] for row in run.clients) > 0  # half of the sites are coded the other way round


def test_clients_that_differ_keep_their_models_and_the_others_do_not(capsys):
    """Every fourth client has other labels: only for these is a model of its own better, once one model is trained."""
    choices = load("do_no_harm").main().choices
    unlike = [choices[f"client-{i}"].weight for i in range(0, 24, 4)]
    alike = [choices[f"client-{i}"].weight for i in range(24) if i % 4]
    assert min(unlike) == 1
    assert np.mean(alike) < 0.25
    assert "beyond noise" in capsys.readouterr().out


def test_fedprox_without_a_pull_is_fedavg():
    """Li et al. 2020: mu = 0 is FedAvg."""
    example = load("own_algorithm")
    runs = example.main(rounds=2, pulls=(0.0, 1.0))
    fed = mo.data.load("digits", clients=10, partition=mo.data.dirichlet(0.1), seed=0)
    model = mo.models.linear(64, 10)
    expected = mo.fit(model, fed, mo.fedavg(shared=0.1), rounds=2).shared_parameters()
    free, pulled = (run.shared_parameters() for run in runs.values())
    assert all(torch.equal(free[name], expected[name]) for name in expected)
    assert not all(torch.equal(pulled[name], expected[name]) for name in expected)


def test_the_grid_prefers_personal_models_and_unseen_sites_have_the_shared_one(capsys):
    search, new = load("sklearn_grid").main(rounds=5, patients=16)
    assert search.best_params_["algorithm"].name == "fedalt"
    assert search.best_score_ > 0.7
    assert abs(new.mean() - 0.5) < 0.2  # no model can know how a new site codes the label
    assert "sites never seen" in capsys.readouterr().out


def test_sensors_that_are_calibrated_differently_get_something_personal(capsys):
    """No model for all can serve sites whose readings are turned and shifted."""
    answer = load("which_part").main(budget=350_000)
    assert answer.verdict == "personal"
    assert answer.sentence.split(":")[0] in capsys.readouterr().out.replace("\n", " ")
