"""Training on batches: the one verb that walks through them, whatever the optimiser is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from moiety.local.sgd import ALL, Kept, Memory, Moments, Optimiser
from moiety.local.verbs import autograd_gradient, clip_gradients, count_rows, mean_loss, reuse_rows
from moiety.task import steps
from moiety.task.block import block_gradient
from moiety.task.chain import train_chain
from moiety.task.steps import Rate, Steps
from moiety.types import Batch, LossFunction, Names, Objective, Params, Work


def train(
    work: Work,
    model: Params,
    batches: Iterable[Batch],
    parts: Mapping[Names, Optimiser],
    *,
    centre: Params | None = None,
) -> tuple[Params, Tensor]:
    """Gradient steps on some parameters, with everything else held fixed; optimisers begin anew.

    ``continue_training`` with nothing to continue.
    """
    return continue_training(work, model, batches, parts, (), centre=centre)[:2]


def continue_training(
    work: Work,
    model: Params,
    batches: Iterable[Batch],
    parts: Mapping[Names, Optimiser],
    memory: Kept,
    *,
    centre: Params | None = None,
) -> tuple[Params, Tensor, Kept]:
    """Gradient steps on some parameters, with everything else held fixed.

    Several parts are trained at once, with one gradient. The norm that is clipped is that of all of them, by the first
    one's ``clip``; its ``accumulate`` and ``lr_decay`` hold for all, too. Buffers that the forward pass moves (running
    statistics) move along. A batch of padding changes nothing.

    Args:
        work: what the client has at hand.
        model: the whole model; it is not changed.
        batches: one step each.
        parts: how each group of parameters is trained, by their names.
        memory: what optimisers kept of the rounds before; nothing lets all begin anew.
        centre: where ``pull`` pulls to, by parameter name.

    Returns:
        The new model, the mean loss over the steps, each at the parameters before its step, and the new memory.
    """
    options = {name: optimiser for names, optimiser in parts.items() for name in names}
    model = dict(model)
    if not options:  # nothing to train: no step, and no forward pass that could move a buffer
        return model, torch.zeros_like(work.examples), memory
    first = next(iter(options.values()))
    loss_of, batches = reuse_rows(work, model, tuple(options), batches)
    rates = find_rates(work, options, centre)
    losses: list[Tensor] = []
    actives: list[Tensor] = []
    if len(rates) == len(options) and not any(optimiser.pull for optimiser in options.values()):
        model, losses, actives, batches = train_chain(loss_of, model, rates, batches)
    if work.gradient is autograd_gradient and max(model[name].numel() for name in options) < steps.LEAST:
        rates = {}
    gradient = autograd_gradient if work.gradient is autograd_gradient else block_gradient
    history = memory.moments if memory else {}
    moments = dict(history)
    step_count: int | Tensor = 0
    counting = bool(memory) or any(optimiser.counts_steps for optimiser in options.values())
    for batch in batches:
        active = batch["mask"].any() if "mask" in batch else None
        # From the second step on the trained tensors are ours, and may be edited in place.
        stepper = Steps(rates, in_place=bool(losses), active=active)
        if first.accumulate > 1:
            gradients, loss, buffers = accumulate_gradients(work, loss_of, model, options, batch, first)
        else:
            objective, at = split_objective(loss_of, model, options, batch)
            gradients, loss, buffers = gradient(objective, at, stepper) if rates else work.gradient(objective, at)
        gradients = clip_gradients(gradients, first.clip)
        for name, p in stepper.new.items():
            model[name] = p
            if options[name].pull and centre is not None:
                c = centre[name] if active is None else torch.where(active, centre[name], 0)
                p.add_(c, alpha=rates[name].lr * options[name].pull)
        factor = first.decay_factor(step_count, work.examples)
        if counting:
            step_count = step_count + (1 if active is None else active.to(work.examples.dtype))
        for name, g in gradients.items():
            optimiser, p = options[name], model[name]
            count = memory.steps + step_count if memory and name in history else step_count
            offset = p - centre[name] if optimiser.pull and centre is not None else None
            g, new_moments = find_direction(optimiser, p, g, offset, moments.get(name, ()), count)
            moments[name] = keep_moments(active, new_moments, moments.get(name))
            if isinstance(factor, Tensor):
                g = g * factor.to(g.dtype)
            if active is not None:
                g = torch.where(active, g, 0)
            step = p.sub_ if losses else p.sub
            model[name] = step(g, alpha=optimiser.lr * work.scale)
        for name, value in buffers.items():
            model[name] = value if active is None else torch.where(active, value, model[name])
        losses.append(loss if active is None else torch.where(active, loss, 0))
        if active is not None:
            actives.append(active)
    if not losses:
        return model, torch.zeros_like(work.examples), memory
    total = torch.stack(losses).double().sum()
    if memory:
        memory = Memory(memory.steps + step_count, {name: moments[name] for name in history})
    return model, total / (torch.stack(actives).sum().clamp(min=1) if actives else len(losses)), memory


def find_direction(
    optimiser: Optimiser, p: Tensor, g: Tensor, distance: Tensor | None, moments: Moments, step: int | Tensor
) -> tuple[Tensor, Moments]:
    """The direction of a step with decay and pull in their places, and what is remembered.

    ``distance`` is the parameter minus the point that it is pulled to; None where nothing pulls.
    """
    if optimiser.weight_decay and not optimiser.decoupled:
        g = g.add(p, alpha=optimiser.weight_decay)
    if distance is not None:
        g = g.add(distance, alpha=optimiser.pull)
    g, moments = optimiser.direction(g, moments, step)
    if optimiser.weight_decay and optimiser.decoupled:
        g = g.add(p, alpha=optimiser.weight_decay)
    return g, moments


def keep_moments(active: Tensor | None, new: Moments, old: Moments | None) -> Moments:
    """What is remembered after a step: nothing new where its batch was padding."""
    if active is None:
        return new
    if not old:
        return tuple(torch.where(active, after, 0) for after in new)
    return tuple(torch.where(active, after, before) for after, before in zip(new, old, strict=True))


def split_objective(
    loss_of: LossFunction, model: Params, names: Collection[str], batch: Batch
) -> tuple[Objective, Params]:
    """The mean loss of a batch as a function of the parameters ``names``, and their values."""
    fixed = {name: p for name, p in model.items() if name not in names}

    def objective(block: Params) -> tuple[Tensor, Params]:
        each, buffers = loss_of({**fixed, **block}, batch)
        return mean_loss(each, batch), buffers

    return objective, {name: model[name] for name in names}


def accumulate_gradients(
    work: Work, loss_of: LossFunction, model: Params, names: Collection[str], batch: Batch, optimiser: Optimiser
) -> tuple[Params, Tensor, Params]:
    """The gradient of a batch, its loss, and the buffers that moved, computed in micro-batches one by one.

    Each counts by its real rows, so that the sum is the gradient of the whole batch. Buffers move with every
    micro-batch.
    """
    total: Params = {}
    buffers: Params = {}
    losses = []
    for piece in cut_batch(batch, optimiser):
        objective, at = split_objective(loss_of, {**model, **buffers}, names, piece)
        gradients, loss, new_buffers = work.gradient(objective, at)
        share: float | Tensor
        if "mask" in piece:  # a micro-batch that is all padding counts for nothing
            real = piece["mask"].any()
            share = torch.where(real, piece["mask"].sum().to(loss.dtype) / batch["mask"].sum(), 0)
        else:
            real, share = None, count_rows(piece) / count_rows(batch)
        total = {name: g * share + total[name] if total else g * share for name, g in gradients.items()}
        losses.append(loss * share)
        for name, value in new_buffers.items():
            before = buffers.get(name, model[name])
            buffers[name] = value if real is None else torch.where(real, value, before)
    return total, torch.stack(losses).sum(), buffers


def cut_batch(batch: Batch, optimiser: Optimiser) -> Iterator[Batch]:
    """The micro-batches of a step. With all rows in one batch, there are ``accumulate`` of them."""
    rows = len(next(iter(batch.values())))
    size = -(-rows // optimiser.accumulate) if optimiser.batch_size in (ALL, None) else int(optimiser.batch_size)
    for at in range(0, rows, size):
        yield {name: column[at : at + size] for name, column in batch.items()}


def find_rates(work: Work, options: Mapping[str, Optimiser], centre: Params | None) -> dict[str, Rate]:
    """The rates of the parameters whose steps may be taken without their gradient.

    Momentum, Adam, clipping, accumulation and a decay within the phase need the gradient itself. So does a ``work``
    whose gradient an algorithm has changed.
    """
    first = next(iter(options.values()))
    if first.clip is not None or first.accumulate > 1 or first.lr_decay != "constant":
        return {}
    if work.gradient not in (autograd_gradient, block_gradient):
        return {}
    return {
        name: Rate(optimiser.lr * work.scale, optimiser.weight_decay + (0 if centre is None else optimiser.pull))
        for name, optimiser in options.items()
        if not optimiser.orders
    }
