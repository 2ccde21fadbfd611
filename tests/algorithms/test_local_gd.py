"""Local GD by hand, in NumPy, and where it ends."""

import numpy as np
import oracle_numpy as ref
import pytest
import torch
from oracle_problems import even_clients, federated, image_clients, split_of, vector_clients, vector_task

import moiety as mo
from moiety.errors import MoietyError
from moiety.task import from_functions

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
MATRICES = {"u": "a", "v": "b"}
SPLIT = split_of(["u", "v"], [], {"u": 2, "v": 2})
W = {"u": np.array([0.5, -1.0]), "v": np.array([0.25, 2.0])}


@ENGINES
@pytest.mark.parametrize(("weighting", "x"), [("uniform", 5 / 4), ("examples", 7 / 8)])
def test_a_round_by_hand(engine, weighting, x):
    """f(w; a, y) = (a w - y)^2 / 2 from w = 1; dF_1/dw = w - 3 (one row), dF_2/dw = 2 w - 1 (four rows).

    gamma = 1/4, two steps. x_1: 1 -> 3/2 -> 15/8, x_2: 1 -> 3/4 -> 5/8. The mean is 5/4; by rows (15 + 20)/40 = 7/8.
    """
    clients = [
        {"a": np.array([1.0]), "y": np.array([3.0])},
        {"a": np.array([2.0, 0, 2, 0]), "y": np.array([1.0, 3, 1, 3])},
    ]
    init = {"w": torch.ones((), dtype=torch.float64)}
    task = from_functions(init, lambda p, d: (d["a"] * p["w"] - d["y"]).square() / 2)
    algorithm = mo.local_gd(shared=mo.sgd(1 / 4, steps=2), weighting=weighting)
    run = mo.fit(task, federated(clients), algorithm, split=split_of(["w"]), rounds=1, engine=engine)
    assert float(run.shared_parameters()["w"]) == pytest.approx(x, rel=1e-14)


@ENGINES
def test_trajectory_in_numpy(engine):
    """Uneven clients, each step on all rows; a server of rate 1/2, rates halved from round 3 on."""
    sizes, w = [1, 7, 3, 12], W
    clients = vector_clients(sizes)
    algorithm = mo.local_gd(
        shared=mo.sgd(0.1, steps=4), server=mo.server.sgd(lr=0.5), schedule=mo.schedule.exponential(halve_every=2)
    )
    run = mo.fit(vector_task(w["u"], w["v"]), federated(clients), algorithm, split=SPLIT, rounds=3, engine=engine)
    for scale in (1.0, 1.0, 0.5):
        ends = []
        for data, n in zip(clients, sizes, strict=True):
            x = w
            for _ in range(4):
                g, _ = ref.gradients(x, data, np.arange(n), MATRICES)
                x = {k: x[k] - 0.1 * scale * g[k] for k in x}
            ends.append(x)
        w = {k: w[k] + 0.5 * (np.mean([x[k] for x in ends], axis=0) - w[k]) for k in w}
    for k in w:
        np.testing.assert_allclose(run.shared_parameters()[k].numpy(), w[k], rtol=1e-11)


CLIENTS = even_clients((6, 9, 15), seed=4)


@pytest.mark.parametrize(("steps", "drifts"), [(1, False), (2, True), (20, True)])
def test_where_it_ends(steps, drifts):
    """At the x with sum_m (I - T_m)(x - x_m*) = 0, T_m = (I - gamma A_m)^H.

    For H = 1 that is the minimiser of the mean; otherwise clients drift apart.
    """
    algorithm = mo.local_gd(shared=mo.sgd(0.2, steps=steps))
    task, rounds = vector_task(W["u"], W["v"]), 10 + 150 // steps
    run = mo.fit(
        task,
        federated(CLIENTS),
        algorithm,
        split=SPLIT,
        rounds=rounds,
        engine="vectorised",
        settings=mo.Settings(evaluate_every=rounds),
    )
    end = np.concatenate([run.shared_parameters()[k].numpy() for k in "uv"])
    left, right = 0.0, 0.0
    for data in CLIENTS:
        rows = np.hstack([data["a"], data["b"]])
        a, best = rows.T @ rows / len(rows), np.linalg.lstsq(rows, data["y"], rcond=None)[0]
        factor = np.eye(4) - np.linalg.matrix_power(np.eye(4) - 0.2 * a, steps)
        left, right = left + factor, right + factor @ best
    np.testing.assert_allclose(end, np.linalg.solve(left, right), rtol=0, atol=1e-9)
    one = ref.minimiser(CLIENTS, (1, 1, 1), MATRICES, ())[0]
    assert (np.abs(end - np.concatenate([one["u"], one["v"]])).max() > 0.01) == drifts


def test_it_is_fedavg_on_full_batches():
    data, net = federated(image_clients((1, 13, 6, 20))), mo.models.mlp(4, 3, hidden=(5,), seed=2).double()
    one, other = (
        mo.fit(net, data, a, rounds=3, cohort=2, engine="vectorised")
        for a in (
            mo.local_gd(shared=mo.sgd(0.1, steps=3)),
            mo.fedavg(shared=mo.sgd(0.1, steps=3, batch_size=99), weighting="uniform"),
        )
    )
    for n, p in other.shared_parameters().items():
        torch.testing.assert_close(one.shared_parameters()[n], p, rtol=0, atol=1e-12)
    assert one.ledger["flops"] == other.ledger["flops"]


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("shared", lambda: mo.local_gd(shared=-1)),
        ("lr", lambda: mo.local_gd(shared=mo.sgd(-1))),
        ("steps", lambda: mo.local_gd(shared=mo.sgd(0.1, steps=0))),
        ("weighting", lambda: mo.local_gd(shared=0.1, weighting="batches")),
    ],
)
def test_wrong_hyper_parameters_are_one_line(name, build):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build()
