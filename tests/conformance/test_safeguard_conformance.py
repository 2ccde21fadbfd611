"""Every algorithm with a personal part can be safeguarded: its clients are served the mixture that they chose."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from conformance_table import TABLE

import moiety as mo
from moiety import tree

CLIENTS = 4


def draw_clients():
    """Clients that differ in how features decide the class."""
    rng = np.random.default_rng(0)
    clients = {}
    for i in range(CLIENTS):
        x = rng.normal(size=(14, 4)).astype(np.float32)
        clients[f"c{i}"] = {"x": x, "y": (x @ (rng.normal(size=(4, 3)) + np.eye(4, 3))).argmax(1)}
    return mo.data.from_clients(clients, test=0.3, validation=0.3, seed=0)


FED = draw_clients()


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
    choices = guarded.choices
    assert set(choices) == set(map(str, FED.ids))
    for at, (client, each) in enumerate(choices.items()):
        rows = FED.at(at, "test")
        shared, own = softmax(plain.export()(torch.as_tensor(rows["x"]))), plain.predict_proba(client, rows["x"])
        expected = (1 - each.weight) * shared + each.weight * own
        assert np.allclose(guarded.predict_proba(client, rows["x"]), expected, atol=1e-6)
        metric = guarded.clients[at]["metric"]
        if algorithm.posterior is None:  # a row scores a single model, predictions average draws
            assert metric == pytest.approx(np.mean(expected.argmax(1) == rows["y"]))
    # The same choice by hand: the rule looks at nothing but training and validation rows.
    assert all(0 <= each.weight <= 1 and each.risk <= 0.1 for each in choices.values() if each.weight)
