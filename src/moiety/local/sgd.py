"""Stochastic gradient descent as a value: what a client does to one part of its model, and for how long.

``moiety.sgd(0.1, epochs=5, weight_decay=1e-3)`` is given to an algorithm as ``shared=`` or ``personal=``. A bare number
stands for ``sgd(lr=number)``. What the value leaves open (``None``) is filled by the algorithm.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from moiety.errors import COUNT, kind, must, number, whole
from moiety.local.verbs import autograd_gradient, clip_gradients, mean_loss, reuse_rows
from moiety.spec import recorded, spec_from_fields
from moiety.task import steps
from moiety.task.block import block_gradient
from moiety.task.steps import Rate, Steps
from moiety.types import Batch, Names, Params, Phase, Recorded, Work

ALL = "all"
"""The batch size that stands for all rows of a client."""
WHOLE = sys.maxsize
"""The same as a number: one that no client reaches."""


@dataclass(frozen=True)
class Descent(Recorded):
    """What ``Sgd`` and ``Online`` have in common: a learning rate, and the batches of a round."""

    spec: dict[str, Any] = field(init=False, default_factory=dict, repr=False)
    """It follows from the other fields, so that it is right after ``dataclasses.replace`` too."""
    lr: float
    _: KW_ONLY
    steps: int | None = None
    batch_size: int | str | None = None
    shuffle: bool = True

    @property
    def rows(self) -> int:
        """The batch size as a number."""
        return WHOLE if self.batch_size == ALL else int(self.batch_size or 0)


@dataclass(frozen=True, kw_only=True)
class Sgd(Descent):
    """Local SGD with checked options; ``moiety.sgd`` makes it and says what they mean."""

    epochs: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    pull: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        check_rate("lr", self.lr)
        check_length(self.epochs, self.steps, self.batch_size, self.shuffle)
        number("momentum", self.momentum, ">= 0 and < 1", lambda m: 0 <= m < 1)
        number("weight_decay", self.weight_decay, ">= 0 and finite", lambda w: 0 <= w < math.inf)
        number("pull", self.pull, ">= 0 and finite", lambda p: 0 <= p < math.inf)
        if self.clip is not None:
            number("clip", self.clip, "> 0 or None", lambda c: c > 0)
        object.__setattr__(self, "spec", spec_from_fields("sgd", self))

    @property
    def phase(self) -> Phase:
        """The batches that it asks for."""
        return Phase(self.epochs, self.steps, self.rows, self.shuffle)


@recorded
def sgd(
    lr: float,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | str | None = None,
    shuffle: bool = True,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    pull: float = 0.0,
    clip: float | None = None,
) -> Sgd:
    """Local SGD: ``p <- p - lr m``, where ``m <- momentum m + g + weight_decay p + pull (p - c)``.

    g is the gradient of the mean loss of a batch, clipped first where asked. Momentum starts at 0 in every phase. What
    is None is decided by the algorithm: one epoch and batches of 32, for most.

    Args:
        lr: the learning rate; the algorithm's schedule multiplies it.
        epochs: passes over the client's rows, or
        steps: a number of steps.
        batch_size: rows per step, or ``"all"``. A client with fewer rows uses what it has.
        shuffle: False walks through the rows in their order.
        momentum: as in ``torch.optim.SGD``.
        weight_decay: the penalty (weight_decay / 2) ||p||^2.
        pull: the penalty (pull / 2) ||p - c||^2; the algorithm says what c is.
        clip: the largest norm of the gradient of the part that is trained.
    """
    return Sgd(
        lr,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        shuffle=shuffle,
        momentum=momentum,
        weight_decay=weight_decay,
        pull=pull,
        clip=clip,
    )


Value = TypeVar("Value")


def local_work(
    name: str, value: float | Value, make: Callable[[float], Value], *, without: Names = (), **defaults: Any
) -> Value:
    """The local work given as the argument ``name``, with what it leaves open filled in.

    Args:
        name: ``shared`` or ``personal``, for messages.
        value: a number stands for ``make(number)``.
        make: the builder of such values, ``sgd`` or ``online``.
        without: options that the algorithm does not have.
        **defaults: what to use where the value has None; ``epochs`` and ``steps`` only where it has neither.
    """
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        check_rate(name, value)
        value = make(float(value))
    wanted: type = make(1.0).__class__
    hint = f"As in {name}=0.1 or {name}=moiety.{wanted.__name__.lower()}(0.1, epochs=5)."
    kind(name, value, wanted, f"a learning rate or what moiety.{wanted.__name__.lower()} makes", hint)
    known = {each.name: each.default for each in fields(value)}  # type: ignore[arg-type]
    for option in without:
        got = getattr(value, option)
        must(got == known[option], f"{name}.{option}", "left out for this algorithm", got)
    if getattr(value, "epochs", None) is not None or getattr(value, "steps", None) is not None:
        defaults = {key: default for key, default in defaults.items() if key not in ("epochs", "steps")}
    open_options = {key: default for key, default in defaults.items() if getattr(value, key) is None}
    return replace(value, **open_options)  # type: ignore[type-var, return-value]


def sgd_work(
    name: str,
    value: float | Sgd,
    *,
    epochs: int | None = 1,
    steps: int | None = None,
    batch_size: int | str | None = 32,
    without: Names = ("pull",),
) -> Sgd:
    """The local SGD given as ``name``: one epoch in batches of 32 by default, and no pull."""
    return local_work(name, value, sgd, without=without, epochs=epochs, steps=steps, batch_size=batch_size)


def train(
    work: Work,
    model: Params,
    batches: Iterable[Batch],
    parts: Mapping[Names, Sgd],
    *,
    centre: Params | None = None,
) -> tuple[Params, Tensor]:
    """Stochastic gradient descent on some parameters, with everything else held fixed.

    Several parts are trained at once, with one gradient. The norm that is clipped is that of all of them, by the first
    one's ``clip``. Buffers that the forward pass moves (running statistics) move along. A batch of padding changes
    nothing.

    Args:
        work: what the client has at hand.
        model: the whole model; it is not changed.
        batches: one step each.
        parts: how each group of parameters is trained, by their names.
        centre: where ``pull`` pulls to, by parameter name.

    Returns:
        The new model and the mean loss over the steps, each at the parameters before its step.
    """
    options = {name: how for names, how in parts.items() for name in names}
    model = dict(model)
    if not options:  # nothing to train: no step, and no forward pass that could move a buffer
        return model, torch.zeros_like(work.examples)
    clip = next(iter(options.values())).clip
    loss_of, batches = reuse_rows(work, model, tuple(options), batches)
    rates = find_rates(work, model, options, centre)
    gradient = autograd_gradient if work.gradient is autograd_gradient else block_gradient
    velocity: Params = {}
    losses: list[Tensor] = []
    actives: list[Tensor] = []
    for batch in batches:
        fixed = {name: p for name, p in model.items() if name not in options}

        def objective(block: Params, fixed: Params = fixed, batch: Batch = batch) -> tuple[Tensor, Params]:
            each, changed = loss_of({**fixed, **block}, batch)
            return mean_loss(each, batch), changed

        active = batch["mask"].any() if "mask" in batch else None
        at = {name: model[name] for name in options}
        # From the second step on the trained tensors are ours, and may be edited in place.
        taken = Steps(rates, in_place=bool(losses), active=active)
        gradients, loss, changed = gradient(objective, at, taken) if rates else work.gradient(objective, at)
        gradients = clip_gradients(gradients, clip)
        for name, p in taken.new.items():
            model[name] = p
            if options[name].pull and centre is not None:
                c = centre[name] if active is None else torch.where(active, centre[name], 0)
                p.add_(c, alpha=rates[name].lr * options[name].pull)
        for name, g in gradients.items():
            how = options[name]
            if how.weight_decay:
                g = g.add(model[name], alpha=how.weight_decay)
            if how.pull and centre is not None:
                g = g.add(model[name] - centre[name], alpha=how.pull)
            if how.momentum:
                g = velocity[name].mul(how.momentum).add(g) if name in velocity else g
                velocity[name] = g if active is None else torch.where(active, g, velocity.get(name, 0))
            if active is not None:
                g = torch.where(active, g, 0)
            step = model[name].sub_ if losses else model[name].sub
            model[name] = step(g, alpha=how.lr * work.scale)
        for name, value in changed.items():
            model[name] = value if active is None else torch.where(active, value, model[name])
        losses.append(loss if active is None else torch.where(active, loss, 0))
        if active is not None:
            actives.append(active)
    if not losses:
        return model, torch.zeros_like(work.examples)
    total = torch.stack(losses).double().sum()
    return model, total / (torch.stack(actives).sum().clamp(min=1) if actives else len(losses))


def find_rates(work: Work, model: Params, options: Mapping[str, Sgd], centre: Params | None) -> dict[str, Rate]:
    """The rates of the parameters whose steps may be taken inside the backward pass.

    Momentum and clipping need the gradient itself. So does a ``work`` whose gradient an algorithm has changed. For a
    single client it pays where some parameter is large.
    """
    if next(iter(options.values())).clip is not None or work.gradient not in (autograd_gradient, block_gradient):
        return {}
    if work.gradient is autograd_gradient and max(model[name].numel() for name in options) < steps.LEAST:
        return {}
    return {
        name: Rate(how.lr * work.scale, how.weight_decay + (0 if centre is None else how.pull))
        for name, how in options.items()
        if not how.momentum
    }


def check_rate(name: str, lr: object) -> None:
    """Raise unless a learning rate is positive and finite."""
    number(name, lr, "> 0 and finite", lambda x: 0 < x < math.inf, "A learning rate is a small positive number.")


def check_length(epochs: int | None, steps: int | None, batch_size: int | str | None, shuffle: bool) -> None:
    """Raise unless the length of a phase and its batches are possible."""
    must(epochs is None or steps is None, "epochs", "left out where steps is given", epochs)
    for name, count in (("epochs", epochs), ("steps", steps), ("batch_size", batch_size)):
        if count is not None and not (name == "batch_size" and count == ALL):
            # A batch may be larger than any client's data: it then is all of it.
            whole(name, count, 1, 1e100 if name == "batch_size" else COUNT)
    kind("shuffle", shuffle, bool, "true or false")
