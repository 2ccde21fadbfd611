"""``advise`` on least squares, where every constant is a matrix norm, a mean over all batches, or a formula."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from oracle_problems import federated, image_clients, split_of, vector_clients, vector_task
from torch import nn

import moiety as mo
from moiety.analysis.estimates import STEPS, Estimates
from moiety.errors import MoietyError

SIZES = (5, 7, 4, 6)
START = ([0.5, -1.0], [1.5, 0.25])
SPLIT = split_of(("u",), ("v",), {"u": 2, "v": 2})


def blocks(client):
    """The Hessian blocks of mean (a.u + b.v - y)^2 / 2: mean a a', mean b b', mean a b'."""
    a, b = client["a"], client["b"]
    return a.T @ a / len(a), b.T @ b / len(a), a.T @ b / len(a)


def gradients(client, u, v):
    """One row's gradients in u and v, all rows."""
    residual = client["a"] @ u + client["b"] @ v - client["y"]
    return residual[:, None] * client["a"], residual[:, None] * client["b"]


def over_batches(rows, size):
    """The mean of |batch mean - mean|^2 over all batches of that size."""
    means = [rows[list(batch)].mean(0) for batch in itertools.combinations(range(len(rows)), min(size, len(rows)))]
    return np.mean([np.sum((one - rows.mean(0)) ** 2) for one in means])


def expected_constants(clients, u, vs, scales, batch_size):
    """Assumptions 1 to 3 at one point, in NumPy."""
    norms = [[s * np.linalg.norm(block, 2) for block in blocks(c)] for s, c in zip(scales, clients, strict=True)]
    rows = [gradients(c, u, v) for c, v in zip(clients, vs, strict=True)]
    noise = [[s**2 * over_batches(g, batch_size) for g in pair] for s, pair in zip(scales, rows, strict=True)]
    mean_u = np.array([s * pair[0].mean(0) for s, pair in zip(scales, rows, strict=True)])
    delta2 = np.mean(np.sum((mean_u - mean_u.mean(0)) ** 2, axis=1))
    return np.concatenate([np.max(norms, axis=0), np.max(noise, axis=0), [delta2]])


def list_constants(advice):
    c = advice.constants
    return np.array([c.L_u, c.L_v, c.L_uv, c.sigma_u2, c.sigma_v2, c.delta2])


def ask_advice(holders, **options):
    options = {"split": SPLIT, "cohort": 2, "rounds": 100, "batch_size": 3, "tolerance": 1e-9, "points": 1, **options}
    return mo.advise(vector_task(*START), federated(holders), **options)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_all_constants_at_the_start(weighting):
    clients = vector_clients(SIZES)
    scales = np.array(SIZES) * 4 / sum(SIZES) if weighting == "examples" else np.ones(4)
    u, v = map(np.array, START)
    advice = ask_advice(clients, weighting=weighting)
    assert list_constants(advice) == pytest.approx(expected_constants(clients, u, [v] * 4, scales, 3), rel=1e-5)
    losses = [np.mean((c["a"] @ u + c["b"] @ v - c["y"]) ** 2) / 2 for c in clients]
    assert advice.gap == pytest.approx(np.mean(scales * losses))
    assert advice.chi == pytest.approx(advice.constants.L_uv / np.sqrt(advice.constants.L_u * advice.constants.L_v))
    assert ask_advice(clients, weighting=weighting, least=0.25).gap == pytest.approx(advice.gap - 0.25)


def test_further_points_lie_along_alternating_steps():
    """The same steps in NumPy: v_i - grad_v / L_v for all i, then u - mean grad_u / L_u; the largest at any point."""
    clients, ones = vector_clients(SIZES), np.ones(4)
    u, vs = np.array(START[0]), [np.array(START[1])] * 4
    at = [expected_constants(clients, u, vs, ones, 3)]
    L_u, L_v = at[0][:2]
    for _ in range(2):
        for _ in range(STEPS):
            vs = [v - gradients(c, u, v)[1].mean(0) / L_v for c, v in zip(clients, vs, strict=True)]
            u = u - np.mean([gradients(c, u, v)[0].mean(0) for c, v in zip(clients, vs, strict=True)], axis=0) / L_u
        at.append(expected_constants(clients, u, vs, ones, 3))
    advice = ask_advice(clients, weighting="uniform", points=3)
    assert list_constants(advice) == pytest.approx(np.max(at, axis=0), rel=1e-5)
    factors = [float(_factor(*point, n=4, m=2)) for point in at]
    assert (advice.low, advice.high) == pytest.approx(
        (min(*factors, advice.factor), max(*factors, advice.factor)), rel=1e-5
    )


def _factor(L_u, L_v, L_uv, sigma_u2, sigma_v2, delta2, *, n, m):
    chi2, shared, personal = L_uv**2 / L_u / L_v, (sigma_u2 + delta2 * (1 - m / n)) / m / L_u, sigma_v2 / L_v
    return np.sqrt((1 + chi2) * (shared + personal * m / n) / (shared + personal * (m + chi2 * (n - m)) / n))


