"""Clients of one example, of few and of many: values by hand, on both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import federation, mlp
from torch import nn

import moiety as mo

ENGINES = ["sequential", "vectorised"]


def slope(w: float = 0.5) -> nn.Module:
    """y = w x."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, w)
    return model


A = {"x": [[2.0]], "y": [[3.0]]}
B = {"x": [[1.0], [2.0], [-1.0]], "y": [[0.0], [1.0], [2.0]]}


def train(clients: dict[str, Any], engine: str, algorithm: mo.Algorithm, **options: Any) -> tuple[float, mo.Run]:
    data = mo.data.from_clients(clients, test=0)
    run = mo.fit(slope(), data, algorithm, engine=engine, **{"rounds": 1} | options)
    return float(run.shared_parameters()["weight"]), run


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch_size", [1, 32, 10**9])
def test_one_client_of_one_example(engine: str, batch_size: int) -> None:
    """w = 0.5, x = 2, y = 3: the gradient of (w x - y)^2 is 2 (1 - 3) 2 = -8, so w becomes 0.5 + 0.1 * 8 = 1.3."""
    w, run = train({"a": A}, engine, mo.fedavg(shared=mo.sgd(0.1, batch_size=batch_size)))
    assert w == pytest.approx(1.3, abs=1e-12)
    assert run.history[-1]["train_loss"] == pytest.approx(4.0)  # (1 - 3)^2, before the step
    assert run.clients[0]["loss"] == pytest.approx(0.16)  # (2.6 - 3)^2, after it
    assert run.clients[0]["n"] == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_one_example_beside_three_in_whole_batches(engine: str) -> None:
    """A goes to 1.3 as above. B's gradient at 0.5 is 2/3 (0.5 + 0 + 2.5) = 2, so B goes to 0.3.

    The mean by examples is (1.3 + 3 * 0.3) / 4 = 0.55. Training losses are 4 and (0.25 + 0 + 6.25) / 3, together
    (4 + 6.5) / 4. After the round A's loss is (1.1 - 3)^2 and B's (0.55^2 + 0.1^2 + 2.55^2) / 3.
    """
    w, run = train({"a": A, "b": B}, engine, mo.fedavg(shared=0.1))
    assert w == pytest.approx(0.55, abs=1e-12)
    assert run.history[-1]["train_loss"] == pytest.approx(2.625)
    assert [row["loss"] for row in run.clients] == pytest.approx([3.61, 6.815 / 3])
    assert run.history[-1]["loss"] == pytest.approx((3.61 + 6.815) / 4)
    assert run.history[-1]["loss_unweighted"] == pytest.approx((3.61 + 6.815 / 3) / 2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("weighting", "w"),
    [("examples", 0.5 + (0.8 - 3 * 0.54) / 4), ("batches", 0.5 + (0.8 - 2 * 0.54) / 3), ("uniform", 0.5 + 0.26 / 2)],
)
def test_one_example_beside_three_in_batches_of_two(engine: str, weighting: str, w: float) -> None:
    """B changes by -0.54 in 2 batches, A by 0.8 in 1.

    B's rows in order: the first batch has gradient (2 * 0.5 + 0) / 2 = 0.5, so w = 0.45; the second is the last row
    alone, 2 (-0.45 - 2)(-1) = 4.9, so w = -0.04.
    """
    algorithm = mo.fedavg(shared=mo.sgd(0.1, batch_size=2, shuffle=False), weighting=weighting)
    weight, run = train({"a": A, "b": B}, engine, algorithm)
    assert weight == pytest.approx(w, abs=1e-12)
    # B's loss: the mean over its steps, each before the step: (0.25 + 0) / 2 and 2.45^2.
    parts = {"examples": (1, 3), "batches": (1, 2), "uniform": (1, 1)}[weighting]
    assert run.history[-1]["train_loss"] == pytest.approx(np.average([4.0, (0.125 + 6.0025) / 2], weights=parts))


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_go_round_a_client_of_one_example(engine: str) -> None:
    """Three steps on one example: w - 1.5 shrinks by 1 - 0.1 * 2 * 4 = 0.2 a step, from -1 to -0.008."""
    w, _ = train({"a": A}, engine, mo.fedavg(shared=mo.sgd(0.1, steps=3)))
    assert w == pytest.approx(1.5 - 0.008, abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_padding_does_not_move_momentum(engine: str) -> None:
    """With momentum 0.5 A's one step is as without, whatever its longer neighbour does meanwhile."""
    algorithm = mo.local_only(personal=mo.sgd(0.1, batch_size=1, shuffle=False, momentum=0.5))
    data = mo.data.from_clients({"a": A, "b": B}, test=0)
    run = mo.fit(slope(), data, algorithm, rounds=1, engine=engine)
    assert float(run.parameters("a")["weight"]) == pytest.approx(1.3, abs=1e-12)
    # B: g = 1, w = 0.4; g = 2 (0.8 - 1) 2 = -0.8, m = -0.3, w = 0.43; g = 2 (-0.43 - 2)(-1) = 4.86, m = 4.71
    assert float(run.parameters("b")["weight"]) == pytest.approx(0.43 - 0.471, abs=1e-12)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 10**12])
def test_engines_agree_on_very_uneven_sizes(batch_size: int) -> None:
    data = federation((1, 2, 3, 70, 1, 33), test=0)
    algorithm = mo.fedalt(
        shared=mo.sgd(0.1, batch_size=batch_size, momentum=0.5),
        personal=mo.sgd(0.2, batch_size=batch_size, momentum=0.5),
    )
    model = mlp()
    split = mo.split.by_name(model, personal=["head"])
    one, other = (mo.fit(model, data, algorithm, split=split, rounds=2, engine=engine) for engine in ENGINES)
    for client in range(len(data)):
        a, b = one.parameters(client), other.parameters(client)
        for name in a:
            torch.testing.assert_close(a[name], b[name], atol=2e-6, rtol=1e-5)
    assert one.ledger == other.ledger


def test_a_cohort_of_all_is_the_default() -> None:
    data = federation()
    one = mo.fit(mlp(), data, mo.fedavg(shared=0.1), rounds=1, engine="sequential")
    cohorts: list[tuple[int, ...]] = []
    other = mo.fit(
        mlp(),
        data,
        mo.fedavg(shared=0.1),
        rounds=1,
        cohort=len(data),
        engine="sequential",
        callbacks=[lambda run, record: cohorts.append(record.cohort)],
    )
    assert cohorts == [tuple(range(len(data)))]
    for name, p in one.shared_parameters().items():
        assert torch.equal(p, other.shared_parameters()[name])
    assert one.ledger["client_updates"] == len(data)


def test_one_round_has_one_evaluation() -> None:
    run = mo.fit(mlp(), federation(), mo.fedavg(shared=0.1), rounds=1, cohort=1)
    assert [row["round"] for row in run.history] == [1]
    assert run.ledger["rounds"] == run.ledger["client_updates"] == 1
    assert len(run.clients) == 6


def test_a_batch_size_beyond_all_whole_numbers_of_the_machine() -> None:
    """The whole of a client's data is one batch, however large the number."""
    w, _ = train({"a": A, "b": B}, "sequential", mo.fedavg(shared=mo.sgd(0.1, batch_size=10**30)))
    assert w == pytest.approx(0.55, abs=1e-12)
