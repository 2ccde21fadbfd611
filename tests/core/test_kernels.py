"""Chains against what is known of them for a normal density N(m, A^-1), where grad log p(z) = -A (z - m).

Unadjusted Langevin is linear there: z' - m = (I - gamma A)(z - m) + sqrt(2 gamma) xi. Its stationary law is normal with
mean m and the covariance S of S = (I - gamma A) S (I - gamma A) + 2 gamma I, that is S = (A (I - gamma A / 2))^-1: too
wide by the factor 1 / (1 - gamma lambda / 2) along an eigenvector of A. MALA has A^-1 itself at any step.

Every test runs CHAINS independent chains and looks at where they end. A mean, a variance or a covariance of so many
draws is normal to good accuracy, so a standard score beyond 6.5 has a probability below 1e-9, skewness included: with
a few dozen numbers, one test in more than a million would fail by chance.
"""

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

import moiety as mo
from moiety import random as draws
from moiety.local.kernels import Target

CHAINS = 8_000
A = np.array([[4.0, 1.2, 0.0], [1.2, 2.0, -0.5], [0.0, -0.5, 1.0]])
M = np.array([1.0, -2.0, 0.5])


def target_of(examples=1.0):
    a, m = torch.from_numpy(A), torch.from_numpy(M)

    def at(z):
        offset = z - m
        return -(offset @ a @ offset) / 2, -(a @ offset)

    return Target(at, torch.tensor(examples, dtype=torch.float64))


def ends(kernel, steps, start=None, chains=CHAINS, examples=1.0):
    """Where independent chains are after so many steps, all begun at one point."""
    target = target_of(examples)
    keys = torch.arange(chains) * 7919 + 13
    z = torch.zeros(chains, 3, dtype=torch.float64) if start is None else torch.from_numpy(start).expand(chains, 3)

    def one(key, z):
        memory = None
        for k in range(steps):
            z, memory = kernel.step(target, z, memory, key, "test", k)
        return z

    return torch.func.vmap(one)(keys, z).numpy()


def check_normal(points, mean, covariance):
    """All means and covariances within 6.5 standard errors; Var of a sample covariance is (S_ii S_jj + S_ij^2) / n."""
    n = len(points)
    error = np.sqrt(np.diag(covariance) / n)
    assert np.abs((points.mean(0) - mean) / error).max() < 6.5
    spread = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / n)
    assert np.abs((np.cov(points.T) - covariance) / spread).max() < 6.5


def langevin_step(gamma):
    return np.linalg.inv(A @ (np.eye(3) - gamma * A / 2))


@pytest.mark.parametrize("gamma", [0.3, 0.1])
def test_unadjusted_langevin_has_its_own_stationary_law(gamma):
    steps = int(np.ceil(np.log(1e-6) / np.log(1 - gamma * np.linalg.eigvalsh(A)[0])))
    check_normal(ends(mo.kernel.langevin(step=gamma), steps), M, langevin_step(gamma))


def test_mala_has_the_law_itself_where_unadjusted_langevin_is_biased():
    """At gamma = 0.3 the largest variance of unadjusted Langevin is 3 times that of the density: none could miss it."""
    exact = np.linalg.inv(A)
    ratio = np.linalg.eigvals(np.linalg.solve(exact, langevin_step(0.3))).real
    assert ratio.max() > 3
    for gamma in (0.3, 0.1):
        check_normal(ends(mo.kernel.mala(step=gamma), 90), M, exact)


