"""Ditto by hand, in NumPy, in its limits, and what is its own.

The problem of the tests by hand: f(w; a, y) = (a w - y)^2 / 2 with one number w, start w = 1. Client 1 has one example
with a = 1, y = 3, client 2 four, of which a^2 has the mean 2 and a y the mean 1, so

    client 1:  dF/dw = w - 3     client 2:  dF/dw = 2 w - 1

and with lr = 1/4, personal_lr = 1/8, pull = 2 a step is

    client 1:  w <- (3 w + 3)/4     v <- v - (v - 3 + 2 (v - w))/8 = (5 v + 3 + 2 w)/8
    client 2:  w <- (2 w + 1)/4     v <- v - (2 v - 1 + 2 (v - w))/8 = (4 v + 1 + 2 w)/8
"""

from fractions import Fraction as Q

import numpy as np
import oracle_numpy as ref
import oracle_pulled as pulled
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, image_clients, split_of, vector_clients, vector_task

import moiety as mo
from moiety.errors import MoietyError
from moiety.task import from_functions

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
CLIENTS = [
    {"a": np.array([1.0]), "y": np.array([3.0])},
    {"a": np.array([2.0, 0, 2, 0]), "y": np.array([1.0, 3, 1, 3])},
]
HAND = {"personal_lr": 1 / 8, "pull": 2.0, "personal_steps": 2, "batch_size": 4, "shuffle": False}
SIZES = (1, 13, 6, 20)
DATA = federated(image_clients(SIZES))
MATRICES = {"u": "a", "v": "b"}


def fit(algorithm, engine="sequential", rounds=1, **options):
    init = {"w": torch.ones((), dtype=torch.float64)}
    task = from_functions(init, lambda p, d: (d["a"] * p["w"] - d["y"]).square() / 2)
    return mo.fit(task, federated(CLIENTS), algorithm, split=split_of(["w"]), rounds=rounds, engine=engine, **options)


def agree(run, w, v1, v2):
    values = [float(p["w"]) for p in (run.shared_parameters(), run.parameters(0), run.parameters(1))]
    assert values == pytest.approx([float(w), float(v1), float(v2)], rel=1e-13)


@ENGINES
@pytest.mark.parametrize(("weighting", "w"), [("examples", Q(7, 8)), ("uniform", Q(5, 4))])
def test_first_round_by_hand(engine, weighting, w):
    """Two steps each. w_1: 1 -> 3/2 -> 15/8. w_2: 1 -> 3/4 -> 5/8. By examples (15 + 4 * 5)/40 = 7/8, else 5/4.

    v_1 <- (5 v + 5)/8: 1 -> 5/4 -> 45/32. v_2 <- (4 v + 3)/8: 1 -> 7/8 -> 13/16.
    """
    agree(fit(flat(mo.ditto, lr=1 / 4, steps=2, weighting=weighting, **HAND), engine), w, Q(45, 32), Q(13, 16))


@ENGINES
def test_second_round_by_hand(engine):
    """From w = 7/8, v_1 = 45/32, v_2 = 13/16; the centre of the pull is the received w, neither w_k nor the next w.

    w_1: 45/32 -> 231/128. w_2: 11/16 -> 19/32. By examples (231 + 4 * 76)/640 = 107/128.
    v_1 <- (5 v + 19/4)/8: 377/256 -> (1885 + 1216)/2048 = 3101/2048. v_2 <- (4 v + 11/4)/8: 3/4 -> 23/32.
    """
    agree(fit(flat(mo.ditto, lr=1 / 4, steps=2, **HAND), engine, rounds=2), Q(107, 128), Q(3101, 2048), Q(23, 32))


@ENGINES
def test_finetuning_form_by_hand(engine):
    """w stays 1. v_1 <- (5 v + 5)/8: 45/32 -> 385/256 -> 3205/2048. v_2 <- (4 v + 3)/8: 13/16 -> 25/32 -> 49/64."""
    run = fit(flat(mo.ditto, form="finetune", **HAND), engine, rounds=2)
    agree(run, 1, Q(3205, 2048), Q(49, 64))
    assert run.ledger["down_values"] == 2 * 2 * 8
    assert (run.ledger["up_values"], run.ledger["up_payload"]) == (0, 0)


def test_what_is_clipped_is_the_gradient_of_the_loss():
    """Client 1, clip 1/2: its gradients -2 and -31/16 count as -1/2, while the pull of 2/16 stays whole.

    v: 1 -> 17/16 -> 17/16 + (1/2 - 1/8)/8 = 71/64; within the 1e-6 that clipping adds to a norm.
    """
    run = fit(flat(mo.ditto, form="finetune", clip=0.5, **HAND))
    assert float(run.parameters(0)["w"]) == pytest.approx(71 / 64, abs=1e-6)


CASES = [
    ("examples", {}),
    ("batches", {"momentum": 0.5}),
    ("uniform", {"weight_decay": 0.25}),
    ("batches", {"momentum": 0.9, "weight_decay": 0.05, "clip": 1.5}),
]


