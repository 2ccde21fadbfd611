"""``moiety.privacy``: differential privacy of what goes up, for whole clients, by clipping and Gaussian noise.

McMahan, Ramage, Talwar, Zhang. "Learning Differentially Private Recurrent Language Models", ICLR 2018. An upload is one
vector over all its tensors. It is scaled down to a norm of at most ``clip``, uploads of a round are summed, and normal
noise is added. Central, the server adds noise of deviation noise * clip to the sum; local, each device adds it to its
upload before that leaves.

With ``quantile`` the clip follows a quantile of the clients' norms (Andrew, Thakkar, McMahan, Ramaswamy.
"Differentially Private Learning with Adaptive Clipping", NeurIPS 2021): the server learns, with noise, how many
norms were at most the clip, c, and multiplies it by exp(-clip_rate (share - quantile)).

All functions here are pure but for their draws, so that a server, a device and a simulation call the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from moiety.errors import SEED, choice, must, number, positive, proper_fraction, whole
from moiety.random import generator, secret_normal, secret_uniform
from moiety.spec import recorded
from moiety.transport.accounting import Rates, add_sums
from moiety.types import ClientUpdate, Params, Recorded

__all__ = ["PRIVACY", "Gaussian", "PrivacyState", "gaussian"]

WHERE = ("central", "local")
COUNT_NOISE = 2.5
"""The deviation of the noise on the count of norms below the clip, in units of ``noise``.

