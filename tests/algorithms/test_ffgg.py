"""FFGG (Mishchenko et al. 2023, Algorithm 1): by hand, and what it becomes in limits."""

from fractions import Fraction as Q

import numpy as np
import oracle_bilevel as ref
import pytest
import torch
from oracle_problems import federated, image_clients, scalar_task, split_of
from torch import nn

import moiety as mo
from moiety.errors import MoietyError

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
HAND = [
    {"a": np.array([1.0]), "b": np.array([2.0]), "y": np.array([3.0])},
    {"a": np.array([2.0, 0, 2, 0]), "b": np.ones(4), "y": np.array([1.0, 3, 1, 3])},
]
EXACT = mo.solver.exact()


@ENGINES
@pytest.mark.parametrize(
    "solver", [EXACT, mo.solver.conjugate_gradient(steps=1), mo.solver.lbfgs(steps=12)], ids=lambda s: s.spec["name"]
)
def test_two_rounds_by_hand(engine, solver):
    """Client 1 has one row, u + 2 v = 3: v* = (3 - u) / 2 fits it, so F_1 = 0.

    Client 2 has rows 2 u + v = 1 and v = 3, two of each: v* = 2 - u leaves u + 1 and -(u + 1), so F_2 = 2 (u + 1) / 2.
    The mean of both (plain, though client 2 has more rows), gamma = 1/4: u <- u - (u + 1) / 8: 1 -> 3/4 -> 17/32.
    """
    algorithm = mo.ffgg(shared=1 / 4, personal=solver)
    split = split_of(["u"], ["v"])
    run = mo.fit(scalar_task(), federated(HAND), algorithm, split=split, rounds=2, engine=engine)
    u = Q(17, 32)
    assert float(run.shared_parameters()["u"]) == pytest.approx(float(u), rel=1e-12)
    for client, v in enumerate(((3 - u) / 2, 2 - u)):
        assert float(run.parameters(client)["v"]) == pytest.approx(float(v), rel=1e-9)


@ENGINES
def test_an_inexact_round_by_hand(engine):
    """Algorithm 2 with tau = 2, gamma_w = 1/8 from v = 0 at u = 1.

    Client 1: v <- v/2 + (3 - u)/4: 0 -> 1/2 -> 3/4, and grad_1 = u + 2 v - 3 = -1/2. Client 2: v <- 7v/8 + (2 - u)/8:
    0 -> 1/8 -> 15/64, and grad_1 = 2 u + v - 1 = 79/64. Mean 47/128, so u = 1 - 47/512. By examples, 1 and 4:
    (-1/2 + 4 79/64) / 5 = 71/80, so u = 1 - 71/320. The loss is at (u, v): client 1 (1/2)^2 / 2 = 1/8; client 2 has
    the residuals 2 + 15/64 - 1 and 15/64 - 3.
    """
    split = split_of(["u"], ["v"])
    solver = mo.sgd(1 / 8, steps=2)
    for weighting, u in (("uniform", 1 - Q(47, 512)), ("examples", 1 - Q(71, 320))):
        algorithm = mo.ffgg(shared=1 / 4, personal=solver, weighting=weighting)
        run = mo.fit(scalar_task(), federated(HAND), algorithm, split=split, rounds=1, engine=engine)
        assert float(run.shared_parameters()["u"]) == pytest.approx(float(u), rel=1e-14)
        second = ((Q(2) + Q(15, 64) - 1) ** 2 + (Q(15, 64) - 3) ** 2) / 4
        loss = (Q(1, 8) + second) / 2 if weighting == "uniform" else (Q(1, 8) + 4 * second) / 5
        assert run.history[-1]["train_loss"] == pytest.approx(float(loss), rel=1e-12)


def test_the_schedule_scales_both_rates():
    """Halved from the second round on: u <- u - (u + 1) / 8, then by a sixteenth."""
    algorithm = mo.ffgg(shared=1 / 4, personal=EXACT, schedule=mo.schedule.exponential(halve_every=1))
    run = mo.fit(scalar_task(), federated(HAND), algorithm, split=split_of(["u"], ["v"]), rounds=2, engine="sequential")
    assert float(run.shared_parameters()["u"]) == pytest.approx(float(Q(3, 4) - Q(7, 4) / 16), rel=1e-14)


CLIENTS, _ = ref.clients(4, rows=7, d=3, e=2, seed=3)
THETA, W = np.array([4.0, -3.0, 5.0]), np.array([1.0, -2.0])
DATA = federated(image_clients((5, 1, 9)))


