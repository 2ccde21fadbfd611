"""Attacks, for simulation: what Byzantine clients send, who know the honest uploads of the round and collude.

An attack acts on the floating tensors of uploads as one vector each, as robust aggregators do: x_1 ... x_h are the
honest vectors of a round and y_1 ... y_f those that the attackers would have sent had they been honest. Whole-numbered
buffers and weights are sent as they are. ``label_flip`` acts on the attackers' training data instead, from which they
then work honestly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from moiety.errors import must, number, positive, whole
from moiety.local import from_vector, take_floats
from moiety.server.robust import require_generator, stack_uploads
from moiety.spec import recorded
from moiety.task.scores import IGNORED
from moiety.types import ClientUpdate, Recorded

__all__ = [
    "ATTACKS",
    "Attack",
    "a_little_is_enough",
    "gaussian",
    "inner_product_manipulation",
    "label_flip",
    "largest_shift",
    "mimic",
    "mimic_target",
    "not_finite",
    "sign_flip",
]

Forge = Callable[[Tensor, Tensor, np.random.Generator | None], Tensor]
"""From the honest (h, d) and the attackers' own (f, d) vectors, and a source of chance, to the (f, d) that are sent."""


@dataclass(frozen=True)
class Attack(Recorded):
    """What the attackers of a round send; made by one of the builders of ``ATTACKS``.

    ``forge`` is the rule on stacked vectors; without one attackers send what they have. Where it draws (``gaussian``),
    ``send`` must be given a generator, one for each round, from ``moiety.random.generator``. ``labels``
    is done to the labels or targets that attackers train on.

    An attack of your own, in which attackers send nothing but zeros:

    >>> idle = Attack(lambda honest, own, generator: torch.zeros_like(own))
    >>> update = ClientUpdate({"w": torch.tensor([1.0, -3.0])}, torch.tensor(1.0), {})
    >>> idle.send(honest=[update], own=[update])[0].upload  # then Settings(attack=idle, attackers=0.2)
    {'w': tensor([0., 0.])}
    """

    forge: Forge | None = None
    labels: Callable[[Tensor], Tensor] | None = None

    def send(
        self,
        honest: Sequence[ClientUpdate],
        own: Sequence[ClientUpdate],
        generator: np.random.Generator | None = None,
    ) -> list[ClientUpdate]:
        """The attackers' updates in the place of their ``own``; no update is changed.

        In a round without honest clients the attackers know of none but themselves: their own stand for those.
        """
        floats = take_floats(own[0].upload) if own else {}
        if self.forge is None or not floats:
            return list(own)
        vectors = stack_uploads([*own, *honest])
        mine = vectors[: len(own)]
        forgeries = self.forge(vectors[len(own) :] if honest else mine, mine, generator)
        return [
            ClientUpdate({**update.upload, **from_vector(vector, floats)}, update.weight, update.info)
            for update, vector in zip(own, forgeries, strict=True)
        ]


@recorded
def sign_flip(*, scale: float = 1.0) -> Attack:
    """``-scale y_j``: each attacker's own vector turned round (Li et al. 2019, "RSA").

    >>> sign_flip(scale=2.0).forge(torch.zeros(1, 2), torch.tensor([[1.0, -3.0]]), None).tolist()
    [[-2.0, 6.0]]
    """
    positive("scale", scale)
    return Attack(lambda honest, own, generator: -scale * own)


@recorded
def inner_product_manipulation(*, epsilon: float) -> Attack:
    """``-epsilon m`` from all, m the mean of the honest (Xie et al. 2020, "Fall of Empires").

    A large ``epsilon`` turns the mean round; a small one hides among the honest and turns medians where these spread.

    >>> inner_product_manipulation(epsilon=0.5).forge(torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1), None).tolist()
    [[-1.0], [-1.0]]
    """
    positive("epsilon", epsilon)
    return Attack(lambda honest, own, generator: (-epsilon * honest.mean(0)).expand_as(own))