def one_number_clients(count, a, b, y):
    return [{"a": np.array(a)[:, None], "b": np.array(b)[:, None], "y": np.array(y)} for _ in range(count)]


def test_a_problem_where_fedalt_wins():
    """Ten clients with one row a = b = 1 and y = 0 or 2, at u = v = 0, m = 2, batches that hold all rows.

    L_u = L_v = L_uv = 1, chi = 1; no noise; gradients in u are 0 and -2, so delta^2 = 1. Leading variances:
    FedAlt 0.8 / 2, FedSim 2 * 0.8 / 2: a factor sqrt(1 + chi^2) = sqrt 2, with or without the 1/m. gap = 1.
    """
    clients = [one_number_clients(1, [1.0], [1.0], [float(2 * (i % 2))])[0] for i in range(10)]
    task, split = vector_task([0.0], [0.0]), split_of(("u",), ("v",))
    advice = mo.advise(task, federated(clients), split=split, cohort=2, rounds=10_000, points=1)
    assert list_constants(advice) == pytest.approx([1, 1, 1, 0, 0, 1])
    assert advice.better == "fedalt"
    assert (advice.factor, advice.low, advice.high, advice.factor_as_printed) == pytest.approx([math.sqrt(2)] * 4)
    assert (advice.gap, advice.alt.leading, advice.sim.leading) == pytest.approx(
        (1, math.sqrt(0.4) / 100, math.sqrt(0.8) / 100)
    )
    assert advice.sentence == (
        "FedAlt has the better leading term: FedSim's is 1.41 times as large "
        "(1.41 to 1.41 over 1 point and 10 clients). "
        "Estimates are lower bounds at these points, and bounds are known up to constants only."
    )


def test_a_problem_where_fedsim_wins():
    """Ten equal clients with rows (a, b, y) = (1, 0, 0) twice, (1/2, 1, 1), (1/2, 1, -1), at u = v = 0, m = 2, B = 1.

    Gradients of the rows: in u 0, 0, -1/2, 1/2; in v 0, 0, -1, 1; means 0, so nothing moves from point to point.
    L_u = 2.5/4, L_v = 2/4, L_uv = 1/4, chi^2 = (1/16) / (5/16) = 1/5; sigma_u^2 = 1/8, sigma_v^2 = 1/2, delta^2 = 0.
    Shared noise (1/8) / (2 * 5/8) = 0.1, personal noise 1. Leading variances: FedAlt 0.1 + (0.2 + 0.2 * 0.8) = 0.46,
    FedSim 1.2 * (0.1 + 0.2) = 0.36. As printed: 0.2 + 0.36 = 0.56 and 1.2 * 0.4 = 0.48. gap = (0 + 0 + 1/2 + 1/2) / 4.
    """
    clients = one_number_clients(10, [1, 1, 0.5, 0.5], [0, 0, 1.0, 1.0], [0, 0, 1.0, -1.0])
    task, split = vector_task([0.0], [0.0]), split_of(("u",), ("v",))
    advice = mo.advise(task, federated(clients), split=split, cohort=2, rounds=10_000, batch_size=1)
    assert list_constants(advice) == pytest.approx([0.625, 0.5, 0.25, 0.125, 0.5, 0])
    assert advice.better == "fedsim"
    assert (advice.factor, advice.low, advice.high) == pytest.approx([math.sqrt(0.36 / 0.46)] * 3)
    assert advice.factor_as_printed == pytest.approx(math.sqrt(0.48 / 0.56))
    assert str(advice) == (
        "                 largest    median\n"
        "L_u                0.625     0.625   curvature in the shared part\n"
        "L_v                  0.5       0.5   curvature in the personal part\n"
        "L_uv = L_vu         0.25      0.25   how one part moves the other's gradient\n"
        "chi                0.447             cross-sensitivity, max(L_uv, L_vu) / sqrt(L_u L_v)\n"
        "sigma_u^2          0.125     0.125   variance of a batch's shared gradient\n"
        "sigma_v^2            0.5       0.5   variance of a batch's personal gradient\n"
        "delta^2                0         0   diversity of the clients' shared gradients\n"
        "Delta F_0           0.25             loss at the start above its least value, at most\n"
        "\n"
        "bound, T = 10000          T^-1/2    T^-2/3       1/T\n"
        # sqrt(0.25 * 0.46) / 100; (0.0625 * (0.2 * 0.75 + 0.2 * 0.75 + 0.2))^(1/3) / 10000^(2/3);
        # 0.25 (1 + 0.2 * 4 + 1) / 10000, with tau = 4
        "FedAlt (Theorem 1)       0.00339  0.000679     7e-05\n"
        # sqrt(0.25 * 0.36) / 100; (0.0625 * 1.2 * (0.2 + 1) * 0.75)^(1/3) / 10000^(2/3);
        # 0.25 (1.2 + sqrt(5 * 0.75 * 1.2)) / 10000
        "FedSim (Theorem 2)         0.003  0.000877   8.3e-05\n"
        "\n"
        "FedSim has the better leading term: FedAlt's is 1.13 times as large (1.13 to 1.13 over 3 points and\n"
        "10 clients). Estimates are lower bounds at these points, and bounds are known up to constants only."
    )


