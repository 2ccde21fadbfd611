"""Mishchenko et al. 2023, Algorithm 3: against a simulation in NumPy written from the paper, and against the theory."""

import heapq
from dataclasses import replace

import numpy as np
import oracle_bilevel as ref
import oracle_numpy as plain
import pytest
from oracle_problems import even_clients, federated, split_of, vector_task

import moiety as mo
from moiety.random import generator

SEED = 11
THETA, W = np.array([4.0, -3.0, 5.0]), np.array([1.0, -2.0])


def follow_run(task, clients, algorithm, rounds, split, clock):
    """Theta before every round and after the last, and the records."""
    thetas, records = [task.init["u"].numpy()], []

    def server_update(server, change, share):
        after = algorithm.server_update(server, change, share)
        thetas.append(after.shared["u"].numpy().copy())
        return after

    mo.fit(
        task,
        federated(clients),
        replace(algorithm, server_update=server_update),
        split=split,
        rounds=rounds,
        seed=SEED,
        engine="sequential",
        settings=mo.Settings(evaluate_every=rounds, clock=clock),
        callbacks=[lambda run, record: records.append(record)],
    )
    return thetas, records


def simulate(operators, theta, gamma, active, seconds, rounds):
    """Algorithm 3 as a simulation of events; ``seconds(m, k)`` is the time of client m's turn k.

    Line 3: whoever is done first hands in Delta of the theta it began with. Line 4: theta - gamma Delta. Lines 5 to 7:
    a client that is not at work is drawn and begins with the new theta. Only the draws are those of the run.
    """
    turns, queue, began, count = [0] * len(operators), [], {}, 0
    thetas, arrivals = [theta], []

    def begin(m, now):
        nonlocal count
        heapq.heappush(queue, (now + seconds(m, turns[m]), count, m))
        began[m] = (len(thetas) - 1, operators[m](thetas[-1]))
        turns[m], count = turns[m] + 1, count + 1

    first = np.arange(len(operators))
    if active < len(operators):
        first = np.sort(generator(SEED, "cohort", 0).choice(len(operators), size=active, replace=False, shuffle=False))
    for m in first.tolist():
        begin(m, 0.0)
    for r in range(1, rounds + 1):
        now, _, j = heapq.heappop(queue)
        version, delta = began.pop(j)
        thetas.append(thetas[-1] - gamma * delta)
        arrivals.append((j, now, r - 1 - version))
        free = [m for m in range(len(operators)) if m not in began]
        draw = generator(SEED, "cohort", r)
        begin(free[0] if len(free) == 1 else free[draw.choice(len(free), 1, replace=False, shuffle=False)[0]], now)
    return thetas, arrivals


CLIENTS, BEST = ref.clients(5, rows=8, d=3, e=2, seed=5, phi=False)
L = max(ref.cocoercive(data) for data in CLIENTS) / 2  # without phi, F_m is linear and L is its norm
SPLIT = split_of(["u"], ["v"], {"u": 3, "v": 2})


@pytest.mark.parametrize("active", [2, 4, 5])
def test_against_a_simulation_of_algorithm_3(active):
    """The same clients arrive at the same times with the same delays, and theta goes the same way."""
    compute, up = mo.clock.exponential([1, 2, 3, 4, 20]), mo.clock.pareto(0.1, shape=1.5)

    def seconds(m, k):
        return compute.of(SEED, "compute", m, "", k) + up.of(SEED, "up", m, "", k)

    clock = mo.clock.asynchronous(active=active, compute=compute, up=up)
    thetas, records = follow_run(
        ref.task(THETA, W, phi=False), CLIENTS, mo.ffgg(shared=0.3 / L, personal=mo.solver.exact()), 40, SPLIT, clock
    )
    operators = [lambda theta, d=data: ref.operator(d, theta) for data in CLIENTS]
    path, arrivals = simulate(operators, THETA, 0.3 / L, active, seconds, 40)
    assert [(r.cohort[0], r.staleness[0]) for r in records] == [(j, stale) for j, _, stale in arrivals]
    np.testing.assert_allclose([r.time for r in records], [now for _, now, _ in arrivals], rtol=1e-12)
    np.testing.assert_allclose(thetas, path, rtol=1e-9, atol=1e-10)


