"""Stochastic gradient descent as a value: what a client does to one part of its model, and for how long.

``moiety.sgd(0.1, epochs=5, weight_decay=1e-3)`` is given to an algorithm as ``shared=`` or ``personal=``. A bare number
stands for ``sgd(lr=number)``. What the value leaves open (``None``) is filled by the algorithm. ``Optimiser`` is what
SGD and Adam have in common.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from moiety.errors import COUNT, choice, kind, must, number, whole
from moiety.local.verbs import take_floats
from moiety.spec import recorded, spec_from_fields
from moiety.types import Names, Params, Phase, Recorded

ALL = "all"
"""The batch size that stands for all rows of a client."""
WHOLE = sys.maxsize
"""The same as a number: one that no client reaches."""
LR_DECAYS = ("constant", "linear", "cosine")
PLAIN = ("momentum", "accumulate", "lr_decay", "keep_state")
"""Plain SGD has none of these options."""

Moments = tuple[Tensor, ...]
"""What an optimiser remembers of the gradients of one parameter."""


class Memory(NamedTuple):
    """What a client keeps of an optimiser from round to round: the steps taken, and moments by parameter."""

    steps: Tensor
    moments: dict[str, Moments]


Kept = Memory | tuple[()]
"""The memory of an optimiser, or nothing where it begins anew in every phase."""


@dataclass(frozen=True)
class Descent(Recorded):
    """What ``Optimiser`` and ``Online`` have in common: a learning rate, and the batches of a round."""

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
class Optimiser(Descent):
    """A way to train on batches: what ``Sgd`` and ``Adam`` have in common.

    A step is ``p <- p - lr d``. The rule makes the direction d from the gradient and from what it remembers.
    """

    epochs: int | None = None
    weight_decay: float = 0.0
    pull: float = 0.0
    clip: float | None = None
    accumulate: int = 1
    lr_decay: str = "constant"
    keep_state: bool = False
    decoupled: ClassVar[bool] = False
    """Whether weight decay is added to the direction and not to the gradient."""

    def __post_init__(self) -> None:
        check_rate("lr", self.lr)
        check_length(self.epochs, self.steps, self.batch_size, self.shuffle)
        number("weight_decay", self.weight_decay, ">= 0 and finite", lambda w: 0 <= w < math.inf)
        number("pull", self.pull, ">= 0 and finite", lambda p: 0 <= p < math.inf)
        if self.clip is not None:
            number("clip", self.clip, "> 0 or None", lambda c: c > 0)
        whole("accumulate", self.accumulate, 1, COUNT)
        choice("lr_decay", self.lr_decay, LR_DECAYS)
        kind("keep_state", self.keep_state, bool, "true or false")

    @property
    def rows(self) -> int:
        """The rows of a step: those of all its micro-batches."""
        return WHOLE if self.batch_size == ALL else super().rows * self.accumulate

    @property
    def phase(self) -> Phase:
        """The batches that it asks for, one for each step."""
        return Phase(self.epochs, self.steps, self.rows, self.shuffle, accumulate=self.accumulate)

    @property
    def orders(self) -> int:
        """How many moments of the gradient it remembers."""
        raise NotImplementedError

    @property
    def counts_steps(self) -> bool:
        """Whether a step depends on how many there were before."""
        return self.lr_decay != "constant"

    def direction(self, g: Tensor, moments: Moments, step: int | Tensor) -> tuple[Tensor, Moments]:
        """The direction d of a step (the first is number 1), and the new moments; ``moments`` are empty at first."""
        raise NotImplementedError

    def begin(self, params: Params) -> Kept:
        """What a client keeps before its first round."""
        if not self.keep_state or not params:
            return ()
        floats = take_floats(params)
        moments = {name: tuple(torch.zeros_like(p) for _ in range(self.orders)) for name, p in floats.items()}
        like = next(iter(params.values()))
        return Memory(like.new_zeros((), dtype=torch.float64), moments)

    def decay_factor(self, steps: int | Tensor, examples: Tensor) -> float | Tensor:
        """The factor of ``lr_decay`` on the learning rate after ``steps``, for a client with so many examples."""
        if self.lr_decay == "constant":
            return 1.0
        per_epoch = (examples / float(self.rows)).ceil()
        share = steps / (self.steps if self.steps is not None else (self.epochs or 1) * per_epoch)
        share = torch.as_tensor(share, dtype=examples.dtype, device=examples.device).clamp(max=1.0)
        return 1 - share if self.lr_decay == "linear" else (1 + torch.cos(math.pi * share)) / 2


@dataclass(frozen=True, kw_only=True)
class Sgd(Optimiser):
    """Local SGD with checked options; ``moiety.sgd`` makes it and says what they mean."""

    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number("momentum", self.momentum, ">= 0 and < 1", lambda m: 0 <= m < 1)
        hint = "Plain SGD has no state to keep."
        must(self.momentum > 0 or not self.keep_state, "momentum", "> 0 with keep_state", self.momentum, hint)
        object.__setattr__(self, "spec", spec_from_fields("sgd", self))

    @property
    def orders(self) -> int:
        """One with momentum, the velocity."""
        return 1 if self.momentum else 0

    def direction(self, g: Tensor, moments: Moments, step: int | Tensor) -> tuple[Tensor, Moments]:
        """The gradient, or the velocity."""
        if not self.momentum:
            return g, ()
        velocity = moments[0].mul(self.momentum).add(g) if moments else g
        return velocity, (velocity,)


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
    accumulate: int = 1,
    lr_decay: str = "constant",
    keep_state: bool = False,
) -> Sgd:
    """Local SGD: ``p <- p - lr m``, where ``m <- momentum m + g + weight_decay p + pull (p - c)``.

    g is the gradient of the mean loss of a batch, clipped first where asked. Momentum starts at 0 in every phase,
    unless it is kept. What is None is decided by the algorithm: one epoch and batches of 32, for most.

    Args:
        lr: the learning rate; the algorithm's schedule multiplies it.
        epochs: passes over the client's rows, or
        steps: a number of steps.
        batch_size: rows per step, or ``"all"``; with ``accumulate``, rows per micro-batch. A client with fewer rows
            uses what it has.
        shuffle: False walks through the rows in their order.
        momentum: as in ``torch.optim.SGD``.
        weight_decay: the penalty (weight_decay / 2) ||p||^2.
        pull: the penalty (pull / 2) ||p - c||^2; the algorithm says what c is.
        clip: the largest norm of the gradient of the part that is trained.
        accumulate: micro-batches in a step. Its gradient is that of ``accumulate * batch_size`` rows at once, in the
            memory of ``batch_size`` rows.
        lr_decay: of the learning rate from step to step of a phase: ``constant``, ``linear`` (1 - k / K after k of K
            steps) or ``cosine`` ((1 + cos(pi k / K)) / 2).
        keep_state: keep the momentum with the client's state from round to round, for a personal part.
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
        accumulate=accumulate,
        lr_decay=lr_decay,
        keep_state=keep_state,
    )


