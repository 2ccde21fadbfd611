"""PFedMe by hand, its proximal steps against closed forms, in NumPy, in its limit, and what is its own.

The problem of the tests by hand is that of test_ditto.py: dF/dw = w - 3 for client 1 (one example) and 2 w - 1 for
client 2 (four), start w = 1. With personal_lr = 1/8, pull = 2, lr = 1/4 the steps are

    client 1:  theta <- theta - (theta - 3 + 2 (theta - w))/8 = (5 theta + 3 + 2 w)/8
    client 2:  theta <- theta - (2 theta - 1 + 2 (theta - w))/8 = (4 theta + 1 + 2 w)/8
    both:      w <- w - (1/4) 2 (w - theta) = (w + theta)/2
"""

from fractions import Fraction as Q

import numpy as np
import oracle_numpy as ref
import oracle_pulled as pulled
import pytest
import torch
from flat_options import flat
from oracle_problems import even_clients, federated, image_clients, scalar_task, split_of, vector_clients, vector_task

import moiety as mo
from moiety.errors import MoietyError
from moiety.task import from_functions

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
CLIENTS = [
    {"a": np.array([1.0]), "y": np.array([3.0])},
    {"a": np.array([2.0, 0, 2, 0]), "y": np.array([1.0, 3, 1, 3])},
]
HAND = {"lr": 1 / 4, "personal_lr": 1 / 8, "pull": 2.0, "inner_steps": 2, "steps": 2, "batch_size": 4, "shuffle": False}
SIZES = (1, 13, 6, 20)
DATA = federated(image_clients(SIZES))
MATRICES = {"u": "a", "v": "b"}
WIDTHS = {"u": 2, "v": 2}


def fit(algorithm, engine="sequential", rounds=1, **options):
    init = {"w": torch.ones((), dtype=torch.float64)}
    task = from_functions(init, lambda p, d: (d["a"] * p["w"] - d["y"]).square() / 2)
    return mo.fit(task, federated(CLIENTS), algorithm, split=split_of(["w"]), rounds=rounds, engine=engine, **options)


def agree(run, w, theta1, theta2):
    values = [float(p["w"]) for p in (run.shared_parameters(), run.parameters(0), run.parameters(1))]
    assert values == pytest.approx([float(w), float(theta1), float(theta2)], rel=1e-13)


def one_round(w):
    """R = 2 and K = 2 from w, in fractions: w_{i,2} and theta_i of both clients."""
    pairs = []
    for slope, constant in ((5, 3), (4, 1)):
        w_i, theta = w, w
        for _ in range(2):
            for _ in range(2):
                theta = (slope * theta + constant + 2 * w_i) / 8
            w_i = (w_i + theta) / 2
        pairs.append((w_i, theta))
    return pairs


def test_one_round_by_hand():
    """Client 1: theta 1 -> 5/4 -> 45/32, w = 77/64; theta -> 199/128 -> 1687/1024, w = (1232 + 1687)/2048.

    Client 2: theta 1 -> 7/8 -> 13/16, w = 29/32; theta -> 97/128 -> 187/256, w = (232 + 187)/512.
    """
    assert one_round(Q(1)) == [(Q(2919, 2048), Q(1687, 1024)), (Q(419, 512), Q(187, 256))]


@ENGINES
@pytest.mark.parametrize(
    ("options", "w"),
    [
        ({}, Q(9623, 10240)),
        ({"weighting": "uniform"}, Q(4595, 4096)),
        ({"server": mo.server.sgd(lr=0.5)}, Q(19863, 20480)),
    ],
    ids=["examples", "uniform", "beta"],
)
def test_first_round(engine, options, w):
    """By examples (2919 + 4 * 1676)/10240 = 9623/10240; uniform (2919 + 1676)/4096.

    With beta = 1/2, (1 + 9623/10240)/2.
    """
    agree(fit(flat(mo.pfedme, **HAND, **options), engine), w, Q(1687, 1024), Q(187, 256))


