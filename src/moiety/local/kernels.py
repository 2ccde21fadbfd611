"""Markov kernels: one step of a chain towards a density known up to a constant, by the gradient of its logarithm.

    z <- z + gamma grad log p(z) + sqrt(2 gamma) xi,   xi ~ N(0, I)

is the unadjusted Langevin algorithm: its chain stays near p, the nearer the smaller gamma (Roberts and Tweedie 1996;
Durmus and Moulines 2017). With the gradient of a minibatch it is stochastic gradient Langevin dynamics (Welling and Teh
2011, who write epsilon = 2 gamma). ``preconditioned_sgld`` has a step of its own for each number, ``mala`` accepts or
refuses every step, so that p itself is what its chain stays at.

Nothing here has a state of its own and nothing asks the value of a tensor: chance comes from ``moiety.random``, so a
step is a pure function, for one client or under ``torch.func.vmap`` for a block of them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from moiety.errors import number, positive, whole
from moiety.local.verbs import from_vector, mean_loss, reuse_rows
from moiety.random import normal, uniform
from moiety.spec import recorded
from moiety.types import Batch, LossFunction, Params, Recorded, Tree, Work

Z = "z"


class Target(NamedTuple):
    """A density: ``at(z)`` is its logarithm, up to a constant, and the gradient of that at the vector z.

    Both are estimates where they are from a minibatch. ``examples`` is how many examples stand behind the density.
    """

    at: Callable[[Tensor], tuple[Tensor, Tensor]]
    examples: Tensor


Step = Callable[..., tuple[Tensor, Tree]]
"""``step(target, z, memory, key, *words)`` is the next z and the next memory; the first memory is None."""


@dataclass(frozen=True)
class Kernel(Recorded):
    """One step of a chain, and the rows that each of its gradients is from; all of a client's where None."""

    step: Step
    batch_size: int | None = None


@recorded
def langevin(*, step: float) -> Kernel:
    """Unadjusted Langevin, with the gradient over all of a client's rows (FedSOUL).

    Args:
        step: gamma. For a density whose log has curvature up to L it must be below 2 / L, and well below for little
            bias.
    """
    return Kernel(_make_langevin_step(step))


@recorded
def sgld(*, step: float, batch_size: int) -> Kernel:
    """Stochastic gradient Langevin dynamics: the same with the gradient of a minibatch.

    Args:
        step: gamma; the noise of the minibatches adds to the bias.
        batch_size: rows of a minibatch, drawn without replacement from epochs each freshly shuffled.
    """
    whole("batch_size", batch_size, 1, 1e100)
    return Kernel(_make_langevin_step(step), batch_size)


@recorded
def preconditioned_sgld(
    *, step: float, batch_size: int | None = None, decay: float = 0.99, damping: float = 1e-5
) -> Kernel:
    """Langevin steps with a step size for each number, from a running mean of squared gradients (Li et al. 2016).

    ``v <- decay v + (1 - decay) g^2`` and ``z <- z + gamma G grad + sqrt(2 gamma G) xi`` with ``G = 1 / (damping +
    sqrt(v))``, where g is the gradient per example. Here v begins at the first g^2 of a turn, so that no client has to
    keep it; Gamma, a term for the change of G, is left out, as the authors do.

    Args:
        step: gamma.
        batch_size: rows of a minibatch; all of a client's rows by default.
        decay: of the running mean; 1 holds v at the first g^2.
        damping: added to sqrt(v): the largest step is gamma / damping.
    """
    positive("kernel.step", step)
    if batch_size is not None:
        whole("batch_size", batch_size, 1, 1e100)
    number("decay", decay, ">= 0 and <= 1", lambda x: 0 <= x <= 1)
    positive("kernel.damping", damping)
    gamma = float(step)

    def take_step(target: Target, z: Tensor, memory: Tree, key: Tensor, *words: str | int) -> tuple[Tensor, Tensor]:
        _, gradient = target.at(z)
        square = (gradient / target.examples).to(z.dtype).square()
        v = square if memory is None else decay * memory + (1 - decay) * square
        g = 1 / (damping + v.sqrt())
        return z + gamma * g * gradient + (2 * gamma * g).sqrt() * normal(key, z, *words), v

    return Kernel(take_step, batch_size)


