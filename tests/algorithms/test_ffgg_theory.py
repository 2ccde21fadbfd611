"""FFGG against the theorems of Mishchenko et al. 2023, on problems whose constants NumPy computes."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import oracle_bilevel as ref
import oracle_numpy as plain
import pytest
import torch
from oracle_problems import federated, split_of
from run_settings import with_settings

import moiety as mo
from moiety.task import from_functions

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
EXACT = mo.solver.exact()


def follow_run(task, clients, algorithm, rounds, split, **options):
    """The run, theta before every round and after the last, and the cohorts."""
    start = task.init["u"].numpy()
    thetas, cohorts = [start], []

    def server_update(server, change, share):
        after = algorithm.server_update(server, change, share)
        thetas.append(after.shared["u"].numpy().copy())
        return after

    recorder = replace(algorithm, server_update=server_update)
    data = federated(clients)
    options = {"engine": "sequential", "evaluate_every": rounds, **options}
    run = mo.fit(
        task,
        data,
        recorder,
        **with_settings(
            split=split, rounds=rounds, callbacks=[lambda run, record: cohorts.append(record.cohort)], **options
        ),
    )
    return run, thetas, cohorts


CLIENTS, BEST = ref.clients(4, rows=7, d=3, e=2, seed=3)
THETA, W = np.array([4.0, -3.0, 5.0]), np.array([1.0, -2.0])
SPLIT = split_of(["u"], ["v"], {"u": 3, "v": 2})
L = max(ref.cocoercive(data) for data in CLIENTS)


@ENGINES
def test_theorem_1(engine):
    """Example 1, overpersonalised, gamma = 1/L: min_{r<R} ||F(theta^r)||^2 <= L ||theta^0 - theta*||^2 / (gamma R)."""
    rounds = 60
    algorithm = mo.ffgg(shared=1 / L, personal=EXACT)
    _, thetas, _ = follow_run(ref.task(THETA, W), CLIENTS, algorithm, rounds, SPLIT, engine=engine)
    squares = [np.sum(np.mean([ref.operator(d, t) for d in CLIENTS], axis=0) ** 2) for t in thetas]
    for count in range(1, rounds + 1):
        assert min(squares[:count]) <= L**2 * np.sum((THETA - BEST) ** 2) / count
    # The step is gamma F, exactly: theta^{r+1} = theta^r - mean of F_m / L.
    for before, after in pairwise(thetas):
        step = np.mean([ref.operator(d, before) for d in CLIENTS], axis=0) / L
        np.testing.assert_allclose(after, before - step, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("cohort", [1, 2])
def test_partial_participation_decreases_the_distance_in_every_round(cohort):
    """The recursion in the proof of Theorem 1 holds for every cohort that is drawn, not only in the mean.

    ||theta^{r+1} - theta*||^2 <= ||theta^r - theta*||^2 - gamma / (L |C|) sum_{m in C} ||F_m(theta^r)||^2
    """
    algorithm = mo.ffgg(shared=1 / L, personal=EXACT)
    _, thetas, cohorts = follow_run(ref.task(THETA, W), CLIENTS, algorithm, 60, SPLIT, cohort=cohort)
    assert len({tuple(c) for c in cohorts}) > 2
    for before, after, members in zip(thetas[:-1], thetas[1:], cohorts, strict=True):
        drop = np.mean([np.sum(ref.operator(CLIENTS[m], before) ** 2) for m in members]) / L**2
        assert np.sum((after - BEST) ** 2) <= np.sum((before - BEST) ** 2) - drop + 1e-12


FITTED, THETA_STAR = ref.clients(3, rows=8, d=3, e=2, seed=5, phi=False)


@ENGINES
def test_overpersonalised_is_solved_exactly_by_one_client_a_round(engine):
    """One theta* fits all, with a w_m* for each; FFGG finds it though it sees one client at a time."""
    top = max(ref.cocoercive(d) for d in FITTED) / 2  # without phi, F_m is linear and L is its norm
    algorithm = mo.ffgg(shared=1 / top, personal=mo.solver.conjugate_gradient(steps=2))
    task = ref.task(THETA, W, phi=False)
    run = mo.fit(
        task,
        federated(FITTED),
        algorithm,
        split=SPLIT,
        rounds=300,
        cohort=1,
        engine=engine,
        settings=mo.Settings(evaluate_every=300),
    )
    np.testing.assert_allclose(run.shared_parameters()["u"].numpy(), THETA_STAR, rtol=0, atol=1e-8)
    assert max(row["loss"] for row in run.clients) < 1e-15


def test_fedavg_is_biased_on_the_same_problem():
    """It has one w for all. The best it can do is the minimiser of the mean, a linear solve, far from theta*.

    One step in each round stays there; with ten it drifts away even from there, and more so with one client a round.
    """
    one = plain.minimiser(FITTED, (1, 1, 1), {"u": "a", "v": "b"}, ())[0]
    assert np.abs(one["u"] - THETA_STAR).max() > 0.1
    task, split = ref.task(one["u"], one["v"], phi=False), split_of(["u", "v"], [], {"u": 3, "v": 2})
    drifts = {}
    for steps, cohort in ((1, 3), (10, 3), (10, 1)):
        algorithm = mo.fedavg(shared=mo.sgd(0.1, steps=steps, batch_size=99), weighting="uniform")
        run = mo.fit(task, federated(FITTED), algorithm, split=split, rounds=20, cohort=cohort, engine="vectorised")
        drifts[steps, cohort] = np.abs(run.shared_parameters()["u"].numpy() - one["u"]).max()
        assert min(row["loss"] for row in run.clients) > 0.05
    assert drifts[1, 3] < 1e-10
    assert drifts[10, 3] > 1e-3
    assert drifts[10, 1] > 1e-2


def test_theorem_6():
    """Inexact, by Algorithm 2 from w = 0, with tau as the theorem asks: the bound is four times that of Theorem 1.

    w*(theta) = B^+ (y - A theta), so that its A is max ||B^+ A|| and its C is max ||w*(theta*)||; L_w bounds the cross
    term ||A^T B|| and the curvature ||B^T B|| (the theorem's step 1/L_w needs both), mu_w is the least curvature.
    """
    rounds = 40
    some = [ref.matrices(d) for d in CLIENTS]
    lw = max(max(np.linalg.norm(m["a"].T @ m["b"], 2), np.linalg.norm(m["b"], 2) ** 2) for m in some)
    mu = min(np.linalg.eigvalsh(m["b"].T @ m["b"])[0] for m in some)
    big_a = max(np.linalg.norm(np.linalg.pinv(m["b"]) @ m["a"], 2) for m in some)
    big_c = max(np.linalg.norm(ref.inner(d, BEST)) for d in CLIENTS)
    a, b, r0 = 2 * lw * big_a / L, 2 * lw * big_c / L, np.linalg.norm(THETA - BEST)
    logs = (2 * np.log(a * rounds), 2 * np.log(b * rounds / r0), np.log(b**2 * rounds / r0**2))
    tau = int(np.ceil(lw / mu * max(logs)))
    algorithm = mo.ffgg(shared=1 / L, personal=mo.sgd(1 / lw, steps=tau))
    _, thetas, _ = follow_run(ref.task(THETA, 0 * W), CLIENTS, algorithm, rounds, SPLIT, engine="vectorised")
    squares = [np.sum(np.mean([ref.operator(d, t) for d in CLIENTS], axis=0) ** 2) for t in thetas]
    for count in range(1, rounds + 1):
        assert min(squares[:count]) <= 4 * L**2 * r0**2 / count


@ENGINES
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_theorem_5(engine, weighting):
    """Not overpersonalised: where the mean of F_m is 0, the mean of f_m(theta, w*_m(theta)) is least.

    The minimiser of that bilevel problem is one least-squares problem in (I - B B^+)(A theta - y).
    """
    clients, true = ref.clients(3, rows=8, d=3, e=2, seed=7, noise=2.0, phi=False)
    weights = [1, 1, 1] if weighting == "uniform" else [len(d["y"]) for d in clients]
    best = ref.bilevel_minimiser(clients, weights)
    assert np.abs(best - true).max() > 0.1
    top = max(ref.cocoercive(d) for d in clients) / 2
    algorithm = mo.ffgg(shared=1 / top, personal=EXACT, weighting=weighting)
    task = ref.task(THETA, W, phi=False)
    run = mo.fit(
        task,
        federated(clients),
        algorithm,
        split=SPLIT,
        rounds=60,
        engine=engine,
        settings=mo.Settings(evaluate_every=60),
    )
    theta = run.shared_parameters()["u"].numpy()
    np.testing.assert_allclose(theta, best, rtol=0, atol=1e-8)
    for side in np.vstack([np.eye(3), -np.eye(3)]) / 100:
        assert ref.risk(clients, weights, theta) < ref.risk(clients, weights, theta + side)


def test_example_3():
    """psi(r) = mean of log cosh(r), phi as in Example 1, w one number: F is found by bisection in NumPy.

    Both parts of F_m are cocoercive: phi's with L_phi = ||H^T H||, the other with ||A||^2 since log cosh is 1-smooth
    (<psi'(r) - psi'(s), r - s> >= ||psi'(r) - psi'(s)||^2, and ||A^T x|| <= ||A|| ||x||); so L is twice the larger.
    """
    clients, best = ref.clients(3, rows=6, d=2, e=1, seed=7)
    some = [ref.matrices(d) for d in clients]
    top = 2 * max(max(np.linalg.norm(m["h"], 2) ** 2, np.linalg.norm(m["a"], 2) ** 2) for m in some)

    def loss(p, d):
        r = d["a"] @ p["u"] + d["b"] @ p["v"] - d["y"]
        return torch.logaddexp(r, -r) - np.log(2.0) + (d["h"] @ p["u"] - d["c"]).square() / 2

    def operator(d, theta):
        low, high = -1e4, 1e4
        for _ in range(200):  # mean of b tanh(a theta + b w - y) grows with w
            w = (low + high) / 2
            up = d["b"][:, 0] @ np.tanh(d["a"] @ theta + d["b"][:, 0] * w - d["y"]) > 0
            low, high = (low, w) if up else (w, high)
        t = np.tanh(d["a"] @ theta + d["b"][:, 0] * w - d["y"])
        return (d["a"].T @ t + d["h"].T @ (d["h"] @ theta - d["c"])) / len(t)

    start = np.array([3.0, 1.0])
    task = from_functions({"u": torch.tensor(start), "v": torch.zeros(1, dtype=torch.float64)}, loss)
    algorithm = mo.ffgg(shared=1 / top, personal=mo.solver.lbfgs(steps=20))
    split = split_of(["u"], ["v"], {"u": 2, "v": 1})
    _, thetas, _ = follow_run(task, clients, algorithm, 25, split, engine="vectorised")
    squares = [np.sum(np.mean([operator(d, t) for d in clients], axis=0) ** 2) for t in thetas]
    for count in range(1, 26):
        assert min(squares[:count]) <= top**2 * np.sum((start - best) ** 2) / count
    step = np.mean([operator(d, thetas[0]) for d in clients], axis=0) / top
    np.testing.assert_allclose(thetas[1], thetas[0] - step, rtol=1e-7)
