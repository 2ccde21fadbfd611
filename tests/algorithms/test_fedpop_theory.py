"""FedPop where everything is known: y = A u + B z + noise of deviation S, z ~ N(mu, s^2 I), so that

    z | D ~ N(m, P^-1),  P = B'B / S^2 + I / s^2,  m = P^-1 (B'(y - A u) / S^2 + mu / s^2),
    y ~ N(A u + B mu, S^2 I + s^2 B B'),

all by NumPy. The loss of the task is half a squared error, so its weight is 1 / S^2. Laws are tested over many clients
with the same data and a chain each; a standard score beyond 6.5 has a probability below 1e-9.
"""

from functools import partial

import numpy as np
import pytest
import torch
from flat_options import flat
from oracle_fedpop import Additive, Reference, columns
from oracle_problems import federated, problem_of, serve, split_of, vector_task
from scipy import stats
from scipy.optimize import minimize

import moiety as mo
from moiety.engines.base import RoundInfo
from moiety.engines.vectorised import Vectorised
from moiety.evaluation.calibration import coverage
from moiety.evaluation.predictive import Predictive
from moiety.loop.evaluate import adapt_phases
from moiety.run.predict import newcomer_key

S = 0.5
U, MU, SPREAD = np.array([1.0, -1.0]), np.array([0.5, -0.5]), 0.7
SPLIT = split_of(["u"], ["v"], {"u": 2, "v": 2})


def population(count, seed, least=3, most=8):
    """Clients of the model, and their true z."""
    rng = np.random.default_rng(seed)
    clients, truth = [], MU + SPREAD * rng.normal(size=(count, 2))
    for z in truth:
        n = int(rng.integers(least, most))
        a, b = rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
        clients.append({"a": a, "b": b, "y": a @ U + b @ z + S * rng.normal(size=n)})
    return clients, truth


def posterior(c, u=U, mu=MU, spread=SPREAD, noise=S):
    precision = c["b"].T @ c["b"] / noise**2 + np.eye(2) / spread**2
    mean = np.linalg.solve(precision, c["b"].T @ (c["y"] - c["a"] @ u) / noise**2 + mu / spread**2)
    return mean, precision


def fedpop(kernel, spread=SPREAD, **options):
    defaults = {"shared_lr": 0.03, "prior_lr": 0.1, "loss_weight": 1 / S**2, "samples": 1}
    return flat(mo.fedpop, kernel=kernel, prior=mo.prior.gaussian(scale=spread), **{**defaults, **options})


def adapt_clients(clients, algorithm, u=U, mu=MU):
    """What the algorithm's rule for newcomers draws for each client, at known u and mu; [clients, samples, 2]."""
    problem = problem_of(vector_task(u, mu), federated(clients), SPLIT)
    states = [problem.first_state(algorithm)] * len(clients)
    jobs = problem.make_jobs(adapt_phases(algorithm), range(len(clients)), states, "adapt", 0, part="train")
    received = algorithm.broadcast(problem.first_server(algorithm))
    ends = serve(partial(Vectorised, block=1000), problem, algorithm.adapt, jobs, received, RoundInfo())
    return torch.stack([state.samples["v"] for state in ends]).numpy()


def check_normal(points, mean, covariance):
    n = len(points)
    assert np.abs((points.mean(0) - mean) / np.sqrt(np.diag(covariance) / n)).max() < 6.5
    error = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / n)
    assert np.abs((np.cov(points.T) - covariance) / error).max() < 6.5


