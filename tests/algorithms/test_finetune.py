"""Finetuning: personal parameters alone, the shared ones fixed, nothing sent."""

from dataclasses import replace
from fractions import Fraction as Q

import numpy as np
import oracle_numpy as ref
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, image_clients, scalar_task, split_of, vector_clients, vector_task
from torch import nn

import moiety as mo
from moiety.errors import MoietyError
from moiety.transport import PrivacyError, pack

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
CLIENTS = [
    {"a": np.array([1.0]), "b": np.array([2.0]), "y": np.array([3.0])},
    {"a": np.array([2.0, 0, 2, 0]), "b": np.ones(4), "y": np.array([1.0, 3, 1, 3])},
]
SIZES = (5, 1, 9)
DATA = federated(image_clients(SIZES))


def network():
    return mo.models.mlp(4, 3, hidden=(6,), seed=1)


@ENGINES
@pytest.mark.parametrize(("rounds", "v1", "v2"), [(1, Q(3, 4), Q(15, 64)), (2, Q(15, 16), Q(1695, 4096))])
def test_by_hand(engine, rounds, v1, v2):
    """Clients of tests/oracles/test_hand_rounds.py from u = 1, v = 0, two full steps of rate 1/8 in each round.

    u stays 1. Client 1: v <- v/2 + (3 - u)/4 = (v + 1)/2: 0 -> 1/2 -> 3/4 | 7/8 -> 15/16. Client 2:
    v <- 7v/8 + (2 - u)/8 = (7v + 1)/8: 0 -> 1/8 -> 15/64 | 169/512 -> 1695/4096. The second round goes on from the
    first.
    """
    algorithm = mo.finetune(personal=mo.sgd(1 / 8, steps=2, batch_size=4, shuffle=False))
    split = split_of(["u"], ["v"])
    run = mo.fit(scalar_task(), federated(CLIENTS), algorithm, split=split, rounds=rounds, engine=engine)
    assert float(run.shared_parameters()["u"]) == 1.0
    for client, v in enumerate((v1, v2)):
        parameters = run.parameters(client)
        assert float(parameters["u"]) == 1.0
        assert float(parameters["v"]) == pytest.approx(float(v), rel=1e-14)


def test_a_client_that_is_not_asked_stays_where_it_was():
    algorithm = mo.finetune(personal=mo.sgd(1 / 8, steps=2, batch_size=4))
    split = split_of(["u"], ["v"])
    run = mo.fit(scalar_task(), federated(CLIENTS), algorithm, split=split, rounds=1, cohort=1, engine="sequential")
    assert sorted(float(run.parameters(i)["v"]) == 0.0 for i in (0, 1)) == [False, True]


