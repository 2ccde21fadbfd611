"""Epsilon: against closed forms that are derived here, and against dp-accounting called directly."""

from __future__ import annotations

import math
import sys

import dp_accounting as dp
import pytest
from scipy.stats import norm

import moiety as mo
from moiety.transport.accounting import count_sums, find_noise, spend_epsilon
from moiety.transport.privacy import COUNT_NOISE


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """One Gaussian mechanism, N(1, sigma^2) against N(0, sigma^2) (Balle and Wang 2018, Theorem 8).

    The likelihood ratio exp((2x - 1) / (2 sigma^2)) is e^epsilon at x* = epsilon sigma^2 + 1/2. delta is the mass of
    the first beyond x* minus e^epsilon times that of the second.
    """
    x = epsilon * sigma**2 + 0.5
    return float(norm.sf((x - 1) / sigma) - math.exp(epsilon) * norm.sf(x / sigma))


def sampled_delta(sigma: float, q: float, epsilon: float) -> float:
    """One Poisson-sampled Gaussian mechanism: P = (1 - q) N(0, s^2) + q N(1, s^2) against Q = N(0, s^2), both ways.

    P / Q is 1 - q + q exp((2x - 1) / (2 s^2)), which rises. P beyond e^epsilon: x > x*. Q / P beyond e^epsilon: x < y*,
    which exists where e^-epsilon > 1 - q.
    """
    e = math.exp(epsilon)
    x = sigma**2 * math.log((e - 1 + q) / q) + 0.5
    removal = (1 - q) * norm.sf(x / sigma) + q * norm.sf((x - 1) / sigma) - e * norm.sf(x / sigma)
    addition = 0.0
    if 1 / e > 1 - q:
        y = sigma**2 * math.log((1 / e - 1 + q) / q) + 0.5
        addition = norm.cdf(y / sigma) - e * ((1 - q) * norm.cdf(y / sigma) + q * norm.cdf((y - 1) / sigma))
    return float(max(removal, addition))


def solve(delta_of, delta: float) -> float:
    """The epsilon at which a falling delta is reached, by bisection."""
    low, high = 0.0, 400.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_one_round_is_the_analytic_gaussian_mechanism(sigma, delta):
    assert spend_epsilon(sigma, 1, 1.0, delta) == pytest.approx(
        solve(lambda e: gaussian_delta(sigma, e), delta), rel=1e-8
    )


def test_rounds_of_all_clients_are_one_round_with_less_noise():
    """The loss of T Gaussian mechanisms is normal with T times the mean and the variance: one of sigma / sqrt(T)."""
    expected = solve(lambda e: gaussian_delta(2.0 / math.sqrt(25), e), 1e-5)
    assert spend_epsilon(2.0, 25, 1.0, 1e-5) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.1), (0.6, 0.5), (3.0, 0.02)])
def test_one_sampled_round_is_the_closed_form_and_never_below_it(sigma, q):
    exact = solve(lambda e: sampled_delta(sigma, q, e), 1e-5)
    epsilon = spend_epsilon(sigma, 1, q, 1e-5)
    assert exact - 1e-9 <= epsilon <= 1.005 * exact + 1e-4


@pytest.mark.parametrize(("sigma", "q", "sums"), [(1.0, 0.1, 100), (4.0, 0.02, 300), (0.8, 0.3, 10)])
def test_sampled_rounds_are_what_the_library_says(sigma, q, sums):
    """Its finer grid is slower and not above ours, which rounds to the safe side; its Renyi bound is looser."""
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma)), sums)
    fine = dp.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    loose = dp.rdp.RdpAccountant(orders=range(2, 64)).compose(event).get_epsilon(1e-5)
    epsilon = spend_epsilon(sigma, sums, q, 1e-5)
    assert epsilon == pytest.approx(fine, rel=2e-3)
    assert epsilon < loose


def test_the_quantile_is_accounted_as_a_second_mechanism():
    """A sum of multiplier z, and a count that one client moves by 1/2 with noise of deviation 2.5 z: 5 z."""
    with_quantile = mo.privacy.gaussian(clip=1.0, noise=1.3, delta=1e-5, quantile=0.5)
    both = dp.ComposedDpEvent([dp.GaussianDpEvent(1.3), dp.GaussianDpEvent(COUNT_NOISE * 1.3 / 0.5)])
    direct = dp.pld.PLDAccountant().compose(both, 7).get_epsilon(1e-5)
    assert spend_epsilon(with_quantile.shrink(1.3), 7, 1.0, 1e-5) == pytest.approx(direct, rel=1e-3)


def test_local_noise_hides_one_upload_among_all():
    """Two uploads of norm at most c are up to 2 c apart: half the multiplier."""
    local = mo.privacy.gaussian(clip=1.0, noise=3.0, delta=1e-5, where="local")
    expected = solve(lambda e: gaussian_delta(1.5, e), 1e-5)
    assert spend_epsilon(local.shrink(3.0), 1, 1.0, 1e-5) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("epsilon", "sums", "q"), [(2.0, 30, 1.0), (2.0, 50, 0.1), (0.5, 10, 0.3)])
def test_the_noise_for_an_epsilon_is_enough_and_little_more(epsilon, sums, q):
    noise = find_noise(epsilon, sums, q, 1e-5)
    assert spend_epsilon(noise, sums, q, 1e-5) <= epsilon
    assert spend_epsilon(0.999 * noise, sums, q, 1e-5) > epsilon
    assert count_sums(epsilon, noise, 2 * sums, q, 1e-5) == sums


def test_amplification_is_for_independent_participation_alone():
    for where, independent, rate in (("central", True, 0.1), ("central", False, 1.0), ("local", True, 1.0)):
        privacy = mo.privacy.gaussian(clip=1.0, noise=1.0, delta=1e-5, where=where)
        assert privacy.sampling_rate(10, 100, independent=independent) == rate


def test_without_the_library_a_run_is_refused_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(mo.MoietyError, match=r"pip install 'moiety\[privacy\]'"):
        spend_epsilon(1.0, 3, 1.0, 1.2345e-5)
