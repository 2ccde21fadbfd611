"""Robust aggregators: one change of the server from uploads of which some may be anything.

Mishchenko et al. 2023 ("Partially Personalized Federated Learning: Breaking the Curse of Data Heterogeneity"),
Algorithm 5, has a (delta, c)-agnostic robust aggregator where FFGG has the mean. That is (its Definition 2, after
Karimireddy et al. 2021 and 2022 and Gorbunov et al. 2023): if at most a part delta < 1/2 of the vectors is Byzantine,
and the honest ones have mean m and mean squared distance sigma^2 from each other, then ``E |aggregate - m|^2 <= c delta
sigma^2``, without sigma being given. The mean fails it. ``krum``, ``geometric_median`` and ``median`` alone fail it too
(with nobody Byzantine they are not the mean) and hold it behind ``bucketing`` (Karimireddy et al. 2022); behind
``nearest_neighbour_mixing`` they hold the similar bound of Allouah et al. 2023. ``centred_clipping`` is given a radius,
so it is not agnostic.

What all of them do here:

1. An upload is one vector: its floating tensors one after the other, shared running statistics included. Distances
   are over the whole of it and in float64; the aggregate has the names, shapes and dtypes of an upload.
2. Whole-numbered buffers (the batch counter of BatchNorm) are no directions: with every robust aggregator they become
   the coordinate-wise median over all clients, rounded down.
3. Clients count alike, as in the papers: a weight is a number that a client may lie about. Only ``mean`` is weighted.
4. Vectors are first put in lexicographic order, so the result does not depend, bit for bit, on the order of the
   updates. Ties, which Blanchard et al. 2017 give to the smallest client number, go to the first in that order.
5. A NaN or an infinity is refused. Finite values beyond 1e100 are cut to it: squares of distances stay finite.
6. An upload that a round dropped is a Byzantine one that is known. The others are joined by the rule for f minus the
   number dropped (``Aggregator.without``), so that a client that sends NaN costs no more than one that lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moiety import tree
from moiety.errors import must, number, refuse, whole
from moiety.local import from_vector, take_floats, to_vector
from moiety.server.mean import weighted_mean
from moiety.spec import recorded
from moiety.types import ClientUpdate, Params, Recorded

Join = Callable[[Tensor, np.random.Generator | None], Tensor]
"""From the (n, d) float64 matrix of n clients' vectors, and a source of chance, to one vector of d."""

LARGEST = 1e100


@dataclass(frozen=True)
class Aggregator(Recorded):
    """Joins the uploads of a round; made by one of the builders of ``moiety.aggregator``.

    ``join`` is the rule on stacked vectors; ``least`` is how many of them it needs. Where it draws (``bucketing``),
    ``aggregate`` must be given a generator, one for each round: ``moiety.random.generator(seed, "aggregate", round)``.
    ``expecting_fewer(k)`` makes the same rule for k Byzantine clients less; None where the rule counts none.

    A rule of your own, the middle between the least and the greatest:

    >>> middle = Aggregator(lambda vectors, generator: (vectors.amin(0) + vectors.amax(0)) / 2)
    >>> updates = [ClientUpdate({"w": torch.tensor([value])}, torch.tensor(1.0), {}) for value in (1.0, 2.0, 7.0)]
    >>> middle.aggregate(updates)  # then Settings(aggregator=middle)
    {'w': tensor([4.])}
    """

    join: Join
    weighted: bool = False
    least: int = 1
    expecting_fewer: Callable[[int], Aggregator] | None = None

    def without(self, dropped: int) -> Aggregator:
        """The rule for the rest of a round's uploads where so many were dropped."""
        return self.expecting_fewer(dropped) if self.expecting_fewer and dropped else self

    def aggregate(self, updates: Sequence[ClientUpdate], generator: np.random.Generator | None = None) -> Params:
        """One upload from many; no update is changed."""
        _check(updates)
        if self.weighted:
            return weighted_mean(updates)
        first = updates[0].upload
        floats: Params = {}
        if any(x.is_floating_point() for x in first.values()):
            vectors = stack_uploads(updates).clamp_(-LARGEST, LARGEST)
            order = torch.unique(vectors, dim=0, return_inverse=True)[1].argsort(stable=True)
            floats = from_vector(self.join(vectors[order], generator), take_floats(first))
        return {n: floats[n] if n in floats else _whole_median([u.upload[n] for u in updates]) for n in first}