def network():
    return mo.models.mlp(4, 3, hidden=(6,), seed=1).double()


@ENGINES
@pytest.mark.parametrize("name", ["exact", "conjugate_gradient", "lbfgs", "sgd"])
def test_nothing_personal_is_one_full_gradient_step(engine, name):
    """FedSGD: theta - gamma sum n_k grad F_k / n is a step on the mean over all rows, by ordinary autograd."""
    options = {"exact": {}, "sgd": {"lr": 0.1, "epochs": 2}}.get(name, {"steps": 2})
    net = network()
    algorithm = mo.ffgg(
        shared=0.3, personal=(mo.sgd if name == "sgd" else getattr(mo.solver, name))(**options), weighting="examples"
    )
    run = mo.fit(net, DATA, algorithm, split=mo.split.nothing(net), rounds=1, engine=engine)
    x, y = torch.tensor(DATA.columns["x"]).double(), torch.tensor(DATA.columns["y"])
    nn.functional.cross_entropy(net(x), y).backward()
    for n, p in net.named_parameters():
        torch.testing.assert_close(run.shared_parameters()[n], p.detach() - 0.3 * p.grad, rtol=1e-12, atol=1e-13)


@ENGINES
def test_everything_personal_is_a_solve_from_the_start(engine):
    """Nothing is shared and nothing moves at the server; a client's model is one Newton step from the first values."""
    split = split_of([], ["u", "v"], {"u": 3, "v": 2})
    run = mo.fit(
        ref.task(THETA, W),
        federated(CLIENTS),
        mo.ffgg(shared=0.1, personal=EXACT),
        split=split,
        rounds=2,
        engine=engine,
    )
    for client, data in enumerate(CLIENTS):
        rows = np.vstack([np.hstack([data["a"], data["b"]]), np.hstack([data["h"], 0 * data["b"]])])
        solution = np.linalg.lstsq(rows, np.concatenate([data["y"], data["c"]]), rcond=None)[0]
        parameters = run.parameters(client)
        np.testing.assert_allclose(np.concatenate([parameters["u"], parameters["v"]]), solution, rtol=1e-8, atol=1e-8)


@ENGINES
def test_a_gradient_from_a_batch_is_a_step_on_its_rows(engine):
    """One row of the client's three, drawn: theta is one of three points, and not the mean of them."""
    rows = [{"a": np.array([1.0, 2.0, 4.0]), "b": np.ones(3), "y": np.array([1.0, -1.0, 5.0])}]
    w = np.mean(rows[0]["y"] - rows[0]["a"])
    points = 1 - 0.1 * rows[0]["a"] * (rows[0]["a"] + w - rows[0]["y"])
    algorithm = mo.ffgg(shared=mo.sgd(0.1, batch_size=1), personal=EXACT)
    split = split_of(["u"], ["v"])
    runs = [
        mo.fit(scalar_task(), federated(rows), algorithm, split=split, rounds=1, seed=seed, engine=engine)
        for seed in range(6)
    ]
    thetas = [float(run.shared_parameters()["u"]) for run in runs]
    nearest = [int(np.abs(points - u).argmin()) for u in thetas]
    np.testing.assert_allclose(thetas, points[nearest], rtol=1e-12)
    assert len(set(nearest)) > 1


@ENGINES
def test_clients_keep_nothing(engine):
    """Evaluating in between, or asking a client twice, leaves no trace: a run of two rounds is two runs of one."""
    solver = mo.sgd(1 / 8, steps=2)
    algorithm = mo.ffgg(shared=1 / 4, personal=solver)
    split = split_of(["u"], ["v"])
    two = mo.fit(
        scalar_task(),
        federated(HAND),
        algorithm,
        split=split,
        rounds=2,
        engine=engine,
        settings=mo.Settings(evaluate_every=1),
    )
    one = mo.fit(scalar_task(), federated(HAND), algorithm, split=split, rounds=1, engine=engine)
    u = float(one.shared_parameters()["u"])
    again = mo.fit(scalar_task(u=u), federated(HAND), algorithm, split=split, rounds=1, engine=engine)
    assert float(two.shared_parameters()["u"]) == float(again.shared_parameters()["u"])


