"""The adaptive, normalised and importance-invariant update of Vowpal Wabbit, as a rule of ``moiety.online``.

NAG of Ross, Mineiro and Langford, "Normalized Online Learning" (2013), Algorithm 2, with the closed form for squared
loss of Karampatziakis and Langford, "Online Importance Weight Aware Updates" (2011). For one example with features x,
importance h, loss (p - y)^2 and gradient g, by coordinate i:

    s_i <- max(s_i, |x_i|), and w_i is multiplied by old s_i / new s_i        the scale of the feature
    N <- N + h sum_i x_i^2 / s_i^2, T <- T + h                                what features are worth on average
    G_i <- G_i + g_i^2                                                        Adagrad's sum
    A_i = sqrt(T / N) / (s_i sqrt(G_i)),  k = 2 h sum_i A_i x_i^2             rates, and how fast p moves to y
    w_i <- w_i - (1 - exp(-lr k)) / k A_i g_i

So no step takes p beyond y, and h times an example is the same as an example of weight h. Several examples (a batch, or
the clients of a round) are one: g, h and h x^2 are summed, |x| is the largest. k is then an upper bound of the
curvature along the step, and exact where the examples are one another's copies.

The feature of a parameter is the slope of the model's output in it, which for a linear model is what is multiplied by
it. A step needs more than a gradient: the sums and the largest features travel beside it under names of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from moiety.local.verbs import count_rows
from moiety.types import Batch, Params, Work

WEIGHT, SQUARES, LARGEST = "examples:weight", "squares:", "largest:"
"""What goes beside a gradient: h, and for each parameter h x^2 and |x|."""
COUNT, NORM, SCALE, SUM = "kept:T", "kept:N", "s:", "G:"
"""What is kept between steps."""
CURVATURE = 2.0
"""The second derivative of (p - y)^2."""


def describe_features(work: Work, model: Params, gradient: Params, batches: Sequence[Batch]) -> Params:
    """The gradient with what a step must know of the examples it is of; they count as one together."""
    params = {name: model[name] for name in gradient if name in (*work.shared, *work.personal)}
    fixed = {name: p for name, p in model.items() if name not in params}
    squares = {name: torch.zeros_like(g) for name, g in gradient.items()}
    largest = dict(squares)
    for batch in batches:
        share = 1.0 / (len(batches) * torch.as_tensor(count_rows(batch)).clamp(min=1))
        for at in range(len(next(iter(batch.values())))):
            row = {column: values[at : at + 1] for column, values in batch.items()}
            real = row["mask"].all() if "mask" in row else work.examples.new_ones((), dtype=torch.bool)

            def total(block: Params, row: Batch = row) -> tuple[Tensor, Params]:
                return work.task.predict({**fixed, **block}, row).sum(), {}

            for name, x in work.gradient(total, params)[0].items():
                x = torch.where(real, x, 0)
                squares[name] = squares[name] + (share * x.square()).to(x.dtype)
                largest[name] = torch.maximum(largest[name], x.abs())
    scales = {f"{SQUARES}{n}": q for n, q in squares.items()} | {f"{LARGEST}{n}": m for n, m in largest.items()}
    return {**gradient, **scales, WEIGHT: _make_number(gradient, 1.0)}


def declare_features(params: Params) -> Params:
    """The layout of what ``describe_features`` gives."""
    scales = {f"{prefix}{n}": torch.zeros_like(p) for prefix in (SQUARES, LARGEST) for n, p in params.items()}
    return {**params, **scales, WEIGHT: _make_number(params, 1.0)}


def init_normalised(params: Params) -> Params:
    """What is kept, before the first step."""
    zeros = {f"{prefix}{name}": torch.zeros_like(p) for prefix in (SCALE, SUM) for name, p in params.items()}
    zero = _make_number(params, 0.0).double()
    return {**zeros, COUNT: zero, NORM: zero}


def step_normalised(point: Params, features: Params, memory: Params, lr: float) -> tuple[Params, Params]:
    """The next point, and what is kept after it."""
    scale = {n: torch.maximum(memory[f"{SCALE}{n}"], features[f"{LARGEST}{n}"]) for n in point}
    count = memory[COUNT] + features[WEIGHT]
    norm = memory[NORM] + _add(_divide(features[f"{SQUARES}{n}"], s.square()) for n, s in scale.items())
    sums = {n: memory[f"{SUM}{n}"] + features[n].square() for n in point}
    usual = _divide(count, norm).sqrt()
    rates = {
        n: (usual * _divide(torch.ones_like(s), s * sums[n].sqrt()).double()).to(s.dtype) for n, s in scale.items()
    }
    pull = lr * CURVATURE * _add(rates[n] * features[f"{SQUARES}{n}"] for n in point)
    length = lr * torch.where(pull > 0, _divide(-torch.expm1(-pull), pull), 1.0)
    after = {}
    for n, w in point.items():
        old = memory[f"{SCALE}{n}"]
        shrink = torch.where(old > 0, _divide(old, scale[n]), 1.0)
        after[n] = w * shrink - (length * (rates[n] * features[n]).double()).to(w.dtype)
    now = {f"{SCALE}{n}": s for n, s in scale.items()} | {f"{SUM}{n}": g for n, g in sums.items()}
    return after, {**now, COUNT: count, NORM: norm}


def _make_number(params: Params, value: float) -> Tensor:
    """A tensor without axes, of the first parameter's precision and device; float64 where there is none."""
    first = next((p for p in params.values() if p.is_floating_point()), torch.zeros((), dtype=torch.float64))
    return first.new_full((), value)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)


def _add(parts: Iterable[Tensor]) -> Tensor:
    """The sum of all numbers of all tensors, in float64."""
    sums = [part.double().sum() for part in parts]
    return torch.stack(sums).sum() if sums else torch.zeros((), dtype=torch.float64)
