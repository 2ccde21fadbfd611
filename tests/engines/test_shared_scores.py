"""Scores of the shared and of the personal models through every engine, against plain PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import federation, mlp, seeded
from torch import Tensor, nn

import moiety as mo
from moiety.loop import evaluate

FED = federation((4, 9, 12, 17, 25, 40, 7))
ENGINES = ["sequential", "vectorised", "processes:sequential", "processes:vectorised"]
WORK = mo.sgd(0.1, batch_size=5)


class Buffered(nn.Module):
    """A body whose scale is a buffer; no cut may take it for the same in two models."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.scale * self.body(x)))


CASES: dict[str, Any] = {
    "no state": (mlp, mo.fedavg(shared=WORK), mo.split.nothing),
    "a head": (mlp, mo.fedalt(shared=WORK, personal=WORK), mo.split.output_layer),
    "a first layer": (mlp, mo.fedalt(shared=WORK, personal=WORK), lambda m: mo.split.by_name(m, personal=["hidden1"])),
    "a model of one's own": (mlp, mo.ditto(personal=mo.sgd(0.1, pull=0.1), shared=WORK), mo.split.nothing),
    "masks": (mlp, mo.fedspa(shared=WORK), mo.split.nothing),
    "a buffer": (
        lambda: seeded(Buffered),
        mo.fedalt(shared=WORK, personal=WORK),
        lambda m: mo.split.by_name(m, personal=["head", "scale"]),
    ),
}


def plain_scores(model: nn.Module, client: int) -> tuple[float, float]:
    """Mean loss and accuracy on a client's test rows, by PyTorch alone."""
    rows = FED.at(client, "test")
    with torch.no_grad():
        output = model.double()(torch.from_numpy(rows["x"]).double())
    y = torch.from_numpy(rows["y"])
    return float(nn.functional.cross_entropy(output, y)), float((output.argmax(1) == y).double().mean())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_scores_are_pytorchs(case, engine, monkeypatch):
    """In float64, with pooled rows in pieces of five: a piece may have several clients, a client several pieces."""
    monkeypatch.setattr(evaluate, "POOLED_ROWS", 5)
    make, algorithm, split = CASES[case]
    model = make().double()
    run = mo.fit(model, FED, algorithm, split=split(model), rounds=2, cohort=3, seed=1, engine=engine)
    shared = run.export()
    for client, row in enumerate(run.clients):
        if not row["n_test"]:
            continue
        loss, metric = plain_scores(shared, client)
        np.testing.assert_allclose([row["shared_loss"], row["shared_metric"]], [loss, metric], rtol=1e-12)
        loss, metric = plain_scores(run.export(client), client)
        np.testing.assert_allclose([row["loss"], row["metric"]], [loss, metric], rtol=1e-12)


@pytest.mark.parametrize(("case", "bodies"), [("a head", 1), ("a first layer", 2)])
def test_a_common_body_is_computed_once(case, bodies, monkeypatch):
    """Count the rows that go through the first layer while clients are scored: each once where it is common."""
    make, algorithm, split = CASES[case]
    model = make()
    run = mo.fit(model, FED, algorithm, split=split(model), rounds=1, engine="sequential")
    run.evaluate("test")  # the first time, the cut is tried on a few rows
    total = 0
    linear = nn.functional.linear

    def count(x, weight, bias=None):
        nonlocal total
        total += len(x) if tuple(weight.shape) == (5, 4) else 0
        return linear(x, weight, bias)

    monkeypatch.setattr(nn.functional, "linear", count)
    run.evaluate("test")
    assert total == bodies * FED.sizes("test").sum()