@ENGINES
def test_second_round(engine):
    """Theta starts anew at the received w, so the second round is the first one from another w."""
    (w1, theta1), (w2, theta2) = one_round(Q(9623, 10240))
    agree(fit(flat(mo.pfedme, **HAND), engine, rounds=2), (w1 + 4 * w2) / 5, theta1, theta2)


@ENGINES
@pytest.mark.parametrize("pull", [0.5, 2.0, 8.0])
def test_many_inner_steps_are_the_proximal_point(engine, pull):
    """theta_i = (A_i + lambda I)^-1 (b_i + lambda w): the pull acts, and as strongly as it says."""
    clients = even_clients([5, 6, 8], seed=1)
    start = {"u": np.array([3.0, -2.0]), "v": np.array([-1.0, 4.0])}
    algorithm = mo.pfedme(shared=mo.sgd(0.1, steps=1), personal=mo.sgd(1 / (4 + pull), pull=pull, steps=60))
    task, split = vector_task(start["u"], start["v"]), split_of(["u", "v"], [], WIDTHS)
    run = mo.fit(task, federated(clients), algorithm, split=split, rounds=1, engine=engine)
    w = np.concatenate([start["u"], start["v"]])
    for i, data in enumerate(clients):
        theta = np.concatenate([run.parameters(i)[k].numpy() for k in "uv"])
        np.testing.assert_allclose(theta, pulled.proximal(w, data, pull, MATRICES), atol=1e-9, rtol=0)
        free = np.linalg.solve(*pulled.make_quadratic(data, MATRICES))
        assert np.abs(theta - free).max() > 0.1, "or a pull that does nothing would pass"


def test_a_local_step_is_a_gradient_step_on_the_moreau_envelope():
    """For one client, w - lr grad F(w), F(w) = min_theta f(theta) + (lambda/2) ||theta - w||^2 by central differences.

    F is quadratic, so central differences are exact but for rounding.
    """
    (data,) = even_clients([7], seed=2)
    w, pull = np.array([3.0, -2.0, -1.0, 4.0]), 1.5

    def envelope(at):
        theta = pulled.proximal(at, data, pull, MATRICES)
        residual = np.hstack([data["a"], data["b"]]) @ theta - data["y"]
        return (residual**2 / 2).mean() + pull / 2 * ((theta - at) ** 2).sum()

    slope = np.array([(envelope(w + e) - envelope(w - e)) / 2 for e in np.eye(4)])
    algorithm = mo.pfedme(shared=mo.sgd(0.3, steps=1), personal=mo.sgd(0.2, pull=pull, steps=60))
    task, split = vector_task(w[:2], w[2:]), split_of(["u", "v"], [], WIDTHS)
    run = mo.fit(task, federated([data]), algorithm, split=split, rounds=1, engine="sequential")
    end = np.concatenate([run.shared_parameters()[k].numpy() for k in "uv"])
    np.testing.assert_allclose(end, w - 0.3 * slope, atol=1e-9, rtol=0)


CASES = [
    ("examples", {}),
    ("batches", {"momentum": 0.5}),
    ("uniform", {"weight_decay": 0.25}),
    ("batches", {"momentum": 0.9, "weight_decay": 0.05, "clip": 1.5}),
]


