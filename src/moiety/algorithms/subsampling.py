"""Subsampling: FedAvg whose clients send a random part of their change.

Konecny, McMahan, Yu, Richtarik, Suresh, Bacon. "Federated Learning: Strategies for Improving Communication Efficiency",
2016, section 2, "random mask". A baseline of Huang et al. 2022 (FedSpa), appendix B.3: the change is multiplied by a
random mask, drawn anew for every client and round; what goes down is whole.

Symbols: w what is received; eta, E and B the learning rate, epochs and batch size of ``shared``; the share that is
sent, ``density``.

Reduces to FedAvg with a plain mean where ``density`` is 1.

Deviations from the paper:

1. Of all d floating-point numbers of an upload, in whatever tensor, exactly k are sent: ``density`` times d, rounded
   (halves up). Whole numbers (BatchNorm's count of batches) are all sent.
2. As Huang et al. describe it, what is sent is not scaled up: on average the change is k / d times that of FedAvg.
   ``rescale=True`` multiplies it by d / k, as in Konecny et al., which makes it unbiased.
3. A client sends w_k - w. The mean over the cohort is unweighted by default. Options are those of ``fedavg``.
"""

from __future__ import annotations

import torch

from moiety.errors import kind
from moiety.local import Optimiser, Personal, difference, from_vector, optimiser_work, take_floats, train
from moiety.random import uniform
from moiety.server.averaging import adapt_statistics, assemble, client_weights
from moiety.spec import recorded
from moiety.split.masks import check_density, mask_highest, round_share
from moiety.transport.wire import message_bytes, payload_bytes, value_bytes
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Traffic, Wire, Work

SEED, VALUES = "subsampling:seed", "subsampling:values"


@recorded
def subsampling(
    *,
    shared: float | Optimiser,
    density: float = 0.5,
    rescale: bool = False,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Subsampling: FedAvg that sends a random part of every change (Konecny et al. 2016).

    Args:
        shared: local work: eta, or ``moiety.sgd(eta, epochs=E, batch_size=B)``.
        density: the share of the change that is sent, above 0.
        rescale: multiply what is sent by d / k, so that its mean is the change.
        weighting: of the clients in the mean, ``uniform``, or by ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the client learning rate across rounds; constant by default.
    """
    shared_optimiser = optimiser_work("shared", shared)
    check_density(density)
    kind("rescale", rescale, bool, "true or false")
    weight = client_weights(weighting, shared_optimiser.rows)

    def sample(work: Work, change: Params) -> Params:
        """The change times a mask of this client and this round."""
        d, k = count_sent(change, density)
        mask = mask_highest(uniform(work.key, (d,), work.turn, "subsampling"), k)
        floats = take_floats(change)
        masks = from_vector(mask, {n: torch.empty_like(p, dtype=torch.bool) for n, p in floats.items()})
        return change | {n: torch.where(masks[n], p * (d / k) if rescale else p, 0) for n, p in floats.items()}

    def client_update(work: Work, w: Params, state: Personal) -> tuple[ClientUpdate, Personal]:
        model = work.compose(w, state.personal)
        model, loss = train(work, model, work.batches("local"), {work.shared: shared_optimiser})
        w_k, statistics = work.parts(model)
        return ClientUpdate(sample(work, difference(w_k, w)), weight(work), {"loss": loss}), Personal(statistics)

    def up(update: ClientUpdate) -> tuple[int, int]:
        """The values, and the seed of eight bytes from which the server can draw the mask."""
        floats = take_floats(update.upload)
        layout = {name: p for name, p in update.upload.items() if name not in floats}
        if floats:
            wide = max(floats.values(), key=torch.Tensor.element_size)
            layout[VALUES] = wide.new_empty(count_sent(update.upload, density)[1], device="meta")
        return value_bytes(layout), payload_bytes(layout | {SEED: torch.zeros(1, dtype=torch.int64)})

    return assemble(
        phases={"local": shared_optimiser.phase},
        client_update=client_update,
        adapt=adapt_statistics(client_update),
        server=server,
        schedule=schedule,
        default_split="nothing",
        wire=Wire(traffic=Traffic(lambda received, state: message_bytes(received), up)),
    )


def count_sent(change: Params, density: float) -> tuple[int, int]:
    """d, the floating-point numbers of an upload, and k, how many of them are sent.

    >>> count_sent({"a": torch.zeros(3, 3), "b": torch.zeros(4)}, 0.5)
    (13, 7)
    """
    d = sum(p.numel() for p in take_floats(change).values())
    return d, round_share(d, density)
