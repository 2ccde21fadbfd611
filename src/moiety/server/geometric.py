"""The geometric median, to a certified tolerance."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from moiety.errors import number, whole
from moiety.server.robust import Aggregator, coordinate_median
from moiety.spec import recorded


@recorded
def geometric_median(*, tolerance: float = 1e-6, iterations: int = 1000) -> Aggregator:
    """The point z of least mean distance ``g(z) = 1/n sum_i |z - x_i|``, by Weiszfeld's smoothed iteration (RFA).

    Pillutla et al. 2022 ("Robust Aggregation for Federated Learning"), without weights: ``z <- T(z) = sum_i b_i x_i /
    sum_i b_i``, ``b_i = 1 / max(nu, |z - x_i|)``, here from the coordinate-wise median on. Every second step is
    followed by the squared extrapolation of Varadhan and Roland 2008 along the last two: without it, a median near a
    client takes thousands of steps. The end is ``g(z) <= min g + tolerance s``, where s is the median distance of the
    clients from the coordinate-wise median, a length that no minority can stretch, and ``nu = tolerance s``.

    Proof. Let ``G(z) = 1/n sum_i h(|z - x_i|)`` with h(r) = r from nu on and r^2 / 2 nu + nu / 2 below, so that ``g <=
    G <= g + nu / 2``. T steps by -grad G / b with b the mean of the b_i. The parabola of curvature b that touches G at
    z lies above G, so T lowers G by ``|grad G|^2 / 2 b`` or more, and b <= 1 / nu; an extrapolation is taken only if it
    lowers it further. By convexity G is at most r |grad G| above its least, r being the distance to a minimiser z*. The
    iteration ends once this is at most nu / 2; then g is at most nu above its least. It does end: r <= g(z) + g(z*)
    stays bounded, so until then each step lowers G, which is positive, by at least a fixed amount. Two bounds on r
    serve, with d_i = |z - x_i|: the greatest d_i, as z* is in the hull; and ``sum_K (d_i + h(d_i)) / (2 |K| - n)`` over
    the nearest more than half K, from ``h(|z* - x_i|) >= r - d_i`` in K and ``>= h(d_i) - r`` outside.

    Attackers can make the way long but not the steps harmful: after ``iterations`` the point reached is taken, with a
    warning. With f < n / 2 Byzantine clients and the honest ones within R of a point c, the geometric median is within
    2 (n - f) R / (n - 2 f) of c.

    The corners of a convex quadrangle have it where the diagonals cross, here in the origin.

    >>> corners = torch.tensor([[-1.0, 0.0], [3.0, 0.0], [0.0, -2.0], [0.0, 5.0]], dtype=torch.float64)
    >>> bool(geometric_median(tolerance=1e-9).join(corners, None).norm() < 1e-6)
    True
    """
    number("tolerance", tolerance, ">= 1e-12 and < 1", lambda x: 1e-12 <= x < 1)
    whole("iterations", iterations, 1)
    return Aggregator(lambda vectors, generator: _iterate_weiszfeld(vectors, tolerance, iterations))


def _iterate_weiszfeld(vectors: Tensor, tolerance: float, iterations: int) -> Tensor:
    centre = coordinate_median(vectors)
    spread = vectors - centre
    distances = spread.norm(dim=1)
    scale = float(distances.kthvalue((len(vectors) + 1) // 2).values)
    if scale == 0:  # half of the clients or more sent this very point, which is then a geometric median
        return centre
    nu, at, before = tolerance * scale, torch.zeros_like(centre), centre
    for i in range(iterations):
        pull = distances.clamp(min=nu).reciprocal()
        step: Tensor = pull @ spread / pull.sum()
        gradient = (step - at).norm() * pull.mean()
        if bool(gradient * _bound_distance(distances, nu) <= nu / 2):
            return centre + step
        after = _extrapolate(before, at, step, spread, nu) if i % 2 == 1 else step
        before, at, distances = at, after, (spread - after).norm(dim=1)
    text = f"geometric_median: tolerance {tolerance} is not certified after {iterations} iterations; the last is taken."
    warnings.warn(text, stacklevel=2)
    return centre + at


def _extrapolate(before: Tensor, at: Tensor, step: Tensor, spread: Tensor, nu: float) -> Tensor:
    """Where the steps from ``before`` to ``at`` and ``step`` lead, or ``step`` itself if no such point is lower."""
    first, bend = at - before, step - 2 * at + before
    factor = min(float(first.norm() / bend.norm()), 1e6)
    while factor > 1.5:
        jump = before + 2 * factor * first + factor**2 * bend
        if bool(_measure_rise(step, jump, spread, nu) <= 0):
            return jump
        factor /= 2
    return step


def _smooth_distances(distances: Tensor, nu: float) -> Tensor:
    return torch.where(distances < nu, distances.square() / (2 * nu) + nu / 2, distances)


def _measure_rise(z: Tensor, y: Tensor, spread: Tensor, nu: float) -> Tensor:
    """By how much n G is greater in y than in z.

    |x - y| - |x - z| is the difference of the squares over the sum: the length of far clients must not drown it.
    """
    from_z, from_y = (spread - z).norm(dim=1), (spread - y).norm(dim=1)
    gaps = (2 * spread - z - y) @ (z - y) / (from_z + from_y)
    near = torch.minimum(from_z, from_y) < nu
    return torch.where(near, _smooth_distances(from_y, nu) - _smooth_distances(from_z, nu), gaps).sum()


def _bound_distance(distances: Tensor, nu: float) -> Tensor:
    """A bound on how far the point with these distances is from a minimiser of the smoothed sum."""
    n = len(distances)
    near = distances.sort().values
    majorities = torch.arange(n // 2 + 1, n + 1, device=distances.device)
    bounds = (near + _smooth_distances(near, nu)).cumsum(0)[n // 2 :] / (2 * majorities - n)
    return torch.minimum(bounds.min(), near[-1])
