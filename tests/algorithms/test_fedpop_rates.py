"""Theorem 1 of Kotelevskii et al. 2022: what compression (omega) and partial participation (p) cost.

The bound has the term (omega / p) sum eta_k^2 / sum eta_k: with a constant step eta the error stays at a level that is
linear in eta and in the variance of what the server receives. By S19 of the supplement that variance is
((omega + 1 - p) / p) times the mean square of clients' gradients, divided by b. So with x = (omega + 1) / p - 1

    E f(theta_k) - f(theta*) = level without either + slope x,

where f is quadratic here and the slope is known: theta' = theta - eta (H (theta - theta*) + noise of covariance C x)
has a stationary covariance S = (I - eta H) S (I - eta H) + eta^2 C, and the slope is tr(H S) / 2.
"""

import numpy as np
import pytest
from flat_options import flat
from oracle_problems import federated, split_of, vector_task
from scipy.linalg import solve_discrete_lyapunov

import moiety as mo

B, ROWS, WIDTH, WEIGHT, SPREAD, ETA = 24, 5, 4, 4.0, 0.7, 0.02
SPLIT = split_of(["u"], ["v"], {"u": WIDTH, "v": 1})


def make_clients():
    """y = A u + B z + noise of variance 1 / WEIGHT, z ~ N(0, SPREAD^2)."""
    rng, u = np.random.default_rng(1), np.ones(WIDTH)
    clients = []
    for _ in range(B):
        a, b = rng.normal(size=(ROWS, WIDTH)), np.ones((ROWS, 1))
        z = SPREAD * rng.normal(size=1)
        clients.append({"a": a, "b": b, "y": a @ u + b @ z + rng.normal(size=ROWS) / np.sqrt(WEIGHT)})
    return clients


CLIENTS = make_clients()


def solve():
    """H, theta*, and the gradients of the clients there, of f = (1 / b) sum of -log p(y_i | u)."""
    parts = [np.linalg.inv(np.eye(ROWS) / WEIGHT + SPREAD**2 * c["b"] @ c["b"].T) for c in CLIENTS]
    hessian = np.mean([c["a"].T @ q @ c["a"] for c, q in zip(CLIENTS, parts, strict=True)], axis=0)
    best = np.linalg.solve(hessian, np.mean([c["a"].T @ q @ c["y"] for c, q in zip(CLIENTS, parts, strict=True)], 0))
    gradients = [c["a"].T @ q @ (c["a"] @ best - c["y"]) for c, q in zip(CLIENTS, parts, strict=True)]
    return hessian, best, np.array(gradients)


def measure_level(k, cohort, rounds, eta=ETA):
    """The mean of f(theta_k) - f(theta*) over rounds, where ``k`` of ``WIDTH`` numbers are sent; it begins there."""
    hessian, best, _ = solve()
    gaps = []

    def record(run, _):
        error = run._loop.progress.server.shared["u"].numpy() - best
        gaps.append(error @ hessian @ error / 2)

    algorithm = flat(
        mo.fedpop,
        kernel=mo.kernel.mala(step=0.05),
        shared_lr=eta,
        learn_prior=False,
        prior=mo.prior.gaussian(scale=SPREAD, mean=0.0),
        loss_weight=WEIGHT,
        samples=2,
        thinning=2,
    )
    codec = mo.codec.rand_k(k=k) if k < WIDTH else None
    settings = mo.Settings(codec=codec, evaluate_every=rounds)
    how = {"split": SPLIT, "rounds": rounds, "cohort": cohort, "engine": "vectorised", "settings": settings}
    mo.fit(vector_task(best, np.zeros(1)), federated(CLIENTS), algorithm, callbacks=[record], seed=3, **how)
    return float(np.mean(gaps[rounds // 5 :]))


def predict_slope(eta=ETA):
    hessian, _, gradients = solve()
    noise = (gradients**2).sum(1).mean() / B / WIDTH * np.eye(WIDTH)
    spread = solve_discrete_lyapunov(np.eye(WIDTH) - eta * hessian, eta**2 * noise)
    return np.trace(hessian @ spread) / 2


def test_the_error_is_linear_in_omega_over_p():
    """x = 0, 1 (by omega alone), 3 (omega 1 and half of the clients), 7 (omega 1, a quarter), in that order of size.

    Chance: some 50 independent values of 4 numbers in each run, so a level has a relative error of about 15%.
    """
    levels = {}
    for k, cohort in ((4, B), (2, B), (2, B // 2), (2, B // 4)):
        x = WIDTH / k * B / cohort - 1
        levels[x] = measure_level(k, cohort, 120)
    assert list(levels) == [0.0, 1.0, 3.0, 7.0]
    assert sorted(levels.values()) == list(levels.values())
    slope = np.polyfit(list(levels), list(levels.values()), 1)[0]
    assert slope == pytest.approx(predict_slope(), rel=0.5)


def test_the_error_is_linear_in_the_step():
    """Half the step at x = 7. The ratio of the slopes is 2.2, since tr(H S) is not quite linear where eta H is 0.4."""
    whole, half = (measure_level(2, B // 4, 120, eta=eta) for eta in (ETA, ETA / 2))
    ratio = predict_slope(ETA) / predict_slope(ETA / 2)
    assert ratio == pytest.approx(2.18, abs=0.01)
    assert whole / half == pytest.approx(ratio, rel=0.5)
