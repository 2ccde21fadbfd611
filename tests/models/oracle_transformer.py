"""A transformer block in NumPy, from Vaswani et al. (2017), sections 3.1 to 3.5; one sequence, one head at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]


def arrays(model: nn.Module) -> dict[str, Array]:
    """Values of a model's parameters; tied ones under all their names."""
    return {name: value.detach().double().numpy() for name, value in model.named_parameters(remove_duplicate=False)}


def shake(model: nn.Module) -> nn.Module:
    """The model in double precision with values far from its first ones, so that no term is 0, 1 or small."""
    draw = np.random.default_rng(0)
    model = model.double()
    for value in model.parameters():
        value.data.copy_(value.new_tensor(draw.normal(scale=0.7, size=tuple(value.shape))))
    return model


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    """Each row less its mean, over the root of its variance plus 1e-5."""
    centred = x - x.mean(1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * weight + bias


def attention(x: Array, p: dict[str, Array], heads: int, mask: NDArray[np.bool_]) -> Array:
    """Position ``i`` attends to position ``j`` where ``mask[i, j]``."""
    size = x.shape[1] // heads
    output = np.zeros_like(x)
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        q, k, v = (x @ p[f"{name}.weight"][own].T for name in ("query", "key", "value"))
        for i in range(len(x)):
            js = np.flatnonzero(mask[i])
            weights = softmax(np.array([q[i] @ k[j] for j in js]) / np.sqrt(size))
            output[i, own] = sum(w * v[j] for w, j in zip(weights, js, strict=True))
    return output @ p["output.weight"].T


def feed_forward(x: Array, p: dict[str, Array]) -> Array:
    hidden = np.maximum(x @ p["first.weight"].T + p["first.bias"], 0)
    return hidden @ p["second.weight"].T + p["second.bias"]


def block(x: Array, p: dict[str, Array], heads: int, mask: NDArray[np.bool_]) -> Array:
    u = layer_norm(x + attention(x, select_part(p, "attention"), heads, mask), p["norm1.weight"], p["norm1.bias"])
    return layer_norm(u + feed_forward(u, select_part(p, "feed_forward")), p["norm2.weight"], p["norm2.bias"])


def select_part(p: dict[str, Array], part: str) -> dict[str, Array]:
    """The values of one part, by their names in it."""
    return {name.removeprefix(f"{part}."): value for name, value in p.items() if name.startswith(f"{part}.")}
