"""Subsampling: FedAvg whose clients send a random part of their change.

Konecny, McMahan, Yu, Richtarik, Suresh, Bacon. "Federated Learning: Strategies for Improving Communication Efficiency",
2016, section 2, "random mask". A baseline of Huang et al. 2022 (FedSpa), appendix B.3: the change is multiplied by a
random mask, drawn anew for every client and round; what goes down is whole.

Symbols: w ``received``; eta ``lr``; E ``epochs``; B ``batch_size``; the share that is sent, ``density``.

Reduces to FedAvg with a plain mean where ``density`` is 1.

Deviations from the paper:

1. Exactly the share ``density`` of all d floating-point numbers of an upload is sent, rounded to the nearest whole
   number k (a half upwards), whatever tensor they are in; whole numbers (BatchNorm's count of batches) go as they are.
2. What is sent is not scaled up, as Huang et al. describe it: the mean change is k / d times that of FedAvg.
   ``rescale`` multiplies by d / k, which makes it unbiased, as Konecny et al. have it.
3. A client sends w_k - w; the plain mean of the cohort is the default. Options are those of ``fedavg``.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch

from moiety.errors import kind
from moiety.local import SgdOptions, difference, phase, positive_lr, rates, sgd
from moiety.local.schedules import chosen as chosen_schedule
from moiety.random import uniform
from moiety.server import averaging, check_weighting, client_weight, weighted_mean
from moiety.server.optimisers import chosen as chosen_server
from moiety.spec import recorded
from moiety.split.masks import check_density, highest, volume
from moiety.transport.wire import payload_bytes, value_bytes
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Traffic, Tree, Work

SEED, VALUES = "subsampling:seed", "subsampling:values"


class Client(NamedTuple):
    """Empty, or the running statistics of BatchNorm where they are the client's own."""

    personal: Params


@recorded
def subsampling(
    *,
    lr: float,
    density: float = 0.5,
    rescale: bool = False,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 32,
    shuffle: bool = True,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    clip: float | None = None,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Subsampling: FedAvg that sends a random part of every change (Konecny et al. 2016).

    Args:
        lr: learning rate on clients.
        density: the share of the change that is sent, from 0.2 to 1.
        rescale: multiply what is sent by d / k, so that its mean is the change.
        epochs: passes over the client's data; 1 where neither this nor the next is given.
        steps: or a number of steps.
        batch_size: examples per step; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty.
        momentum: of the client's SGD, from 0 in each round.
        clip: largest gradient norm.
        weighting: of the clients in the mean, ``uniform``, or by ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the client learning rate across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    check_density(density)
    kind("rescale", rescale, bool, "true or false")
    check_weighting(weighting)
    options = SgdOptions(momentum, weight_decay, clip)
    optimiser = chosen_server(server)

    def some(work: Work, change: Params) -> Params:
        """The change times a mask of this client and this round."""
        many, count = sent_count(change, density)
        mask = highest(uniform(work.key, (many,), work.turn, "subsampling"), count)
        sent, at = dict(change), 0
        for name, p in change.items():
            if p.is_floating_point():
                own = mask[at : at + p.numel()].view(p.shape)
                sent[name] = torch.where(own, p * (many / count) if rescale else p, 0)
                at += p.numel()
        return sent

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        model = work.compose(received, state.personal)
        model, loss = sgd(work, model, work.batches("local"), lr=rates(work, work.shared, lr), options=options)
        w_k, statistics = work.parts(model)
        sent = some(work, difference(w_k, received))
        return ClientUpdate(sent, client_weight(work, weighting, batch_size), {"loss": loss}), Client(statistics)

    def adapt(work: Work, received: Params, state: Client) -> Client:
        return client_update(work, received, state)[1] if state.personal else state

    def down(received: Params, state: Tree) -> tuple[int, int]:
        return value_bytes(received), payload_bytes(received)

    def up(update: ClientUpdate) -> tuple[int, int]:
        """The values, and the seed of eight bytes from which the server can draw the mask."""
        floats = [p for p in update.upload.values() if p.is_floating_point()]
        layout = {name: p for name, p in update.upload.items() if not p.is_floating_point()}
        if floats:
            wide = max(floats, key=torch.Tensor.element_size)
            layout[VALUES] = wide.new_empty(sent_count(update.upload, density)[1], device="meta")
        return value_bytes(layout), payload_bytes(layout | {SEED: torch.zeros(1, dtype=torch.int64)})

    return Algorithm(
        name="subsampling",
        phases={"local": phase("", epochs, steps, batch_size, shuffle)},
        init_server=partial(averaging.init_server, optimiser),
        init_client=lambda shared, personal: Client(personal),
        broadcast=averaging.broadcast,
        client_update=client_update,
        aggregator=weighted_mean,
        server_update=partial(averaging.server_update, optimiser),
        personal_model=lambda received, state: (received, state.personal),
        adapt=adapt,
        schedule=chosen_schedule(schedule),
        default_split="nothing",
        needs="nothing",
        traffic=Traffic(down, up),
    )


def sent_count(change: Params, density: float) -> tuple[int, int]:
    """d, the floating-point numbers of an upload, and k, how many of them are sent.

    >>> sent_count({"a": torch.zeros(3, 3), "b": torch.zeros(4)}, 0.5)
    (13, 7)
    """
    many = sum(p.numel() for p in change.values() if p.is_floating_point())
    return many, volume(many, density)
