"""Theorems 1 and 2 in numbers worked out by hand.

All cases have n = 10, m = 2, so m/n = 0.2, and L_u = 4, L_v = 1, L_uv = 1, so chi^2 = 1 / (4 * 1) = 0.25.

Case "alt": sigma_u^2 = 8, sigma_v^2 = 1, delta^2 = 10.
    shared noise (10 * 0.8 + 8) / (m L_u) = 16 / 8 = 2, as printed 16 / 4 = 4; personal noise sigma_v^2 / L_v = 1
    s_alt = 2 + 1 * (0.2 + 0.25 * 0.8) = 2.4        printed: 4 + 0.4 = 4.4
    s_sim = 1.25 * (2 + 0.2) = 2.75                 printed: 1.25 * 4.2 = 5.25
    condition: 1 * (1 - 0.4) = 0.6 < 2, FedAlt
    T^(-2/3), tau_u = 4, tau_v = 2: alt 18/4 * 0.75 + 1 * (0.2 * 0.5 + 0.25) = 3.375 + 0.35 = 3.725
                                    sim 1.25 * (4.5 + 1) * 0.75 = 5.15625
    1/T: alt 1 + 0.25 * 4 + sqrt(0.25 * 5) = 3.118034; sim 1.25 + sqrt(5 * 0.75 * 1.25) = 3.415064
Case "sim": sigma_u^2 = 0.8, sigma_v^2 = 16, delta^2 = 1.
    shared noise (0.8 + 0.8) / 8 = 0.2, personal 16; s_alt = 0.2 + 16 * 0.4 = 6.6, s_sim = 1.25 * (0.2 + 3.2) = 4.25
    condition: 16 * 0.6 = 9.6 > 0.2, FedSim
Case "between": as "alt" with sigma_v^2 = 5.
    condition: 5 * 0.6 = 3 > 2, FedSim; s_alt = 2 + 5 * 0.4 = 4 > s_sim = 1.25 * (2 + 1) = 3.75
    printed: s_alt = 4 + 2 = 6 < s_sim = 1.25 * (4 + 1) = 6.25, FedAlt: the m matters
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moiety.analysis.theory import Constants, bounds, last_factors, leading_variances, second_variances

ALT = Constants(L_u=4, L_v=1, L_uv=1, sigma_u2=8, sigma_v2=1, delta2=10, clients=10, cohort=2)
SIM = replace(ALT, sigma_u2=0.8, sigma_v2=16, delta2=1)
BETWEEN = replace(ALT, sigma_v2=5)


@pytest.mark.parametrize(
    ("constants", "proofs", "printed"),
    [
        (ALT, (2.4, 2.75), (4.4, 5.25)),
        (SIM, (6.6, 4.25), (0.4 + 6.4, 1.25 * 3.6)),
        (BETWEEN, (4, 3.75), (6, 6.25)),
    ],
)
def test_leading_variances(constants, proofs, printed):
    assert leading_variances(constants) == pytest.approx(proofs)
    assert leading_variances(constants, printed=True) == pytest.approx(printed)


@pytest.mark.parametrize(("constants", "sides"), [(ALT, (0.6, 2)), (SIM, (9.6, 0.2)), (BETWEEN, (3, 2))])
def test_the_condition_of_section_3_3_is_the_comparison_of_leading_terms(constants, sides):
    alt, sim = leading_variances(constants)
    assert (alt < sim) == (sides[0] < sides[1])


def test_without_gradient_noise_fedalt_gains_the_root_of_one_plus_chi_squared():
    """The regime that section 3.3 calls practically relevant."""
    alt, sim = leading_variances(replace(ALT, sigma_u2=0, sigma_v2=0))
    assert (sim / alt) ** 0.5 == pytest.approx(1.25**0.5)


def test_one_client_a_round_makes_both_readings_one():
    one = replace(BETWEEN, cohort=1)
    assert leading_variances(one) == leading_variances(one, printed=True)


def test_lower_order_terms():
    assert second_variances(ALT, shared_steps=4, personal_steps=2) == pytest.approx((3.725, 5.15625))
    assert last_factors(ALT, shared_steps=4) == pytest.approx((3.118034, 3.415064), abs=1e-6)


def test_full_participation_with_one_step():
    """m = n: no diversity term and no chi in FedAlt's leading term; one step: FedSim has no T^(-2/3) term."""
    full = replace(ALT, cohort=10)
    assert leading_variances(full) == pytest.approx((8 / 40 + 1, 1.25 * (8 / 40 + 1)))
    assert second_variances(full, shared_steps=1, personal_steps=1) == pytest.approx((0.25, 0))
    assert last_factors(full, shared_steps=1) == pytest.approx((1 + 0.5, 1.25))


def test_the_terms_of_the_bound():
    """gap = 3, T = 100: sqrt(3 * 2.4 / 100), (9 * 3.725 / 10^4)^(1/3), 3 * 3.118034 / 100, and likewise for FedSim."""
    alt, sim = bounds(ALT, gap=3, rounds=100, shared_steps=4, personal_steps=2)
    assert alt == pytest.approx((0.268328, 0.149666, 0.093541), abs=1e-6)
    assert sim == pytest.approx((0.287228, 0.166799, 0.102452), abs=1e-6)