def test_parts_that_do_not_touch_are_alike():
    """Rows (1, 0) and (0, 1): L_uv = 0, so both theorems give the same leading term."""
    clients = one_number_clients(4, [1.0, 0.0], [0.0, 1.0], [1.0, 2.0])
    task, split = vector_task([0.0], [0.0]), split_of(("u",), ("v",))
    advice = mo.advise(task, federated(clients), split=split, cohort=2, rounds=10, batch_size=1)
    assert (advice.better, advice.chi, advice.factor) == ("alike", 0, 1)
    assert "alike" in advice.sentence
    soon = mo.advise(task, federated(clients), split=split, cohort=2, rounds=1, batch_size=1)
    # gap = 1.25. Leading: sqrt(1.25 * 1.25) for both; 1/T: 1.25 for FedAlt, 1.25 * (1 + sqrt(2 * 1/2)) for FedSim.
    assert "After 1 round the leading term is not yet the largest for FedSim." in soon.sentence
    # Nothing is random with full batches of all clients: both leading terms are nothing.
    still = mo.advise(task, federated(clients), split=split, cohort=4, rounds=10, batch_size=2)
    assert (still.factor, still.alt.leading, still.sim.leading) == (1, 0, 0)


def test_samples_of_clients_and_of_rows_give_unbiased_diversity():
    """All pairs of 4 clients and all pairs of each one's 3 rows: the mean estimate is the diversity of everyone."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4, 3, 2)) + 5 * np.arange(4)[:, None, None]
    true = np.mean(np.sum((rows.mean(1) - rows.mean((0, 1))) ** 2, axis=1))
    pairs, estimates = list(itertools.combinations(range(3), 2)), []
    for clients in itertools.combinations(range(4), 2):
        for choices in itertools.product(pairs, repeat=2):
            samples = [rows[c][list(d)] for c, d in zip(clients, choices, strict=True)]
            means = np.array([s.mean(0) for s in samples])
            # The variance of a mean of 2 of 3 rows: s^2 / 2 * (1 - 2 / 3).
            excess = np.array([[np.sum((s - s.mean(0)) ** 2) / 2 / 3 for s in samples]])
            nothing = np.zeros((1, 2))
            result = Estimates(*[nothing] * 5, gram=(means @ means.T)[None], excess=excess, loss=nothing, clients=4)
            estimates.append(result.diversity(0, np.arange(2)))
    assert min(estimates) > 0  # no estimate was cut at 0, which would bias the mean
    assert np.mean(estimates) == pytest.approx(true)


def test_a_sample_of_clients_widens_the_range_and_the_seed_decides():
    clients = vector_clients([6] * 12)
    one, same, other = (ask_advice(clients, clients=5, examples=4, seed=s) for s in (1, 1, 2))
    assert one == same
    assert one != other
    assert one.low < one.factor <= one.high
    assert (one.clients, one.examples) == (5, 4)


def test_a_network_with_dropout_and_its_own_split():
    clients = image_clients((12, 9, 15))
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))
    before = [p.clone() for p in net.parameters()]
    options = {"split": mo.split.output_layer(net), "cohort": 2, "rounds": 50, "batch_size": 4, "points": 2}
    state = torch.get_rng_state()
    first, second = (mo.advise(net, federated(clients), **options) for _ in range(2))
    assert first == second
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert 0 < first.chi < 3
    assert first.better in ("fedalt", "fedsim", "alike", "undecided")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cohort": 5}, "`cohort` must be <= 4"),
        ({"batch_size": 0}, "`batch_size` must be >= 1"),
        ({"clients": 1}, "`clients` must be >= 2"),
        ({"examples": 1}, "`examples` must be >= 2"),
        ({"points": 0}, "`points` must be >= 1"),
        ({"shared_steps": 0}, "`shared_steps` must be >= 1"),
        ({"tolerance": 2.0}, "`tolerance` must be > 0 and < 1"),
        ({"weighting": "batches"}, "`weighting` must be one of the known names"),
        ({"least": 1e6}, "`least` must be <="),
        ({"split": split_of(("u", "v"), (), {"u": 2, "v": 2})}, "shared and personal parts"),
        ({"split": None}, "`split` must be"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(MoietyError, match=message):
        ask_advice(vector_clients(SIZES), **options)


def test_batchnorm_is_refused():
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    with pytest.raises(MoietyError, match="rows do not affect each other"):
        mo.advise(net, federated(image_clients((5, 5))), split=mo.split.output_layer(net), cohort=1, rounds=1)


def test_a_flat_loss_is_refused():
    """a = b = 0 for all rows: nothing moves the loss."""
    clients = one_number_clients(2, [0.0], [0.0], [1.0])
    with pytest.raises(MoietyError, match="`L_u` must be above 0"):
        mo.advise(
            vector_task([0.0], [0.0]), federated(clients), split=split_of(("u",), ("v",)), cohort=1, rounds=1, points=2
        )