@recorded
def mala(*, step: float) -> Kernel:
    """Langevin steps that are accepted or refused (Metropolis adjusted): the reference without bias.

    A step from z to y is taken with the probability min(1, p(y) q(z | y) / (p(z) q(y | z))), where q(. | z) is the
    normal density of the Langevin step from z. It needs p itself, so the gradient is over all of a client's rows.

    Args:
        step: gamma; too large a step is refused nearly always.
    """
    positive("kernel.step", step)
    gamma = float(step)

    def step_or_stay(target: Target, z: Tensor, memory: Tree, key: Tensor, *words: str | int) -> tuple[Tensor, Tree]:
        value, gradient = target.at(z) if memory is None else memory
        proposed = z + gamma * gradient + math.sqrt(2 * gamma) * normal(key, z, *words, "proposal")
        there, back = target.at(proposed)
        forth = (proposed - z - gamma * gradient).double().square().sum()
        home = (z - proposed - gamma * back).double().square().sum()
        ratio = there - value + (forth - home) / (4 * gamma)
        accepted = uniform(key, (), *words, "accept").log() < ratio  # a NaN is refused
        kept = torch.where(accepted, there, value), torch.where(accepted, back, gradient)
        return torch.where(accepted, proposed, z), kept

    return Kernel(step_or_stay)


def _make_langevin_step(step: float) -> Step:
    positive("kernel.step", step)
    gamma = float(step)

    def take_step(target: Target, z: Tensor, memory: Tree, key: Tensor, *words: str | int) -> tuple[Tensor, Tree]:
        _, gradient = target.at(z)
        return z + gamma * gradient + math.sqrt(2 * gamma) * normal(key, z, *words), memory

    return take_step


def walk(
    work: Work,
    kernel: Kernel,
    model: Params,
    start: Tensor,
    phase: str,
    *,
    passes: int,
    keep: int,
    log_prior: Callable[[Tensor], Tensor],
    loss_weight: float,
) -> tuple[list[Params], Tensor]:
    """A chain in the personal parameters, towards exp(log_prior(z) - loss_weight * sum of losses).

    Args:
        work: what the client has at hand; its draws are those of this turn.
        kernel: of the chain.
        model: the whole model, whose shared part is held fixed: what no personal parameter reaches is computed once.
        start: the first z, the personal parameters as one vector.
        phase: the name of the phase; each of its batches gives one step.
        passes: how often the chain goes through those batches.
        keep: how many points to keep; what comes before them is burn-in.
        log_prior: of a vector z.
        loss_weight: what turns a loss into minus a log-likelihood.

    Returns:
        The points after the last steps, and the mean loss at the points where a gradient was taken and it is finite.
    """
    like = {name: model[name] for name in work.personal}
    losses: list[Tensor] = []

    def target(loss_of: LossFunction, batch: Batch) -> Target:
        def objective(at: Params) -> tuple[Tensor, Params]:
            each, _ = loss_of({**model, **from_vector(at[Z], like)}, batch)
            loss = mean_loss(each, batch)
            return log_prior(at[Z]) - loss_weight * work.examples * loss, {"loss": loss}

        def at(z: Tensor) -> tuple[Tensor, Tensor]:
            gradient, value, seen = work.gradient(objective, {Z: z})
            losses.append(seen["loss"].double())
            return value, gradient[Z]

        return Target(at, work.examples)

    loss_of, batches = reuse_rows(work, model, work.personal, work.batches(phase))
    z, memory, k = start, None, 0
    points: deque[Params] = deque(maxlen=keep)
    for _ in range(passes):
        for batch in batches:
            z, memory = kernel.step(target(loss_of, batch), z, memory, work.key, work.turn, "chain", k)
            points.append(from_vector(z, like))
            k += 1
    if not losses:
        return list(points), torch.zeros_like(work.examples)
    seen = torch.stack(losses)
    fine = seen.isfinite()  # a refused proposal may lie where the loss is not; a chain that went there shows in z
    return list(points), torch.where(fine, seen, 0).sum() / fine.sum()


KERNELS: dict[str, Callable[..., Kernel]] = {
    "langevin": langevin,
    "sgld": sgld,
    "preconditioned_sgld": preconditioned_sgld,
    "mala": mala,
}