@ENGINES
@pytest.mark.parametrize(("weighting", "options"), CASES, ids=["plain", "momentum", "decay", "all"])
def test_trajectory_in_numpy(engine, weighting, options):
    """Uneven clients, different numbers of steps for w and v, a server of rate 1, rates halved from round 3 on."""
    sizes = [1, 7, 3, 12]
    clients, w = vector_clients(sizes), {"u": np.array([0.5, -1.0]), "v": np.array([0.25, 2.0])}
    algorithm = flat(
        mo.ditto,
        lr=0.1,
        personal_lr=0.2,
        pull=0.7,
        epochs=2,
        personal_steps=3,
        batch_size=4,
        shuffle=False,
        weighting=weighting,
        schedule=mo.schedule.exponential(halve_every=2),
        **options,
    )
    split = split_of(["u", "v"], [], {"u": 2, "v": 2})
    run = mo.fit(vector_task(w["u"], w["v"]), federated(clients), algorithm, split=split, rounds=3, engine=engine)
    index_w = [ref.batches(n, 4, epochs=2) for n in sizes]
    index_v = [ref.batches(n, 4, steps=3) for n in sizes]
    weights = [ref.weight_of(weighting, n, -(-n // 4)) for n in sizes]
    vs = [w] * 4
    for scale in (1.0, 1.0, 0.5):
        rates = {"eta": 0.1 * scale, "eta_v": 0.2 * scale, "pull": 0.7}
        index = {"index_w": index_w, "index_v": index_v}
        w, vs = pulled.ditto_round(w, vs, clients, weights, **rates, **index, matrices=MATRICES, **options)
    for k in w:
        np.testing.assert_allclose(run.shared_parameters()[k].numpy(), w[k], rtol=1e-10, atol=1e-12)
        for i, v in enumerate(vs):
            np.testing.assert_allclose(run.parameters(i)[k].numpy(), v[k], rtol=1e-10, atol=1e-12)


def network():
    return mo.models.mlp(4, 3, hidden=(5,), seed=2).double()


COMMON = {"batch_size": 8, "shuffle": False}


def same(actual, expected, tolerance=1e-12):
    for name, p in expected.items():
        torch.testing.assert_close(actual[name], p, rtol=0, atol=tolerance)


@ENGINES
@pytest.mark.parametrize("options", [{}, {"momentum": 0.5, "weight_decay": 0.1, "clip": 0.5}], ids=["plain", "all"])
def test_without_a_pull_it_is_local_training_beside_fedavg(engine, options):
    """Two of four clients in each round: v_k is local training from w^0, whenever its turn comes, and w is FedAvg."""
    common = {**COMMON, **options}
    both = flat(mo.ditto, lr=0.1, personal_lr=0.3, pull=0.0, epochs=1, personal_epochs=2, **common)
    run, local, average = (
        mo.fit(network(), DATA, algorithm, rounds=4, cohort=2, engine=engine)
        for algorithm in (both, flat(mo.local_only, lr=0.3, epochs=2, **common), flat(mo.fedavg, lr=0.1, **common))
    )
    same(run.shared_parameters(), average.shared_parameters())
    clients = [i for i in range(4) if not torch.equal(local.parameters(i)["head.bias"], network().head.bias)]
    assert len(clients) >= 3, "one of them was not asked in the first round"
    for client in clients:
        same(run.parameters(client), local.parameters(client))


def test_a_strong_pull_with_a_stable_step_gives_the_received_model():
    """With personal_lr = 1 / pull a step is v <- w - grad F(v) / pull, so v_k is the w of the last round."""
    common = {"lr": 0.1, **COMMON}
    run = mo.fit(network(), DATA, flat(mo.ditto, personal_lr=1e-9, pull=1e9, **common), rounds=3, engine="sequential")
    before = mo.fit(network(), DATA, flat(mo.fedavg, **common), rounds=2, engine="sequential").shared_parameters()
    for client in range(4):
        same(run.parameters(client), before, 1e-7)


def test_the_pull_does_not_touch_the_shared_model():
    one, other = (
        mo.fit(network(), DATA, mo.ditto(shared=0.1, personal=mo.sgd(0.1, pull=pull)), rounds=2, engine="sequential")
        for pull in (0.0, 3.0)
    )
    assert all(torch.equal(p, other.shared_parameters()[n]) for n, p in one.shared_parameters().items())
    assert not torch.equal(one.parameters(1)["head.bias"], other.parameters(1)["head.bias"])


@ENGINES
def test_a_client_that_was_never_asked_has_the_shared_model(engine):
    run = mo.fit(
        network(), DATA, mo.ditto(shared=0.1, personal=mo.sgd(0.1, pull=1.0)), rounds=2, cohort=1, engine=engine
    )
    shared = run.shared_parameters()
    never = [i for i in range(4) if all(torch.equal(p, shared[n]) for n, p in run.parameters(i).items())]
    assert len(never) in (2, 3)
    assert [run.clients[i]["gain"] for i in never] == [0.0] * len(never)
    assert not torch.equal(shared["head.bias"], network().head.bias)


def test_onboarding_is_the_pulled_steps_from_the_received_model():
    """y = m x + c at x = 0 and loss (c - y)^2: the client with y = 4 and lr 1/4 takes w's c from 0 to 2.

    A newcomer with y = 10, personal_lr 1/4, pull 1: c = 2 - 2 (2 - 10)/4 = 6, then 6 - (2 (6 - 10) + (6 - 2))/4 = 7.
    """
    line = torch.nn.Linear(1, 1).double()
    with torch.no_grad():
        line.weight.zero_()
        line.bias.zero_()
    data = federated([{"x": np.zeros((2, 1)), "y": np.full((2, 1), 4.0)}])
    run = mo.fit(line, data, mo.ditto(shared=0.25, personal=mo.sgd(0.25, pull=1.0)), rounds=1, engine="sequential")
    for passes, bias in ((1, 6.0), (2, 7.0)):
        new = run.onboard({"x": np.zeros((1, 1)), "y": np.full((1, 1), 10.0)}, passes=passes)
        assert (float(new.bias.detach()), float(new.weight.detach())) == (bias, 0.0)


def test_costs():
    """43 numbers go down and up; on the device twice the personal model (and a mark) more than with FedAvg."""
    numbers = 5 * 5 + 6 * 3
    ditto, fedavg = (
        mo.fit(network(), DATA, algorithm, rounds=1, engine="sequential").ledger
        for algorithm in (mo.ditto(shared=0.1, personal=mo.sgd(0.1, pull=1.0, epochs=3)), mo.fedavg(shared=0.1))
    )
    assert ditto["down_values"] == ditto["up_values"] == fedavg["up_values"] == 4 * numbers * 8
    assert ditto["flops"] == 4 * fedavg["flops"]
    assert ditto["device_memory"] - fedavg["device_memory"] == 2 * (numbers * 8 + 1)


@pytest.mark.parametrize("stats", ["personal", "shared"])
def test_each_of_the_two_models_has_its_running_statistics(stats):
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    split = mo.split.nothing(net, running_stats=stats)
    data = federated(image_clients([8, 6]))
    run = mo.fit(
        net, data, mo.ditto(shared=0.1, personal=mo.sgd(0.1, pull=0.1)), split=split, rounds=2, engine="sequential"
    )
    means = [run.parameters(i)["1.running_mean"] for i in (0, 1)]
    assert not torch.equal(means[0], means[1])
    assert torch.equal(run.shared_parameters()["1.running_mean"], torch.zeros(5)) == (stats == "personal")


def test_it_refuses_a_split_with_something_personal():
    net = network()
    algorithm = mo.ditto(shared=0.1, personal=mo.sgd(0.1, pull=1.0))
    with pytest.raises(MoietyError, match=r"^`split` must be one with nothing personal for ditto, got "):
        mo.fit(net, DATA, algorithm, split=mo.split.output_layer(net), rounds=1, engine="sequential")


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("shared", lambda: mo.ditto(personal=0.1)),
        ("shared", lambda: mo.ditto(shared=0, personal=0.1)),
        ("lr", lambda: mo.ditto(shared=mo.sgd(0), personal=0.1)),
        ("personal", lambda: mo.ditto(shared=0.1, personal=0)),
        ("pull", lambda: mo.ditto(shared=0.1, personal=mo.sgd(0.1, pull=-1))),
        ("pull", lambda: mo.ditto(shared=0.1, personal=mo.sgd(0.1, pull=float("inf")))),
        ("form", lambda: mo.ditto(shared=0.1, personal=0.1, form="both")),
        ("steps", lambda: mo.ditto(shared=mo.sgd(0.1, steps=0), personal=0.1)),
        ("epochs", lambda: mo.ditto(shared=0.1, personal=mo.sgd(0.1, epochs=1, steps=1))),
        ("weighting", lambda: mo.ditto(shared=0.1, personal=0.1, weighting="size")),
        ("shared.pull", lambda: mo.ditto(shared=mo.sgd(0.1, pull=1.0), personal=0.1)),
        ("shared", lambda: mo.ditto(shared=0.1, personal=0.1, form="finetune")),
        ("shared", lambda: mo.ditto(shared=mo.sgd(0.1, epochs=2), personal=0.1, form="finetune")),
        ("shared", lambda: mo.ditto(shared=mo.sgd(0.1, steps=2), personal=0.1, form="finetune")),
        ("weighting", lambda: mo.ditto(personal=0.1, form="finetune", weighting="uniform")),
        ("server", lambda: mo.ditto(personal=0.1, form="finetune", server=mo.server.adam(lr=0.1))),
    ],
)
def test_wrong_hyper_parameters_are_one_line(name, build):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build()
