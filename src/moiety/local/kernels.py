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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from moiety.errors import number, positive, whole
from moiety.local.verbs import from_vector, mean_loss, reuse_rows
from moiety.random import normal, uniform
from moiety.spec import recorded
from moiety.types import Batch, LossFunction, Params, Recorded, Tree, Work

Z = "z"
Factor = Tensor | float
CURVED = 32
"""A chain of up to so many numbers measures the curvature of its density."""


class Target(NamedTuple):
    """A density: ``at(z)`` is its logarithm, up to a constant, and the gradient of that at the vector z.

    Both are estimates where they are from a minibatch. ``examples`` is how many examples stand behind the density.
    """

    at: Callable[[Tensor], tuple[Tensor, Tensor]]
    examples: Tensor


Step = Callable[..., tuple[Tensor, Tree]]
"""``step(target, z, memory, key, *words, factor=1.0)`` is the next z and the next memory; the first memory is None.

The step size is multiplied by ``factor``. The memory of a kernel with an ``acceptance`` is the log density at z, its
gradient, and the probability with which the last step was to be accepted.
"""


@dataclass(frozen=True)
class Kernel(Recorded):
    """One step of a chain. ``batch_size`` is how many rows each of its gradients uses; None for all of a client's.

    With ``acceptance`` each chain has a step size of its own, which is moved towards that share of accepted steps.
    """

    step: Step
    batch_size: int | None = None
    acceptance: float | None = None


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

    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": y}}, test=0.25)
    >>> kernel = mo.kernel.preconditioned_sgld(step=0.01, batch_size=4)
    >>> model, method = mo.models.linear(1, 2), mo.fedpop(personal=kernel, samples=5)
    >>> run = mo.fit(model, fed, method, split=mo.split.everything(model), rounds=2, engine="sequential")
    >>> run.predictive("a", x[:2]).outputs.shape  # five draws of the model, two examples, two outputs
    (5, 2, 2)
    """
    positive("kernel.step", step)
    if batch_size is not None:
        whole("batch_size", batch_size, 1, 1e100)
    number("decay", decay, ">= 0 and <= 1", lambda x: 0 <= x <= 1)
    positive("kernel.damping", damping)
    gamma = float(step)

    def take_step(
        target: Target, z: Tensor, memory: Tree, key: Tensor, *words: str | int, factor: Factor = 1.0
    ) -> tuple[Tensor, Tensor]:
        step = gamma * factor
        _, gradient = target.at(z)
        square = (gradient / target.examples).to(z.dtype).square()
        v = square if memory is None else decay * memory + (1 - decay) * square
        g = 1 / (damping + v.sqrt())
        return z + step * g * gradient + (2 * step * g).sqrt() * normal(key, z, *words), v

    return Kernel(take_step, batch_size)


@recorded
def mala(*, step: float | None = None, acceptance: float = 0.574) -> Kernel:
    """Langevin steps that are accepted or refused (Metropolis adjusted): the reference without bias.

    A step from z to y is taken with the probability min(1, p(y) q(z | y) / (p(z) q(y | z))), where q(. | z) is the
    normal density of the Langevin step from z. It needs p itself, so the gradient is over all of a client's rows.

    Without ``step`` every chain finds one of its own (``tune``): clients with many rows make small steps, others large
    ones. Draws that are made while it is still being found are not quite of p.

    Args:
        step: gamma, the same for all chains; too large a step is refused nearly always. By default it is found.
        acceptance: the share of accepted steps to aim at where it is found. 0.574 is best for many numbers (Roberts and
            Rosenthal 1998).

    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": y}}, test=0.25)
    >>> model, method = mo.models.linear(1, 2), mo.fedpop(personal=mo.kernel.mala(), samples=5)
    >>> run = mo.fit(model, fed, method, split=mo.split.everything(model), rounds=2, engine="sequential")
    >>> run.predictive("a", x[:2]).outputs.shape  # five draws of the model, two examples, two outputs
    (5, 2, 2)
    """
    if step is None:
        number("acceptance", acceptance, "> 0 and < 1", lambda x: 0 < x < 1)
    else:
        positive("kernel.step", step)
    gamma = 1.0 if step is None else float(step)

    def step_or_stay(
        target: Target,
        z: Tensor,
        memory: Tree,
        key: Tensor,
        *words: str | int,
        factor: Factor = 1.0,
        root: Tensor | None = None,
    ) -> tuple[Tensor, Tree]:
        step = gamma * factor
        value, gradient, _ = (*target.at(z), None) if memory is None else memory
        xi = normal(key, z, *words, "proposal")
        if root is None:
            proposal = z + step * gradient + _sqrt(2 * step) * xi
            new_value, back = target.at(proposal)
            forth = (proposal - z - step * gradient).double().square().sum()
            home = (z - proposal - step * back).double().square().sum()
        else:  # the same in the coordinates root^-1 z
            proposal = z + root @ (step * (root @ gradient) + _sqrt(2 * step) * xi)
            new_value, back = target.at(proposal)
            forth = 2 * step * xi.double().square().sum()
            home = (step * (root @ (gradient + back)) + _sqrt(2 * step) * xi).double().square().sum()
        ratio = new_value - value + (forth - home) / (4 * step)
        accepted = uniform(key, (), *words, "accept").log() < ratio  # a NaN is refused
        chance = torch.where(ratio.isnan(), 0.0, ratio.clamp(max=0.0).exp()).double()
        new_memory = torch.where(accepted, new_value, value), torch.where(accepted, back, gradient), chance
        return torch.where(accepted, proposal, z), new_memory

    return Kernel(step_or_stay, acceptance=acceptance if step is None else None)


def _make_langevin_step(step: float) -> Step:
    positive("kernel.step", step)
    gamma = float(step)

    def take_step(
        target: Target, z: Tensor, memory: Tree, key: Tensor, *words: str | int, factor: Factor = 1.0
    ) -> tuple[Tensor, Tree]:
        step = gamma * factor
        _, gradient = target.at(z)
        return z + step * gradient + _sqrt(2 * step) * normal(key, z, *words), memory

    return take_step


def _sqrt(x: Factor) -> Factor:
    return x.sqrt() if isinstance(x, Tensor) else math.sqrt(x)


class Tuning(NamedTuple):
    """The step size of one chain: its logarithm, how many steps it was moved by, and the share of accepted steps.

    The share is a running mean over the last hundred steps or so. ``root`` is the symmetric square root of the inverse
    of the density's curvature, for steps that are as long in each direction as the density is wide; it is empty where z
    has more than ``CURVED`` numbers.
    """

    log_step: Tensor
    steps: Tensor
    accepted: Tensor
    root: Tree


def begin_tuning(kernel: Kernel, z: Tensor) -> Tuning | None:
    """The tuning of a chain that has made no step; None where the kernel's step size is fixed.

    It begins at 1: what is far too large is refused, and falls by half in every step.
    """
    if kernel.acceptance is None:
        return None
    zero, size = torch.zeros((), dtype=torch.float64), z.numel()
    root = torch.eye(size, dtype=z.dtype, device=z.device) if size <= CURVED else ()
    return Tuning(zero, zero.clone(), zero + kernel.acceptance, root)


def measure_curvature(target: Target, z: Tensor) -> Tensor:
    """The symmetric square root of the inverse of minus the Hessian of the log density, from differences of gradients.

    Where the density is not concave, the sizes of curvatures count. Where they are not finite, it is the identity.
    """
    size = len(z)
    width = torch.finfo(z.dtype).eps ** (1 / 3) * z.square().mean().sqrt().clamp(min=1e-2)
    identity = torch.eye(size, dtype=z.dtype, device=z.device)
    _, gradient = target.at(z)
    columns = [(gradient - target.at(z + width * identity[j])[1]) / width for j in range(size)]
    hessian = torch.stack(columns).double()
    hessian = (hessian + hessian.T) / 2
    usable = hessian.isfinite().all()
    values, vectors = torch.linalg.eigh(torch.where(usable, hessian, identity.double()))
    size_of = values.abs().clamp(min=1e-12)
    size_of = torch.maximum(size_of, 1e-8 * size_of.max())
    root: Tensor = (vectors * size_of.rsqrt()) @ vectors.T
    return root.to(z.dtype)


def tune(kernel: Kernel, tuning: Tuning, chance: Tensor) -> Tuning:
    """Move the logarithm of the step size by a gain times (chance to accept - acceptance aimed at).

    The gain is 1 at first and falls to 0.02 (Robbins and Monro 1951): the density itself moves from round to round, so
    it never ends.
    """
    gain = (1 + tuning.steps / 20).pow(-0.6).clamp(min=0.02)
    return tuning._replace(
        log_step=tuning.log_step + gain * (chance - kernel.acceptance),  # type: ignore[operator]
        steps=tuning.steps + 1,
        accepted=tuning.accepted + (chance - tuning.accepted) / (1 + tuning.steps).clamp(max=100),
    )


class Walk(NamedTuple):
    """A piece of a chain: its points, the mean loss where gradients were taken, its tuning, whether it diverges.

    ``model`` is the whole model that it began with.
    """

    points: list[Params]
    model: Params
    loss: Tensor
    tuning: Tuning | None
    diverges: Tensor


def walk(
    work: Work,
    kernel: Kernel,
    model: Params,
    start: Tensor,
    phase: str,
    *,
    passes: int,
    keep: int | None,
    log_prior: Callable[[Tensor], Tensor],
    loss_weight: Factor,
    tuning: Tuning | None = None,
    tune_all: bool = True,
    factor: float = 1.0,
) -> Walk:
    """A chain in the personal parameters, towards exp(log_prior(z) - loss_weight * sum of losses).

    Args:
        work: what the client has at hand; its draws are those of this turn.
        kernel: of the chain.
        model: the whole model, whose shared part is held fixed: what no personal parameter reaches is computed once.
        start: the first z, the personal parameters as one vector.
        phase: the name of the phase; each of its batches gives one step.
        passes: how often the chain goes through those batches.
        keep: how many points to keep; what comes before them is burn-in. None keeps all.
        log_prior: of a vector z.
        loss_weight: what turns a loss into minus a log-likelihood.
        tuning: the chain's own step size, where the kernel has none.
        tune_all: whether the step size moves in the last pass, too. If not, its points are of the density itself.
        factor: on the kernel's step size.

    Returns:
        The points after the last steps. Losses that are not finite do not count in the mean.
    """
    like = {name: model[name] for name in work.personal}
    losses: list[Tensor] = []
    values: list[Tensor] = []

    def target(loss_of: LossFunction, batch: Batch) -> Target:
        def objective(at: Params) -> tuple[Tensor, Params]:
            each, _ = loss_of({**model, **from_vector(at[Z], like)}, batch)
            loss = mean_loss(each, batch)
            return log_prior(at[Z]) - loss_weight * work.examples * loss, {"loss": loss}

        def at(z: Tensor) -> tuple[Tensor, Tensor]:
            gradient, value, extra = work.gradient(objective, {Z: z})
            losses.append(extra["loss"].double())
            values.append(value.double())
            return value, gradient[Z]

        return Target(at, work.examples)

    loss_of, batches = reuse_rows(work, model, work.personal, work.batches(phase))
    z, k = start, 0
    memory: Tree = None
    points: deque[Params] = deque(maxlen=keep)
    for rest in reversed(range(passes)):
        for batch in batches:
            own: dict[str, Any] = {"factor": factor}
            if tuning is not None:
                if k == 0 and isinstance(tuning.root, Tensor) and (tune_all or rest):
                    tuning = tuning._replace(root=measure_curvature(target(loss_of, batch), z))
                    losses.clear()
                    values.clear()
                own["factor"] = (factor * tuning.log_step.exp()).to(z.dtype)
                own |= {"root": tuning.root} if isinstance(tuning.root, Tensor) else {}
            z, memory = kernel.step(target(loss_of, batch), z, memory, work.key, work.turn, "chain", k, **own)
            if tuning is not None and (tune_all or rest):
                tuning = tune(kernel, tuning, memory[2])
            points.append(from_vector(z, like))
            k += 1
    if not losses:
        return Walk(list(points), model, torch.zeros_like(work.examples), tuning, work.examples < 0)
    all_losses = torch.stack(losses)
    fine = all_losses.isfinite()  # a refused proposal may lie where the loss is not; a chain that went there shows in z
    loss = torch.where(fine, all_losses, 0).sum() / fine.sum()
    refuses = isinstance(memory, tuple)
    end = memory[0].double() if refuses else values[-1]
    return Walk(
        list(points), model, loss, tuning, diverges(values, end, len(start), noisy=kernel.batch_size is not None)
    )


def diverges(values: list[Tensor], end: Tensor, size: int, *, noisy: bool) -> Tensor:
    """Whether the log density fell in a turn by more than a chain that is well can make it fall.

    Under p itself the logarithm of a normal density of d numbers lies d / 2 below its largest value on average, with a
    deviation of sqrt(d / 2). A chain that falls by more than d + 10 (sqrt(d) + 1) in one turn is leaving the density:
    its step is too large. A NaN counts as a fall.

    Args:
        values: the log density where gradients were taken, in their order.
        end: at the end of the chain.
        size: d.
        noisy: whether values are from minibatches. Then quarters of the turn are compared; ten times their spread is
            allowed besides; fewer than eight values say nothing.
    """
    limit = size + 10 * (math.sqrt(size) + 1)
    if not noisy:
        return ~(end > values[0] - limit)
    if len(values) < 8:
        return torch.zeros_like(end, dtype=torch.bool)
    quarter = len(values) // 4
    first, last = torch.stack(values[:quarter]), torch.stack(values[-quarter:])
    return ~(last.mean() > first.mean() - limit - 10 * first.std(correction=0))


KERNELS: dict[str, Callable[..., Kernel]] = {
    "langevin": langevin,
    "sgld": sgld,
    "preconditioned_sgld": preconditioned_sgld,
    "mala": mala,
}