A client moves the count, from which 1/2 is taken for each client, by 1/2, and the sum by the clip. Both together are
one Gaussian mechanism of multiplier ``noise / sqrt(1 + 1 / (2 * 2.5)^2)``: the quantile costs 2% of the noise.
"""


@dataclass(frozen=True)
class Gaussian(Recorded):
    """Differential privacy by Gaussian noise; ``gaussian`` makes it and says what the fields mean."""

    clip: float
    delta: float
    noise: float | None = None
    epsilon: float | None = None
    where: str = "central"
    quantile: float | None = None
    clip_rate: float = 0.2
    insecure_seed: int | None = None

    @property
    def local(self) -> bool:
        """Whether devices add the noise."""
        return self.where == "local"

    def shrink(self, noise: float) -> float:
        """The multiplier of the one Gaussian mechanism that a round is, for sums with ``noise``.

        With local noise, one upload may take the place of any other, and the two are up to 2 clip apart.
        """
        joint = noise / math.hypot(1, 0 if self.quantile is None else 1 / (2 * COUNT_NOISE))
        return joint / 2 if self.local else joint

    def sampling_rate(self, expected: int, clients: int, *, independent: bool) -> float:
        """The chance to take part that counts: 1 unless clients take part independently, unknown to who looks on."""
        return expected / clients if independent and not self.local else 1.0


class PrivacyState(NamedTuple):
    """What changes: the noise (fixed once it is known), the clip now, and how many noisy sums were ever drawn.

    ``rates`` has the sums by the chance to take part in them, which changes where clients join a run.
    """

    noise: float
    clip: float
    sums: int = 0
    rates: Rates = ()

    def count_sum(self, rate: float) -> PrivacyState:
        """The state with one sum more."""
        return self._replace(sums=self.sums + 1, rates=add_sums(self.rates, rate))

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> PrivacyState:
        """What ``_asdict`` gave, after it was JSON."""
        return cls(**{**table, "rates": tuple((rate, sums) for rate, sums in table["rates"])})


@recorded
def gaussian(
    *,
    clip: float,
    delta: float,
    noise: float | None = None,
    epsilon: float | None = None,
    where: str = "central",
    quantile: float | None = None,
    clip_rate: float = 0.2,
    insecure_seed: int | None = None,
) -> Gaussian:
    """Clip uploads and add Gaussian noise, at the server or on devices, with an account of epsilon.

    The unit is one client, with all that it sends: central, added or removed; local, in the place of anything else.

    Args:
        clip: the largest Euclidean norm of an upload, over all its tensors; with ``quantile`` the first one.
        delta: of (epsilon, delta); below 1 / the number of clients.
        noise: the noise multiplier: its deviation is ``noise * clip`` in each number of the sum, or of an upload.
        epsilon: in its place, what all rounds together may cost; the noise follows from it.
        where: ``central``, where the server is trusted and adds the noise, or ``local``, where devices do.
        quantile: the share of uploads that the clip should leave as they are; by default the clip stays.
        clip_rate: how fast the clip follows the quantile.
        insecure_seed: for tests: draws that follow from this number. Whoever knows it can take the noise off again. By
            default draws come from the operating system's generator.

    >>> import moiety as mo
    >>> settings = mo.Settings(privacy=mo.privacy.gaussian(clip=1.0, noise=1.0, delta=1e-5))  # for fit
    >>> gaussian(clip=1.0, noise=1.0, epsilon=2.0, delta=1e-5)
    Traceback (most recent call last):
    moiety.errors.MoietyError: `noise` must be given, or epsilon, not both, got 1.0 and 2.0.
    """
    positive("clip", clip)
    proper_fraction("delta", delta)
    must((noise is None) != (epsilon is None), "noise", "given, or epsilon, not both", f"{noise} and {epsilon}")
    if noise is not None:
        number("noise", noise, ">= 0 and finite", lambda x: 0 <= x < math.inf)
    if epsilon is not None:
        positive("epsilon", epsilon)
    choice("where", where, WHERE)
    if quantile is not None:
        proper_fraction("quantile", quantile)
        hint = "Each device would have to send its norm as well."
        must(where == "central", "quantile", "left out where noise is local", quantile, hint)
    positive("clip_rate", clip_rate)
    if insecure_seed is not None:
        whole("insecure_seed", insecure_seed, 0, SEED)
    return Gaussian(clip, delta, noise, epsilon, where, quantile, clip_rate, insecure_seed)


PRIVACY: dict[str, Callable[..., Gaussian]] = {"gaussian": gaussian}


def measure_norm(upload: Params) -> float:
    """The Euclidean norm of an upload as one vector, in float64."""
    return math.sqrt(sum(float(x.double().square().sum()) for x in upload.values()))


def clip_upload(upload: Params, clip: float) -> tuple[Params, float]:
    """The upload in float64, scaled down where its norm is above ``clip``; and the norm that it had.

    >>> clip_upload({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 1.0)
    ({'a': tensor([0.6000], dtype=torch.float64), 'b': tensor([0.8000], dtype=torch.float64)}, 5.0)
    """
    norm = measure_norm(upload)
    factor = min(1.0, clip / norm) if norm else 1.0
    return {name: factor * x.double() for name, x in upload.items()}, norm


def add_noise(privacy: Gaussian, values: Params, deviation: float, *draw: str | int) -> Params:
    """The values with fresh normal noise; ``draw`` names the draw and must never name another."""
    noisy = {}
    for name, x in values.items():
        normal = torch.from_numpy(draw_normal(privacy, x.numel(), *draw, name)).reshape(x.shape)
        noisy[name] = x + deviation * normal.to(x.device)
    return noisy


def privatise_update(privacy: Gaussian, state: PrivacyState, update: ClientUpdate, *draw: str | int) -> ClientUpdate:
    """What leaves a device where noise is local: the upload clipped and with noise, in its own types.

    ``weight`` and ``info`` are left as they are: the weight must be 1 (``check_uniform``), and who sends ``info`` sends
    it without noise.
    """
    upload, _ = clip_upload(update.upload, state.clip)
    noisy = add_noise(privacy, upload, state.noise * state.clip, "local", *draw)
    return update._replace(upload={name: x.to(update.upload[name].dtype) for name, x in noisy.items()})


def check_uniform(update: ClientUpdate, *, where: str) -> None:
    """Raise unless a client counts as one: with other weights, nothing would bound what it moves."""
    problem, hint = f"{float(update.weight):g} ({where})", 'Make the algorithm with weighting="uniform".'
    must(float(update.weight) == 1.0, "weight", "1 for every client with privacy", problem, hint)


def check_numbers_only(layout: Params) -> None:
    """Raise where something goes up that noise cannot be added to."""
    odd = [name for name, x in layout.items() if not x.is_floating_point()]
    must(not odd, "privacy", "left out where whole numbers go up", ", ".join(odd[:3]))


def move_clip(privacy: Gaussian, state: PrivacyState, below: float, expected: float) -> float:
    """The next clip. ``below`` adds 1/2 for each upload whose norm was at most the clip, and -1/2 for each other."""
    if privacy.quantile is None:
        return state.clip
    noisy = below + COUNT_NOISE * state.noise * float(draw_normal(privacy, 1, "count", state.sums)[0])
    return state.clip * math.exp(-privacy.clip_rate * (noisy / expected + 0.5 - privacy.quantile))


def draw_cohort(privacy: Gaussian, state: PrivacyState, clients: int, expected: int) -> np.ndarray:
    """Clients that take part independently, each with the chance ``expected / clients``; nobody else can know who."""
    seed = privacy.insecure_seed
    chance = (
        secret_uniform(clients) if seed is None else generator(seed, "privacy", "cohort", state.sums).random(clients)
    )
    return np.flatnonzero(chance < expected / clients)


def draw_normal(privacy: Gaussian, count: int, *draw: str | int) -> np.ndarray:
    """Standard normal numbers: from the operating system, or for tests from the seed and the words ``draw``."""
    seed = privacy.insecure_seed
    return secret_normal(count) if seed is None else generator(seed, "privacy", *draw).standard_normal(count)
