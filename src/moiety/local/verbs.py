"""The verbs of local work. An algorithm's ``client_update`` is written with these, for one client.

The same text runs client by client with ordinary autograd and, under ``torch.func.vmap``, for a whole block of clients;
so nothing here asks the value of a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moiety.errors import kind, must, number, whole
from moiety.types import Batch, LossFunction, Names, Objective, Params, Phase, Work


def autograd_gradient(objective: Objective, at: Params) -> tuple[Params, Tensor, Params]:
    """Gradient by ordinary autograd on leaf tensors, the fast way in a Python loop."""
    leaves = {name: p.detach().requires_grad_() for name, p in at.items()}
    with torch.enable_grad():
        loss, changed = objective(leaves)
    if not loss.requires_grad:  # no trained parameter reaches the loss
        return {name: torch.zeros_like(p) for name, p in at.items()}, loss, changed
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    changed = {name: b.detach() for name, b in changed.items()}
    return dict(zip(leaves, found, strict=True)), loss.detach(), changed


def mean_loss(losses: Tensor, batch: Batch) -> Tensor:
    """The mean over the real rows of a batch; 0 for a batch that is all padding."""
    mask = batch.get("mask")
    if mask is None:
        return losses.mean()
    return torch.where(mask.bool(), losses, 0).sum() / mask.sum().clamp(min=1)


def clipped(gradients: Params, limit: float) -> Params:
    """The gradients scaled down so that their joint Euclidean norm is at most ``limit``."""
    norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    return {name: g * factor for name, g in gradients.items()}


@dataclass(frozen=True)
class SgdOptions:
    """The options of ``sgd`` that all algorithms share, checked."""

    momentum: float
    weight_decay: float
    clip: float | None

    def __post_init__(self) -> None:
        number("momentum", self.momentum, ">= 0 and < 1", lambda m: 0 <= m < 1)
        number("weight_decay", self.weight_decay, ">= 0 and finite", lambda w: 0 <= w < math.inf)
        if self.clip is not None:
            number("clip", self.clip, "> 0 or None", lambda c: c > 0)


def sgd(
    work: Work,
    model: Params,
    batches: Iterable[Batch],
    *,
    lr: Mapping[str, float],
    options: SgdOptions,
    pull: tuple[float, Params] | None = None,
) -> tuple[Params, Tensor]:
    """Stochastic gradient descent on the parameters named in ``lr``, with everything else held fixed.

    ``p <- p - lr[p] m`` where ``m <- momentum m + g + weight_decay p`` and g is the gradient of the mean batch loss,
    clipped first where asked. The norm that is clipped is that of the trained parameters only. Momentum starts at 0.
    With ``pull``, the loss has a term (strength / 2) ||p - centre||^2, whose gradient is added to g after clipping.
    Buffers that the forward pass moves (running statistics) move along. A batch that is all padding changes nothing.

    Args:
        work: what the client has at hand.
        model: the whole model; it is not changed.
        batches: one step each.
        lr: learning rate of every trained parameter by name.
        options: momentum and weight decay as in ``torch.optim.SGD``; clip, the largest norm of the gradient.
        pull: the strength and the centre of a quadratic pull on the trained parameters; none by default.

    Returns:
        The new model and the mean loss over the steps, each at the parameters before its step.
    """
    momentum, weight_decay, clip = options.momentum, options.weight_decay, options.clip
    model = dict(model)
    if not lr:  # nothing of this block to train: no step, and no forward pass that could move a buffer
        return model, torch.zeros_like(work.examples)
    loss_of = work.task.loss
    if work.reuse is not None:
        loss_of, batches = work.reuse(model, frozenset(lr), batches)
    velocity: Params = {}
    losses_seen: list[Tensor] = []
    actives: list[Tensor] = []
    owned = False  # from the second step on the trained tensors are ours, and may be edited in place
    for batch in batches:
        fixed = {name: p for name, p in model.items() if name not in lr}

        def objective(block: Params, fixed: Params = fixed, batch: Batch = batch) -> tuple[Tensor, Params]:
            losses, changed = loss_of({**fixed, **block}, batch)
            return mean_loss(losses, batch), changed

        gradients, loss, changed = work.gradient(objective, {name: model[name] for name in lr})
        if clip is not None:
            gradients = clipped(gradients, clip)
        active = batch["mask"].any() if "mask" in batch else None
        for name, g in gradients.items():
            if weight_decay:
                g = g.add(model[name], alpha=weight_decay)
            if pull is not None:
                g = g.add(model[name] - pull[1][name], alpha=pull[0])
            if momentum:
                g = velocity[name].mul(momentum).add(g) if name in velocity else g
                velocity[name] = g if active is None else torch.where(active, g, velocity.get(name, 0))
            if active is not None:
                g = torch.where(active, g, 0)
            model[name] = model[name].sub_(g, alpha=lr[name]) if owned else model[name].sub(g, alpha=lr[name])
        for name, value in changed.items():
            model[name] = value if active is None else torch.where(active, value, model[name])
        losses_seen.append(loss if active is None else torch.where(active, loss, 0))
        if active is not None:
            actives.append(active)
        owned = True
    if not losses_seen:
        return model, torch.zeros_like(work.examples)
    total = torch.stack(losses_seen).double().sum()
    return model, total / (torch.stack(actives).sum().clamp(min=1) if actives else len(losses_seen))


def rates(work: Work, names: Names, lr: float) -> dict[str, float]:
    """The learning rate of each of ``names`` in this round: ``lr`` times the schedule's factor."""
    return dict.fromkeys(names, lr * work.scale)


