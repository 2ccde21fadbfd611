"""SCAFFOLD by hand, in NumPy from the pseudocode, in its limits, and what crosses."""

from fractions import Fraction as Q

import numpy as np
import oracle_numpy as ref
import pytest
import torch
from flat_options import flat
from oracle_problems import even_clients, federated, image_clients, split_of, vector_clients, vector_task
from oracle_pulled import cut, make_quadratic
from run_settings import with_settings

import moiety as mo
from moiety.errors import MoietyError
from moiety.task import from_functions

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
MATRICES = {"u": "a", "v": "b"}
SPLIT = split_of(["u", "v"], [], {"u": 2, "v": 2})
W = {"u": np.array([0.5, -1.0]), "v": np.array([0.25, 2.0])}


def fit_hand(rounds, engine):
    """f(w; a, y) = (a w - y)^2 / 2 from w = 1; dF_1/dw = w - 3 (one row), dF_2/dw = 2 w - 1 (four rows)."""
    clients = [
        {"a": np.array([1.0]), "y": np.array([3.0])},
        {"a": np.array([2.0, 0, 2, 0]), "y": np.array([1.0, 3, 1, 3])},
    ]
    task = from_functions(
        {"w": torch.ones((), dtype=torch.float64)}, lambda p, d: (d["a"] * p["w"] - d["y"]).square() / 2
    )
    algorithm = mo.scaffold(shared=mo.sgd(1 / 4, steps=2, batch_size="all"))
    return mo.fit(task, federated(clients), algorithm, split=split_of(["w"]), rounds=rounds, engine=engine)


@ENGINES
@pytest.mark.parametrize(("rounds", "x", "c"), [(1, Q(5, 4), Q(-1, 2)), (2, Q(21, 16), Q(-1, 8))])
def test_two_rounds_by_hand(engine, rounds, x, c):
    """K = 2, eta_l = 1/4, eta_g = 1, option II.

    Round 1, all controls 0. y_1: 1 -> 3/2 -> 15/8, so c_1 = (1 - 15/8) / (2/4) = -7/4. y_2: 1 -> 3/4 -> 5/8, so
    c_2 = 3/4. x = 5/4, c = (-7/4 + 3/4)/2 = -1/2.

    Round 2. c - c_1 = 5/4: y_1 = 5/4 - (-7/4 + 5/4)/4 = 11/8, then 11/8 - (-13/8 + 5/4)/4 = 47/32.
    c - c_2 = -5/4: y_2 = 5/4 - (3/2 - 5/4)/4 = 19/16, then 19/16 - (11/8 - 5/4)/4 = 37/32. x = 84/64 = 21/16.
    c_1 = -7/4 + 1/2 + 2 (5/4 - 47/32) = -27/16, c_2 = 3/4 + 1/2 + 2 (5/4 - 37/32) = 23/16, c = -1/8.
    """
    run = fit_hand(rounds, engine)
    server = run._loop.progress.server
    values = [float(run.shared_parameters()["w"]), float(server.control["w"])]
    assert values == pytest.approx([float(x), float(c)], rel=1e-13)
    controls = {1: [-7 / 4, 3 / 4], 2: [-27 / 16, 23 / 16]}[rounds]
    assert [float(s.control["w"]) for s in run._loop.progress.store.get([0, 1])] == pytest.approx(controls, rel=1e-13)


def vector(w):
    return np.concatenate([w["u"], w["v"]])


def algorithm_1(clients, cohorts, scales, batches, *, eta_l, eta_g, option, of, weights):
    """Algorithm 1 of Karimireddy et al. 2020 as it stands; ``of`` is N. x and c after all rounds."""

    def slope(x, data, rows):
        gradient, _ = ref.gradients(cut(x, clients, MATRICES), data, rows, MATRICES)
        return vector(gradient)

    x = vector(W)
    c, own = 0 * x, [0 * x for _ in clients]
    for cohort, scale in zip(cohorts, scales, strict=True):  # line 4
        eta, dys, dcs = eta_l * scale, [], []
        for i in cohort:  # line 6
            y, walk = x, batches[i]  # line 7
            for rows in walk:  # line 8
                y = y - eta * (slope(y, clients[i], rows) - own[i] + c)  # lines 9 and 10
            if option == "I":  # line 12
                new = slope(x, clients[i], np.arange(len(clients[i]["y"])))
            else:
                new = own[i] - c + (x - y) / (len(walk) * eta)
            dys.append(y - x)  # line 13
            dcs.append(new - own[i])
            own[i] = new  # line 14
        share = np.array([weights[i] for i in cohort]) / sum(weights[i] for i in cohort)
        dx, dc = share @ np.array(dys), share @ np.array(dcs)  # line 16
        x, c = x + eta_g * dx, c + len(cohort) / of * dc  # line 17
    return x, c