@pytest.mark.parametrize("kernel", ["mala", "tuned", "langevin"])
def test_a_new_clients_posterior_is_the_closed_form(kernel):
    """MALA has the posterior itself, also with a step size that each chain finds in its burn-in.

    Unadjusted Langevin has N(m, (P (I - gamma P / 2))^-1), which is known as well.
    """
    (c,), _ = population(1, seed=5)
    mean, precision = posterior(c)
    gamma = 0.5 / np.linalg.eigvalsh(precision)[-1]
    steps = int(np.ceil(np.log(1e-4) / np.log(1 - gamma * np.linalg.eigvalsh(precision)[0])))
    sampler = mo.kernel.mala() if kernel == "tuned" else getattr(mo.kernel, kernel)(step=gamma)
    points = adapt_clients([c] * 2000, fedpop(sampler, burn_in=steps))[:, 0]
    limit = precision if kernel != "langevin" else precision @ (np.eye(2) - gamma * precision / 2)
    check_normal(points, mean, np.linalg.inv(limit))


def marginal(theta, clients):
    u, mu, spread = theta[:2], theta[2:4], np.exp(theta[4])
    total = 0.0
    for c in clients:
        covariance = S**2 * np.eye(len(c["y"])) + spread**2 * c["b"] @ c["b"].T
        r = c["y"] - c["a"] @ u - c["b"] @ mu
        total -= (r @ np.linalg.solve(covariance, r) + np.linalg.slogdet(covariance)[1]) / 2
    return total


def fit_run(clients, rounds, seed):
    """theta = (u, mu, log s) after so many rounds with steps that fall to 0."""
    options = {"samples": 3, "thinning": 2, "schedule": mo.schedule.linear(warmup=0.0)}
    algorithm = fedpop(mo.kernel.mala(step=0.02), spread=1.5, **options)
    task = vector_task([0.0, 0.0], [0.0, 0.0])
    run = mo.fit(
        task,
        federated(clients),
        algorithm,
        split=SPLIT,
        rounds=rounds,
        engine="vectorised",
        seed=seed,
        settings=mo.Settings(evaluate_every=rounds),
    )
    server = run._loop.progress.server
    return np.concatenate(
        [server.shared["u"].numpy(), server.prior["mean"].numpy(), [float(server.prior["log_scale"])]]
    )


def test_the_fit_maximises_the_marginal_likelihood():
    """Within 1 nat of the maximum, which SciPy finds; it begins hundreds below.

    At the end the distance is about 0.1 nat, a sum of five squares of nearly normal errors: 1 nat is then a chi-square
    of five degrees beyond 50, whose probability is 1e-9. With a spread from posterior means alone it would be more.
    """
    clients, _ = population(40, seed=0, least=2, most=5)
    best = minimize(lambda theta: -marginal(theta, clients), np.zeros(5), tol=1e-10)
    start = np.array([0.0, 0.0, 0.0, 0.0, np.log(1.5)])
    assert -best.fun - marginal(start, clients) > 100
    estimate = fit_run(clients, 80, seed=0)
    assert -best.fun - marginal(estimate, clients) < 1.0
    # The spread that posterior means alone have is too small: it is not where the fit ends.
    means = np.array([posterior(c, best.x[:2], best.x[2:4], np.exp(best.x[4]))[0] for c in clients])
    narrow = np.append(best.x[:4], np.log((means - means.mean(0)).std()))
    assert -best.fun - marginal(narrow, clients) > 1.0