Value = TypeVar("Value")


def local_work(
    name: str,
    value: object,
    make: Callable[[float], Any],
    work_type: type[Value],
    builders: str,
    *,
    hint: str = "",
    without: Names = (),
    **defaults: Any,
) -> Value:
    """The local work given as the argument ``name``, with what it leaves open filled in.

    Args:
        name: ``shared`` or ``personal``, for messages.
        value: a number stands for ``make(number)``.
        make: ``sgd`` or ``online``.
        work_type: the class of values that the algorithm takes.
        builders: the names of the functions that make such values, for messages.
        hint: what to do about any other value.
        without: options that the algorithm does not have.
        **defaults: what to use where the value has None; ``epochs`` and ``steps`` only where it has neither.
    """
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        check_rate(name, value)
        value = make(float(value))
    hint = hint or f"As in {name}=0.1 or {name}=moiety.{make.__name__}(0.1, epochs=5)."
    kind(name, value, work_type, f"a learning rate or what {builders} makes", hint)
    presets = {each.name: each.default for each in fields(value)}  # type: ignore[arg-type]
    for option in without:
        setting = getattr(value, option)
        must(setting == presets[option], f"{name}.{option}", "left out for this algorithm", setting)
    if getattr(value, "epochs", None) is not None or getattr(value, "steps", None) is not None:
        defaults = {key: default for key, default in defaults.items() if key not in ("epochs", "steps")}
    open_options = {key: default for key, default in defaults.items() if getattr(value, key) is None}
    return replace(value, **open_options)  # type: ignore[type-var, return-value]


def optimiser_work(
    name: str,
    value: float | Optimiser,
    *,
    epochs: int | None = 1,
    steps: int | None = None,
    batch_size: int | str | None = 32,
    without: Names = ("pull", "keep_state"),
) -> Optimiser:
    """The local work given as ``name``, by any optimiser: one epoch in batches of 32 by default, and no pull."""
    lengths: dict[str, Any] = {"epochs": epochs, "steps": steps, "batch_size": batch_size}
    return local_work(name, value, sgd, Optimiser, "moiety.sgd, adam or adamw", without=without, **lengths)


def sgd_work(
    name: str,
    value: float | Optimiser,
    *,
    epochs: int | None = 1,
    steps: int | None = None,
    batch_size: int | str | None = 32,
    without: Names = ("pull",),
) -> Sgd:
    """The same for an algorithm whose steps are those of plain SGD: it takes nothing else."""
    lengths: dict[str, Any] = {"epochs": epochs, "steps": steps, "batch_size": batch_size}
    hint = "" if not isinstance(value, Optimiser) else "The steps of this algorithm are those of plain SGD."
    return local_work(name, value, sgd, Sgd, "moiety.sgd", hint=hint, without=(*PLAIN, *without), **lengths)


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
