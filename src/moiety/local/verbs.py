"""The verbs of local work. An algorithm's ``client_update`` is written with these, for one client.

The same text runs client by client with ordinary autograd and, under ``torch.func.vmap``, for a whole block of clients.
So nothing here asks for the value of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from moiety import tree
from moiety.task.block import in_block
from moiety.task.held import HeldParameters
from moiety.task.steps import Steps, name_gradients
from moiety.types import Batch, LossFunction, Names, Objective, Params, Work

Carry = TypeVar("Carry")
WIDTHS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
"""Whole numbers by their bytes."""


def autograd_gradient(objective: Objective, at: Params, steps: Steps | None = None) -> tuple[Params, Tensor, Params]:
    """Gradient by ordinary autograd on leaf tensors, the fast way in a Python loop.

    Where ``steps`` are given, some parameters may be stepped; these have no gradient.
    """
    leaves = {name: p.detach().requires_grad_() for name, p in at.items()}
    if steps is not None and (steps.active is not None or in_block()):
        steps = None
    with HeldParameters(), steps.watch(leaves, leaves) if steps is not None else nullcontext():
        with torch.enable_grad():
            loss, buffers = objective(leaves)
        if not loss.requires_grad:  # no trained parameter reaches the loss
            return {name: torch.zeros_like(p) for name, p in at.items()}, loss, buffers
        if steps is not None:
            steps.find_repeated_uses(loss)
        slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return name_gradients(leaves, slopes, steps), loss.detach(), {name: b.detach() for name, b in buffers.items()}


def mean_loss(losses: Tensor, batch: Batch) -> Tensor:
    """The mean over the real rows of a batch; 0 for a batch that is all padding."""
    mask = batch.get("mask")
    if mask is None:
        return losses.mean()
    return torch.where(mask.bool(), losses, 0).sum() / mask.sum().clamp(min=1)


def count_rows(batch: Batch) -> Tensor | int:
    """The number of real rows of a batch."""
    return batch["mask"].sum() if "mask" in batch else len(next(iter(batch.values())))


def mean_metric(work: Work, model: Params, batches: Iterable[Batch]) -> Tensor:
    """The task's metric over the client's examples, weighted as in an evaluation."""
    metric = work.task.metric
    total = weights = torch.zeros_like(work.examples)
    for batch in batches:
        values = work.task.scores(model, batch)[1].double()
        weight = torch.ones_like(values) if metric.weight is None else metric.weight(batch).double()
        weight = torch.where(batch["mask"], weight, 0) if "mask" in batch else weight
        total = total + torch.where(weight > 0, weight * values, 0).sum()
        weights = weights + weight.sum()
    return total / weights


def fold(
    work: Work, batches: Iterable[Any], step: Callable[[Carry, Any], tuple[Carry, Tensor]], start: Carry
) -> tuple[Carry, Tensor]:
    """Walk through batches: ``carry, loss = step(carry, batch)`` for each, from ``start``.

    The last carry and the mean loss are returned. A batch of padding changes neither. Where an item is a tuple of
    batches, all of them are padding or none is.
    """
    carry, total, count = start, torch.zeros_like(work.examples), torch.zeros_like(work.examples)
    for item in batches:
        after, loss = step(carry, item)
        mask = (item[0] if isinstance(item, tuple) else item).get("mask")
        if mask is None:
            carry, total, count = after, total + loss, count + 1
            continue
        real = mask.any()
        carry = tree.map_leaves(lambda new, old, real=real: torch.where(real, new, old), after, carry)
        total, count = total + torch.where(real, loss, 0), count + real
    return carry, total / count.clamp(min=1)


def gradient_at(work: Work, model: Params, names: Names, batches: Iterable[Batch]) -> tuple[Params, Tensor, Params]:
    """The gradient of the loss in the parameters ``names``, that loss in float64, and the buffers that moved.

    The mean over ``batches``, each of which counts alike.
    """
    fixed = {name: p for name, p in model.items() if name not in names}
    results = []
    for batch in batches:

        def objective(block: Params, batch: Batch = batch) -> tuple[Tensor, Params]:
            losses, buffers = work.task.loss({**fixed, **block}, batch)
            return mean_loss(losses, batch), buffers

        results.append(work.gradient(objective, {name: model[name] for name in names}))
    gradients, losses, buffers = zip(*results, strict=True)
    if len(results) == 1:
        return gradients[0], losses[0].double(), buffers[0]
    mean = {name: torch.stack([g[name] for g in gradients]).mean(0) for name in names}
    return mean, torch.stack(losses).double().mean(), buffers[-1]


def hessian_product(work: Work, model: Params, vector: Params, batch: Batch) -> Params:
    """The Hessian of the loss in the shared parameters times a vector; the Hessian itself is never made."""

    def loss(block: Params) -> Tensor:
        return mean_loss(work.task.loss({**model, **block}, batch)[0], batch)

    # Fused attention has no second derivative; fused LSTMs have one, but only where autograd is on around them.
    with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        _, backward = torch.func.vjp(torch.func.grad(loss), {n: model[n] for n in work.shared})  # type: ignore[misc]
        (product,) = backward(vector)  # symmetric: from the left is from the right
    return product  # type: ignore[no-any-return]


def complete_gradient(gradient: Params, like: Params) -> Params:
    """A gradient for every tensor of ``like``: 0 for running statistics, which no gradient moves."""
    return {name: gradient[name] if name in gradient else torch.zeros_like(p) for name, p in like.items()}


def clip_gradients(gradients: Params, limit: float | None) -> Params:
    """The gradients scaled down so that their joint Euclidean norm is at most ``limit``, if there is one."""
    if limit is None:
        return gradients
    norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    return {name: g * factor for name, g in gradients.items()}


def to_vector(params: Params) -> Tensor:
    """All values one below the other, as one vector."""
    return torch.cat([p.reshape(-1) for p in params.values()])


def from_vector(vector: Tensor, like: Params) -> Params:
    """The inverse of ``to_vector``: tensors in the shapes and types of ``like``."""
    pieces = torch.split(vector, [p.numel() for p in like.values()])
    return {n: v.reshape(p.shape).to(p.dtype) for (n, p), v in zip(like.items(), pieces, strict=True)}


def take_floats(params: Params) -> Params:
    """The floating-point tensors; counters and other whole numbers are left out."""
    return {name: p for name, p in params.items() if p.is_floating_point()}


def difference(new: Params, old: Params) -> Params:
    """What a client sends: new minus old, name by name."""
    return {name: p - old[name] for name, p in new.items()}


def select(condition: Tensor, one: Params, other: Params) -> Params:
    """``one`` where the condition holds and ``other`` where it does not, name by name."""
    return {name: torch.where(condition, p, other[name]) for name, p in one.items()}


def apply_masks(params: Params, masks: Params) -> Params:
    """The parameters with what is not active set to 0; what has no mask stays as it is.

    Masks are boolean, or what ``spread_masks`` made of them.
    """
    return {name: _apply_mask(p, masks[name]) if name in masks else p for name, p in params.items()}


def _apply_mask(value: Tensor, mask: Tensor) -> Tensor:
    if torch.is_grad_enabled():  # bits have no gradient
        return torch.where(mask.bool(), value, 0)
    # As a product with 0 and 1 would do, twenty times faster than a selection; but infinities and NaN become 0, too.
    bits = mask if mask.dtype is not torch.bool else spread_mask(value, mask)
    return (value.view(bits.dtype) & bits).view(value.dtype)


def spread_masks(params: Params, masks: Params) -> Params:
    """The masks of parameters by ``spread_mask``, for masks that are used many times."""
    return {name: spread_mask(params[name], mask) for name, mask in masks.items()}


def spread_mask(value: Tensor, mask: Tensor) -> Tensor:
    """The mask as whole numbers as wide as the value's, all bits set where active."""
    return -mask.to(WIDTHS[value.element_size()])


def add_prefix(params: Params, prefix: str) -> Params:
    """The same tensors with ``prefix`` before their names: how several things cross in one message."""
    return {prefix + name: p for name, p in params.items()}


def take_prefix(params: Params, prefix: str) -> Params:
    """The tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): p for name, p in params.items() if name.startswith(prefix)}


def drop_prefix(params: Params, *prefixes: str) -> Params:
    """The tensors whose names begin with none of the prefixes."""
    return {name: p for name, p in params.items() if not name.startswith(prefixes)}


def reuse_rows(
    work: Work, model: Params, trained: Names, batches: Iterable[Batch]
) -> tuple[LossFunction, Iterable[Batch]]:
    """The loss and the batches of a phase; what ``trained`` parameters do not reach is computed once, if possible."""
    return (work.task.loss, batches) if work.reuse is None else work.reuse(model, frozenset(trained), batches)


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
        columns = partial.features({**model, **block}, dict(batch))
        smooth = take_floats(columns)
        return smooth, {name: f for name, f in columns.items() if name not in smooth}

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
