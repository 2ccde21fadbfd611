"""What FedPop finds by itself: step sizes, curvature, the prior's scale, the noise; against NumPy and closed forms."""

import warnings

import numpy as np
import pytest
import torch
from flat_options import flat
from oracle_fedpop import Additive, Reference, columns, noise
from oracle_problems import federated, split_of, vector_clients, vector_task

import moiety as mo
from moiety.local.kernels import CURVED, Target, begin_tuning, measure_curvature
from moiety.local.noise import advance_noise

CLIENTS = vector_clients((4, 7, 3), seed=3)
U, V = np.array([0.5, -0.3]), np.array([0.2, 0.1])
SPLIT = split_of(["u"], ["v"], {"u": 2, "v": 2})
STEP, WEIGHT = 0.02, 0.7


def fit(rounds=1, engine="sequential", **options):
    defaults = {"kernel": mo.kernel.langevin(step=STEP), "shared_lr": 0.01, "prior_lr": 0.03, "loss_weight": WEIGHT}
    algorithm = flat(mo.fedpop, **{**defaults, "prior": mo.prior.gaussian(scale=0.8), "samples": 3, **options})
    return mo.fit(vector_task(U, V), federated(CLIENTS), algorithm, split=SPLIT, rounds=rounds, engine=engine)


def reference(**options):
    start = {"u": U.copy(), "mu": V.copy(), "rho": np.log(0.8), "step": STEP, "weight": WEIGHT, "samples": 3, "b": 1}
    return Reference(CLIENTS, **{**start, "eta_shared": 0.01, "eta_prior": 0.03, **options})


def points_of(run):
    return [state.samples["v"].numpy() for state in run._loop.progress.store.get(range(len(CLIENTS)))]


def test_the_curvature_of_a_normal_density():
    """The square of the root is the covariance, A^-1; beyond ``CURVED`` numbers none is kept."""
    a = np.array([[4.0, 1.2, 0.0], [1.2, 2.0, -0.5], [0.0, -0.5, 1.0]])
    matrix, centre = torch.from_numpy(a), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def at(z):
        return -(z - centre) @ matrix @ (z - centre) / 2, -(matrix @ (z - centre))

    root = measure_curvature(Target(at, torch.tensor(1.0)), torch.tensor([3.0, 0.0, -1.0], dtype=torch.float64))
    np.testing.assert_allclose((root @ root).numpy(), np.linalg.inv(a), rtol=1e-6)
    assert begin_tuning(mo.kernel.mala(), torch.zeros(CURVED + 1)).root == ()
    assert begin_tuning(mo.kernel.mala(step=0.1), torch.zeros(2)) is None