def test_the_bias_of_unadjusted_langevin_shrinks_with_its_step():
    """Along the eigenvector of 4.55, steps of 0.2, 0.1 and 0.05 give variances 1.83, 1.29 and 1.13 times too large."""
    value, vectors = np.linalg.eigh(A)
    top, direction = value[-1], vectors[:, -1]
    biases = []
    for gamma, steps in ((0.2, 60), (0.1, 120), (0.05, 240)):
        along = (ends(mo.kernel.langevin(step=gamma), steps, chains=5_000) - M) @ direction
        biases.append(along.var() * top - 1)
        bias = 1 / (1 - gamma * top / 2) - 1
        assert abs(biases[-1] - bias) < 6.5 * np.sqrt(2 / 5_000) * (1 + bias)
    assert biases[0] > 2 * biases[1] > 2 * biases[2] > 0


def test_preconditioned_langevin_with_a_fixed_preconditioner():
    """With decay 1, v is the first squared gradient per example, and the chain is linear: S = F S F' + 2 gamma G."""
    start, examples, damping, gamma = np.array([2.0, 0.0, -1.0]), 10.0, 0.05, 0.05
    g = 1 / (damping + np.abs(A @ (start - M)) / examples)
    step = np.eye(3) - gamma * np.diag(g) @ A
    covariance = solve_discrete_lyapunov(step, 2 * gamma * np.diag(g))
    kernel = mo.kernel.preconditioned_sgld(step=gamma, decay=1.0, damping=damping)
    steps = int(np.ceil(np.log(1e-6) / np.log(np.abs(np.linalg.eigvals(step)).max())))
    check_normal(ends(kernel, steps, start, examples=examples), M, covariance)


def test_two_steps_of_preconditioned_langevin_by_hand():
    """v_1 = g_1^2, v_2 = decay v_1 + (1 - decay) g_2^2, in NumPy with the same noise."""
    key, gamma, decay, damping, n = torch.tensor(5), 0.03, 0.7, 0.1, 4.0
    z = np.array([2.0, 0.0, -1.0])
    v = None
    for k in range(2):
        xi = draws.normal(key, torch.zeros(3, dtype=torch.float64), "test", k).numpy()
        gradient = -A @ (z - M)
        v = (gradient / n) ** 2 if v is None else decay * v + (1 - decay) * (gradient / n) ** 2
        g = 1 / (damping + np.sqrt(v))
        z = z + gamma * g * gradient + np.sqrt(2 * gamma * g) * xi
    kernel = mo.kernel.preconditioned_sgld(step=gamma, decay=decay, damping=damping)
    ours, memory = torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64), None
    for k in range(2):
        ours, memory = kernel.step(target_of(n), ours, memory, key, "test", k)
    np.testing.assert_allclose(ours.numpy(), z, rtol=1e-12)


def test_mala_refuses_what_is_not_finite():
    def at(z):
        inside = z.abs().max() < 1
        return torch.where(inside, 0.0, torch.nan), torch.where(inside, 0.0, torch.nan) * z

    kernel = mo.kernel.mala(step=0.2)
    z, memory = torch.zeros(2, dtype=torch.float64), None
    points = []
    for k in range(200):
        z, memory = kernel.step(Target(at, torch.tensor(1.0)), z, memory, torch.tensor(3), k)
        points.append(z)
    assert torch.stack(points).abs().max() < 1
    assert len(torch.unique(torch.stack(points), dim=0)) > 20


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: mo.kernel.langevin(step=0.0), "`kernel.step` must be > 0"),
        (lambda: mo.kernel.mala(step=float("inf")), "`kernel.step` must be > 0 and finite"),
        (lambda: mo.kernel.sgld(step=0.1, batch_size=0), "`batch_size` must be >= 1"),
        (lambda: mo.kernel.preconditioned_sgld(step=0.1, decay=1.5), "`decay` must be >= 0 and <= 1"),
        (lambda: mo.kernel.preconditioned_sgld(step=0.1, damping=0.0), "`kernel.damping` must be > 0"),
        (lambda: mo.fedpop(shared=0.1, personal=3, prior_lr=0.1), "`personal` must be a Markov kernel"),
    ],
)
def test_bad_input_is_one_line(make, text):
    with pytest.raises(mo.MoietyError) as error:
        make()
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)