CASES = [
    ("II", {"epochs": 2}, "uniform"),
    ("II", {"steps": 5}, "examples"),
    ("I", {"epochs": 1}, "uniform"),
    ("I", {"steps": 3}, "batches"),
]


@ENGINES
@pytest.mark.parametrize(("option", "length", "weighting"), CASES)
def test_trajectory_in_numpy(engine, option, length, weighting):
    """Two of four uneven clients a round, minibatches, a server of rate 1/2, client rates halved from round 4 on."""
    sizes = [1, 7, 3, 12]
    clients = vector_clients(sizes)
    algorithm = flat(
        mo.scaffold,
        lr=0.1,
        option=option,
        batch_size=4,
        shuffle=False,
        weighting=weighting,
        server=mo.server.sgd(lr=0.5),
        schedule=mo.schedule.exponential(halve_every=3),
        **length,
    )
    cohorts = []
    run = mo.fit(
        vector_task(W["u"], W["v"]),
        federated(clients),
        algorithm,
        split=SPLIT,
        rounds=5,
        cohort=2,
        engine=engine,
        callbacks=[lambda run, record: cohorts.append(record.cohort)],
    )
    assert len(set(cohorts)) > 2
    batches = [ref.batches(n, 4, **length) for n in sizes]
    weights = [ref.weight_of(weighting, n, -(-n // 4)) for n in sizes]
    rates = {"eta_l": 0.1, "eta_g": 0.5, "option": option}
    x, c = algorithm_1(clients, cohorts, (1, 1, 1, 0.5, 0.5), batches, **rates, of=4, weights=weights)
    control = run._loop.progress.server.control
    shared = {k: p.numpy() for k, p in run.shared_parameters().items()}
    np.testing.assert_allclose(vector(shared), x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([control["u"], control["v"]]), c, rtol=1e-10, atol=1e-12)


DIFFERENT = even_clients((6, 9, 15), seed=4)
BEST = vector(ref.minimiser(DIFFERENT, (1, 1, 1), MATRICES, ())[0])


def fit_to_end(algorithm, rounds=50, **options):
    task = vector_task(W["u"], W["v"])
    options = {"engine": "vectorised", "evaluate_every": rounds, **options}
    run = mo.fit(task, federated(DIFFERENT), algorithm, **with_settings(split=SPLIT, rounds=rounds, **options))
    return vector({k: p.numpy() for k, p in run.shared_parameters().items()})


@pytest.mark.parametrize("option", ["I", "II"])
def test_ten_local_steps_end_at_the_minimiser_where_those_of_local_gd_do_not(option):
    """Clients with different Hessians and minimisers; both ends by linear solves.

    Local GD: x = mean of x_m* + T_m (x - x_m*), T_m = (I - gamma A_m)^10, so
    sum (I - T_m) x = sum (I - T_m) x_m*.
    """
    end = fit_to_end(mo.scaffold(shared=mo.sgd(0.05, steps=10, batch_size="all"), option=option))
    np.testing.assert_allclose(end, BEST, rtol=0, atol=1e-9)
    left, right = 0.0, 0.0
    for a, b in (make_quadratic(data, MATRICES) for data in DIFFERENT):
        factor = np.eye(4) - np.linalg.matrix_power(np.eye(4) - 0.05 * a, 10)
        left, right = left + factor, right + factor @ np.linalg.solve(a, b)
    biased = np.linalg.solve(left, right)
    np.testing.assert_allclose(fit_to_end(mo.local_gd(shared=mo.sgd(0.05, steps=10))), biased, rtol=0, atol=1e-9)
    assert np.abs(biased - BEST).max() > 0.1


def test_the_minimiser_is_reached_with_one_client_a_round_too():
    """No draw of clients pulls it away from there, once the controls know each of them."""
    algorithm = mo.scaffold(shared=mo.sgd(0.05, steps=2, batch_size="all"), option="I")
    np.testing.assert_allclose(fit_to_end(algorithm, rounds=300, cohort=1), BEST, rtol=0, atol=1e-6)


@pytest.mark.parametrize("how", ["bernoulli", "dropped", "qsgd", "rand_k"])
def test_the_servers_control_is_the_mean_of_all(how):
    """By induction: c and the mean of the c_i are 0 first, and both move by the sum of the Delta c_i over N.

    So it is whoever takes part, drops out (a step of 1e200 overflows for the second of three clients), or whatever a
    codec makes of x.
    """
    codecs = {"qsgd": mo.codec.qsgd(levels=3), "rand_k": mo.codec.rand_k(k=2)}
    options = {"cohort": 2, "participation": "bernoulli"} if how == "bernoulli" else {"codec": codecs.get(how)}
    clients = [
        {k: v * (1e200 if how == "dropped" and i == 1 else 1) for k, v in c.items()} for i, c in enumerate(DIFFERENT)
    ]
    task = vector_task(W["u"], W["v"])
    algorithm = mo.scaffold(shared=mo.sgd(0.02, steps=2, batch_size="all"))
    dropouts = []
    options |= {"callbacks": [lambda run, record: dropouts.extend(record.dropped)], "engine": "sequential"}
    run = mo.fit(
        task, federated(clients), algorithm, **with_settings(split=SPLIT, rounds=9, evaluate_every=9, **options)
    )
    now = run._loop.progress
    assert len(dropouts) == (9 if how == "dropped" else 0)
    for name, control in now.server.control.items():
        mean = torch.stack([state.control[name] for state in now.store.get([0, 1, 2])]).mean(0)
        assert control.abs().max() > 0.01
        torch.testing.assert_close(control, mean, rtol=1e-9, atol=1e-12)


@ENGINES
def test_one_step_of_all_clients_is_gradient_descent(engine):
    """In the mean c - c_i cancels: x <- x - eta_g eta_l (mean gradient), whatever the option."""
    some = [make_quadratic(data, MATRICES) for data in DIFFERENT]
    a, b = np.mean([m for m, _ in some], axis=0), np.mean([v for _, v in some], axis=0)
    x = vector(W)
    for _ in range(6):
        x = x - 0.4 * 0.1 * (a @ x - b)
    for option in ("I", "II"):
        server = mo.server.sgd(lr=0.4)
        algorithm = mo.scaffold(shared=mo.sgd(0.1, steps=1, batch_size="all"), option=option, server=server)
        np.testing.assert_allclose(fit_to_end(algorithm, rounds=6, engine=engine), x, rtol=1e-11)


def network():
    return mo.models.mlp(4, 3, hidden=(5,), seed=2).double()


def test_the_first_round_is_that_of_fedavg_and_the_second_is_not():
    data, net = federated(image_clients((1, 13, 6, 20))), network()
    common = {"lr": 0.1, "epochs": 2, "batch_size": 8, "shuffle": False, "weighting": "uniform"}
    for rounds, same in ((1, True), (2, False)):
        one, other = (
            mo.fit(net, data, flat(make, **common), rounds=rounds, engine="sequential").shared_parameters()
            for make in (mo.scaffold, mo.fedavg)
        )
        assert all(torch.allclose(one[n], p, rtol=0, atol=1e-12) for n, p in other.items()) == same


def test_controls_cross_both_ways_and_are_counted():
    """Twice what FedAvg sends in both directions; the client keeps one control as large as the model."""
    data, net = federated(image_clients((3, 5))), network()
    numbers = sum(p.numel() for p in net.parameters())
    run = mo.fit(net, data, mo.scaffold(shared=0.1), rounds=3, engine="sequential")
    assert run.ledger["down_values"] == run.ledger["up_values"] == 2 * 3 * 2 * numbers * 8
    plain = mo.fit(net, data, mo.fedavg(shared=0.1), rounds=3, engine="sequential").ledger
    assert run.ledger["device_memory"] > plain["device_memory"]
    assert set(run.shared_parameters()) == {n for n, _ in net.named_parameters()}


@pytest.mark.parametrize("stats", ["personal", "shared"])
def test_running_statistics(stats):
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    split = mo.split.nothing(net, running_stats=stats)
    run = mo.fit(
        net, federated(image_clients([8, 6])), mo.scaffold(shared=0.1), split=split, rounds=2, engine="sequential"
    )
    means = [run.parameters(i)["1.running_mean"] for i in (0, 1)]
    assert torch.equal(means[0], means[1]) == (stats == "shared")
    assert int(run.parameters(0)["1.num_batches_tracked"]) == 2


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("shared", lambda: mo.scaffold(shared=0)),
        ("lr", lambda: mo.scaffold(shared=mo.sgd(0))),
        ("option", lambda: mo.scaffold(shared=0.1, option="III")),
        ("steps", lambda: mo.scaffold(shared=mo.sgd(0.1, steps=0))),
        ("batch_size", lambda: mo.scaffold(shared=mo.sgd(0.1, batch_size=0))),
        ("epochs", lambda: mo.scaffold(shared=mo.sgd(0.1, epochs=1, steps=1))),
        ("weighting", lambda: mo.scaffold(shared=0.1, weighting="size")),
        ("shared.momentum", lambda: mo.scaffold(shared=mo.sgd(0.1, momentum=0.5))),
    ],
)
def test_wrong_hyper_parameters_are_one_line(name, build):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build()
