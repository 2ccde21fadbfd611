"""Server optimisers by hand and by NumPy, from Reddi et al. 2021 ("Adaptive Federated Optimization", Algorithm 2).

With Delta_t the mean change of the clients: m_t = b1 m_{t-1} + (1 - b1) Delta_t; v_t is v_{t-1} + Delta_t^2 (Adagrad),
v_{t-1} - (1 - b2) Delta_t^2 sign(v_{t-1} - Delta_t^2) (Yogi) or b2 v_{t-1} + (1 - b2) Delta_t^2 (Adam);
x_{t+1} = x_t + eta m_t / (sqrt(v_t) + tau); v_{-1} = tau^2, the least the paper allows.
"""

import copy
import math

import numpy as np
import pytest
import torch
from oracle_problems import federated, scalar_task, split_of

import moiety as mo
from moiety.errors import MoietyError
from moiety.server import SERVERS, averaging

CHANGES = np.random.default_rng(0).normal(size=(6, 3)) * np.array([1.0, 0.1, 5.0])
START = np.array([1.0, -2.0, 0.5])


def walk(optimiser, changes=CHANGES, start=START):
    """The shared parameter after each change, through the server of an averaging algorithm."""
    server = averaging.init_server(optimiser, {"p": torch.tensor(start)}, {})
    path = []
    for change in changes:
        server = averaging.server_update(optimiser, server, {"p": torch.tensor(change)})
        path.append(averaging.broadcast(server)["p"].numpy().copy())
    return np.array(path)


def test_plain_averaging_adds_the_change():
    np.testing.assert_allclose(walk(mo.server.sgd()), START + np.cumsum(CHANGES, 0), rtol=1e-14)
    np.testing.assert_allclose(walk(mo.server.sgd(lr=0.5)), START + 0.5 * np.cumsum(CHANGES, 0), rtol=1e-14)


def test_fedadam_by_hand():
    """Bias-corrected Adam, b1 = 1/2, b2 = 3/4, rate 1/10, from 1 with changes 2 and 1; eps moves the ninth digit.

    Round 1: m = 1, corrected 1/(1/2) = 2; v = 1/4 * 4 = 1, corrected 1/(1/4) = 4: 1 + 1/10 * 2/2 = 1.1.
    Round 2: m = 1/2 + 1/2 = 1, corrected 1/(3/4) = 4/3; v = 3/4 + 1/4 = 1, corrected 1/(7/16) = 16/7, root 4/sqrt(7):
    1.1 + 1/10 * sqrt(7)/3.
    """
    points = walk(mo.server.adam(lr=0.1, beta1=0.5, beta2=0.75), np.array([[2.0], [1.0]]), np.array([1.0]))
    assert points[:, 0] == pytest.approx([1.1, 1.1 + 0.1 * math.sqrt(7) / 3], rel=1e-8)


def test_fedadam_has_the_constants_of_the_authors():
    """0.9, 0.999 and 1e-8: a first step of size lr, whatever the change, then the formula."""
    m, v, x, path = 0.0, 0.0, START.copy(), []
    for t, d in enumerate(CHANGES, start=1):
        m, v = 0.9 * m + 0.1 * d, 0.999 * v + 0.001 * d**2
        x = x + 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        path.append(x)
    np.testing.assert_allclose(walk(mo.server.adam(lr=0.01)), path, rtol=1e-9)
    np.testing.assert_allclose(np.abs(path[0] - START), 0.01, rtol=1e-6)


def test_fedavgm():
    """v_t = momentum v_{t-1} + Delta_t, x_{t+1} = x_t + lr v_t.

    By hand, 0.5 and changes 4, 2: v is 4 then 4, so 4 lr each.
    """
    points = walk(mo.server.sgd(lr=0.5, momentum=0.5), np.array([[4.0], [2.0]]), np.array([1.0]))
    assert points[:, 0].tolist() == [3.0, 5.0]
    v, x, path = 0.0, START.copy(), []
    for d in CHANGES:
        v = 0.9 * v + d
        x = x + 0.3 * v
        path.append(x)
    np.testing.assert_allclose(walk(mo.server.sgd(lr=0.3, momentum=0.9)), path, rtol=1e-12)


