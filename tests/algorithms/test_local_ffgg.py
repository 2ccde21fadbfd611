"""Local FFGG (Mishchenko et al. 2023, Algorithm 4): by hand, and in NumPy from the pseudocode."""

from fractions import Fraction as Q

import numpy as np
import oracle_bilevel as ref
import oracle_numpy as plain
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, image_clients, scalar_task, split_of, vector_clients, vector_task

import moiety as mo
from moiety.errors import MoietyError

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
HAND = [
    {"a": np.array([1.0]), "b": np.array([2.0]), "y": np.array([3.0])},
    {"a": np.array([2.0, 0, 2, 0]), "b": np.ones(4), "y": np.array([1.0, 3, 1, 3])},
]
MATRICES = {"u": "a", "v": "b"}
SPLIT = split_of(["u"], ["v"], {"u": 2, "v": 2})


@ENGINES
def test_a_round_by_hand(engine):
    """From u = 1, an exact line 4, K = 2, gamma_w = 1/8, gamma_theta = 1/4, all data in each step.

    Client 1: v = (3 - u)/2 = 1 fits its row, and nothing moves. Client 2: v = 2 - u = 1, where grad_2 = u + v - 2 = 0.
    k = 0: v stays; u <- 1 - (2 u + v - 1)/4 = 1/2. k = 1: v <- 1 - (1/2 + 1 - 2)/8 = 17/16 and
    u <- 1/2 - (1 + 17/16 - 1)/4 = 15/64. The plain mean: (1 + 15/64)/2 = 79/128. Losses before the steps on u: client 1
    none; client 2 at (1, 1) residuals 2 and -2, so 2, and at (1/2, 17/16) residuals 17/16 and -31/16.
    """
    algorithm = mo.local_ffgg(shared=mo.sgd(1 / 4, steps=2, batch_size=4), personal=1 / 8, solver=mo.solver.exact())
    run = mo.fit(scalar_task(), federated(HAND), algorithm, split=split_of(["u"], ["v"]), rounds=1, engine=engine)
    u = Q(79, 128)
    assert float(run.shared_parameters()["u"]) == pytest.approx(float(u), rel=1e-14)
    # A client keeps nothing: its model is line 4 at the new u.
    for client, v in enumerate(((3 - u) / 2, 2 - u)):
        assert float(run.parameters(client)["v"]) == pytest.approx(float(v), rel=1e-12)
    last = (Q(17, 16) ** 2 + Q(31, 16) ** 2) / 4
    assert run.history[-1]["train_loss"] == pytest.approx(float((2 + last) / 2 / 2), rel=1e-12)