def test_ninety_per_cent_intervals_cover_ninety_per_cent():
    """Intervals of z, and intervals of new observations.

    The truth is drawn from the prior, so intervals of the posterior cover it at their level, whatever the clients'
    sizes. B has orthonormal columns: P = p I with p = 1 / S^2 + 1 / s^2, so one step fits all directions, and the two
    numbers of 800 clients are covered or not independently of each other. From some 150 independent draws quantiles are
    a little too near, 0.888 is covered; 0.84 is sqrt(1600) * 0.048 / sqrt(0.888 * 0.112) = 6 standard errors from that
    (a probability of 1e-9), 0.95 is 7.8.

    A new y = a . u + b . z + noise is N(a . u + b . m, S^2 + |b|^2 / p) given the data, so its chance to lie in an
    interval is a difference of the normal distribution function: nothing is drawn but the chains. From 150 draws the
    chance of one interval has a deviation of at most sqrt(0.1 * 0.9 / 150) = 0.025, the mean of 800 one of 0.001.
    """
    rng = np.random.default_rng(2)
    truth, clients = MU + SPREAD * rng.normal(size=(800, 2)), []
    for z in truth:
        n = int(rng.integers(2, 6))
        a, b = rng.normal(size=(n, 2)), np.linalg.qr(rng.normal(size=(n, 2)))[0]
        clients.append({"a": a, "b": b, "y": a @ U + b @ z + S * rng.normal(size=n)})
    precision = 1 / S**2 + 1 / SPREAD**2
    points = adapt_clients(clients, fedpop(mo.kernel.mala(step=0.5 / precision), burn_in=0, samples=200, thinning=3))
    low, high = np.quantile(points, [0.05, 0.95], axis=1)
    assert 0.84 < coverage(low, high, truth) < 0.95
    a, b = rng.normal(size=(2, 800, 2))
    prediction = Predictive(np.einsum("nd,nmd->mn", b, points) + a @ U)
    means = np.array([posterior(c)[0] for c in clients])
    new = stats.norm(a @ U + (b * means).sum(1), np.sqrt(S**2 + (b**2).sum(1) / precision))

    def measure_chance(interval):
        return float((new.cdf(interval[1]) - new.cdf(interval[0])).mean())

    assert 0.89 < measure_chance(prediction.interval(0.9, noise=S)) < 0.91
    # Without the noise of observations the interval is one of the output: it is too narrow for them.
    assert measure_chance(prediction.interval(0.9)) < 0.8


def test_a_spread_towards_0_gives_the_objective_of_fedavg():
    """z stays at mu, so phi moves as by full gradients of the sum of losses at (phi, mu): five steps by NumPy."""
    clients, _ = population(6, seed=3)
    spread = 1e-4
    prior = mo.prior.gaussian(scale=spread, least=1e-6)
    algorithm = mo.fedpop(
        shared=0.01, personal=mo.kernel.langevin(step=spread**2 / 4), learn_prior=False, prior=prior, samples=4
    )
    run = mo.fit(vector_task([0.0, 0.0], MU), federated(clients), algorithm, split=SPLIT, rounds=5, engine="vectorised")
    u = np.zeros(2)
    for _ in range(5):
        gradients = [c["a"].T @ (c["a"] @ u + c["b"] @ MU - c["y"]) for c in clients]
        u = u - 0.01 * np.mean(gradients, axis=0)
    np.testing.assert_allclose(run.shared_parameters()["u"].numpy(), u, atol=20 * spread)
    assert np.abs(run.parameters(0)["v"].numpy() - MU).max() < 10 * spread


def test_a_spread_towards_infinity_gives_fedrep_with_heads_fitted_alone():
    """With a flat prior and little noise every z is its client's least-squares fit, and phi moves by the gradient.

    FedRep with heads trained to the end: z_i = argmin |A u + B z - y|^2, then one step of phi, in NumPy.
    """
    clients, _ = population(6, seed=4, least=5, most=9)
    noise = 1e-3
    prior = mo.prior.gaussian(scale=1e3)
    steepest = max(np.linalg.eigvalsh(c["b"].T @ c["b"])[-1] for c in clients)
    algorithm = mo.fedpop(
        shared=0.01 * noise**2,
        personal=mo.kernel.langevin(step=noise**2 / steepest),
        learn_prior=False,
        prior=prior,
        loss_weight=1 / noise**2,
        samples=3,
        thinning=150,
    )
    run = mo.fit(vector_task([0.0, 0.0], MU), federated(clients), algorithm, split=SPLIT, rounds=2, engine="vectorised")
    u = np.zeros(2)
    for _ in range(2):
        heads = [np.linalg.lstsq(c["b"], c["y"] - c["a"] @ u, rcond=None)[0] for c in clients]
        u = u - 0.01 * np.mean(
            [c["a"].T @ (c["a"] @ u + c["b"] @ z - c["y"]) for c, z in zip(clients, heads, strict=True)], axis=0
        )
    np.testing.assert_allclose(run.shared_parameters()["u"].numpy(), u, atol=20 * noise)
    for i, z in enumerate(heads):
        np.testing.assert_allclose(run.parameters(i)["v"].numpy(), z, atol=20 * noise)