@ENGINES
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.05, "clip": 1.5}], ids=["plain", "all"])
def test_trajectory_in_numpy(engine, options):
    """Uneven clients, halved rates from the third round on; u never moves."""
    clients, u0, v0 = vector_clients([1, 7, 3, 12]), np.array([0.5, -1.0]), np.array([0.25, 2.0])
    schedule = mo.schedule.exponential(halve_every=2)
    algorithm = flat(mo.finetune, lr=0.2, epochs=2, batch_size=4, shuffle=False, schedule=schedule, **options)
    split = split_of(["u"], ["v"], {"u": 2, "v": 2})
    run = mo.fit(vector_task(u0, v0), federated(clients), algorithm, split=split, rounds=3, engine=engine)
    for i, data in enumerate(clients):
        w = {"u": u0, "v": v0}
        for rate in (0.2, 0.2, 0.1):
            index = ref.batches(len(data["y"]), 4, epochs=2)
            w, _ = ref.descend(w, data, index, {"v": rate}, {"u": "a", "v": "b"}, **options)
        np.testing.assert_allclose(run.parameters(i)["v"].numpy(), w["v"], rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(run.parameters(i)["u"].numpy(), u0)


def test_everything_personal_is_local_training_from_the_given_model():
    """The baseline of Table 2: the given model is the start, and plain SGD on the client's rows is all there is."""
    net = network()
    algorithm = mo.finetune(personal=mo.sgd(0.3, epochs=5, batch_size=4, shuffle=False, weight_decay=0.1))
    run = mo.fit(net, DATA, algorithm, split=mo.split.everything(net), rounds=1, engine="sequential")
    for client in range(len(SIZES)):
        mine = network()
        optimiser = torch.optim.SGD(mine.parameters(), lr=0.3, weight_decay=0.1)
        rows = DATA.client(client)
        x, y = torch.tensor(rows["x"]), torch.tensor(rows["y"])
        for _ in range(5):
            for at in range(0, len(y), 4):
                optimiser.zero_grad()
                nn.functional.cross_entropy(mine(x[at : at + 4]), y[at : at + 4]).backward()
                optimiser.step()
        for name, p in mine.named_parameters():
            torch.testing.assert_close(run.parameters(client)[name], p.detach(), rtol=1e-5, atol=1e-6)
    assert [run.ledger[k] for k in ("down_values", "up_values")] == [0, 0]


@ENGINES
def test_what_goes_down_is_counted_and_nothing_goes_up(engine):
    """The 4 -> 6 -> 3 network with its head personal: 30 shared numbers go to each of 2 clients in each of 3 rounds."""
    net = network()
    split = mo.split.output_layer(net)
    run = mo.fit(net, DATA, mo.finetune(personal=0.1), split=split, rounds=3, cohort=2, engine=engine)
    one = len(pack({n: p for n, p in net.named_parameters() if n.startswith("hidden1")}))
    assert (run.ledger["down_values"], run.ledger["down_payload"]) == (6 * 30 * 4, 6 * one)
    assert (run.ledger["up_values"], run.ledger["up_payload"], run.ledger["client_updates"]) == (0, 0, 6)


@ENGINES
def test_the_shared_part_is_computed_once_in_several_epochs(engine):
    """A product of [rows, n] and [n, m] is 2 n m operations a row.

    The hidden layer takes 48, once; the head 36 forwards and 36 for its weight's gradient, in each of 5 epochs.
    """
    net = network()
    run = mo.fit(
        net,
        DATA,
        mo.finetune(personal=mo.sgd(0.1, epochs=5)),
        split=mo.split.output_layer(net),
        rounds=1,
        engine=engine,
    )
    assert run.ledger["flops"] == sum(SIZES) * (48 + 5 * (36 + 36))


@pytest.mark.parametrize("stats", ["personal", "shared"])
def test_shared_running_statistics_stay_as_the_server_has_them(stats):
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    split = mo.split.by_name(net, personal=["2"], running_stats=stats)
    data = federated(image_clients([8, 6]))
    run = mo.fit(net, data, mo.finetune(personal=0.1), split=split, rounds=2, engine="sequential")
    for client in (0, 1):
        moved = not torch.equal(run.parameters(client)["1.running_mean"], torch.zeros(5))
        assert moved == (stats == "personal")


def test_a_client_that_sends_something_is_stopped():
    net = network()
    inner = mo.finetune(personal=0.1)

    def client_update(work, received, state):
        update, after = inner.client_update(work, received, state)
        return update._replace(upload=received), after

    leaky = replace(inner, client_update=client_update)
    with pytest.raises(PrivacyError, match=r"^`upload` must be .* \(client client-0, round 1\)\.$"):
        mo.fit(net, DATA, leaky, split=mo.split.output_layer(net), rounds=1, engine="sequential")


def test_the_given_model_stays_the_shared_model():
    """A run from an exported model: the shared model alone is that model, whatever the clients did."""
    net, split = network(), mo.split.nothing(network())
    start = mo.fit(net, DATA, mo.fedavg(shared=0.3), split=split, rounds=3, engine="sequential").export()
    run = mo.fit(
        start, DATA, mo.finetune(personal=0.3), split=mo.split.output_layer(start), rounds=2, engine="sequential"
    )
    for name, p in start.named_parameters():
        assert torch.equal(run.shared_parameters()[name], p)
    assert not torch.equal(run.parameters(2)["head.weight"], start.head.weight)


def test_it_refuses_a_split_with_nothing_personal():
    net = network()
    with pytest.raises(MoietyError, match=r"^`split` must be one with something personal for finetune, got 4 shared "):
        mo.fit(net, DATA, mo.finetune(personal=0.1), split=mo.split.nothing(net), rounds=1, engine="sequential")


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("personal", lambda: mo.finetune(personal=0)),
        ("lr", lambda: mo.finetune(personal=mo.sgd(0))),
        ("epochs", lambda: mo.finetune(personal=mo.sgd(0.1, epochs=0))),
        ("epochs", lambda: mo.finetune(personal=mo.sgd(0.1, epochs=1, steps=2))),
        ("batch_size", lambda: mo.finetune(personal=mo.sgd(0.1, batch_size=0))),
        ("clip", lambda: mo.finetune(personal=mo.sgd(0.1, clip=0))),
    ],
)
def test_wrong_hyper_parameters_are_one_line(name, build):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build()
