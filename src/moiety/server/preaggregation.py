"""What comes before a robust aggregator: vectors made more alike, so that honest clients who differ are not cut off."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from moiety.errors import kind, whole
from moiety.server.robust import Aggregator, require_clients, require_generator, squared_distances
from moiety.spec import recorded

HINT = "For instance moiety.aggregator.median()."


@recorded
def bucketing(*, size: int, then: Aggregator) -> Aggregator:
    """The aggregate of the means of buckets into which the vectors are dealt at random (Karimireddy et al. 2022).

    "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", Algorithm 1, with s for ``size``: ``y_i = mean
    of x_pi(k) for k = (i - 1) s + 1 ... min(n, i s)`` and a random permutation pi. A Byzantine client spoils at most
    one bucket, so ``then`` must expect as many Byzantine buckets as there are Byzantine clients. Where these are a
    part delta of all, s = floor(delta_max / delta) makes ``krum`` (delta_max 1/4), ``geometric_median`` and ``median``
    (1/2) agnostic robust aggregators (Theorem I). All in one bucket is the mean.

    The permutation comes from the generator given to ``aggregate`` and is applied to the vectors in lexicographic
    order: with the same generator the order of the updates does not matter. One deviation: a last, smaller bucket is
    divided by its own size rather than by s, which would shrink it towards 0.

    However six clients are dealt to three buckets, the one that sends 100 spoils one of them:

    >>> import moiety as mo
    >>> rule = bucketing(size=2, then=mo.aggregator.median())  # then Settings(aggregator=rule)
    >>> vectors = torch.tensor([[1.0], [1.0], [1.0], [1.0], [1.0], [100.0]])
    >>> rule.join(vectors, mo.random.generator(0, "aggregate", 0)).tolist()
    [1.0]
    """
    whole("size", size, 1)
    kind("then", then, Aggregator, "an aggregator", HINT)

    def join(vectors: Tensor, generator: np.random.Generator | None) -> Tensor:
        order = torch.from_numpy(require_generator(generator).permutation(len(vectors)))
        return then.join(bucket_means(vectors, order.to(vectors.device), size), generator)

    def fewer(dropped: int) -> Aggregator:
        return bucketing(size=size, then=then.without(dropped))

    return Aggregator(join, least=size * (then.least - 1) + 1, expecting_fewer=fewer)


def bucket_means(vectors: Tensor, order: Tensor, size: int) -> Tensor:
    """The mean of each ``size`` rows, in the given order.

    >>> rows = torch.tensor([[0.0], [2.0], [10.0], [20.0], [7.0]])
    >>> bucket_means(rows, torch.tensor([0, 1, 2, 3, 4]), 2).tolist()
    [[1.0], [15.0], [7.0]]
    """
    return torch.stack([bucket.mean(0) for bucket in torch.split(vectors[order], size)])


@recorded
def nearest_neighbour_mixing(*, byzantine: int, then: Aggregator) -> Aggregator:
    """The aggregate of vectors each replaced by the mean of the n - f nearest to it, itself among them (NNM).

    Allouah et al. 2023, "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity". f is ``byzantine``;
    n > 2 f clients are needed. With D the greatest distance between honest vectors, an honest one moves by D at
    most, for the n - f honest ones are that near. With f = 0 all become the mean.
    """
    whole("byzantine", byzantine, 0)
    kind("then", then, Aggregator, "an aggregator", HINT)

    def join(vectors: Tensor, generator: np.random.Generator | None) -> Tensor:
        return then.join(mix_with_nearest(vectors, byzantine), generator)

    def fewer(dropped: int) -> Aggregator:
        return nearest_neighbour_mixing(byzantine=max(0, byzantine - dropped), then=then.without(dropped))

    return Aggregator(join, least=max(2 * byzantine + 1, then.least), expecting_fewer=fewer)


def mix_with_nearest(vectors: Tensor, byzantine: int) -> Tensor:
    """Each row's mean with its nearest, n - ``byzantine`` in all.

    >>> mix_with_nearest(torch.tensor([[0.0], [1.0], [5.0], [100.0]], dtype=torch.float64), 1).tolist()
    [[2.0], [2.0], [2.0], [35.333...]]
    """
    n = len(vectors)
    require_clients(n, 2 * byzantine + 1, f"nearest_neighbour_mixing(byzantine={byzantine})")
    nearest = squared_distances(vectors).argsort(dim=1, stable=True)[:, : n - byzantine]
    return torch.stack([vectors[rows].mean(0) for rows in nearest])