def flat(params: Params) -> Tensor:
    """All values one below the other, as one vector."""
    return torch.cat([p.reshape(-1) for p in params.values()])


def cut(vector: Tensor, like: Params) -> Params:
    """A vector of ``flat`` laid out as ``like`` again."""
    pieces = torch.split(vector, [p.numel() for p in like.values()])
    return {n: v.reshape(p.shape).to(p.dtype) for (n, p), v in zip(like.items(), pieces, strict=True)}


def difference(new: Params, old: Params) -> Params:
    """What a client sends: new minus old, name by name."""
    return {name: p - old[name] for name, p in new.items()}


def either(first: Tensor, one: Params, other: Params) -> Params:
    """``one`` where ``first`` is true and ``other`` where it is not, name by name."""
    return {name: torch.where(first, p, other[name]) for name, p in one.items()}


def phase(name: str, epochs: int | None, steps: int | None, batch_size: int, shuffle: bool) -> Phase:
    """A checked phase: ``epochs`` or ``steps``, one epoch where neither is given. ``name`` is for messages."""
    must(epochs is None or steps is None, f"{name}epochs", f"left out where {name}steps is given", epochs)
    for what, count in ((f"{name}epochs", epochs), (f"{name}steps", steps), ("batch_size", batch_size)):
        if count is not None or what == "batch_size":
            whole(what, count, 1)
    kind("shuffle", shuffle, bool, "true or false")
    return Phase(1 if epochs is None and steps is None else epochs, steps, batch_size, shuffle)


def positive_lr(name: str, lr: float) -> None:
    """Raise unless a learning rate is positive and finite."""
    number(name, lr, "> 0 and finite", lambda x: 0 < x < math.inf, "A learning rate is a small positive number.")


def gradient_over_samples(work: Work, model: Params, samples: Sequence[Params], names: Names, batch: Batch) -> Params:
    """The gradient in the parameters ``names``, averaged over several values of the others.

    ``(1/M) sum_m grad_u loss(u, v_m; batch)`` for the M ``samples`` v_m. What no sampled parameter reaches is run once,
    forward and backward: its backward pass is linear in the features' gradient, so the mean over samples can be taken
    there first.
    """
    partial = work.partial(frozenset(samples[0])) if work.reuse is not None else None
    block = {name: model[name] for name in names}
    if partial is None:
        return _mean_gradient(work, work.task.loss, model, samples, batch, block)

    def features(block: Params) -> tuple[Batch, Batch]:
        found = partial.features({**model, **block}, dict(batch))
        smooth = {name: f for name, f in found.items() if f.is_floating_point()}
        return smooth, {name: f for name, f in found.items() if name not in smooth}

    smooth, backward, fixed = torch.func.vjp(features, block, has_aux=True)  # type: ignore[misc]
    mean = _mean_gradient(work, partial.loss, model, samples, {**batch, **fixed}, {**block, **smooth})
    (through,) = backward({name: mean[name] for name in smooth})
    return {name: mean[name] + through[name] for name in names}


def _mean_gradient(
    work: Work, loss_of: LossFunction, model: Params, samples: Sequence[Params], batch: Batch, at: Params
) -> Params:
    """The mean over ``samples`` of the gradient at a point, some of whose names may be columns of the batch."""
    total: Params = {}
    for sample in samples:

        def objective(point: Params, sample: Params = sample) -> tuple[Tensor, Params]:
            # A view: where operations are counted, torch refuses leaves as the inputs of a module.
            columns = {name: x.view_as(x) for name, x in point.items() if name not in model}
            inner = {name: p for name, p in point.items() if name in model}
            losses, _ = loss_of({**model, **inner, **sample}, {**batch, **columns})
            return mean_loss(losses, batch), {}

        gradients = work.gradient(objective, at)[0]
        total = {name: total[name] + g if total else g for name, g in gradients.items()}
    return {name: g / len(samples) for name, g in total.items()}