def stack_uploads(updates: Sequence[ClientUpdate]) -> Tensor:
    """The floating tensors of each upload as one row, in float64."""
    names = take_floats(updates[0].upload)
    return torch.stack([to_vector({n: u.upload[n].detach().double() for n in names}) for u in updates])


def _check(updates: Sequence[ClientUpdate]) -> None:
    must(len(updates) > 0, "updates", "at least one", "none", "Leave a round without updates out.")
    first = {n: x.shape for n, x in updates[0].upload.items()}
    for i, update in enumerate(updates):
        same = {n: x.shape for n, x in update.upload.items()} == first
        must(same, "updates", "uploads of the same names and shapes", f"others in update {i}")
        finite = bool(tree.is_finite(update.upload))
        must(finite, "updates", "finite", f"a NaN or an infinity in update {i}", "Drop it before aggregating.")


def _whole_median(values: list[Tensor]) -> Tensor:
    rows = torch.stack(values).long().sort(0).values
    low, high = rows[(len(values) - 1) // 2], rows[len(values) // 2]
    return (low + (high - low) // 2).to(values[0].dtype)


def require_generator(generator: np.random.Generator | None) -> np.random.Generator:
    """The generator, or an error where there is none."""
    if generator is None:
        hint = "For instance moiety.random.generator(seed, purpose, round)."
        refuse("generator", "given to what draws at random", None, hint)
    return generator


def require_clients(clients: int, least: int, needs: str) -> None:
    """Raise unless at least ``least`` vectors came; ``needs`` says who needs them."""
    hint = "Ask more clients in a round, or fewer in a bucket, or expect fewer Byzantine ones."
    must(clients >= least, "updates", f"at least {least} for {needs}", clients, hint)


def squared_distances(vectors: Tensor) -> Tensor:
    """``|x_i - x_j|^2`` for all pairs, by differences: equal vectors are at 0 and near ones lose no digits."""
    return torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist").square()


@recorded
def mean() -> Aggregator:
    """The mean ``sum_i a_i x_i / sum_i a_i`` by the clients' weights; not robust, one client can move it anywhere.

    Behind ``bucketing`` or ``nearest_neighbour_mixing`` weights are gone and it is the plain mean.

    >>> pairs = [(0.0, 3.0), (4.0, 1.0)]
    >>> updates = [ClientUpdate({"w": torch.tensor([value])}, torch.tensor(weight), {}) for value, weight in pairs]
    >>> mean().aggregate(updates)
    {'w': tensor([1.])}
    """
    return Aggregator(lambda vectors, generator: vectors.mean(0), weighted=True)


@recorded
def median() -> Aggregator:
    """The coordinate-wise median, between the two in the middle for an even count (Yin et al. 2018, Definition 1).

    While honest clients are more than half, each coordinate stays between the least and the greatest honest one.

    >>> median().join(torch.tensor([[1.0, 0.0], [9.0, 4.0], [2.0, 5.0]]), None).tolist()
    [2.0, 4.0]
    """
    return Aggregator(lambda vectors, generator: coordinate_median(vectors))


def coordinate_median(vectors: Tensor) -> Tensor:
    """The median of each column, between the two in the middle for an even count."""
    rows = vectors.sort(0).values
    return (rows[(len(vectors) - 1) // 2] + rows[len(vectors) // 2]) / 2


@recorded
def trimmed_mean(*, byzantine: int) -> Aggregator:
    """The mean of each coordinate without its f least and f greatest values (Yin et al. 2018, Definition 2).

    f is ``byzantine``; n > 2 f clients are needed, and 0 gives the plain mean. Each coordinate stays between the least
    and the greatest honest one: at most f values lie beyond either, and these are cut.

    >>> trimmed_mean(byzantine=1).join(torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]]), None).tolist()
    [2.0]
    """
    whole("byzantine", byzantine, 0)

    def join(vectors: Tensor, generator: np.random.Generator | None) -> Tensor:
        n = len(vectors)
        require_clients(n, 2 * byzantine + 1, f"trimmed_mean(byzantine={byzantine})")
        return vectors.sort(0).values[byzantine : n - byzantine].mean(0)

    def fewer(dropped: int) -> Aggregator:
        return trimmed_mean(byzantine=max(0, byzantine - dropped))

    return Aggregator(join, least=2 * byzantine + 1, expecting_fewer=fewer)


@recorded
def krum(*, byzantine: int) -> Aggregator:
    """The vector with the least score, its squared distances to the n - f - 2 nearest others (Blanchard et al. 2017).

    f is ``byzantine``; n >= 2 f + 3 clients are needed. With D the greatest distance between honest vectors, an honest
    one scores at most (n - f - 2) D^2, and f + 1 neighbours or more hold an honest one: so what is picked is within
    sqrt(n - f - 2) D of an honest vector.

    With 0, 1, 3, 7, 100 and f = 1 two neighbours count; the scores are 1 + 9, 1 + 4, 4 + 9, 16 + 36 and more: 1 it is.

    >>> krum(byzantine=1).join(torch.tensor([[0.0], [1.0], [3.0], [7.0], [100.0]]), None).tolist()
    [1.0]
    """
    whole("byzantine", byzantine, 0)

    def fewer(dropped: int) -> Aggregator:
        return krum(byzantine=max(0, byzantine - dropped))

    def join(vectors: Tensor, generator: np.random.Generator | None) -> Tensor:
        return vectors[_order_by_krum(vectors, byzantine, "krum")[0]]

    return Aggregator(join, least=2 * byzantine + 3, expecting_fewer=fewer)


@recorded
def multi_krum(*, byzantine: int, keep: int) -> Aggregator:
    """The mean of the ``keep`` vectors with the least scores of ``krum`` (Multi-Krum, Blanchard et al. 2017).

    At most n - f can be kept, the number of honest ones. Each kept vector obeys the bound of ``krum``.

    >>> multi_krum(byzantine=1, keep=2).join(torch.tensor([[0.0], [1.0], [3.0], [7.0], [100.0]]), None).tolist()
    [0.5]
    """
    whole("byzantine", byzantine, 0)
    whole("keep", keep, 1)

    def join(vectors: Tensor, generator: np.random.Generator | None) -> Tensor:
        require_clients(len(vectors), keep + byzantine, f"multi_krum(byzantine={byzantine}, keep={keep})")
        return vectors[_order_by_krum(vectors, byzantine, "multi_krum")[:keep]].mean(0)

    def fewer(dropped: int) -> Aggregator:
        return multi_krum(byzantine=max(0, byzantine - dropped), keep=keep)

    return Aggregator(join, least=max(2 * byzantine + 3, keep + byzantine), expecting_fewer=fewer)


def _order_by_krum(vectors: Tensor, byzantine: int, name: str) -> Tensor:
    """The rows from the least score of ``krum`` to the greatest."""
    n = len(vectors)
    require_clients(n, 2 * byzantine + 3, f"{name}(byzantine={byzantine})")
    nearest = squared_distances(vectors).sort(1).values[:, 1 : n - byzantine - 1]  # a row's first is itself
    return nearest.sum(1).argsort(stable=True)


@recorded
def centred_clipping(*, radius: float, iterations: int = 3) -> Aggregator:
    """``v <- v + 1/n sum_i (x_i - v) min(1, radius / |x_i - v|)``, ``iterations`` times (Karimireddy et al. 2021).

    The paper begins at the aggregate of the round before; an aggregator here keeps no state and begins at the
    coordinate-wise median, so that it needs no first guess and moves with its inputs. It ends within ``iterations``
    times ``radius`` of there; an infinite radius gives the plain mean.

    From 0, 1, 100 with radius 2: from 1 the steps are -1, 0 and 99, cut to 2, of mean 1/3.

    >>> round(float(centred_clipping(radius=2.0, iterations=1).join(torch.tensor([[0.0], [1.0], [100.0]]), None)), 6)
    1.333333
    """
    number("radius", radius, "> 0", lambda x: x > 0)
    whole("iterations", iterations, 1)

    def join(vectors: Tensor, generator: np.random.Generator | None) -> Tensor:
        centre = coordinate_median(vectors)
        for _ in range(iterations):
            steps = vectors - centre
            factors = (radius / steps.norm(dim=1)).clamp(max=1)  # at the centre itself radius / 0 counts as 1
            centre = centre + (factors @ steps) / len(vectors)
        return centre

    return Aggregator(join)
