"""L2GD against Algorithm 1 in NumPy, toss by toss; the minimiser of its problem by a linear solve; its limits."""

import math

import numpy as np
import oracle_l2gd as ref
import pytest
import torch
from flat_options import flat
from oracle_problems import even_clients, federated, image_clients, split_of, vector_clients, vector_task
from oracle_pulled import make_quadratic

import moiety as mo
from moiety.algorithms.l2gd import toss_coins
from moiety.errors import MoietyError
from moiety.random import hash_words
from moiety.types import Schedule

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
MATRICES = {"u": "a", "v": "b"}
SPLIT = split_of(["u", "v"], [], {"u": 2, "v": 2})
W = {"u": np.array([0.5, -1.0]), "v": np.array([0.25, 2.0])}


def fit(clients, algorithm, rounds, engine="vectorised"):
    task = vector_task(W["u"], W["v"])
    return mo.fit(
        task,
        federated(clients),
        algorithm,
        split=SPLIT,
        rounds=rounds,
        engine=engine,
        settings=mo.Settings(evaluate_every=rounds),
    )


def vector(params):
    return np.concatenate([np.asarray(params["u"]), np.asarray(params["v"])])


@ENGINES
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_trajectory_in_numpy(engine, weighting):
    sizes = [1, 7, 3, 12]
    clients, weights = vector_clients(sizes), sizes if weighting == "examples" else [1] * 4
    options = {"lr": 0.05, "pull": 1.5, "probability": 0.4, "coins": 2}
    run = fit(clients, flat(mo.l2gd, **options, weighting=weighting), rounds=7, engine=engine)
    assert len({toss_coins(0.4, 2, hash_words("train", t)) for t in range(7)}) > 2
    mean, own = ref.run(clients, weights, W, 7, MATRICES, **options)
    np.testing.assert_allclose(vector(run.shared_parameters()), vector(mean), rtol=1e-10)
    for i, x in enumerate(own):
        np.testing.assert_allclose(vector(run.parameters(i)), vector(x), rtol=1e-10)


def test_the_coin_is_fair_to_its_probability():
    """Over 20,000 rounds: P(xi = 1) = ones / (ones + zeros) is p, and both runs are geometric."""
    p = 0.2
    coins = np.array([toss_coins(p, 0, turn) for turn in range(20_000)])
    assert coins.min() == 1
    # Means 1/(1-p) and 1/p, deviations sqrt(p)/(1-p) and sqrt(1-p)/p; four standard errors.
    for column, mean, deviation in ((0, 1 / (1 - p), math.sqrt(p) / (1 - p)), (1, 1 / p, math.sqrt(1 - p) / p)):
        assert abs(coins[:, column].mean() - mean) < 4 * deviation / math.sqrt(20_000)
        for k in (1, 2, 3):
            q = (1 - p) * p ** (k - 1) if column == 0 else p * (1 - p) ** (k - 1)
            assert abs((coins[:, column] == k).mean() - q) < 4 * math.sqrt(q * (1 - q) / 20_000)
    assert abs(coins[:, 0].sum() / coins.sum() - p) < 0.005
    assert abs(np.corrcoef(coins.T)[0, 1]) < 4 / math.sqrt(20_000)
    assert [toss_coins(p, 1, t) for t in range(50)] != [toss_coins(p, 0, t) for t in range(50)]


CLIENTS = even_clients((6, 9, 15), seed=4)


def test_it_ends_at_the_minimiser_as_steps_fall():
    """argmin sum alpha_i (f_i(x_i) + (lambda/2) ||x_i - mean||^2), which is one linear system.

    With steps of lr / (1 + t/10) in round t, what is left is the coin's noise, which falls as 1 / sqrt(t).
    """
    best = ref.minimiser(CLIENTS, (6, 9, 15), 0.5, MATRICES)
    falling = Schedule(lambda t, rounds: 10 / (10 + t))
    algorithm = mo.l2gd(personal=mo.sgd(0.15, pull=0.5), probability=0.3, weighting="examples", schedule=falling)
    run = fit(CLIENTS, algorithm, rounds=250)
    assert max(np.abs(vector(run.parameters(i)) - best[i]).max() for i in range(3)) < 0.06
    # ... which is neither what clients find alone nor one model for all, nor is it where clients count alike.
    optima = [np.linalg.solve(a, b) for a, b in (make_quadratic(data, MATRICES) for data in CLIENTS)]
    for other in (np.array(optima), best.mean(0), ref.minimiser(CLIENTS, (1, 1, 1), 0.5, MATRICES)):
        assert np.abs(other - best).max() > 0.12


