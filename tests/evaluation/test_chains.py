"""Effective sample size and split R-hat against ArviZ, and against what is known of autoregressive chains.

The constants are what ArviZ 0.23.4 gives for the chains of ``autoregress``: ``arviz.ess(chain[None], method="mean")``
and ``arviz.rhat(np.stack(halves), method="identity")``, where the halves leave out the middle of an odd number of
draws. Where ArviZ is installed, it is asked itself, too, for more chains.
"""

import numpy as np
import pytest

import moiety as mo
from moiety.evaluation.chains import effective_sample_size, judge_chain, split_rhat

ARVIZ = {
    (10, 0.3, 1): (10.0, 0.9318155284323753),
    (20, 0.0, 2): (22.483511141340212, 1.0307836453300494),
    (20, 0.9, 3): (8.30995042064138, 1.1357099728432825),
    (101, 0.5, 4): (52.93819445759088, 0.9912243722974069),
    (400, 0.95, 5): (15.219330225411808, 1.0231334127667486),
    (400, -0.6, 6): (1040.823996531185, 0.9975022060407466),
}


def autoregress(count, a, seed):
    """x_(t+1) = a x_t + noise, from its stationary law."""
    noise = np.random.Generator(np.random.Philox(seed)).normal(size=count)
    x = np.empty(count)
    x[0] = noise[0] / np.sqrt(1 - a * a)
    for t in range(1, count):
        x[t] = a * x[t - 1] + noise[t]
    return x


@pytest.mark.parametrize(("count", "a", "seed"), list(ARVIZ))
def test_numbers_of_arviz(count, a, seed):
    chain = autoregress(count, a, seed)
    ess, rhat = ARVIZ[count, a, seed]
    assert float(effective_sample_size(chain)) == pytest.approx(ess, rel=1e-9)
    assert float(split_rhat(chain)) == pytest.approx(rhat, rel=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_arviz_itself_on_many_chains():
    arviz = pytest.importorskip("arviz")
    for count in (10, 11, 20, 33, 100):
        for a in (-0.9, 0.0, 0.5, 0.95):
            for seed in range(20):
                chain = autoregress(count, a, seed)
                half = count // 2
                ess = arviz.ess(chain[None], method="mean")
                rhat = arviz.rhat(np.stack([chain[:half], chain[-half:]]), method="identity")
                assert float(effective_sample_size(chain)) == pytest.approx(float(ess), rel=1e-9)
                assert float(split_rhat(chain)) == pytest.approx(float(rhat), rel=1e-9)


@pytest.mark.parametrize("a", [-0.5, 0.0, 0.5, 0.9])
def test_an_autoregressive_chain_is_worth_its_integrated_time(a):
    """n (1 - a) / (1 + a) draws. With n = 20000 the estimate has a relative error of about 5%."""
    chain = autoregress(20_000, a, 3)
    assert float(effective_sample_size(chain)) == pytest.approx(20_000 * (1 - a) / (1 + a), rel=0.25)


def test_each_number_is_judged_by_itself():
    chains = np.stack([autoregress(200, a, 1) for a in (0.0, 0.9)], axis=1)
    one = [float(effective_sample_size(chains[:, k])) for k in range(2)]
    np.testing.assert_allclose(effective_sample_size(chains), one, rtol=1e-12)
    assert one[0] > 4 * one[1]


def test_a_chain_that_stands_still_or_jumps_once():
    still = np.ones((40, 1))
    assert judge_chain(still) == (1.0, 1.0)
    jump = np.concatenate([np.zeros((20, 1)), np.ones((20, 1))])
    assert judge_chain(jump)[1] == np.inf


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-300, 1e300])
def test_a_chain_that_stands_still_anywhere(value):
    """The mean of equal numbers may be rounded: what is left is no movement."""
    for count in (10, 21):
        still = np.full((count, 3), value)
        assert judge_chain(still) == (1.0, 1.0)
    jump = np.concatenate([np.full((10, 1), value), np.full((10, 1), 3 * value)])
    assert float(split_rhat(jump)[0]) == np.inf


def test_a_chain_is_judged_alike_in_any_unit():
    chain = autoregress(40, 0.5, 7)[:, None]
    expected = judge_chain(chain)
    for scale in (2.0**-900, 2.0**900):
        assert judge_chain(scale * chain) == expected


def test_few_draws_and_infinite_ones():
    assert np.isnan(judge_chain(np.zeros((5, 2)))).all()
    assert np.isnan(judge_chain(np.zeros((20, 0)))).all()
    assert judge_chain(np.full((20, 2), np.inf)) == (0.0, np.inf)
    with pytest.raises(mo.MoietyError, match="`chain` must be of at least 10 draws"):
        effective_sample_size(np.zeros(4))
