"""Priors against SciPy's densities, and their draws against the distribution that the density says."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import moiety as mo
from moiety import random as draws

Z = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
KINDS = {"gaussian": (mo.prior.gaussian, stats.norm), "laplace": (mo.prior.laplace, stats.laplace)}


@pytest.mark.parametrize("spread", ["common", "element"])
@pytest.mark.parametrize("name", KINDS)
def test_the_log_density_has_its_normaliser(name, spread):
    """Differences between two betas, and between two z, are SciPy's: only a constant may be missing."""
    make, distribution = KINDS[name]
    prior = make(scale=0.7, spread=spread)
    one = prior.init(Z)
    scales = torch.tensor([0.2, 1.0, 3.0]).double() if spread == "element" else torch.tensor(1.9).double()
    other = {"mean": Z * 0.5 + 1, "log_scale": scales.log()}
    ours, theirs = [], []
    for beta in (one, other):
        for z in (Z, Z.flip(0) * 2):
            ours.append(float(prior.log_density(beta, z)))
            theirs.append(distribution.logpdf(z.numpy(), beta["mean"].numpy(), beta["log_scale"].exp().numpy()).sum())
    np.testing.assert_allclose(np.subtract(ours, ours[0]), np.subtract(theirs, theirs[0]), atol=1e-12)
    assert one["log_scale"].shape == (Z.shape if spread == "element" else ())
    torch.testing.assert_close(one["mean"], Z)
    torch.testing.assert_close(prior.centre(other), other["mean"])


@pytest.mark.parametrize("name", KINDS)
def test_draws_have_the_distribution_of_the_density(name):
    """Kolmogorov and Smirnov: sqrt(n) D > 3 has the probability 2 exp(-18) = 3e-8."""
    make, distribution = KINDS[name]
    n = 20_000
    prior = make(scale=1.5, mean=0.4)
    draws = prior.draw(prior.init(torch.zeros(n, dtype=torch.float64)), torch.tensor(3), "test").numpy()
    assert stats.kstest(draws, distribution(0.4, 1.5).cdf).statistic * math.sqrt(n) < 3


def test_hyperpriors_and_projections():
    prior = mo.prior.gaussian(scale=2.0, mean_decay=3.0, scale_decay=5.0, least=0.5, most=4.0)
    beta = {"mean": Z, "log_scale": torch.tensor(math.log(6.0), dtype=torch.float64)}
    density = -1.5 * float(Z.square().sum()) - 2.5 * math.log(3.0) ** 2
    assert float(prior.hyper(beta)) == pytest.approx(density)
    assert float(prior.project(beta)["log_scale"].exp()) == pytest.approx(4.0)
    low = prior.project({**beta, "log_scale": torch.tensor(-9.0)})
    assert float(low["log_scale"].exp()) == pytest.approx(0.5)
    assert mo.prior.gaussian().hyper is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scale": 0.0}, "`prior.scale` must be > 0"),
        ({"scale": 9.0, "most": 4.0}, "`prior.scale` must be from"),
        ({"spread": "tensor"}, "`prior.spread` must be one of the known names"),
        ({"mean_decay": -1.0}, "`prior.mean_decay` must be >= 0"),
        ({"mean": float("nan")}, "`prior.mean` must be finite"),
    ],
)
def test_bad_input_is_one_line(options, text):
    with pytest.raises(mo.MoietyError) as error:
        mo.prior.gaussian(**options)
    assert str(error.value).startswith(text)


def test_draws_of_two_clients_differ():
    prior = mo.prior.gaussian()
    beta = prior.init(Z)
    assert not torch.equal(prior.draw(beta, torch.tensor(1), 0), prior.draw(beta, torch.tensor(2), 0))
    torch.testing.assert_close(
        prior.draw(beta, torch.tensor(1), 0) - Z, draws.normal(torch.tensor(1), Z, 0), rtol=0, atol=1e-12
    )