@ENGINES
@pytest.mark.parametrize(("weighting", "options"), CASES, ids=["plain", "momentum", "decay", "all"])
def test_trajectory_in_numpy(engine, weighting, options):
    """Uneven clients, whose minibatches are padded where clients are vectorised; beta 3/4; rates halved in round 3."""
    sizes = [1, 7, 3, 12]
    clients, w = vector_clients(sizes), {"u": np.array([0.5, -1.0]), "v": np.array([0.25, 2.0])}
    algorithm = flat(
        mo.pfedme,
        lr=0.3,
        personal_lr=0.1,
        pull=1.5,
        inner_steps=3,
        epochs=2,
        batch_size=4,
        shuffle=False,
        weighting=weighting,
        server=mo.server.sgd(lr=0.75),
        schedule=mo.schedule.exponential(halve_every=2),
        **options,
    )
    task, split = vector_task(w["u"], w["v"]), split_of(["u", "v"], [], WIDTHS)
    run = mo.fit(task, federated(clients), algorithm, split=split, rounds=3, engine=engine)
    index = [ref.batches(n, 4, epochs=2) for n in sizes]
    weights = [ref.weight_of(weighting, n, -(-n // 4)) for n in sizes]
    for scale in (1.0, 1.0, 0.5):
        rates = {"eta": 0.3 * scale, "eta_v": 0.1 * scale, "pull": 1.5, "inner": 3, "beta": 0.75}
        w, thetas = pulled.pfedme_round(w, clients, weights, **rates, index=index, matrices=MATRICES, **options)
    for k in w:
        np.testing.assert_allclose(run.shared_parameters()[k].numpy(), w[k], rtol=1e-10, atol=1e-12)
        for i, theta in enumerate(thetas):
            np.testing.assert_allclose(run.parameters(i)[k].numpy(), theta[k], rtol=1e-10, atol=1e-12)


def network():
    return mo.models.mlp(4, 3, hidden=(5,), seed=2).double()


@ENGINES
def test_one_inner_step_on_one_minibatch_is_fedavg(engine):
    """theta = w - personal_lr grad f(w), so w moves by lr pull personal_lr grad f(w): 0.5 * 2 * 0.1 = 0.1."""
    common = {"steps": 1, "batch_size": 8, "shuffle": False}
    pfedme = flat(mo.pfedme, lr=0.5, personal_lr=0.1, pull=2.0, inner_steps=1, **common)
    one, other = (
        mo.fit(network(), DATA, algorithm, rounds=4, cohort=3, engine=engine)
        for algorithm in (pfedme, flat(mo.fedavg, lr=0.1, **common))
    )
    for name, p in other.shared_parameters().items():
        torch.testing.assert_close(one.shared_parameters()[name], p, rtol=0, atol=1e-13)


@ENGINES
def test_the_training_loss_is_the_mean_over_real_minibatches(engine):
    """Rates of nothing to speak of: the loss is that of u = 1, v = 0 on each minibatch, here of one row.

    Four rows with (1 - 3)^2 / 2 = 2 and five with (1 - 0)^2 / 2 = 1/2: by examples (4 * 2 + 5 / 2)/9 = 7/6. Vectorised,
    the first client's fifth minibatch is padding, and does not count.
    """
    rows = [{"a": np.ones(n), "b": np.ones(n), "y": np.full(n, y)} for n, y in ((4, 3.0), (5, 0.0))]
    algorithm = mo.pfedme(shared=mo.sgd(1e-9, batch_size=1), personal=mo.sgd(1e-9, pull=1.0, steps=2))
    run = mo.fit(scalar_task(), federated(rows), algorithm, split=split_of(["u", "v"]), rounds=1, engine=engine)
    assert run.history[-1]["train_loss"] == pytest.approx(7 / 6, rel=1e-7)


@ENGINES
def test_a_client_that_was_never_asked_has_the_shared_model(engine):
    algorithm = mo.pfedme(shared=0.5, personal=mo.sgd(0.1, pull=1.0))
    run = mo.fit(network(), DATA, algorithm, rounds=2, cohort=1, engine=engine)
    shared = run.shared_parameters()
    never = [i for i in range(4) if all(torch.equal(p, shared[n]) for n, p in run.parameters(i).items())]
    assert len(never) in (2, 3)
    assert [run.clients[i]["gain"] for i in never] == [0.0] * len(never)
    assert not torch.equal(shared["head.bias"], network().head.bias)


def test_onboarding_is_the_proximal_point_of_the_received_model():
    """y = m x + c at x = 0 with loss (c - y)^2, personal_lr 1/4, pull 1, K = 2.

    The client with y = 4: theta 0 -> 2 -> 2 - (2 (2 - 4) + 2)/4 = 5/2, and with lr 2/5 w = 1. A newcomer with y = 10:
    1 -> 1 - 2 (1 - 10)/4 = 11/2 -> 11/2 - (-9 + 9/2)/4 = 53/8. In the end (2 * 10 + 1)/3 = 7.
    """
    line = torch.nn.Linear(1, 1).double()
    with torch.no_grad():
        line.weight.zero_()
        line.bias.zero_()
    data = federated([{"x": np.zeros((2, 1)), "y": np.full((2, 1), 4.0)}])
    algorithm = mo.pfedme(shared=0.4, personal=mo.sgd(0.25, pull=1.0, steps=2))
    run = mo.fit(line, data, algorithm, rounds=1, engine="sequential")
    assert float(run.parameters(0)["bias"]) == 2.5
    assert float(run.shared_parameters()["bias"]) == 1.0
    for passes, bias in ((1, 53 / 8), (30, 7.0)):
        new = run.onboard({"x": np.zeros((1, 1)), "y": np.full((1, 1), 10.0)}, passes=passes)
        assert float(new.bias.detach()) == pytest.approx(bias, rel=1e-12)
        assert float(new.weight.detach()) == 0.0


def test_costs():
    """Every row is used K times; 43 numbers go down and up; on the device, theta twice (and a mark) more."""
    numbers = 5 * 5 + 6 * 3
    pfedme, fedavg = (
        mo.fit(network(), DATA, algorithm, rounds=1, engine="sequential").ledger
        for algorithm in (mo.pfedme(shared=0.1, personal=mo.sgd(0.1, pull=1.0, steps=7)), mo.fedavg(shared=0.1))
    )
    assert pfedme["down_values"] == pfedme["up_values"] == fedavg["up_values"] == 4 * numbers * 8
    assert pfedme["flops"] == 7 * fedavg["flops"]
    assert pfedme["device_memory"] - fedavg["device_memory"] == 2 * (numbers * 8 + 1)


@pytest.mark.parametrize("stats", ["personal", "shared"])
def test_running_statistics_are_those_of_the_personal_model(stats):
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    split = mo.split.nothing(net, running_stats=stats)
    data = federated(image_clients([8, 6]))
    algorithm = mo.pfedme(shared=0.1, personal=mo.sgd(0.1, pull=1.0, steps=3))
    run = mo.fit(net, data, algorithm, split=split, rounds=2, engine="sequential")
    assert [int(run.parameters(i)["1.num_batches_tracked"]) for i in (0, 1)] == [6, 6]
    assert int(run.shared_parameters()["1.num_batches_tracked"]) == (0 if stats == "personal" else 6)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("shared", lambda: mo.pfedme(shared=0, personal=mo.sgd(0.1, pull=1.0))),
        ("lr", lambda: mo.pfedme(shared=0.1, personal=mo.sgd(-1, pull=1.0))),
        ("personal.pull", lambda: mo.pfedme(shared=0.1, personal=mo.sgd(0.1, pull=0))),
        ("personal.pull", lambda: mo.pfedme(shared=0.1, personal=0.1)),
        ("steps", lambda: mo.pfedme(shared=0.1, personal=mo.sgd(0.1, pull=1.0, steps=0))),
        ("epochs", lambda: mo.pfedme(shared=mo.sgd(0.1, epochs=1, steps=1), personal=mo.sgd(0.1, pull=1.0))),
        ("weighting", lambda: mo.pfedme(shared=0.1, personal=mo.sgd(0.1, pull=1.0), weighting="size")),
        ("momentum", lambda: mo.pfedme(shared=0.1, personal=mo.sgd(0.1, pull=1.0, momentum=1.0))),
    ],
)
def test_wrong_hyper_parameters_are_one_line(name, build):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build()