@ENGINES
def test_without_a_pull_clients_train_alone(engine):
    """x_i after K steps of rate r = lr/(1-p) is x* + (I - r A)^K (x0 - x*)."""
    run = fit(CLIENTS, mo.l2gd(personal=mo.sgd(0.1, pull=0.0), probability=0.25), rounds=5, engine=engine)
    count = ref.coin(0.25, 5).count(0)
    for i, data in enumerate(CLIENTS):
        a, b = make_quadratic(data, MATRICES)
        best = np.linalg.solve(a, b)
        error = np.linalg.matrix_power(np.eye(4) - 0.1 / 0.75 * a, count) @ (vector(W) - best)
        np.testing.assert_allclose(vector(run.parameters(i)), best + error, rtol=1e-10)


def test_a_full_step_to_the_mean_is_local_gd_with_a_random_number_of_steps():
    """lr pull / p = 1: all models become their mean, then descend; the number of steps is the coin's."""
    run = fit(CLIENTS, mo.l2gd(personal=mo.sgd(0.1, pull=2.0), probability=0.2), rounds=6)
    x = vector(W)
    for t in range(6):
        _, steps = toss_coins(0.2, 0, hash_words("train", t))
        ends = []
        for a, b in (make_quadratic(data, MATRICES) for data in CLIENTS):
            y = x
            for _ in range(steps):
                y = y - 0.125 * (a @ y - b)
            ends.append(y)
        x = np.mean(ends, axis=0)
    np.testing.assert_allclose(vector(run.shared_parameters()), x, rtol=1e-10)


def test_models_stay_at_home_and_the_ledger_counts_communications():
    net = mo.models.mlp(4, 3, hidden=(5,), seed=2).double()
    numbers = sum(p.numel() for p in net.parameters())
    run = mo.fit(
        net,
        federated(image_clients((3, 5))),
        mo.l2gd(personal=mo.sgd(0.1, pull=0.1), probability=0.1),
        rounds=4,
        engine="sequential",
    )
    assert run.ledger["down_values"] == run.ledger["up_values"] == 4 * 2 * numbers * 8
    first, second = run.parameters(0), run.parameters(1)
    assert not torch.equal(first["head.weight"], second["head.weight"])
    mean = (first["head.weight"] + second["head.weight"]) / 2
    torch.testing.assert_close(run.shared_parameters()["head.weight"], mean, rtol=0, atol=1e-14)


@ENGINES
@pytest.mark.parametrize(("probability", "coins"), [(0.1, 0), (0.1, 3), (0.02, 1)])
def test_flops_are_those_of_the_local_steps_of_each_round(engine, probability, coins):
    """4-5-3 layers: 2 (4 * 5 + 5 * 3) = 70 forward, 70 for the weights, 30 for the hidden layer: 170 a row and step.

    A round has k local steps where (1 - p)^k is the first power below the coin's uniform number; 8 rows in all.
    """
    net, data = mo.models.mlp(4, 3, hidden=(5,), seed=2).double(), federated(image_clients((3, 5)))
    algorithm = mo.l2gd(personal=mo.sgd(0.01, pull=0.1), probability=probability, coins=coins)
    run = mo.fit(net, data, algorithm, rounds=4, engine=engine)
    steps = []
    for t in range(4):
        uniform = (hash_words("l2gd", coins, hash_words("train", t), "local") % 2**64 + 0.5) / 2**64
        steps.append(next(k for k in range(1, 10_000) if (1 - probability) ** k < uniform))
    assert len(set(steps)) > 1, "or rounds are not told apart"
    assert run.ledger["flops"] == 170 * 8 * sum(steps)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("personal", lambda: mo.l2gd(personal=0, probability=0.5)),
        ("lr", lambda: mo.l2gd(personal=mo.sgd(0, pull=0.1), probability=0.5)),
        ("pull", lambda: mo.l2gd(personal=mo.sgd(0.1, pull=-1), probability=0.5)),
        ("personal.pull", lambda: mo.l2gd(personal=mo.sgd(0.1, pull=2.1), probability=0.2)),
        ("probability", lambda: mo.l2gd(personal=mo.sgd(0.1, pull=0.1), probability=0)),
        ("probability", lambda: mo.l2gd(personal=mo.sgd(0.1, pull=0.1), probability=1)),
        ("coins", lambda: mo.l2gd(personal=mo.sgd(0.1, pull=0.1), probability=0.5, coins=-1)),
        ("weighting", lambda: mo.l2gd(personal=mo.sgd(0.1, pull=0.1), probability=0.5, weighting="batches")),
        ("personal.steps", lambda: mo.l2gd(personal=mo.sgd(0.1, steps=2), probability=0.5)),
    ],
)
def test_wrong_hyper_parameters_are_one_line(name, build):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build()