def test_a_saddle_counts_by_the_size_of_its_curvature():
    def at(z):
        return (z[0] ** 2 - 4 * z[1] ** 2) / 2, torch.stack([z[0], -4 * z[1]])

    root = measure_curvature(Target(at, torch.tensor(1.0)), torch.tensor([1.0, 1.0], dtype=torch.float64))
    np.testing.assert_allclose(root.numpy(), np.diag([1.0, 0.5]), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_every_client_reaches_the_acceptance(engine):
    """Clients of 4, 7 and 3 rows; the running mean over a hundred steps has a deviation of some 0.04."""
    run = fit(12, engine, kernel=mo.kernel.mala(acceptance=0.7), samples=25)
    for row in run.clients:
        assert row["acceptance"] == pytest.approx(0.7, abs=0.15)
        assert row["step"] > 0
        assert not row["diverges"]
        assert 1 <= row["effective_draws"] <= 25 * np.log10(25)


def test_engines_find_the_same_step_sizes():
    runs = [fit(4, engine, kernel=mo.kernel.mala()) for engine in ("sequential", "vectorised")]
    one, other = ([row["step"] for row in run.clients] for run in runs)
    np.testing.assert_allclose(one, other, rtol=1e-9)
    assert len(set(np.round(one, 6))) == 3


@pytest.mark.parametrize("spread", ["common", "element"])
def test_the_first_natural_step_is_the_m_step(spread):
    """mu is the mean of all draws, sigma^2 their mean squared distance from the old mu."""
    run = fit(1, prior_lr=None, prior=mo.prior.gaussian(scale=0.8, spread=spread))
    draws = np.stack(points_of(run))
    server = run._loop.progress.server
    np.testing.assert_allclose(server.prior["mean"].numpy(), draws.mean((0, 1)), rtol=1e-10)
    squares = ((draws - V) ** 2).mean((0, 1))
    variance = squares.mean() if spread == "common" else squares
    np.testing.assert_allclose(server.prior["log_scale"].exp().numpy() ** 2, variance, rtol=1e-10)


def test_later_natural_steps_go_part_of_the_way():
    """Round k, from 0, goes (1 + k / 10)^-0.7 of the way."""
    run, before = fit(2, prior_lr=None), fit(1, prior_lr=None)
    draws, old = np.stack(points_of(run)), before._loop.progress.server.prior
    mu, variance = old["mean"].numpy(), float(old["log_scale"].exp()) ** 2
    gain, server = 1.1**-0.7, run._loop.progress.server
    np.testing.assert_allclose(server.prior["mean"].numpy(), mu + gain * (draws.mean((0, 1)) - mu), rtol=1e-10)
    squares = ((draws - mu) ** 2).mean()
    assert float(server.prior["log_scale"].exp()) ** 2 == pytest.approx(variance + gain * (squares - variance))


def test_the_natural_step_of_a_laplace_prior():
    """s is the mean distance from mu, and mu moves by s times the mean sign, part of the way to the median."""
    run = fit(1, prior_lr=None, prior=mo.prior.laplace(scale=0.8))
    draws, server = np.stack(points_of(run)), run._loop.progress.server
    assert float(server.prior["log_scale"].exp()) == pytest.approx(np.abs(draws - V).mean(), rel=1e-10)
    np.testing.assert_allclose(server.prior["mean"], V + 0.8 * np.sign(draws - V).mean((0, 1)), rtol=1e-10)


def test_a_scale_from_the_models_first_values():
    prior = mo.prior.gaussian(scale=None)
    assert float(prior.init(torch.tensor([3.0, 4.0]))["log_scale"].exp()) == pytest.approx(np.sqrt(12.5))
    assert float(prior.init(torch.zeros(2))["log_scale"]) == 0.0
    with pytest.raises(mo.MoietyError, match=r"`prior\.scale` must be given with scale_decay"):
        mo.prior.gaussian(scale=None, scale_decay=1.0)


def fit_module(rounds=1, **options):
    net = Additive(U.tolist(), V.tolist())
    defaults = {"shared": 0.01, "personal": mo.kernel.langevin(step=STEP), "prior": mo.prior.gaussian(scale=0.8)}
    data = mo.data.from_clients({f"c{i}": columns(c) for i, c in enumerate(CLIENTS)}, test=0.0)
    how = {"split": mo.split.by_name(net, personal=["head"]), "rounds": rounds, "engine": "sequential"}
    settings = mo.Settings(inputs=("a", "b"))
    return mo.fit(net, data, mo.fedpop(**{**defaults, "samples": 3, **options}), settings=settings, **how)


def test_the_first_noise_is_the_root_mean_square_of_residuals():
    """Over all rows of all clients, at the draws of the first turn and the first u; and it is what predictions have."""
    run = fit_module()
    residuals = []
    for i, c in enumerate(CLIENTS):
        z = run._loop.progress.store.get([i])[0].samples["head.weight"].numpy()[:, 0]
        residuals.append(c["y"] - c["a"] @ U - z @ c["b"].T)
    squares = sum((r**2).mean(0).sum() for r in residuals) / sum(r.shape[1] for r in residuals)
    s = float(run.broadcast()["noise:log_scale"].exp())
    assert s**2 == pytest.approx(squares, rel=1e-6)
    x = {"a": np.ones((2, 2)), "b": np.ones((2, 2))}
    assert run.predictive(0, x).noise == pytest.approx(s)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_falls_no_further_than_its_precision_allows(dtype):
    """Without any residual s falls in every round; 1 / s^2, by which losses are weighed, stays a number."""
    log_noise, gain = torch.zeros((), dtype=dtype), torch.tensor(0.5)
    for _ in range(1000):
        log_noise = advance_noise(log_noise, torch.zeros(()), torch.ones(()), gain)
    assert (-2 * log_noise).exp().square().isfinite()
    back = advance_noise(log_noise, torch.tensor(2.0), torch.ones(()), torch.tensor(1.0))
    assert float(back - log_noise) == pytest.approx(np.log(2) / 2, rel=1e-4)


def test_a_given_noise_is_a_weight():
    """k / (2 s^2) with k = 1: the same run as with that loss_weight."""
    one, other = fit_module(3, noise=0.5), fit_module(3, loss_weight=2.0)
    for a, b in zip(one.parameters(0).values(), other.parameters(0).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    x = {"a": np.ones((2, 2)), "b": np.ones((2, 2))}
    assert one.predictive(0, x).noise == 0.5
    assert other.predictive(0, x).noise is None
    assert "noise:log_scale" not in one.broadcast()


def test_steps_of_a_turn_that_are_not_kept():
    """Of 7 steps the last 3 are kept: the chain of Algorithm 1 without its first 4."""
    run, oracle = fit(1, turn_burn_in=4), reference(samples=7)
    for i, points in enumerate(points_of(run)):
        np.testing.assert_allclose(points, oracle.chain(i, V, 0)[-3:], rtol=1e-10)


def test_the_step_size_of_chains_may_fall():
    """gamma_k = gamma / (1 + k)^a, in NumPy with the same noise, while phi and beta stand still."""
    run, a = fit(3, step_decay=0.5, shared_lr=1e-14, learn_prior=False), 0.5
    for i, c in enumerate(CLIENTS):
        z = V
        for t in range(3):
            gamma, points = STEP / (1 + t) ** a, []
            for k in range(3):
                gradient = -WEIGHT * c["b"].T @ (c["a"] @ U + c["b"] @ z - c["y"]) - (z - V) / 0.8**2
                z = z + gamma * gradient + np.sqrt(2 * gamma) * noise(i, t, k, 2)
                points.append(z)
        np.testing.assert_allclose(points_of(run)[i], points, rtol=1e-9)


def test_several_steps_on_the_shared_part_with_the_same_draws():
    run, eta = fit(1, shared_steps=3), 0.01
    changes = []
    for c, points in zip(CLIENTS, points_of(run), strict=True):
        u = U.copy()
        for _ in range(3):
            u = u + eta * np.mean([-WEIGHT * c["a"].T @ (c["a"] @ u + c["b"] @ z - c["y"]) for z in points], axis=0)
        changes.append(u - U)
    np.testing.assert_allclose(run._loop.progress.server.shared["u"].numpy(), U + np.mean(changes, 0), rtol=1e-10)


def test_a_chain_that_diverges_and_stays_finite_is_caught():
    """Steps of 2.3 / L double nothing yet after some turns, but the density falls and falls; smaller steps are well."""
    steepest = max(np.linalg.eigvalsh(WEIGHT * c["b"].T @ c["b"])[-1] for c in CLIENTS) + 1 / 0.8**2
    how = {"learn_prior": False, "shared_lr": 1e-12, "samples": 12}
    with pytest.warns(UserWarning, match="left their density in their last turn"):
        run = fit(3, kernel=mo.kernel.langevin(step=2.5 / steepest), **how)
    assert any(row["diverges"] for row in run.clients)
    assert all(np.isfinite(points).all() for points in points_of(run))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = fit(3, kernel=mo.kernel.langevin(step=0.5 / steepest), **how)
    assert not any(row["diverges"] for row in run.clients)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"turn_burn_in": -1}, "`turn_burn_in` must be >= 0"),
        ({"shared_steps": 0}, "`shared_steps` must be >= 1"),
        ({"step_decay": -1.0}, "`step_decay` must be >= 0"),
        ({"noise": 0.5, "loss_weight": 1.0}, "`noise` must be left out where loss_weight is given"),
        ({"noise": "guess"}, "`noise` must be"),
        ({"noise": -1.0}, "`noise` must be > 0"),
    ],
)
def test_bad_input_is_one_line(options, text):
    with pytest.raises(mo.MoietyError) as error:
        mo.fedpop(**options)
    assert str(error.value).startswith(text)


