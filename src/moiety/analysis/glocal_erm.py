"""Glocal.ERM and fictitious play: online empirical risk minimisation of a shared and a personal model, simulated.

"Global and Local Learning for Distributed Personalization": Algorithms 1 and 2, and appendix C (Algorithms 6 and 7).

    client i, round t:  w_{i,t+1} = argmin over |w| <= D of sum_{s<=t} l_{i,s}(w^g_{t-tau}, w)                     (2)
    server, round t:    w^g_{t+1} = argmin over |w| <= D of sum_i sum_{s<=t-tau} l_{i,s}(w, w_{i,t-tau})             (3)

``fictitious_play`` is the pair of rules after Theorem 1, which keeps old losses under the parameters of their time:
l_{i,s}(w^g_{s-tau}, w) for the client and l_{i,s}(w, w_{i,s}) for the server.

This is a simulation and no algorithm of ``moiety.fit``: the paper's server receives every loss function, that is every
example, and every personal model, which ``fit`` never sends. For squared loss the server would need second moments
only, sum x^g x^gT and sum x^g (y - w_i . x^l); but for a client with one example they reveal that example.

Where many parameters fit equally well, as in the first rounds, the one nearest to the present value is used; the paper
leaves this open. Losses are those of a linear pair: l(w^g, w) = f(y, w^g . x^g + w . x^l).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moiety.errors import choice, must, positive, whole

Floats = NDArray[np.float64]
LOSSES = ("squared", "logistic")


@dataclass(frozen=True)
class Trajectory:
    """The losses and parameters of all rounds.

    ``losses`` [..., rounds, clients] are l_{i,t}(w^g_{t-tau}, w_{i,t}); ``shared`` [..., rounds + 1, d] and
    ``personal`` [..., rounds + 1, clients, d_i] the parameters from the first values on.
    """

    losses: Floats
    shared: Floats
    personal: Floats


def glocal_erm(
    global_features: Any,
    local_features: Any,
    y: Any,
    *,
    shared: Any = None,
    personal: Any = None,
    delay: int = 0,
    radius: float | None = None,
    loss: str = "squared",
) -> Trajectory:
    """Algorithms 1 and 2: fit both models to all examples so far, every round.

    Args:
        global_features: x^g [..., rounds, clients, d]; axes in front are independent repetitions, computed together.
        local_features: x^l [..., rounds, clients, d_i].
        y: targets [..., rounds, clients]; 0 and 1 for ``logistic``.
        shared: the first w^g [d]; zeros by default.
        personal: the first w_i [d_i], of every client; zeros by default.
        delay: tau, in rounds, each way.
        radius: D; no constraint by default.
        loss: ``squared``, (y - p)^2 in closed form, or ``logistic``, by L-BFGS (SciPy).

    Returns:
        Losses and parameters, round by round.
    """
    return _play(global_features, local_features, y, shared, personal, delay, radius, loss, old=False)


def fictitious_play(
    global_features: Any,
    local_features: Any,
    y: Any,
    *,
    shared: Any = None,
    personal: Any = None,
    delay: int = 0,
    radius: float | None = None,
    loss: str = "squared",
) -> Trajectory:
    """The rules after Theorem 1 (Algorithm 7): cheaper, but slower to learn. Arguments as in ``glocal_erm``."""
    return _play(global_features, local_features, y, shared, personal, delay, radius, loss, old=True)


@dataclass(frozen=True)
class _Stream:
    x_g: Floats
    x_l: Floats
    y: Floats
    shared: Floats
    personal: Floats
    delay: int
    radius: float | None


def _play(
    x_g: Any, x_l: Any, y: Any, u: Any, v: Any, delay: int, radius: float | None, loss: str, *, old: bool
) -> Trajectory:
    """All rounds, after a check of the arguments; with ``old`` a loss stays under the parameters of its time."""
    x_g, x_l, y = (np.asarray(a, dtype=np.float64) for a in (x_g, x_l, y))
    must(y.ndim >= 2, "y", "[..., rounds, clients]", list(y.shape))
    must(bool(np.isfinite(y).all()), "y", "finite everywhere", "NaN or infinity")
    for name, x in (("global_features", x_g), ("local_features", x_l)):
        must(bool(np.isfinite(x).all()), name, "finite everywhere", "NaN or infinity")
        must(x.shape[:-1] == y.shape, name, f"[{', '.join(map(str, y.shape))}, features]", list(x.shape))
    choice("loss", loss, LOSSES)
    whole("delay", delay, 0)
    if radius is not None:
        positive("radius", radius)
    start: list[Floats] = []
    for name, w, x, shape in (("shared", u, x_g, y.shape[:-2]), ("personal", v, x_l, (*y.shape[:-2], y.shape[-1]))):
        first = np.zeros(x.shape[-1]) if w is None else np.asarray(w, np.float64)
        must(bool(np.isfinite(first).all()), name, "finite everywhere", "NaN or infinity")
        must(first.shape == x.shape[-1:], name, f"{x.shape[-1]} numbers, one a feature", list(first.shape))
        start.append(np.broadcast_to(first, (*shape, x.shape[-1])))
    stream = _Stream(x_g, x_l, y, start[0], start[1], delay, radius)
    return _play_squared(stream, old=old) if loss == "squared" else _play_logistic(stream, old=old)


def _play_squared(s: _Stream, *, old: bool) -> Trajectory:
    """Both rules in closed form: running sums of moments, one solve a round on either side."""
    rounds = s.y.shape[-2]
    u, v = [s.shared], [s.personal]
    losses = np.empty(s.y.shape)
    of_clients = _Moments(s.x_l, s.x_g)  # second moments of x^l, and the part of the targets that x^g explains
    of_server = _Moments(s.x_g, s.x_l)
    for t in range(rounds):
        delayed_u = u[max(0, t - s.delay)]
        x_g, x_l, y = s.x_g[..., t, :, :], s.x_l[..., t, :, :], s.y[..., t, :]
        by_server = np.einsum("...d,...pd->...p", delayed_u, x_g)
        losses[..., t, :] = (y - by_server - (x_l * v[-1]).sum(-1)) ** 2
        of_clients.add(x_l, x_g, y, by_server if old else None)
        right = of_clients.right(delayed_u[..., None, :], old)
        new_v = _minimise_in_ball(of_clients.second, right, v[-1], s.radius)
        origin = t - s.delay  # the round whose examples reach the server now
        new_u = u[-1]
        if origin >= 0:
            x_g, x_l, y = s.x_g[..., origin, :, :], s.x_l[..., origin, :, :], s.y[..., origin, :]
            of_server.add(x_g, x_l, y, (x_l * v[origin]).sum(-1) if old else None)
            right = of_server.right(v[origin], old).sum(-2)
            new_u = _minimise_in_ball(of_server.second.sum(-3), right, u[-1], s.radius)
        u.append(new_u)
        v.append(new_v)
    return Trajectory(losses, np.stack(u, axis=-2), np.stack(v, axis=-3))


class _Moments:
    """Sums over the examples so far, of each client: x x^T, x z^T and x y; or x (y - z . w) with w of the time."""

    def __init__(self, x: Floats, z: Floats) -> None:
        lead, d, e = (*x.shape[:-3], x.shape[-2]), x.shape[-1], z.shape[-1]
        self.second, self.cross, self.first = np.zeros((*lead, d, d)), np.zeros((*lead, d, e)), np.zeros((*lead, d))

    def add(self, x: Floats, z: Floats, y: Floats, prediction: Floats | None) -> None:
        """Add one example of each client; ``prediction`` is the other side's, where that is to stay as it was."""
        self.second = self.second + x[..., :, None] * x[..., None, :]
        self.cross = self.cross + x[..., :, None] * z[..., None, :]
        self.first = self.first + x * (y if prediction is None else y - prediction)[..., None]

    def right(self, w: Floats, old: bool) -> Floats:
        """The right-hand sides of the normal equations."""
        return self.first if old else self.first - (self.cross @ w[..., None])[..., 0]