def test_onboarding_is_the_chain_of_algorithm_1_from_the_learned_prior():
    """In NumPy, with the noise of the newcomer's key; squared errors weigh 1 / (2 S^2) where halved ones 1 / S^2."""
    clients, _ = population(5, seed=6)
    rows = {f"c{i}": columns(c) for i, c in enumerate(clients)}
    net = Additive([0.3, -0.2], [0.1, 0.4])
    options = {"loss_weight": 1 / (2 * S**2), "samples": 4, "thinning": 2, "burn_in": 2}
    algorithm = fedpop(mo.kernel.langevin(step=0.01), **options)
    split = mo.split.by_name(net, personal=["head"])
    data = mo.data.from_clients(rows, test=0.0)
    run = mo.fit(
        net, data, algorithm, split=split, rounds=5, engine="sequential", settings=mo.Settings(inputs=("a", "b"))
    )
    (new,), _ = population(1, seed=8)
    server = run._loop.progress.server
    start = {"u": server.shared["body.weight"].numpy()[0], "mu": server.prior["mean"].numpy()}
    reference = Reference(
        [new], **start, rho=float(server.prior["log_scale"]), step=0.01, weight=1 / S**2, eta_shared=0.0,
        eta_prior=0.0, samples=4, thinning=2, burn_in=2, b=1,
    )  # fmt: skip
    points = reference.chain(0, reference.mu, 0, purpose="onboard", key=newcomer_key(0, columns(new)))
    np.testing.assert_allclose(run.onboard(columns(new)).head.weight.detach().numpy()[0], np.mean(points, 0), rtol=1e-9)
    x = {"a": np.ones((3, 2)), "b": np.arange(6.0).reshape(3, 2)}
    outputs = run.predictive(columns(new), x).outputs[:, :, 0]
    np.testing.assert_allclose(outputs, np.array(points) @ x["b"].T + x["a"] @ start["u"], rtol=1e-9)


def test_without_data_the_prior_predicts():
    """z from N(mu, s^2 I), so outputs A u + B z from N(A u + B mu, s^2 B B'): mean and covariance over 4000 draws."""
    prior = mo.prior.gaussian(scale=SPREAD)
    small, large = (
        mo.fedpop(shared=0.01, personal=mo.kernel.langevin(step=0.01), prior=prior, samples=samples)
        for samples in (2, 4000)
    )
    clients, _ = population(2, seed=1)
    net = Additive(U.tolist(), MU.tolist())
    data = mo.data.from_clients({f"c{i}": columns(c) for i, c in enumerate(clients)}, test=0.0)
    split = mo.split.by_name(net, personal=["head"])
    run = mo.fit(net, data, small, split=split, rounds=1, engine="sequential", settings=mo.Settings(inputs=("a", "b")))
    run._loop.algorithm = large
    server = run._loop.progress.server
    u, mu, spread = server.shared["body.weight"].numpy()[0], server.prior["mean"].numpy(), server.prior["log_scale"]
    variance = float(spread.exp()) ** 2
    first = run._loop.problem.first_state(large)
    points = (
        large.posterior.population(torch.tensor(11), large.broadcast(server), first)
        .samples["head.weight"]
        .numpy()[:, 0]
    )
    check_normal(points, mu, np.eye(2) * variance)
    x = {"a": np.array([[1.0, 2.0], [-3.0, 0.5]]), "b": np.array([[2.0, -1.0], [0.5, 1.5]])}
    outputs = run.predictive(None, x).outputs[:, :, 0]
    check_normal(outputs, x["a"] @ u + x["b"] @ mu, variance * x["b"] @ x["b"].T)
