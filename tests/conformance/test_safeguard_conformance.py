"""Every algorithm with a personal part can be safeguarded: its clients are served the mixture that they chose."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance_table import TABLE
from night import NIGHTLY

import moiety as mo
from moiety import tree

CLIENTS = 4


WEIGHTS = (0.0, 0.25, 0.5, 1.0)
"""One for each client, where choices are set by hand: so few rows seldom make anybody leave the shared model."""
SAMPLE = ("fedalt", "ditto", "fedpop", "l2gd")
"""Algorithms whose models are kept in different ways: what the gate tries of what ``make nightly`` tries with all."""
SOME = [row for row in TABLE if NIGHTLY or (row.name in SAMPLE and not row.variant)]


def draw_clients(numbers=False):
    """Clients that differ in how features decide the class, or the number."""
    rng = np.random.default_rng(0)
    clients = {}
    for i in range(CLIENTS):
        x = rng.normal(size=(14, 4)).astype(np.float32)
        y = x @ (rng.normal(size=(4, 3)) + np.eye(4, 3))
        clients[f"c{i}"] = {"x": x, "y": y.astype(np.float32) if numbers else y.argmax(1)}
    return mo.data.from_clients(clients, test=0.3, validation=0.3, seed=0)


FED = draw_clients()


def set_choices(run):
    """Give each client a weight of its own."""
    choices = {
        name: each._replace(weight=weight) for (name, each), weight in zip(run.choices.items(), WEIGHTS, strict=True)
    }
    run._guard = replace(run._guard, choices=choices)


def trains_a_part(row, algorithm):
    """Whether the server trains a part of the model alone. Finetuning's has none, FedPop's a centre of the rest too."""
    return len(row.personal) == 1 and algorithm.aggregator is not None and algorithm.posterior is None


def softmax(output):
    return torch.softmax(output.detach().double(), -1).numpy()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name + row.variant)
def test_clients_are_served_what_they_chose(row):
    model = mo.models.mlp(4, 3, hidden=(5,), seed=0)
    algorithm = row.build(batch_size=4)

    def train(**options):
        return mo.fit(model, FED, algorithm, split=row.split(model), rounds=2, engine="sequential", **options)

    plain = train()
    if not tree.leaves(plain._loop.problem.first_state(algorithm)):
        with pytest.raises(mo.MoietyError, match="`safeguard` must be left out for an algorithm without a personal"):
            train(safeguard=True)
        return
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        guarded = train(safeguard=True)
    matches = [each for each in records if "which may be worse than one model for all" in str(each.message)]
    assert bool(matches) == trains_a_part(row, algorithm)
    assert set(guarded.choices) == set(map(str, FED.ids))
    assert all(0 <= each.weight <= 1 and each.risk <= 0.1 for each in guarded.choices.values() if each.weight)
    set_choices(guarded)
    rows = {row["client"]: row for row in guarded.evaluate("test")}
    for at, (client, each) in enumerate(guarded.choices.items()):
        test = FED.at(at, "test")
        shared, own = softmax(plain.export()(torch.as_tensor(test["x"]))), plain.predict_proba(client, test["x"])
        expected = (1 - each.weight) * shared + each.weight * own
        assert np.allclose(guarded.predict_proba(client, test["x"]), expected, atol=1e-6)
        if algorithm.posterior is None:  # a row scores a single model, predictions average draws
            assert rows[client]["metric"] == pytest.approx(np.mean(expected.argmax(1) == test["y"]))


@pytest.mark.filterwarnings("ignore:Clients are compared with the shared part:UserWarning")
@pytest.mark.parametrize("row", SOME, ids=lambda row: row.name + row.variant)
def test_numbers_newcomers_and_a_resume(row, tmp_path):
    """Regression: a mixture is a mean of outputs. A new client is served what it chose; a resume chooses again."""
    fed, algorithm = draw_clients(numbers=True), row.build(batch_size=4)
    model = mo.models.mlp(4, 3, hidden=(5,), seed=0)

    def train(rounds=2, **options):
        how = {"split": row.split(model), "loss": "mse", "engine": "sequential"}
        return mo.fit(model, fed, algorithm, rounds=rounds, **how, **options)

    plain = train()
    if not tree.leaves(plain._loop.problem.first_state(algorithm)):
        pytest.skip("it has no personal part")
    whole = train(safeguard=True)
    train(rounds=1, safeguard=True, out=tmp_path / "run")
    resumed = mo.resume(tmp_path / "run", model=model, data=fed, rounds=2)
    assert resumed.choices == whole.choices
    new, x = fed.at(0), torch.as_tensor(fed.at(0, "test")["x"])
    assert np.allclose(whole.onboard(new)(x).detach().numpy(), whole.predict(new, x.numpy()), atol=1e-5)
    set_choices(whole)
    for at, (client, each) in enumerate(whole.choices.items()):
        x = fed.at(at, "test")["x"]
        shared, own = plain.export()(torch.as_tensor(x)).detach().numpy(), plain.predict(client, x)
        assert np.allclose(whole.predict(client, x), (1 - each.weight) * shared + each.weight * own, atol=1e-5)