def _minimise_in_ball(a: Floats, b: Floats, near: Floats, radius: float | None) -> Floats:
    """The minimiser of w^T A w / 2 - b . w in the ball, nearest to ``near`` where there are several.

    On the sphere it is (A + m I)^-1 b for the m > 0 that makes its norm the radius (by bisection).
    """
    values, vectors = np.linalg.eigh(a)
    floor = 1e-12 * np.maximum(values[..., -1:], 1e-300)
    sure = values > floor
    turned_b, turned_near = ((w[..., None, :] @ vectors)[..., 0, :] for w in (b, near))
    inside = np.where(sure, turned_b / np.where(sure, values, 1), 0)
    free = np.where(sure, inside, turned_near)
    if radius is not None:
        outside = np.linalg.norm(free, axis=-1, keepdims=True) > radius
        # Where some minimisers are in the ball, take one; else the constraint decides in the directions that are known.
        room = np.sqrt(np.maximum(radius**2 - (inside**2).sum(-1, keepdims=True), 0))
        loose = np.where(sure, 0, turned_near)
        length = np.linalg.norm(loose, axis=-1, keepdims=True)
        nearest = inside + loose * np.minimum(1, room / np.maximum(length, 1e-300))
        free = np.where(outside, nearest, free)
        too_far = np.linalg.norm(inside, axis=-1, keepdims=True) > radius
        if too_far.any():
            low, high = np.zeros_like(room), np.linalg.norm(turned_b, axis=-1, keepdims=True) / radius
            right = np.where(sure, turned_b, 0)
            for _ in range(100):
                middle = (low + high) / 2
                big = np.linalg.norm(right / np.maximum(values + middle, 1e-300), axis=-1, keepdims=True) > radius
                low, high = np.where(big, middle, low), np.where(big, high, middle)
            free = np.where(too_far, right / np.maximum(values + high, 1e-300), free)
    return np.asarray((vectors @ free[..., None])[..., 0])