SLOW = mo.clock.constant([50, 1, 1])
"""The first of three clients is 50 times slower."""


def test_theorem_7_and_the_exact_solution_under_adversarial_delays():
    """One theta* fits all clients, each with a w_m* of its own; the slow client's updates are a hundred steps old.

    Theorem 7: with gamma = 1 / (2 L sqrt(2 M tau)), M active clients and delays of at most tau, min_{r<R} ||F||^2 <=
    2 L ||theta^_0 - theta*||^2 / (gamma R), theta^_0 = theta_0 - gamma sum_m F_m(theta_0). A larger step reaches
    theta*, found by least squares, to seven digits, and stays there through a whole cycle, the slow client's update
    with it.
    """
    some = CLIENTS[:3]
    task, solver = ref.task(THETA, W, phi=False), mo.solver.conjugate_gradient(steps=2)
    clock = mo.clock.asynchronous(active=3, compute=SLOW)
    joint = ref.bilevel_minimiser(some, (1, 1, 1))
    np.testing.assert_allclose(joint, BEST, atol=1e-10)

    delay = 101  # in 50 s the fast ones arrive a hundred times
    gamma = 1 / (2 * L * np.sqrt(2 * 3 * delay))
    thetas, records = follow_run(task, some, mo.ffgg(shared=gamma, personal=solver), 210, SPLIT, clock)
    assert 95 < max(r.staleness[0] for r in records) <= delay
    start = THETA - gamma * sum(ref.operator(d, THETA) for d in some)
    squares = [np.sum(np.mean([ref.operator(d, theta) for d in some], axis=0) ** 2) for theta in thetas]
    for count in range(1, 211):
        assert min(squares[:count]) <= 2 * L * np.sum((start - BEST) ** 2) / (gamma * count)

    top = max(ref.cocoercive(data) for data in some) / 2
    thetas, _ = follow_run(task, some, mo.ffgg(shared=0.5 / top, personal=solver), 808, SPLIT, clock)
    assert max(np.abs(theta - BEST).max() for theta in thetas[-101:]) < 1e-7


def test_asynchronous_fedavg_over_represents_fast_clients():
    """All three work all the time, so client m arrives with frequency 1 / T_m: 50 times to the slow one's once.

    Where FedAvg comes to rest, the updates of one cycle add up to 0: sum_m grad f_m(theta) / T_m = 0 but for terms in
    gamma. That is the minimiser of the mean weighted by 1 / T_m and not of the plain mean, which synchronous rounds
    with one step find. Both are linear solves.
    """
    some = even_clients([6, 8, 7], seed=2)
    task, split = vector_task([1.0, -1.0], [0.5, 2.0]), split_of(["u", "v"], [], {"u": 2, "v": 2})
    fair, fast = (
        plain.minimiser(some, weights, {"u": "a", "v": "b"}, ())[0]["u"] for weights in ((1, 1, 1), (1, 50, 50))
    )
    algorithm = mo.fedavg(shared=mo.sgd(0.02, steps=1, batch_size=99), weighting="uniform")
    clock = mo.clock.asynchronous(active=3, compute=SLOW)
    thetas, records = follow_run(task, some, algorithm, 909, split, clock)
    cycle = [r.cohort[0] for r in records[-101:]]
    assert [cycle.count(m) for m in range(3)] == [1, 50, 50]
    bias = np.abs(fast - fair).max()
    assert bias > 0.3
    assert np.abs(np.mean(thetas[-101:], axis=0) - fast).max() < 0.1 * bias
    assert min(np.abs(theta - fair).max() for theta in thetas[-101:]) > 0.5 * bias
