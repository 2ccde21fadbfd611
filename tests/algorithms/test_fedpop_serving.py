"""What FedPop's clients and newcomers predict with, against NumPy: at the averaged iterate where one is asked for.

The model is that of ``oracle_fedpop``, a . u + b . z. Its loss here is the squared error, not half of it, so the weight
of the reference is twice ``loss_weight``.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracle_fedpop import Additive, Reference, columns
from oracle_problems import vector_clients

import moiety as mo
from moiety import random as draws
from moiety.run.predict import newcomer_key

CLIENTS, NEW = vector_clients((4, 7, 3), seed=3), vector_clients((5,), seed=9)[0]
U, Z, ROUNDS, BURN_IN = [0.5, -0.3], [0.2, 0.1], 4, 2
X = {"a": np.array([[1.0, 2.0], [-3.0, 0.5], [0.0, 1.0]]), "b": np.array([[2.0, -1.0], [0.5, 1.5], [1.0, 0.0]])}
AVERAGED = pytest.mark.parametrize("averaged", [False, True])


@functools.cache
def fit_run(averaged):
    net = Additive(U, Z)
    algorithm = mo.fedpop(
        shared=0.01,
        personal=mo.kernel.langevin(step=0.02),
        prior_lr=0.03,
        prior=mo.prior.gaussian(scale=0.8),
        loss_weight=0.35,
        samples=3,
        burn_in=BURN_IN,
        averaged=averaged,
        schedule=mo.schedule.exponential(halve_every=1),
    )
    data = mo.data.from_clients({f"c{i}": columns(c) for i, c in enumerate(CLIENTS)}, test=0.0)
    split = mo.split.by_name(net, personal=["head"])
    return mo.fit(
        net, data, algorithm, split=split, rounds=ROUNDS, engine="sequential", settings=mo.Settings(inputs=("a", "b"))
    )


@functools.cache
def expect_iterates(averaged):
    """Algorithm 1 after all rounds, at the last iterate or at the mean, with the burn-in of a chain that begins."""
    start = {"u": np.array(U), "mu": np.array(Z), "rho": np.log(0.8), "step": 0.02, "weight": 0.7, "samples": 3, "b": 1}
    reference = Reference(CLIENTS, **start, eta_shared=0.01, eta_prior=0.03)
    reference.run(ROUNDS, factors=[0.5**t for t in range(ROUNDS)])
    mean = reference.average()
    for one, other in ((mean.u, reference.u), (mean.mu, reference.mu), (mean.rho, reference.rho)):
        assert np.abs(one - other).max() > 0.001, "or the two are not told apart"
    return replace(mean if averaged else reference, burn_in=BURN_IN)


def close(prediction, at, points):
    """The outputs of ``X`` for each point, with the shared part of ``at``."""
    np.testing.assert_allclose(prediction.outputs[:, :, 0], np.array(points) @ X["b"].T + X["a"] @ at.u, rtol=1e-9)


def same_model(net, u, z):
    np.testing.assert_allclose(net.body.weight.detach().numpy()[0], u, rtol=1e-9)
    np.testing.assert_allclose(net.head.weight.detach().numpy()[0], z, rtol=1e-9)


@AVERAGED
def test_a_client_predicts_with_its_stored_draws(averaged):
    """Those of its last turn, which ran at the last iterate; the shared part is the one that models are served with."""
    at = expect_iterates(averaged)
    for client in range(3):
        close(fit_run(averaged).predictive(client, X), at, at.last[client])
        same_model(fit_run(averaged).export(client), at.u, np.mean(at.last[client], axis=0))


@AVERAGED
def test_refreshed_draws_are_of_the_posterior_that_is_served(averaged):
    """A chain from the last point, in the turn of an evaluation after the last round."""
    at = expect_iterates(averaged)
    for client in range(3):
        points = at.chain(client, at.last[client][-1], ROUNDS, purpose="adapt")
        close(fit_run(averaged).predictive(client, X, fresh=True), at, points)


@AVERAGED
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_newcomers_chain_goes_on_from_pass_to_pass(averaged, passes):
    """From mu, with burn-in in every pass, and with the noise of the newcomer's rows and of the pass."""
    new = columns(NEW)
    at = replace(expect_iterates(averaged), clients=[NEW])
    z = at.mu
    for k in range(passes):
        points = at.chain(0, z, k, purpose="onboard", key=newcomer_key(0, new))
        z = points[-1]
    close(fit_run(averaged).predictive(new, X, passes=passes), at, points)
    same_model(fit_run(averaged).onboard(new, passes=passes), at.u, np.mean(points, axis=0))


@AVERAGED
def test_a_client_without_data_is_from_the_prior_that_is_served(averaged):
    """z = mu + s xi for each draw; its one model has z = mu."""
    at, key = expect_iterates(averaged), torch.tensor(draws.hash_words("new client", 0))
    xi = [draws.normal(key, torch.zeros(2, dtype=torch.float64), "population", m).numpy() for m in range(3)]
    close(fit_run(averaged).predictive(None, X), at, [at.mu + np.exp(at.rho) * each for each in xi])
    same_model(fit_run(averaged).onboard(None), at.u, at.mu)