def test_an_acceptance_is_a_share():
    with pytest.raises(mo.MoietyError, match="`acceptance` must be > 0 and < 1"):
        mo.kernel.mala(acceptance=1.0)


def test_a_folder_keeps_step_sizes_prior_and_noise(tmp_path):
    """At the defaults, with ``mse``: resumed bit for bit, and opened with the same predictions."""
    data = mo.data.from_clients({f"c{i}": columns(c) for i, c in enumerate(CLIENTS)}, test=0.0)
    net = Additive(U.tolist(), V.tolist())
    split = mo.split.by_name(net, personal=["head"])
    how = {"split": split, "engine": "sequential", "settings": mo.Settings(inputs=("a", "b"))}
    whole = mo.fit(net, data, mo.fedpop(samples=12), rounds=4, **how)
    mo.fit(net, data, mo.fedpop(samples=12), rounds=2, out=tmp_path / "run", **how)
    again = mo.resume(tmp_path / "run", model=net, data=data, split=split, rounds=4)
    assert whole.clients == again.clients
    assert all(row["step"] > 0 for row in again.clients)
    for name, value in whole.broadcast().items():
        assert torch.equal(value, again.broadcast()[name])
    assert "noise:log_scale" in again.broadcast()
    run = mo.load(tmp_path / "run", model=net, data=data, split=split)
    x = {"a": np.ones((2, 2)), "b": np.ones((2, 2))}
    np.testing.assert_array_equal(run.predictive(1, x).outputs, whole.predictive(1, x).outputs)
    assert run.predictive(1, x).noise == whole.predictive(1, x).noise
