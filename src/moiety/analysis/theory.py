"""The bounds of Pillutla et al. (2022), Theorems 1 and 2, as functions of the problem's constants.

After T rounds the weighted mean of squared gradient norms on the left of (7) is, up to absolute constants, at most

    (gap s1)^(1/2) / T^(1/2)  +  (gap^2 s2)^(1/3) / T^(2/3)  +  gap c / T

with gap = F(u0, V0) - F*, effective variances s1 and s2, and c as in Corollaries 4 (FedAlt) and 12 (FedSim), for
rho = 0.

The effective variance s1 is used here with the 1/m that the proofs have and the statements of the theorems do not.
The noise of a mean over m devices enters (14) and Claim 17 as (sigma_u^2 + delta^2 (1 - m/n)) / (m L_u), up to
constants; Theorems 1 and 2 print it without the m. The condition for FedAlt in section 3.3 follows from the form
with 1/m and not from the printed one:

    s_alt < s_sim  <=>  sigma_v^2 / L_v (1 - 2 m / n) < (sigma_u^2 + delta^2 (1 - m / n)) / (m L_u).

``leading_variances(printed=True)`` is the printed form; for m = 1 the two are one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Pair(NamedTuple):
    """A number for FedAlt and the same number for FedSim."""

    alt: float
    sim: float


@dataclass(frozen=True)
class Constants:
    """The constants of Assumptions 1 to 3 for a problem with n ``clients``, of which m (``cohort``) are in a round.

    ``L_u``, ``L_v`` and ``L_uv`` bound the blocks of every client's Hessian (L_uv = L_vu, section A.1); ``sigma_u2``
    and ``sigma_v2`` bound the variance of a batch's gradient; ``delta2`` bounds how the clients' gradients differ.
    """

    L_u: float
    L_v: float
    L_uv: float
    sigma_u2: float
    sigma_v2: float
    delta2: float
    clients: int
    cohort: int

    @property
    def chi2(self) -> float:
        """The square of the cross-sensitivity chi, (5)."""
        return self.L_uv**2 / (self.L_u * self.L_v)

    @property
    def share(self) -> float:
        """The share m/n of clients in a round."""
        return self.cohort / self.clients


def leading_variances(c: Constants, *, printed: bool = False) -> Pair:
    """The effective variances of the 1/sqrt(T) term, with the 1/m of the proofs: (14), and Claim 17 with (16).

    With ``printed`` they are sigma^2_alt,1 and sigma^2_sim,1 as Theorems 1 and 2 print them, without the 1/m.
    """
    shared = (c.delta2 * (1 - c.share) + c.sigma_u2) / ((1 if printed else c.cohort) * c.L_u)
    personal = c.sigma_v2 / c.L_v
    alt = shared + personal * (c.share + c.chi2 * (1 - c.share))
    return Pair(alt, (1 + c.chi2) * (shared + personal * c.share))


def second_variances(c: Constants, *, shared_steps: int, personal_steps: int) -> Pair:
    """The effective variances sigma^2_alt,2 and sigma^2_sim,2; FedSim's tau is ``shared_steps``."""
    drift_u, drift_v = 1 - 1 / shared_steps, 1 - 1 / personal_steps
    shared, personal = (c.sigma_u2 + c.delta2) / c.L_u, c.sigma_v2 / c.L_v
    alt = shared * drift_u + personal * (c.share * drift_v + c.chi2)
    return Pair(alt, (1 + c.chi2) * (shared + personal) * drift_u)


def last_factors(c: Constants, *, shared_steps: int) -> Pair:
    """The factors of gap / T in Corollaries 4 and 12, for rho = 0."""
    chi2, inverse = c.chi2, 1 / c.share
    alt = 1 + chi2 * (inverse - 1) + (chi2 * inverse) ** 0.5
    return Pair(alt, (1 + chi2) + (inverse * (1 - 1 / shared_steps) * (1 + chi2)) ** 0.5)


class Terms(NamedTuple):
    """The three terms of a bound after T rounds, up to absolute constants: T^(-1/2), T^(-2/3), 1/T."""

    leading: float
    second: float
    last: float


def bounds(c: Constants, *, gap: float, rounds: int, shared_steps: int, personal_steps: int) -> tuple[Terms, Terms]:
    """The terms of (7) for FedAlt and for FedSim."""
    firsts, lasts = leading_variances(c), last_factors(c, shared_steps=shared_steps)
    seconds = second_variances(c, shared_steps=shared_steps, personal_steps=personal_steps)

    def terms(s1: float, s2: float, factor: float) -> Terms:
        return Terms((gap * s1 / rounds) ** 0.5, (gap**2 * s2 / rounds**2) ** (1 / 3), gap * factor / rounds)

    alt, sim = (terms(*three) for three in zip(firsts, seconds, lasts, strict=True))
    return alt, sim
