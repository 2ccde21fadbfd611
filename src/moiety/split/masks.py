"""Masks: which weights of a model are active, how many in each layer, and how they are chosen.

Tensors of two or more axes have masks: the weights of convolutions and linear layers, and embeddings. Vectors (biases,
the scales of norms) stay dense. A mask is a boolean tensor of the shape of its weight. Weights are chosen by score; of
equal scores the one that comes first in the flattened tensor wins, so that every engine chooses the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from moiety.errors import choice, must, number
from moiety.local.verbs import WIDTHS, spread_mask
from moiety.random import uniform
from moiety.types import Names, Params

DENSITIES = ("erk", "uniform")


def check_density(density: float) -> None:
    """Raise unless a density is above 0 and at most 1; ``layer_counts`` knows the least one for a model."""
    number("density", density, "> 0 and <= 1", lambda d: 0 < d <= 1)


def find_maskable(params: Mapping[str, Tensor]) -> Names:
    """The names of the tensors that a mask applies to.

    >>> find_maskable({"conv.weight": torch.zeros(2, 3, 5, 5), "conv.bias": torch.zeros(2)})
    ('conv.weight',)
    """
    return tuple(name for name, p in params.items() if p.dim() >= 2 and p.is_floating_point())


def round_share(total: int, density: float) -> int:
    """How many of ``total`` numbers are active: density times total, rounded to the nearest, halves up.

    >>> [round_share(total, 0.3) for total in (4, 5, 6)]
    [1, 2, 2]
    """
    # The decimal as it is written, not the binary number next to it: 0.3 of 5 is 1.5 exactly.
    return math.floor(Fraction(str(float(density))) * total + Fraction(1, 2))


def layer_counts(params: Mapping[str, Tensor], density: float, densities: str) -> dict[str, int]:
    """How many weights of each masked tensor are active; it depends on shapes only.

    Of d numbers in all, dense ones included, exactly density times d are active, rounded to the nearest whole number,
    halves up. Dense tensors take their part first, and the rest is shared out:

    - ``uniform``: every masked tensor has the same density.
    - ``erk`` (Evci et al. 2020, Erdos-Renyi-Kernel with scale 1): the number of active weights is proportional to
      the sum of the tensor's sides (n_in + n_out + width + height), so the density to that sum over their product. A
      tensor that would be more than full is full, and the rest is shared out again among the others.

    Shares are exact fractions. They are rounded down, and the remaining weights go one each to the tensors with the
    largest remainders, the earlier first. A tensor without any, which no mask search could bring back, takes one from
    the tensor with most.

    >>> layer_counts({"w": torch.zeros(4, 2), "b": torch.zeros(4), "v": torch.zeros(10, 4)}, 0.5, "erk")
    {'w': 7, 'v': 15}
    """
    choice("densities", densities, DENSITIES)
    names = find_maskable(params)
    total = sum(p.numel() for p in params.values())
    return dict(_count_active(tuple((n, tuple(params[n].shape)) for n in names), total, density, densities))


@lru_cache(maxsize=64)
def _count_active(
    layers: tuple[tuple[str, tuple[int, ...]], ...], total: int, density: float, densities: str
) -> tuple[tuple[str, int], ...]:
    sizes = {name: math.prod(shape) for name, shape in layers}
    weights = sum(sizes.values())
    active = round_share(total, density) - (total - weights)
    # The least density whose rounded volume suffices; the message rounds its last digit up.
    least = math.ceil((total - weights + len(layers) - Fraction(1, 2)) / total * 10**4) / 10**4
    hint = "Biases, norms and one weight a layer are active always."
    must(active >= len(layers), "density", f">= {least:g} for this model", density, hint)
    if densities == "uniform":
        shares = {name: Fraction(active * size, weights) for name, size in sizes.items()}
    else:
        shares = _share_by_erk({name: sum(shape) for name, shape in layers}, sizes, active)
    counts = round_shares(shares, active)
    for name in [name for name, count in counts.items() if not count]:
        counts[max(counts, key=counts.__getitem__)] -= 1
        counts[name] = 1
    return tuple(counts.items())


def round_shares(shares: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """The shares as whole numbers with sum ``total``, by largest remainders; of equal ones the earlier first."""
    counts = {name: math.floor(share) for name, share in shares.items()}
    order = sorted(shares, key=lambda name: counts[name] - shares[name])
    for name in order[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def _share_by_erk(sides: Mapping[str, int], sizes: Mapping[str, int], active: int) -> dict[str, Fraction]:
    """Shares proportional to ``sides``, none above its size."""
    full: set[str] = set()
    while True:
        open_sides = sum(side for name, side in sides.items() if name not in full)
        rest = active - sum(sizes[name] for name in full)
        scale = Fraction(rest, open_sides) if open_sides else Fraction(0)
        over = {name for name, side in sides.items() if name not in full and scale * side > sizes[name]}
        if not over:
            return {name: Fraction(sizes[name]) if name in full else scale * sides[name] for name in sizes}
        full |= over


def mask_highest(score: Tensor, count: int | Tensor) -> Tensor:
    """A mask of the ``count`` highest scores; of equal ones those that come first.

    >>> mask_highest(torch.tensor([1.0, 3.0, 1.0, 1.0]), 2)
    tensor([ True,  True, False, False])
    """
    flat = score.flatten()
    if not flat.shape[0]:
        return torch.zeros_like(score, dtype=torch.bool)
    lowest = _find_lowest(flat, count)
    above, equal = flat > lowest, flat == lowest
    if flat.is_floating_point():  # NaN counts as higher than any number, and as equal to itself
        above = above | (flat.isnan() & ~lowest.isnan())
        equal = equal | (flat.isnan() & lowest.isnan())
    mask = above | (equal & (equal.cumsum(0) <= count - above.sum()))
    return mask.view(score.shape)


def _find_lowest(flat: Tensor, count: int | Tensor) -> Tensor:
    """The lowest of the ``count`` highest. A processor selects it in a tenth of the time that a sort takes."""
    size = flat.shape[0]
    if not isinstance(count, int) or flat.device.type != "cpu":
        place = torch.as_tensor(size - count, device=flat.device).clamp(0, size - 1)
        return flat.sort().values.gather(0, place.reshape(1)).squeeze(0)
    if 1 <= count <= size // 4 and not flat.is_floating_point():
        return flat.topk(count, sorted=False).values.amin()
    return flat.kthvalue(min(max(size - count + 1, 1), size)).values


def _as_integers(value: Tensor) -> Tensor:
    """The magnitudes as whole numbers >= 0 in the same order, in which their bits are: quicker to select from."""
    return value.abs().view(WIDTHS[value.element_size()])


def draw_masks(key: Tensor, params: Mapping[str, Tensor], counts: Mapping[str, int], *words: str | int) -> Params:
    """Random masks with ``counts`` active weights, drawn from a key and words (``moiety.random``)."""
    return {
        name: mask_highest(uniform(key, tuple(params[name].shape), *words, name), count)
        for name, count in counts.items()
    }


def draw_common_masks(params: Mapping[str, Tensor], counts: Mapping[str, int], seed: int) -> Params:
    """The masks that all clients begin with. They are drawn once and shared: do not edit them in place."""
    device = next(iter(params.values())).device
    return dict(_draw_common(tuple((n, tuple(params[n].shape), count) for n, count in counts.items()), seed, device))


@lru_cache(maxsize=8)
def _draw_common(
    layers: tuple[tuple[str, tuple[int, ...], int], ...], seed: int, device: torch.device
) -> tuple[tuple[str, Tensor], ...]:
    like = {name: torch.empty(shape, device="meta") for name, shape, _ in layers}
    key = torch.zeros((), dtype=torch.int64, device=device)
    masks = draw_masks(key, like, {name: count for name, _, count in layers}, "mask", seed)
    return tuple(masks.items())


def anneal_rate(rate: float, elapsed: float) -> float:
    """The share of active weights to prune: ``rate / 2 (1 + cos(pi elapsed))``, with elapsed = t / (T - 1).

    >>> [round(anneal_rate(0.5, t / 4), 4) for t in range(5)]
    [0.5, 0.4268, 0.25, 0.0732, 0.0]
    """
    return 0.5 * rate * (1 + math.cos(math.pi * elapsed))


def mask_smallest(weight: Tensor, mask: Tensor, count: int | Tensor) -> Tensor:
    """A mask of the ``count`` active weights of smallest magnitude."""
    active = spread_mask(weight, mask)
    dormant_last = ~_as_integers(weight) & active | ~active & torch.iinfo(active.dtype).min
    return mask_highest(dormant_last, count)


def update_mask(
    mask: Tensor, weight: Tensor, score: Tensor, *, active: int, rate: float, regrow_pruned: bool = True
) -> Tensor:
    """Prune a share of the active weights by magnitude, and activate as many others by score.

    The ``floor(rate active)`` weights of smallest magnitude are pruned. As many weights become active, those of highest
    score among all that are not; scores are not negative. With ``regrow_pruned=False`` the weights that were just
    pruned come after all others: they come back only where too few were dormant before.

    Args:
        mask: which weights are active, ``active`` of them.
        weight: the weights after local training.
        score: the score of each weight: the magnitude of its gradient, or a random number.
        active: how many are active; under vmap the mask's values cannot be read.
        rate: the share to prune.
        regrow_pruned: whether the weights that were just pruned may compete with the others.

    >>> mask = torch.tensor([True, True, False, False])
    >>> weight, score = torch.tensor([0.1, 2.0, 0.0, 0.0]), torch.tensor([9.0, 9.0, 1.0, 2.0])
    >>> update_mask(mask, weight, score, active=2, rate=0.5)
    tensor([ True,  True, False, False])
    >>> update_mask(mask, weight, score, active=2, rate=0.5, regrow_pruned=False)
    tensor([False,  True, False,  True])
    """
    # In binary 0.29 of 100 is a little less than 29.
    count, dormant = math.floor(rate * active + 1e-9), mask.numel() - active
    if not count:
        return mask.clone()
    pruned = mask_smallest(weight, mask, count)
    rest = mask & ~pruned
    if regrow_pruned:
        return rest | mask_highest(_mark_last(score, rest), count)
    if count <= dormant:
        return rest | mask_highest(_mark_last(score, mask), count)
    return rest | ~mask | mask_highest(_mark_last(score, ~pruned), count - dormant)


def _mark_last(score: Tensor, last: Tensor) -> Tensor:
    """The scores as whole numbers, -1 where ``last``: these are chosen after all others."""
    return _as_integers(score) | spread_mask(score, last)


def hamming_distance(one: Params, other: Params) -> Tensor:
    """The Hamming distance of two models' masks as a share of all masked weights."""
    counts = [(mask != other[name]).sum() for name, mask in one.items()]
    return sum(counts, torch.zeros(())) / max(1, sum(mask.numel() for mask in one.values()))
