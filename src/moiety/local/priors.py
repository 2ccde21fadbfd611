"""Priors over personal parameters, p(z | beta), with what is learned of them: the population that clients are from.

z is a client's personal parameters as one vector. beta is a few named tensors that the server holds and moves by the
gradient of log p(z | beta), which autograd takes: so any energy will do whose normaliser is known, and a prior of one's
own is a ``Prior`` with a ``log_density`` that includes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from moiety.errors import choice, must, number, positive
from moiety.random import normal, uniform
from moiety.spec import recorded
from moiety.types import Params, Recorded

SPREADS = ("common", "element")


@dataclass(frozen=True)
class Prior(Recorded):
    """A family of densities over vectors z.

    ``init(z)`` makes the first beta from the model's first personal values; ``log_density(beta, z)`` is log p(z | beta)
    with its normaliser (what does not depend on beta and z may be left out); ``centre(beta)`` is where a chain of a
    client never asked begins; ``draw(beta, key, *words)`` draws a z by ``moiety.random``. ``hyper(beta)`` is log
    p(beta), 0 by default, and ``project(beta)`` keeps beta in its set.

    ``precondition(beta, gradient)`` turns the gradient of log p(z | beta) into a natural one, and ``advance(beta,
    change)`` makes such a step. A whole step with the mean over draws then leads to the beta under which the draws are
    most likely (the M-step of an EM algorithm), or near it, whatever the units of z.
    """

    init: Callable[[Tensor], Params]
    log_density: Callable[[Params, Tensor], Tensor]
    centre: Callable[[Params], Tensor]
    draw: Callable[..., Tensor]
    hyper: Callable[[Params], Tensor] | None = None
    project: Callable[[Params], Params] = lambda beta: beta
    precondition: Callable[[Params, Params], Params] | None = None
    advance: Callable[[Params, Params], Params] | None = None


@recorded
def gaussian(
    *,
    scale: float | None = 1.0,
    mean: float | None = None,
    spread: str = "common",
    least: float = 1e-4,
    most: float = 1e4,
    mean_decay: float = 0.0,
    scale_decay: float = 0.0,
) -> Prior:
    """Normal with mean mu and standard deviation sigma: beta = (mu, log sigma), so that sigma is positive.

    Args:
        scale: sigma at first. None takes the size of the model's first personal values (their root mean square), which
            a good initialisation has chosen for its layer; 1 where they are 0.
        mean: mu at first, one number for all; by default the model's first personal values.
        spread: ``common``, one sigma for all numbers (the paper's), or ``element``, one for each.
        least: sigma never goes below this.
        most: sigma never goes above this (with ``least``, the projection onto B).
        mean_decay: log p(mu) = -(mean_decay / 2) ||mu||^2.
        scale_decay: log p(log sigma) = -(scale_decay / 2) ||log sigma - log scale||^2.
    """
    options = (scale, mean, spread, least, most, mean_decay, scale_decay)
    return _make_location_scale(lambda x: -x.square() / 2, normal, 2, *options)


@recorded
def laplace(
    *,
    scale: float | None = 1.0,
    mean: float | None = None,
    spread: str = "common",
    least: float = 1e-4,
    most: float = 1e4,
    mean_decay: float = 0.0,
    scale_decay: float = 0.0,
) -> Prior:
    """Laplace: log p(z) = -|z - mu| / s - log 2 s for each number; most clients near mu, a few far away.

    The arguments are those of ``gaussian``, with s in the place of sigma.

    A client that lies five scales away is less of a surprise than with the normal prior:

    >>> priors = (laplace(scale=1.0), gaussian(scale=1.0))  # for fedpop(prior=...)
    >>> [float(prior.log_density(prior.init(torch.zeros(1)), torch.tensor([5.0]))) for prior in priors]
    [-5.0, -12.5]
    """
    options = (scale, mean, spread, least, most, mean_decay, scale_decay)
    return _make_location_scale(lambda x: -x.abs(), draw_laplace, 1, *options)


def draw_laplace(key: Tensor, like: Tensor, *words: str | int) -> Tensor:
    """Standard Laplace numbers, by the inverse of their distribution function."""
    u = uniform(key, tuple(like.shape), *words) - 0.5
    return (-u.sign() * torch.log1p(-2 * u.abs())).to(like.dtype)


def _make_location_scale(
    log_shape: Callable[[Tensor], Tensor],
    noise: Callable[..., Tensor],
    power: int,
    scale: float | None,
    mean: float | None,
    spread: str,
    least: float,
    most: float,
    mean_decay: float,
    scale_decay: float,
) -> Prior:
    """The prior of mu + s x, where x has the log density ``log_shape`` (up to a constant) and is drawn by ``noise``.

    ``log_shape`` is -|x|^power / power: the mean of |z - mu|^power over draws is the best s^power.
    """
    for name, value in {"least": least, "most": most}.items():
        positive(f"prior.{name}", value)
    must(least <= most, "prior.least", f"at most prior.most, {most}", least)
    if scale is not None:
        positive("prior.scale", scale)
        must(least <= scale <= most, "prior.scale", f"from {least} to {most}", scale)
    must(scale is not None or not scale_decay, "prior.scale", "given with scale_decay, which pulls to it", scale)
    for name, value in {"mean_decay": mean_decay, "scale_decay": scale_decay}.items():
        number(f"prior.{name}", value, ">= 0 and finite", lambda x: 0 <= x < math.inf)
    if mean is not None:
        number("prior.mean", mean, "finite", math.isfinite)
    choice("prior.spread", spread, SPREADS)

    def init(z: Tensor) -> Params:
        shape = z if spread == "element" else z.new_zeros(())
        centre = z.clone() if mean is None else torch.full_like(z, mean)
        if scale is not None:
            return {"mean": centre, "log_scale": torch.full_like(shape, math.log(scale))}
        size = z.detach().square().mean().sqrt()
        first = torch.where(size > 0, size, 1.0).clamp(least, most)
        return {"mean": centre, "log_scale": first.log() + torch.zeros_like(shape)}

    def log_density(beta: Params, z: Tensor) -> Tensor:
        log_scale = beta["log_scale"].expand(z.shape)
        return (log_shape((z - beta["mean"]) * (-log_scale).exp()) - log_scale).sum()

    def hyper(beta: Params) -> Tensor:
        distance = beta["log_scale"] - math.log(1.0 if scale is None else scale)
        return -(mean_decay * beta["mean"].square().sum() + scale_decay * distance.square().sum()) / 2

    def project(beta: Params) -> Params:
        return {**beta, "log_scale": beta["log_scale"].clamp(math.log(least), math.log(most))}

    def draw(beta: Params, key: Tensor, *words: str | int) -> Tensor:
        return beta["mean"] + beta["log_scale"].exp() * noise(key, beta["mean"], *words)

    def precondition(beta: Params, gradient: Params) -> Params:
        """Divided by the Fisher information: 1 / s^2 for a mean, ``power`` for log s of one number."""
        numbers = beta["mean"].numel() / beta["log_scale"].numel()
        variance = (2 * beta["log_scale"]).exp()
        return {"mean": variance * gradient["mean"], "log_scale": gradient["log_scale"] / (power * numbers)}

    def advance(beta: Params, change: Params) -> Params:
        """s^power moves, not log s: a step of 1 then ends at the draws' own s, however far that is."""
        growth = torch.log1p((power * change["log_scale"]).clamp(min=-0.9)) / power
        return {"mean": beta["mean"] + change["mean"], "log_scale": beta["log_scale"] + growth}

    hyperprior = hyper if mean_decay or scale_decay else None
    return Prior(init, log_density, lambda beta: beta["mean"], draw, hyperprior, project, precondition, advance)


PRIORS: dict[str, Callable[..., Prior]] = {"gaussian": gaussian, "laplace": laplace}