@recorded
def a_little_is_enough(*, z: float | None = None) -> Attack:
    """``m - z s`` from all, m and s the mean and the standard deviation of each coordinate (Baruch et al. 2019).

    Without ``z`` it is the paper's ``largest_shift`` for the round's numbers of clients; attackers who are half of a
    round or more, which a drawn cohort may have, take that of the largest minority. s is that of the honest clients
    themselves (divided by their number, not by one less), so that it is 0 for a single one.

    Of 1 and 5 the mean is 3 and s is 2.

    >>> a_little_is_enough(z=1.5).forge(torch.tensor([[1.0], [5.0]]), torch.zeros(1, 1), None).tolist()
    [[0.0]]
    """
    if z is not None:
        number("z", z, "finite", lambda x: abs(x) < float("inf"))

    def forge(honest: Tensor, own: Tensor, generator: np.random.Generator | None) -> Tensor:
        clients = len(honest) + len(own)
        shift = 0.0 if z is None else z
        if z is None and clients > 2:  # of two one is honest, and s is 0
            shift = largest_shift(clients, min(len(own), (clients - 1) // 2))
        return (honest.mean(0) - shift * honest.std(0, correction=0)).expand_as(own)

    return Attack(forge)


def largest_shift(clients: int, byzantine: int) -> float:
    """``z = Phi^-1((n - f - s) / (n - f))`` with s = floor(n / 2 + 1) - f (Baruch et al. 2019).

    The f attackers and the s honest clients that lie farther out than they do are a majority, so defences take the
    attackers for typical. Of normally distributed vectors, s lie more than z standard deviations out. z is negative
    where attackers are few.

    With n = 10 and f = 4, s is 2 and z = Phi^-1(2/3).

    >>> round(largest_shift(10, 4), 4)
    0.4307
    """
    must(2 * byzantine < clients, "byzantine", f"less than half of the {clients} clients", byzantine, "Or give z.")
    supporters = clients // 2 + 1 - byzantine
    return NormalDist().inv_cdf((clients - byzantine - supporters) / (clients - byzantine))


@recorded
def mimic(*, client: int = 0) -> Attack:
    """``x_client`` from all: one honest client is heard too loudly (Karimireddy et al. 2022, "... via Bucketing").

    ``client`` counts the honest of a round from 0, the same in each where all take part; in a round with fewer it is
    the last of them. It is fixed, as the paper has it after its first rounds; ``mimic_target`` finds it by the paper's
    rule.

    >>> mimic(client=1).forge(torch.tensor([[1.0], [5.0]]), torch.zeros(2, 1), None).tolist()
    [[5.0], [5.0]]
    """
    whole("client", client, 0)

    def forge(honest: Tensor, own: Tensor, generator: np.random.Generator | None) -> Tensor:
        return honest[min(client, len(honest) - 1)].expand_as(own)

    return Attack(forge)


def mimic_target(rounds: Tensor) -> int:
    """The client to ``mimic``: that farthest along the direction in which honest vectors differ most.

    From the (t, h, d) honest vectors of the first t rounds: ``u = argmax_{|u| = 1} sum_{r,i} <u, x_i^r - m>^2`` with m
    their mean, and the client is ``argmax_i |sum_r <u, x_i^r>|``. The authors follow u by Oja's rule from round to
    round; here it is the first right singular vector.

    The three clients differ along the second axis, where the last has gone farthest.

    >>> mimic_target(torch.tensor([[[1.0, 0.0], [1.1, 1.0], [1.0, -4.0]], [[1.0, 0.0], [0.9, 2.0], [1.0, -3.0]]]))
    2
    """
    must(rounds.dim() == 3, "rounds", "of axes rounds, clients, coordinates", tuple(rounds.shape))
    vectors = rounds.double().flatten(0, 1)
    direction = torch.linalg.svd(vectors - vectors.mean(0), full_matrices=False).Vh[0]
    return int((rounds.double() @ direction).sum(0).abs().argmax())


@recorded
def gaussian(*, std: float) -> Attack:
    """``N(0, std^2 I)`` from each, drawn anew (Blanchard et al. 2017, who take 200 for ``std``).

    >>> own = torch.ones(1, 10_000)
    >>> sent = gaussian(std=200.0).forge(torch.ones(3, 10_000), own, np.random.default_rng(0))
    >>> 190 < float(sent.std()) < 210
    True
    """
    positive("std", std)

    def forge(honest: Tensor, own: Tensor, generator: np.random.Generator | None) -> Tensor:
        return torch.from_numpy(require_generator(generator).normal(0.0, std, size=tuple(own.shape))).to(own)

    return Attack(forge)


@recorded
def not_finite() -> Attack:
    """NaN in every coordinate: what a client sends whose training diverged; it is to be dropped, never averaged.

    >>> not_finite().forge(torch.zeros(1, 2), torch.tensor([[1.0, -3.0]]), None).tolist()
    [[nan, nan]]
    """
    return Attack(lambda honest, own, generator: torch.full_like(own, float("nan")))


@recorded
def label_flip(*, classes: int | None = None) -> Attack:
    """``classes - 1 - label`` on the attackers' training data; without ``classes`` real targets become ``-target``.

    Of labels as in Karimireddy et al. 2022; in sequences, padding (-100) stays. Of targets it is ours.

    >>> label_flip(classes=10).labels(torch.tensor([0, 1, 9])).tolist()
    [9, 8, 0]
    """
    if classes is not None:
        whole("classes", classes, 2)
    return Attack(labels=lambda labels: flip_labels(labels, classes))


def flip_labels(labels: Tensor, classes: int | None) -> Tensor:
    """The labels, or targets where ``classes`` is None, turned round."""
    if classes is None:
        hint = "For instance moiety.attack.label_flip(classes=10)."
        must(labels.is_floating_point(), "classes", "given where labels are whole numbers", None, hint)
        return -labels
    must(not labels.is_floating_point(), "classes", "left out where targets are real numbers", classes)
    real = labels != IGNORED if labels.dim() > 1 else torch.ones_like(labels, dtype=torch.bool)
    wrong = labels[real & ((labels < 0) | (labels >= classes))]
    must(len(wrong) == 0, "classes", "the number of labels, which count from 0", f"{classes} with {wrong[:5].tolist()}")
    return torch.where(real, classes - 1 - labels, labels)


ATTACKS: dict[str, Callable[..., Attack]] = {
    "sign_flip": sign_flip,
    "inner_product_manipulation": inner_product_manipulation,
    "a_little_is_enough": a_little_is_enough,
    "mimic": mimic,
    "gaussian": gaussian,
    "label_flip": label_flip,
    "not_finite": not_finite,
}


def __dir__() -> list[str]:
    return __all__