@ENGINES
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.05, "clip": 1.5}], ids=["plain", "all"])
@pytest.mark.parametrize("weighting", ["uniform", "examples", "batches"])
def test_trajectory_in_numpy(engine, options, weighting):
    """Uneven clients in batches of 4, a solver of one epoch, two epochs in turns, halved rates in the third round."""
    clients, u0, v0 = vector_clients([1, 7, 3, 12]), np.array([0.5, -1.0]), np.array([0.25, 2.0])
    algorithm = flat(
        mo.local_ffgg,
        shared_lr=0.05,
        personal_lr=0.1,
        solver=mo.sgd(0.2, epochs=1, batch_size=4, shuffle=False),
        epochs=2,
        batch_size=4,
        shuffle=False,
        weighting=weighting,
        schedule=mo.schedule.exponential(halve_every=2),
        **options,
    )
    run = mo.fit(vector_task(u0, v0), federated(clients), algorithm, split=SPLIT, rounds=3, engine=engine)
    theta = {"u": u0}
    for scale in (1, 1, 0.5):
        ends, weights = [], []
        for data in clients:
            n = len(data["y"])
            index = plain.batches(n, 4, epochs=1)
            w, _ = plain.descend({**theta, "v": v0}, data, index, {"v": 0.2 * scale}, MATRICES)  # line 4
            for rows in plain.batches(n, 4, epochs=2):  # line 5
                w, _ = plain.descend(w, data, [rows], {"v": 0.1 * scale}, MATRICES, **options)  # line 6
                w, _ = plain.descend(w, data, [rows], {"u": 0.05 * scale}, MATRICES, **options)  # line 7
            ends.append({"u": w["u"]})
            weights.append(plain.weight_of(weighting, n, -(-n // 4)))
        theta = plain.aggregate(ends, weights)  # lines 9 to 11
    np.testing.assert_allclose(run.shared_parameters()["u"].numpy(), theta["u"], rtol=1e-10, atol=1e-12)


@ENGINES
def test_one_turn_after_an_exact_solution_is_ffgg(engine):
    """There grad_2 is 0, so line 6 stays: theta - gamma F, in NumPy."""
    clients, _ = ref.clients(3, rows=6, d=2, e=2, seed=4, noise=1.0, phi=False)
    theta, w = np.array([2.0, -1.0]), np.array([3.0, 0.5])
    algorithm = mo.local_ffgg(shared=mo.sgd(0.1, steps=1, batch_size=99), personal=0.3, solver=mo.solver.exact())
    run = mo.fit(ref.task(theta, w, phi=False), federated(clients), algorithm, split=SPLIT, rounds=3, engine=engine)
    for _ in range(3):
        theta = theta - 0.1 * np.mean([ref.operator(d, theta) for d in clients], axis=0)
    np.testing.assert_allclose(run.shared_parameters()["u"].numpy(), theta, rtol=1e-11)


@ENGINES
def test_overpersonalised_is_solved_exactly_with_many_local_steps(engine):
    """At theta* every client's steps stand still, so there is no drift: one client a round, ten turns each."""
    clients, best = ref.clients(3, rows=8, d=2, e=2, seed=5, phi=False)
    algorithm = mo.local_ffgg(
        shared=mo.sgd(0.1, steps=10, batch_size=99), personal=0.2, solver=mo.solver.conjugate_gradient(steps=2)
    )
    task = ref.task(np.array([4.0, -3.0]), np.zeros(2), phi=False)
    run = mo.fit(task, federated(clients), algorithm, split=SPLIT, rounds=80, cohort=1, engine=engine)
    np.testing.assert_allclose(run.shared_parameters()["u"].numpy(), best, rtol=0, atol=1e-8)
    assert max(row["loss"] for row in run.clients) < 1e-15


@ENGINES
def test_nothing_personal_is_fedavg(engine):
    net = mo.models.mlp(4, 3, hidden=(5,), seed=2).double()
    data = federated(image_clients((1, 13, 6)))
    common = {"epochs": 2, "batch_size": 4, "shuffle": False, "weight_decay": 0.1, "clip": 0.5, "weighting": "batches"}
    solver = mo.solver.lbfgs(steps=3)
    fits = [
        mo.fit(net, data, a, split=mo.split.nothing(net), rounds=2, engine=engine)
        for a in (
            flat(mo.fedavg, lr=0.1, **common),
            flat(mo.local_ffgg, shared_lr=0.1, personal_lr=0.7, solver=solver, **common),
        )
    ]
    for name, p in fits[0].shared_parameters().items():
        torch.testing.assert_close(fits[1].shared_parameters()[name], p, rtol=1e-12, atol=1e-14)
    assert fits[1].history[-1]["train_loss"] == pytest.approx(fits[0].history[-1]["train_loss"], rel=1e-12)


INNER = mo.solver.exact()


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: mo.local_ffgg(shared=-1, personal=0.1, solver=INNER), r"`shared` must be > 0 and finite, got -1\."),
        (lambda: mo.local_ffgg(shared=0.1, personal=0, solver=INNER), r"`personal` must be > 0 and finite, got 0\."),
        (
            lambda: mo.local_ffgg(shared=mo.sgd(-1), personal=0.1, solver=INNER),
            r"`lr` must be > 0 and finite, got -1\.",
        ),
        (
            lambda: mo.local_ffgg(shared=0.1, personal=0.1, solver=None),
            r"`solver` must be an inner solver or what moiety\.sgd, adam or adamw makes, got None",
        ),
        (
            lambda: mo.local_ffgg(shared=mo.sgd(0.1, steps=1, epochs=1), personal=0.1, solver=INNER),
            r"`epochs` must be left out where steps is given, got 1\.",
        ),
        (
            lambda: mo.local_ffgg(shared=mo.sgd(0.1, clip=0), personal=0.1, solver=INNER),
            r"`clip` must be > 0 or None, got 0\.",
        ),
        (
            lambda: mo.local_ffgg(shared=0.1, personal=0.1, solver=INNER, random_start=0.5),
            r"`random_start` must be a whole number, got 0\.5\.",
        ),
    ],
)
def test_wrong_hyper_parameters_are_one_line(build, text):
    with pytest.raises(MoietyError, match=rf"^{text}"):
        build()
