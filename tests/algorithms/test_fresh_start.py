"""``random_start="fresh"`` of FFGG and Local FFGG: the draws, computed back from what the runs did with them.

Client m has the loss |theta_m - w|^2 / 2, where theta_m is its own row of the shared part. So its draw w^0 follows
from how its row moved, by arithmetic on paper; NumPy does it here.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import moiety as mo

CLIENTS, SIZE, ROUNDS = 40, 50, 3
GAMMA, RATE = 0.5, 0.25
FIRST = np.linspace(-1, 3, SIZE)
ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])


def task():
    def loss(params, batch):
        gap = params["theta"][batch["m"]] - params["w"]
        return (gap**2).sum(-1) / 2

    return mo.task.from_functions(
        {"theta": torch.zeros(CLIENTS, SIZE, dtype=torch.float64), "w": torch.as_tensor(FIRST)}, loss
    )


def split():
    return mo.Split(("theta",), ("w",), (), frozenset(), {"theta": CLIENTS * SIZE, "w": SIZE})


def run(algorithm, engine, rounds=1, seed=0):
    ends = np.arange(1, CLIENTS + 1)
    fed = mo.FederatedData(
        {"m": np.arange(CLIENTS)}, np.stack([ends - 1, ends, ends, ends], 1), [f"c{m}" for m in range(CLIENTS)]
    )
    settings = mo.Settings(evaluate_on="train", evaluate_every=rounds)
    fit = mo.fit(
        task(),
        fed,
        algorithm,
        split=split(),
        rounds=rounds,
        seed=seed,
        engine=engine,
        settings=settings,
        progress=False,
    )
    return fit.shared_parameters()["theta"].numpy()


def ffgg(start):
    return mo.ffgg(shared=GAMMA, personal=mo.sgd(RATE, steps=1), random_start=start)


def draws_of_ffgg(engine, rounds=ROUNDS, start="fresh"):
    """w^0 of every client in every round.

    Algorithm 2 makes w = w^0 - a (w^0 - theta), and line 7 moves theta by -(gamma / M) (theta - w).
    """
    theta, draws = np.zeros((CLIENTS, SIZE)), []
    for r in range(1, rounds + 1):
        new = run(ffgg(start), engine, rounds=r)
        w = theta + (new - theta) * CLIENTS / GAMMA
        draws.append((w - RATE * theta) / (1 - RATE))
        theta = new
    return np.stack(draws)


@ENGINES
def test_every_client_and_turn_draws_its_own_normal_start(engine):
    """6,000 numbers: normal with the mean and the deviation of the first values, and no two turns alike."""
    draws = draws_of_ffgg(engine)
    standard = (draws - FIRST.mean()) / FIRST.std()
    assert stats.kstest(standard.ravel(), "norm").pvalue > 0.01
    turns = standard.reshape(-1, SIZE)
    between = np.corrcoef(turns)[np.triu_indices(len(turns), 1)]
    # Of 7,140 correlations of 50 independent pairs the largest is about 4.3 / sqrt(50) = 0.6.
    assert np.abs(between).max() < 0.75
    assert abs(between.mean()) < 0.01


def test_engines_draw_the_same():
    np.testing.assert_allclose(draws_of_ffgg("sequential"), draws_of_ffgg("vectorised"), atol=1e-9)


def test_another_seed_draws_other_starts():
    a, b = (run(ffgg("fresh"), "sequential", seed=seed) for seed in (0, 1))
    assert not np.isclose(a, b, atol=1e-6).any()


def test_a_seed_draws_once_for_all():
    draws = draws_of_ffgg("sequential", start=3)
    np.testing.assert_allclose(draws, np.broadcast_to(draws[0, 0], draws.shape), atol=1e-9)
    assert np.abs(draws[0, 0] - FIRST).max() > 0.1


@ENGINES
def test_local_ffgg_starts_from_the_same_draws_and_takes_turns(engine):
    """Algorithm 4 by NumPy from the draws that FFGG showed: one step on w, then K = 3 turns on w and theta."""
    w, theta = draws_of_ffgg(engine, rounds=1)[0], np.zeros((CLIENTS, SIZE))
    w = w - RATE * (w - theta)
    start = theta
    for _ in range(3):
        w = w - 0.2 * (w - theta)
        theta = theta - 0.3 * (theta - w)
    algorithm = mo.local_ffgg(
        shared=mo.sgd(0.3, steps=3), personal=0.2, solver=mo.sgd(RATE, steps=1), random_start="fresh"
    )
    np.testing.assert_allclose(run(algorithm, engine), start + (theta - start) / CLIENTS, atol=1e-12)


@pytest.mark.parametrize("start", ["stale", 0.5, -1])
def test_other_starts_are_refused(start):
    with pytest.raises(mo.MoietyError, match="`random_start` must be"):
        ffgg(start)
