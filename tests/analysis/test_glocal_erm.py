"""Glocal.ERM and fictitious play against least squares by NumPy, a solver of SciPy, and appendix C of the paper."""

import numpy as np
import pytest
from scipy.optimize import minimize

import moiety as mo
from moiety.analysis.glocal_erm import _minimise_in_ball

ROUNDS, CLIENTS = 9, 2


def stream(seed=0, d=2, e=3):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(ROUNDS, CLIENTS, k)) for k in (d, e)] + [rng.normal(size=(ROUNDS, CLIENTS))]


def nearest(x, r, w):
    """Of the least-squares solutions of x w' = r the one nearest to w: w and the smallest correction to it."""
    return w + np.linalg.lstsq(x, r - x @ w, rcond=None)[0]


@pytest.mark.parametrize("old", [False, True], ids=["erm", "fictitious"])
@pytest.mark.parametrize("tau", [0, 2])
def test_every_round_fits_all_that_was_seen(tau, old):
    g, l, y = stream()  # noqa: E741
    play = mo.fictitious_play if old else mo.glocal_erm
    result = play(g, l, y, delay=tau, shared=[1.0, -1.0], personal=[0.5, 0.0, 2.0])
    u, v = result.shared, result.personal
    assert u.shape == (ROUNDS + 1, 2)
    assert v.shape == (ROUNDS + 1, CLIENTS, 3)
    for t in range(ROUNDS):
        model = u[max(0, t - tau)]
        for i in range(CLIENTS):
            assert result.losses[t, i] == pytest.approx((y[t, i] - g[t, i] @ model - l[t, i] @ v[t, i]) ** 2)
            models = [u[max(0, s - tau)] if old else model for s in range(t + 1)]
            rest = [y[s, i] - g[s, i] @ models[s] for s in range(t + 1)]
            np.testing.assert_allclose(v[t + 1, i], nearest(l[: t + 1, i], np.array(rest), v[t, i]), atol=1e-9)
        steps = range(t - tau + 1)
        if not steps:
            np.testing.assert_array_equal(u[t + 1], u[t])
            continue
        own = [v[s if old else t - tau] for s in steps]
        rows = np.concatenate([g[s] for s in steps])
        rest = np.concatenate([y[s] - (l[s] * own[s]).sum(1) for s in steps])
        np.testing.assert_allclose(u[t + 1], nearest(rows, rest, u[t]), atol=1e-9)


def test_repetitions_are_computed_as_if_alone():
    streams = [stream(seed) for seed in (0, 1)]
    both = mo.glocal_erm(*(np.stack(parts) for parts in zip(*streams, strict=True)), delay=1, radius=0.7)
    for k, one in enumerate(streams):
        np.testing.assert_allclose(both.shared[k], mo.glocal_erm(*one, delay=1, radius=0.7).shared, atol=1e-12)


@pytest.mark.parametrize("rank", [3, 1])
def test_the_minimiser_in_a_ball(rank):
    """Against SciPy's SLSQP with the ball as a constraint."""
    rng = np.random.default_rng(rank)
    x, y = rng.normal(size=(rank, 3)), rng.normal(size=rank) * 3
    for radius in (0.2, 1.0, 50.0):
        minimiser = _minimise_in_ball(x.T @ x, x.T @ y, np.zeros(3), radius)
        ball = {"type": "ineq", "fun": lambda w, r=radius: r**2 - w @ w}
        oracle = minimize(
            lambda w: ((x @ w - y) ** 2).sum(), np.zeros(3), constraints=[ball], method="SLSQP", options={"ftol": 1e-14}
        )
        assert np.linalg.norm(minimiser) <= radius * (1 + 1e-9)
        assert ((x @ minimiser - y) ** 2).sum() == pytest.approx(oracle.fun, abs=1e-6)


@pytest.mark.parametrize("radius", [None, 0.5])
@pytest.mark.parametrize("old", [False, True], ids=["erm", "fictitious"])
def test_logistic_steps_have_no_slope_left(old, radius):
    """The gradient of the summed loss, written out, vanishes at what was found, or points out of the ball."""
    rng, rounds = np.random.default_rng(3), 20
    g, l = rng.normal(size=(rounds, 1, 1)), rng.normal(size=(rounds, 1, 1))  # noqa: E741
    y = (rng.random((rounds, 1)) < 0.5).astype(float)
    play = mo.fictitious_play if old else mo.glocal_erm
    result = play(g, l, y, loss="logistic", radius=radius)
    u, v = result.shared, result.personal
    t = rounds - 1
    base = np.array([(g[s] @ (u[s] if old else u[t])) for s in range(rounds)])
    p = base + l[:, 0] * v[t + 1, 0]
    slope = float((l[:, 0] * (1 / (1 + np.exp(-p)) - y)).sum())
    inside = radius is None or abs(v[t + 1, 0, 0]) < radius * (1 - 1e-6)
    assert abs(slope) < 1e-4 if inside else slope * v[t + 1, 0, 0] < 0
    loss = np.log1p(np.exp(-(2 * y[t] - 1) * (g[t] @ u[t] + l[t, 0] @ v[t, 0])))
    assert result.losses[t] == pytest.approx(loss)


def appendix_c(rounds, rollouts, seed=0):
    """C.1: one client; N(0, 0.25) is read as a variance."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, rollouts, rounds, 1))
    noise = rng.normal(scale=0.5, size=a.shape)
    return np.stack([a + noise, b], -1), np.stack([1 - a, 1 - b], -1), np.ones_like(a)


def test_fictitious_play_locks_where_erm_does_not():
    """Both start at (1, 0) and the best pair is (0, 1) for both sides; 20,000 steps, three repetitions at once."""
    data = appendix_c(20_000, 3)
    start = {"shared": [1.0, 0.0], "personal": [1.0, 0.0]}
    result = mo.fictitious_play(*data, **start)
    assert (np.abs(result.shared[:, -1] - [0, 1]) > 0.2).all()
    short = [part[:, :2000] for part in data]
    result = mo.glocal_erm(*short, **start)
    np.testing.assert_allclose(result.shared[:, -1], np.tile([0.0, 1.0], (3, 1)), atol=0.01)
    np.testing.assert_allclose(result.personal[:, -1, 0], np.tile([0.0, 1.0], (3, 1)), atol=0.01)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"delay": -1}, "`delay` must be >= 0, got -1."),
        ({"radius": 0.0}, "`radius` must be > 0 and finite, got 0.0."),
        ({"loss": "hinge"}, "`loss` must be one of the known names, got 'hinge'."),
        ({"shared": [1.0]}, "`shared` must be 2 numbers, one a feature, got [1]."),
        ({"loss": "logistic"}, "`y` must be 0 or 1 for logistic, got others."),
    ],
)
def test_one_line_for_wrong_arguments(change, words):
    with pytest.raises(mo.MoietyError) as error:
        mo.glocal_erm(*stream(), **change)
    assert str(error.value).startswith(words)
