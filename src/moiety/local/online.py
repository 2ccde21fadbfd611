"""Online descent: one gradient at a time, by SGD or Adagrad, projected on a ball."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from moiety.errors import choice, number, whole
from moiety.local import mean_loss, positive_lr
from moiety.types import Batch, Names, Params, Phase, Work

RULES = ("sgd", "adagrad")
_TINY = 1e-10
"""Added to the root of the sum of squares, as in ``torch.optim.Adagrad``."""


@dataclass(frozen=True)
class Descent:
    """w <- P_D(w - lr g), or with Adagrad (Duchi et al. 2011) w <- P_D(w - lr g / sqrt(sum of g^2)), coordinate-wise.

    P_D is the projection on the ball of ``radius`` D around 0, all parameters as one vector; without a radius there is
    none. ``name`` goes before the names of the options in messages.
    """

    lr: float
    rule: str = "sgd"
    radius: float | None = None
    name: str = ""

    def __post_init__(self) -> None:
        positive_lr(f"{self.name}lr", self.lr)
        choice("rule", self.rule, RULES)
        if self.radius is not None:
            hint = "Leave it out where parameters are free."
            number(f"{self.name}radius", self.radius, "> 0 and finite", lambda r: 0 < r < math.inf, hint)

    def init(self, params: Params) -> Params:
        """The sums of squares so far; nothing for SGD."""
        return {n: torch.zeros_like(p) for n, p in params.items()} if self.rule == "adagrad" else {}

    def step(self, point: Params, gradient: Params, squares: Params, scale: float = 1.0) -> tuple[Params, Params]:
        """The next point and sums of squares; ``scale`` is a factor on the learning rate."""
        if self.rule == "adagrad":
            squares = {n: squares[n] + g.square() for n, g in gradient.items()}
            gradient = {n: g / (squares[n].sqrt() + _TINY) for n, g in gradient.items()}
        moved = {n: p.sub(gradient[n], alpha=self.lr * scale) for n, p in point.items()}
        return (moved if self.radius is None else projected(moved, self.radius)), squares


def projected(point: Params, radius: float) -> Params:
    """The nearest point of the ball of this radius around 0, all parameters as one vector."""
    if not point:
        return {}
    norm = torch.stack([p.square().sum() for p in point.values()]).sum().sqrt()
    factor = torch.where(norm > radius, radius / norm, 1.0)
    return {n: p * factor for n, p in point.items()}


def walk(batch_size: int, shuffle: bool, steps: int = 1) -> dict[str, Phase]:
    """The phase ``online``: ``steps`` batches a round, walking through the client's data in passes."""
    whole("batch_size", batch_size, 1)
    whole("steps", steps, 1)
    return {"online": Phase(None, steps, batch_size, shuffle, walk=True)}


def slope(work: Work, model: Params, names: Names, batches: Iterable[Batch]) -> tuple[Params, Tensor, Params]:
    """The gradient of the loss in the parameters ``names``, that loss in float64, and the buffers that moved.

    The mean over ``batches``, each of which counts alike; an online round has one.
    """
    fixed = {name: p for name, p in model.items() if name not in names}
    found = []
    for batch in batches:

        def objective(block: Params, batch: Batch = batch) -> tuple[Tensor, Params]:
            losses, changed = work.task.loss({**fixed, **block}, batch)
            return mean_loss(losses, batch), changed

        found.append(work.gradient(objective, {name: model[name] for name in names}))
    gradients, losses, changed = zip(*found, strict=True)
    if len(found) == 1:
        return gradients[0], losses[0].double(), changed[0]
    mean = {name: torch.stack([g[name] for g in gradients]).mean(0) for name in names}
    return mean, torch.stack(losses).double().mean(), changed[-1]
