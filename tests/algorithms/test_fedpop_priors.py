"""FedPop with a prior of the user's own: a mixture of two groups of clients, against Algorithm 1 with MALA in NumPy.

p(z) = w N(z; m_1, s^2 I) + (1 - w) N(z; m_2, s^2 I) with w = 1 / (1 + exp(-l)), beta = (m_1, m_2, l). Let r be the
share of the first group in p(z), r = 1 / (1 + exp(-l + (|z - m_1|^2 - |z - m_2|^2) / (2 s^2))). Then by hand

    grad_z = -(r (z - m_1) + (1 - r) (z - m_2)) / s^2,
    grad_m_1 = r (z - m_1) / s^2,   grad_m_2 = (1 - r) (z - m_2) / s^2,   d / dl = r (1 - w) - (1 - r) w = r - w,

and log p(l) = -(H / 2) l^2 adds -H l. l is held in [-MOST, MOST].
"""

import numpy as np
import pytest
import torch
from oracle_fedpop import Additive, columns
from oracle_problems import vector_clients
from torch.nn import functional

import moiety as mo
from moiety import random as draws
from moiety.local.priors import Prior

CLIENTS = vector_clients((4, 7, 3, 5), seed=3)
S, H, MOST = 0.6, 0.5, 0.2
U, Z, APART = np.array([0.5, -0.3]), np.array([0.2, 0.1]), np.array([1.0, -0.5])
STEP, WEIGHT, ETA_SHARED, ETA_PRIOR, SAMPLES, ROUNDS = 0.08, 0.3, 0.02, 0.05, 3, 4


def two_groups():
    def log_density(beta, z):
        first, second = (-(z - beta[name]).square().sum() / (2 * S**2) for name in ("one", "two"))
        return torch.logaddexp(functional.logsigmoid(beta["l"]) + first, functional.logsigmoid(-beta["l"]) + second)

    def draw(beta, key, *words):
        into = draws.uniform(key, (), *words, "group") < torch.sigmoid(beta["l"])
        return torch.where(into, beta["one"], beta["two"]) + S * draws.normal(key, beta["one"], *words)

    shift = torch.tensor(APART)  # not even, so that the centre is not the model's first value
    return Prior(
        init=lambda z: {"one": z + shift, "two": z - shift / 2, "l": z.new_zeros(())},
        log_density=log_density,
        centre=lambda beta: (beta["one"] + beta["two"]) / 2,
        draw=draw,
        hyper=lambda beta: -H / 2 * beta["l"].square(),
        project=lambda beta: {**beta, "l": beta["l"].clamp(-MOST, MOST)},
    )