def test_fedadagrad_is_that_of_reddi_et_al():
    eps = 1e-10
    v, x, path = eps**2, START.copy(), []
    for d in CHANGES:
        v = v + d**2
        x = x + 0.1 * d / (np.sqrt(v) + eps)
        path.append(x)
    np.testing.assert_allclose(walk(mo.server.adagrad(lr=0.1, eps=eps)), path, rtol=1e-12)


def test_fedadagrad_starts_no_lower_than_reddi_et_al_allow():
    """v_{-1} >= tau^2.

    A first change of tau: x = lr tau / (sqrt(2) tau + tau) = lr / (1 + sqrt 2); from v = 0 it would be lr / 2.
    """
    points = walk(mo.server.adagrad(lr=0.1, eps=0.01), np.array([[0.01]]), np.array([0.0]))
    assert points[0, 0] <= 0.1 / (1 + math.sqrt(2)) * (1 + 1e-12)


def test_fedyogi_is_that_of_reddi_et_al():
    m, v, x, path = 0.0, 1e-6, START.copy(), []
    for d in CHANGES:
        m = 0.9 * m + 0.1 * d
        v = v - 0.01 * d**2 * np.sign(v - d**2)
        x = x + 0.1 * m / (np.sqrt(v) + 1e-3)
        path.append(x)
    np.testing.assert_allclose(walk(mo.server.yogi(lr=0.1)), path, rtol=1e-12)


def test_fedyogi_falls_slowly_after_a_large_change():
    """v = 1 after a change of about 10 (0.01 * 100).

    A small change d then lowers it by 0.01 d^2 only, where Adam would by 1%.
    """
    optimiser = mo.server.yogi(lr=1.0, beta1=0.0)
    path = walk(optimiser, np.array([[10.0], [1e-3]]), np.array([0.0]))
    v1 = 1e-6 + 0.01 * 100
    v2 = v1 - 0.01 * 1e-6
    assert path[0, 0] == pytest.approx(10 / (math.sqrt(v1) + 1e-3), rel=1e-12)
    assert path[1, 0] - path[0, 0] == pytest.approx(1e-3 / (math.sqrt(v2) + 1e-3), rel=1e-9)


OPTIMISERS = {
    "sgd": mo.server.sgd(lr=0.5),
    "momentum": mo.server.sgd(lr=0.5, momentum=0.9),
    "adam": mo.server.adam(lr=0.1),
    "adagrad": mo.server.adagrad(lr=0.1),
    "yogi": mo.server.yogi(lr=0.1),
}


CLASSES = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-10, initial_accumulator_value=1e-20),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_bit_for_bit_the_classes_of_torch(name, dtype):
    """With the negative of the change as the gradient; a number of no dimension is a parameter too."""
    draw = torch.Generator().manual_seed(0)
    shared = {"a": torch.randn(3, 2, dtype=dtype, generator=draw), "b": torch.randn((), dtype=dtype, generator=draw)}
    params = [p.clone().requires_grad_() for p in shared.values()]
    optimiser, state = CLASSES[name](params), {}
    for _ in range(4):
        change = {k: torch.randn(p.shape, dtype=dtype, generator=draw) for k, p in shared.items()}
        shared, state = OPTIMISERS[name].step(shared, change, state)
        for p, each in zip(params, change.values(), strict=True):
            p.grad = -each
        optimiser.step()
        for p, tensor, entry in zip(params, shared.values(), state.values(), strict=True):
            assert torch.equal(tensor, p)
            assert entry.keys() == optimiser.state[p].keys()
            assert all(torch.equal(entry[key], value) for key, value in optimiser.state[p].items())


@pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)
def test_running_statistics_are_averaged_plainly(optimiser):
    """They are no gradients: whatever the optimiser and its rate, they move by the mean change."""
    statistics = {"mean": torch.tensor([1.0, 2.0]), "count": torch.tensor(7)}
    server = averaging.init_server(optimiser, {"p": torch.zeros(1)}, statistics)
    change = {"p": torch.ones(1), "mean": torch.tensor([0.25, -1.0]), "count": torch.tensor(2)}
    for _ in range(2):
        server = averaging.server_update(optimiser, server, change)
    down = averaging.broadcast(server)
    assert down["mean"].tolist() == [1.5, 0.0]
    assert int(down["count"]) == 11
    assert down["count"].dtype == torch.int64
    assert set(server.optimiser) <= {"p"}


@pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)
def test_state_in_state_out(optimiser):
    """Pure: the arguments are not edited, and the same step from the same state gives the same."""
    server = averaging.init_server(optimiser, {"p": torch.tensor(START)}, {})
    server = averaging.server_update(optimiser, server, {"p": torch.tensor(CHANGES[0])})
    twin, change = copy.deepcopy(server), {"p": torch.tensor(CHANGES[1])}
    one = averaging.server_update(optimiser, server, change)
    assert torch.equal(server.shared["p"], twin.shared["p"])
    for key, value in twin.optimiser.get("p", {}).items():
        assert torch.equal(server.optimiser["p"][key], value)
    assert torch.equal(change["p"], torch.tensor(CHANGES[1]))
    other = averaging.server_update(optimiser, twin, change)
    assert torch.equal(one.shared["p"], other.shared["p"])
    assert not one.shared["p"].requires_grad


def test_a_dict_in_another_order_is_the_same():
    """The change of a name goes to that name."""
    optimiser = mo.server.adam(lr=0.1)
    shared = {"a": torch.zeros(1), "b": torch.zeros(1)}
    server = averaging.init_server(optimiser, shared, {})
    server = averaging.server_update(optimiser, server, {"b": -torch.ones(1), "a": torch.ones(1)})
    assert (float(server.shared["a"]), float(server.shared["b"])) == pytest.approx((0.1, -0.1), rel=1e-6)


def test_fedadam_through_fit_for_two_rounds():
    """F = (u - 3)^2 / 2, one client step of rate 1/2 a round from 0, and Adam of rate 1 at the server.

    Delta_1 = 3/2 and Adam steps by 1 (to 1e-8): u = 1. Delta_2 = 1. m = 0.9 * 0.15 + 0.1 = 0.235, corrected
    0.235/0.19; v = 0.999 * 0.00225 + 0.001 = 0.00324775, corrected 0.00324775/0.001999.
    """
    data = federated([{"a": np.ones(1), "b": np.zeros(1), "y": np.full(1, 3.0)}])
    algorithm = mo.fedsim(shared=0.5, personal=0.5, server=mo.server.adam(lr=1.0))
    run = mo.fit(scalar_task(0.0), data, algorithm, split=split_of(["u"], ["v"]), rounds=2, engine="sequential")
    expected = 1 + (0.235 / 0.19) / math.sqrt(0.00324775 / 0.001999)
    assert float(run.shared_parameters()["u"]) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_rates_are_checked(name):
    with pytest.raises(MoietyError, match=r"^`server.lr` must be > 0 and finite, got 0"):
        SERVERS[name](lr=0)


def test_constants_are_checked():
    for wrong in ({"beta1": 1.0}, {"beta2": -0.1}, {"eps": 0}):
        (name,) = wrong
        with pytest.raises(MoietyError, match=f"^`server.{name}` must be "):
            mo.server.adam(lr=0.1, **wrong)
    with pytest.raises(MoietyError, match=r"^`server.momentum` must be "):
        mo.server.sgd(momentum=1.0)