@ENGINES
def test_a_random_start_does_not_matter_where_the_solver_is_exact(engine):
    """And does where it is not; it is the same in every engine."""
    net = mo.models.linear(4, 2, seed=1).double()
    clients = [{"x": c["x"], "y": np.stack([c["x"][:, 0], c["x"][:, 1] ** 2], 1)} for c in image_clients((9, 8))]
    split = mo.split.by_name(net, personal=["*bias"])
    weights = {}
    for name, solver in (("exact", EXACT), ("sgd", mo.sgd(0.1, steps=1))):
        for seed in (None, 1):
            algorithm = mo.ffgg(shared=0.1, personal=solver, random_start=seed)
            run = mo.fit(net, federated(clients), algorithm, split=split, rounds=2, engine=engine, loss="mse")
            weights[name, seed] = next(p for n, p in run.shared_parameters().items() if n.endswith("weight"))
    torch.testing.assert_close(weights["exact", None], weights["exact", 1], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(weights["sgd", None], weights["sgd", 1], rtol=1e-4)


def test_a_client_never_seen_gets_its_personal_part_from_the_solver():
    """Onboarding with an exact solver and mean squared error: w is the least-squares bias for the shared weight."""
    net = mo.models.linear(4, 2, seed=1).double()
    rng = np.random.default_rng(0)
    clients = [{"x": c["x"], "y": rng.normal(size=(len(c["x"]), 2))} for c in image_clients((9, 8, 5))]
    split = mo.split.by_name(net, personal=["*bias"])
    run = mo.fit(
        net, federated(clients[:2]), mo.ffgg(shared=0.1, personal=EXACT), split=split, rounds=3, engine="sequential"
    )
    new = run.onboard(clients[2])
    values = dict(new.named_parameters())
    weight = next(p for n, p in values.items() if n.endswith("weight")).detach().numpy()
    bias = next(p for n, p in values.items() if n.endswith("bias")).detach().numpy()
    np.testing.assert_allclose(bias, (clients[2]["y"] - clients[2]["x"] @ weight.T).mean(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("solver", "passes"), [(EXACT, 1), (mo.solver.conjugate_gradient(steps=2), 1), (mo.solver.lbfgs(steps=2), 3)]
)
def test_running_statistics_move_with_every_pass(solver, passes):
    """k passes in line 4 and one in line 5, each a tenth of the way to the mean of the first layer's outputs.

    That is 1 - 0.9^(k+1) of it; shared statistics are averaged plainly.
    """
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    split = mo.split.by_name(net, personal=["2"], running_stats="shared")
    clients = image_clients([8, 6])
    algorithm = mo.ffgg(shared=0.1, personal=solver)
    run = mo.fit(
        net,
        federated(clients),
        algorithm,
        split=split,
        rounds=1,
        engine="sequential",
        settings=mo.Settings(partial=False),
    )
    means = torch.stack([net[0](torch.tensor(c["x"])).detach().mean(0) for c in clients])
    mean = (1 - 0.9 ** (passes + 1)) * means.mean(0)
    torch.testing.assert_close(run.shared_parameters()["1.running_mean"], mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: mo.ffgg(shared=0, personal=EXACT), r"`shared` must be > 0 and finite, got 0\."),
        (lambda: mo.ffgg(shared=mo.sgd(0), personal=EXACT), r"`lr` must be > 0 and finite, got 0\."),
        (
            lambda: mo.ffgg(shared=0.1, personal="exact"),
            r"`personal` must be an inner solver or what moiety\.sgd, adam or adamw makes, got 'exact' \(str\)\.",
        ),
        (lambda: mo.ffgg(shared=mo.sgd(0.1, batch_size=0), personal=EXACT), r"`batch_size` must be >= 1, got 0\."),
        (lambda: mo.ffgg(shared=0.1, personal=EXACT, random_start=-1), r"`random_start` must be >= 0, got -1\."),
        (
            lambda: mo.ffgg(shared=0.1, personal=EXACT, weighting="rows"),
            r"`weighting` must be one of the known names, got 'rows'\.",
        ),
        (
            lambda: mo.ffgg(shared=mo.sgd(0.1, steps=2), personal=EXACT),
            r"`shared\.steps` must be 1 or left out, got 2\.",
        ),
        (
            lambda: mo.ffgg(shared=mo.sgd(0.1, momentum=0.5), personal=EXACT),
            r"`shared\.momentum` must be left out for this algorithm, got 0\.5\.",
        ),
        (lambda: mo.ffgg(shared=0.1, personal=mo.sgd(0.1)), r"`personal\.steps` must be given"),
    ],
)
def test_wrong_hyper_parameters_are_one_line(build, text):
    with pytest.raises(MoietyError, match=rf"^{text}"):
        build()