class Mixture:
    """u and beta, with the samples of every client."""

    def __init__(self):
        self.u, self.one, self.two, self.l = U, Z + APART, Z - APART / 2, 0.0
        self.last, self.refused, self.held = {}, 0, 0

    def share(self, z):
        gap = ((z - self.one) ** 2).sum() - ((z - self.two) ** 2).sum()
        return 1 / (1 + np.exp(-self.l + gap / (2 * S**2)))

    def target(self, c, z):
        """log p(z | D, u, beta) up to a constant, and its gradient."""
        w, r = 1 / (1 + np.exp(-self.l)), c["a"] @ self.u + c["b"] @ z - c["y"]
        first, second = (np.exp(-((z - m) ** 2).sum() / (2 * S**2)) for m in (self.one, self.two))
        value = np.log(w * first + (1 - w) * second) - WEIGHT * (r @ r) / 2
        share = self.share(z)
        pull = -(share * (z - self.one) + (1 - share) * (z - self.two)) / S**2
        return value, pull - WEIGHT * c["b"].T @ r

    def mala(self, i, z, t):
        """Lines 6 to 8: proposals y of density q(y | z) ~ exp(-|y - z - gamma grad(z)|^2 / (4 gamma))."""
        key, turn = torch.tensor(draws.hash_words("client", 0) ^ i), draws.hash_words("train", t)
        like = torch.zeros(2).double()
        points = []
        for k in range(SAMPLES):
            xi = draws.normal(key, like, turn, "chain", k, "proposal").numpy()
            value, slope = self.target(CLIENTS[i], z)
            y = z + STEP * slope + np.sqrt(2 * STEP) * xi
            value_y, slope_y = self.target(CLIENTS[i], y)
            forth, home = ((y - z - STEP * slope) ** 2).sum(), ((z - y - STEP * slope_y) ** 2).sum()
            chance = np.exp(value_y - value - home / (4 * STEP) + forth / (4 * STEP))
            if float(draws.uniform(key, (), turn, "chain", k, "accept")) < chance:
                z = y
            else:
                self.refused += 1
            points.append(z)
        return points

    def run(self):
        for t in range(ROUNDS):
            sums = [np.zeros(2), np.zeros(2), np.zeros(2), 0.0]
            w = 1 / (1 + np.exp(-self.l))
            for i, c in enumerate(CLIENTS):
                self.last[i] = self.mala(i, self.last[i][-1] if i in self.last else (self.one + self.two) / 2, t)
                for z in self.last[i]:
                    r = self.share(z)
                    slopes = (
                        -WEIGHT * c["a"].T @ (c["a"] @ self.u + c["b"] @ z - c["y"]),
                        r * (z - self.one) / S**2,
                        (1 - r) * (z - self.two) / S**2,
                        r - w,
                    )
                    sums = [s + x / SAMPLES for s, x in zip(sums, slopes, strict=True)]
            self.u = self.u + ETA_SHARED * sums[0]
            self.one, self.two = self.one + ETA_PRIOR * sums[1], self.two + ETA_PRIOR * sums[2]
            free = self.l + ETA_PRIOR * (sums[3] - H * self.l)
            self.l = np.clip(free, -MOST, MOST)
            self.held += self.l != free
        return self


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_learned_mixture_under_mala_is_algorithm_1(engine):
    reference = Mixture().run()
    net = Additive(U.tolist(), Z.tolist())
    # The loss of the module is the squared error, without the half.
    algorithm = mo.fedpop(
        shared=ETA_SHARED,
        personal=mo.kernel.mala(step=STEP),
        prior_lr=ETA_PRIOR,
        prior=two_groups(),
        samples=SAMPLES,
        loss_weight=WEIGHT / 2,
        clients=4,
    )
    data = mo.data.from_clients({f"c{i}": columns(c) for i, c in enumerate(CLIENTS)}, test=0.0)
    split = mo.split.by_name(net, personal=["head"])
    run = mo.fit(
        net, data, algorithm, split=split, rounds=ROUNDS, engine=engine, settings=mo.Settings(inputs=("a", "b"))
    )
    server = run._loop.progress.server
    np.testing.assert_allclose(server.shared["body.weight"].numpy()[0], reference.u, rtol=1e-9)
    for name in ("one", "two", "l"):
        np.testing.assert_allclose(server.prior[name].numpy(), getattr(reference, name), rtol=1e-9)
    for i, points in reference.last.items():
        (state,) = run._loop.progress.store.get([i])
        np.testing.assert_allclose(state.samples["head.weight"].numpy()[:, 0], points, rtol=1e-9)
    assert 0 < reference.refused < 4 * SAMPLES * ROUNDS, "or nothing is refused or accepted"
    assert 0 < reference.held < ROUNDS, "or the projection is not tested"
    # A client without data: one of the groups, drawn by its weight, and the centre for its one model.
    key, like = torch.tensor(draws.hash_words("new client", 0)), torch.zeros(2).double()
    w, samples = 1 / (1 + np.exp(-reference.l)), []
    for m in range(SAMPLES):
        into = float(draws.uniform(key, (), "population", m, "group")) < w
        noise = draws.normal(key, like, "population", m).numpy()
        samples.append((reference.one if into else reference.two) + S * noise)
    x = {"a": np.zeros((2, 2)), "b": np.eye(2)}
    np.testing.assert_allclose(run.predictive(None, x).outputs[:, :, 0], samples, rtol=1e-9)
    centre = run.onboard(None).head.weight.detach().numpy()[0]
    np.testing.assert_allclose(centre, (reference.one + reference.two) / 2, rtol=1e-9)
