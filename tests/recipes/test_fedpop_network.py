"""The recipe fedpop-network: the authors' sizes, rates by validation, draws made anew."""

from __future__ import annotations

import numpy as np

from moiety.evaluation.predictive import Predictive
from moiety_recipes import fedpop_network
from moiety_recipes.fedpop_images import FEDSOUL


def test_the_network_has_the_authors_sizes():
    """Counted by hand: 64 (75 + 1), 64 (1600 + 1), 120 (1600 + 1), 64 (120 + 1), and 10 (64 + 1) of the head."""
    network = fedpop_network.build_network((3, 32, 32), seed=0)
    sizes = {name: sum(p.numel() for p in layer.parameters()) for name, layer in network.named_children()}
    expected = {"conv1": 4_864, "conv2": 102_464, "hidden1": 192_120, "hidden2": 7_744, "head": 650}
    assert {name: size for name, size in sizes.items() if size} == expected
    assert sum(expected.values()) == 307_192 + 650


def test_the_pilot_chooses_rates_by_validation():
    plan = fedpop_network.plan("ci")
    steps = fedpop_network.cells(plan, [0])
    pilot = next(steps)
    assert [cell.key[2] for cell in pilot] == [f"{m}, {f}" for m in fedpop_network.METHODS for f in (1, 3)]
    assert {cell.fit()["settings"].evaluate_on for cell in pilot} == {"validation"}
    scores = [0.1, 0.2, 0.3, 0.2, 0.2, 0.2]  # the first of equals is taken
    choices = steps.send([{"accuracy": score} for score in scores]).work()["chosen"]
    assert [own["factor"] for own in choices.values()] == [3.0, 1.0, 1.0]
    runs = steps.send({})
    assert [cell.key for cell in runs] == [("digits", 0, method) for method in fedpop_network.METHODS]
    assert {cell.fit()["settings"].evaluate_on for cell in runs} == {"test"}


def test_draws_of_fedsoul_are_made_anew():
    plan = fedpop_network.plan("ci")
    fed = plan.deals[0].load(0)

    class StubRun:
        history = ({"metric_unweighted": 0.25},)

        def predictive(self, client, x, *, fresh):
            assert fresh
            logits = np.zeros((2, len(x), 10))
            logits[..., client] = 1.0  # every row of client i is called class i
            return Predictive(logits)

    labels = [fed.client(i, "test")["y"] for i in range(len(fed))]
    accuracy = np.mean([(y == i).mean() for i, y in enumerate(labels)])
    assert fedpop_network.keep(fed, "test", FEDSOUL, StubRun()) == {"accuracy": accuracy}
    assert fedpop_network.keep(fed, "test", "FedRep", StubRun()) == {"accuracy": 0.25}
