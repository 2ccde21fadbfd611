"""Online descent as a value: one gradient at a time, by SGD, Adagrad or a normalised rule, projected on a ball."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from moiety.errors import choice, number
from moiety.local.normalised import declare_features, describe_features, init_normalised, step_normalised
from moiety.local.sgd import Descent, check_length, check_rate, local_work
from moiety.spec import recorded, spec_from_fields
from moiety.types import Batch, Names, Params, Phase, Work

RULES = ("sgd", "adagrad", "normalised")
_TINY = 1e-10
"""Added to the root of the sum of squares, as in ``torch.optim.Adagrad``."""


@dataclass(frozen=True, kw_only=True)
class Online(Descent):
    """Online descent with checked options; ``moiety.online`` makes it and says what they mean."""

    rule: str = "sgd"
    radius: float | None = None

    def __post_init__(self) -> None:
        check_rate("lr", self.lr)
        choice("rule", self.rule, RULES)
        if self.radius is not None:
            hint = "Leave it out where parameters are free."
            number("radius", self.radius, "> 0 and finite", lambda r: 0 < r < math.inf, hint)
        check_length(None, self.steps, self.batch_size, self.shuffle)
        object.__setattr__(self, "spec", spec_from_fields("online", self))

    @property
    def phase(self) -> Phase:
        """The batches of a round: the walk through the client's rows goes on in the next."""
        return Phase(None, self.steps, self.rows, self.shuffle, walk=True)

    def init(self, params: Params) -> Params:
        """What is kept before the first step: sums of squares for Adagrad, nothing for SGD."""
        if self.rule == "normalised":
            return init_normalised(params)
        return {n: torch.zeros_like(p) for n, p in params.items()} if self.rule == "adagrad" else {}

    def describe(self, work: Work, model: Params, gradient: Params, batches: Sequence[Batch]) -> Params:
        """All that a step needs to know of the batches: their gradient, and for the normalised rule their features."""
        return describe_features(work, model, gradient, batches) if self.rule == "normalised" else gradient

    def declare(self, params: Params) -> Params:
        """The layout of what ``describe`` gives."""
        return declare_features(params) if self.rule == "normalised" else params

    def step(self, point: Params, gradient: Params, squares: Params, scale: float = 1.0) -> tuple[Params, Params]:
        """The next point and what is kept; ``scale`` is a factor on the learning rate."""
        if self.rule == "normalised":
            point, squares = step_normalised(point, gradient, squares, self.lr * scale)
            return (point if self.radius is None else project_to_ball(point, self.radius)), squares
        gradient = {n: gradient[n] for n in point}
        if self.rule == "adagrad":
            squares = {n: squares[n] + g.square() for n, g in gradient.items()}
            gradient = {n: g / (squares[n].sqrt() + _TINY) for n, g in gradient.items()}
        point = {n: p.sub(gradient[n], alpha=self.lr * scale) for n, p in point.items()}
        return (point if self.radius is None else project_to_ball(point, self.radius)), squares


@recorded
def online(
    lr: float,
    *,
    rule: str = "sgd",
    radius: float | None = None,
    steps: int | None = None,
    batch_size: int | str | None = None,
    shuffle: bool = True,
) -> Online:
    """Online descent: ``w <- P_D(w - lr g)``, with Adagrad ``w <- P_D(w - lr g / sqrt(sum of g^2))`` by coordinate.

    P_D is the projection on the ball of radius D around 0, all parameters as one vector.

    ``normalised`` is the update of Vowpal Wabbit: Adagrad that is blind to the scale of each feature and never steps
    over the label (Ross et al. 2013, Karampatziakis and Langford 2011; the formulas are in
    ``moiety/local/normalised.py``). It is meant for squared losses (p - y)^2 of models that are linear in their
    parameters, with one output; several outputs share one length of step. It computes one more gradient for each row.

    Args:
        lr: the learning rate.
        rule: ``sgd``, ``adagrad`` (Duchi et al. 2011) or ``normalised``.
        radius: D, the largest norm; free by default.
        steps: batches in a round; the walk through the rows goes on in the next. One by default.
        batch_size: rows in a step, or ``"all"``; one by default.
        shuffle: False walks through the rows in their order.
    """
    return Online(lr, rule=rule, radius=radius, steps=steps, batch_size=batch_size, shuffle=shuffle)


def online_work(name: str, value: float | Online, *, without: Names = ("steps",)) -> Online:
    """The online descent given as ``name``: one row a round by default."""
    return local_work(name, value, online, Online, "moiety.online", without=without, steps=1, batch_size=1)


def project_to_ball(point: Params, radius: float) -> Params:
    """The nearest point of the ball of this radius around 0, all parameters as one vector."""
    if not point:
        return {}
    norm = torch.stack([p.square().sum() for p in point.values()]).sum().sqrt()
    factor = torch.where(norm > radius, radius / norm, 1.0)
    return {n: p * factor for n, p in point.items()}