def _play_logistic(s: _Stream, *, old: bool) -> Trajectory:
    """Both rules by L-BFGS, from the present value, on all examples so far."""
    must(s.y.ndim == 2, "y", "[rounds, clients] for logistic", list(s.y.shape), "Repeat one at a time.")
    must(bool(np.isin(s.y, (0, 1)).all()), "y", "0 or 1 for logistic", "others")
    rounds, clients = s.y.shape
    u, v = [s.shared], [s.personal]
    losses = np.empty(s.y.shape)
    by_server, by_client = np.empty(s.y.shape), np.empty(s.y.shape)
    for t in range(rounds):
        delayed_u = u[max(0, t - s.delay)]
        by_server[t], by_client[t] = s.x_g[t] @ delayed_u, (s.x_l[t] * v[t]).sum(-1)
        losses[t] = np.logaddexp(0, by_server[t] + by_client[t]) - s.y[t] * (by_server[t] + by_client[t])
        past = slice(t + 1)
        base = by_server[past] if old else s.x_g[past] @ delayed_u
        new_v = [_fit_logistic(s.x_l[past, i], s.y[past, i], base[:, i], v[t][i], s.radius) for i in range(clients)]
        new_u = u[t]
        if t >= s.delay:
            past = slice(t - s.delay + 1)
            base = by_client[past] if old else (s.x_l[past] * v[t - s.delay]).sum(-1)
            flat = s.x_g[past].reshape(-1, s.x_g.shape[-1])
            new_u = _fit_logistic(flat, s.y[past].ravel(), base.ravel(), u[t], s.radius)
        u.append(new_u)
        v.append(np.stack(new_v))
    return Trajectory(losses, np.stack(u), np.stack(v))


def _fit_logistic(x: Floats, y: Floats, base: Floats, start: Floats, radius: float | None) -> Floats:
    """The minimiser of the logistic loss of base + x . w in the ball, from ``start``.

    On the sphere it minimises the loss + (m / 2) |w|^2 for the m > 0 that makes its norm the radius (by bisection).
    """
    from scipy.optimize import minimize

    def at(m: float) -> Floats:
        def value(w: Floats) -> tuple[float, Floats]:
            p = base + x @ w
            slope = x.T @ (np.exp(-np.logaddexp(0, -p)) - y) + m * w
            return float((np.logaddexp(0, p) - y * p).sum() + m / 2 * (w @ w)), slope

        result = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "gtol": 1e-9})
        return np.asarray(result.x)

    free = at(0.0)
    if radius is None or np.linalg.norm(free) <= radius:
        return free
    low, high = 0.0, 1.0
    while np.linalg.norm(at(high)) > radius:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if np.linalg.norm(at(middle)) > radius else (low, middle)
    return at(high)
