"""Randomness in the forward pass: seeded for each round and client, so order and company do not matter."""

import numpy as np
import pytest
import torch
from oracle_problems import federated, image_clients, problem_of, serve
from torch import nn

import moiety as mo
from moiety.engines.base import RoundInfo
from moiety.engines.sequential import Sequential
from moiety.errors import MoietyError
from moiety.task import from_module

ONE = image_clients([12])[0]
DATA = federated([ONE, ONE, ONE])  # three clients with the same rows


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))


ALGORITHM = mo.fedavg(shared=mo.sgd(0.1, shuffle=False))


def uploads(order, round=0, seed=0):
    net = model()
    problem = problem_of(from_module(net, loss="cross_entropy"), DATA, mo.split.nothing(net), seed)
    received = ALGORITHM.broadcast(ALGORITHM.init_server(*problem.first_shared(), {}))
    states = [ALGORITHM.init_client({}, {})] * len(order)
    jobs = problem.make_jobs(ALGORITHM.phases, order, states, "train", round, part="train")
    results = serve(Sequential, problem, ALGORITHM.client_update, jobs, received, RoundInfo(round))
    return {client: update.upload["0.weight"] for client, (update, _) in zip(order, results, strict=True)}


def test_order_and_company_do_not_matter():
    forwards, backwards, single = uploads([0, 1, 2]), uploads([2, 1, 0]), uploads([1])
    assert all(torch.equal(forwards[c], backwards[c]) for c in range(3))
    assert torch.equal(forwards[1], single[1])


def test_clients_rounds_and_seeds_draw_differently():
    """Same rows, same start, no shuffle: only the masks differ."""
    values = [*uploads([0, 1, 2]).values(), *uploads([0, 1, 2], round=1).values(), *uploads([0], seed=1).values()]
    assert len({tuple(x.flatten().tolist()) for x in values}) == 7


def test_a_run_is_reproducible():
    one, other = (mo.fit(model(), DATA, ALGORITHM, rounds=2, engine="sequential").shared_parameters() for _ in range(2))
    assert all(torch.equal(one[n], other[n]) for n in one)


def test_a_run_leaves_torchs_own_stream_alone():
    """A user's next random number does not depend on whether a run came before."""
    net = model()
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    mo.fit(net, DATA, ALGORITHM, rounds=1, engine="sequential")
    assert torch.equal(torch.rand(2), expected)


def test_dropout_is_off_in_evaluation():
    run = mo.fit(model(), DATA, ALGORITHM, rounds=1, engine="sequential")
    net = run.export().eval()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(net(torch.tensor(ONE["x"])), torch.tensor(ONE["y"]))
    assert [row["loss"] for row in run.clients] == pytest.approx([float(loss)] * 3, rel=1e-5)


def test_vectorised_refuses_in_one_line():
    with pytest.raises(MoietyError) as error:
        mo.fit(model(), DATA, ALGORITHM, rounds=1, engine="vectorised")
    assert str(error.value) == (
        "`engine` must be able to vectorise this model, got random numbers drawn while training (dropout). "
        "Use engine sequential."
    )


def test_auto_falls_back_and_says_why():
    run = mo.fit(model(), DATA, ALGORITHM, rounds=1, engine="auto")
    assert run.engine.endswith("sequential")
    assert "dropout" in run.config["run"]["engine_reason"]
    plain = mo.fit(model(), DATA, ALGORITHM, rounds=1, engine="sequential")
    for name, p in plain.shared_parameters().items():
        np.testing.assert_array_equal(run.shared_parameters()[name].numpy(), p.numpy())
