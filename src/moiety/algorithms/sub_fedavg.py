"""Sub-FedAvg, unstructured: clients begin with the whole model and prune it to a sub-network of their own.

Vahidian, Morafah, Lin. "Personalized Federated Learning by Structured and Unstructured Pruning under Data
Heterogeneity", ICDCS Workshops 2021, the form Sub-FedAvg (Un). A baseline of Huang et al. 2022 (FedSpa), who name its
thresholds (section 5.1) and describe it (appendix B.3). Its steps are named in words below.

A client trains m_k * w. It derives one candidate mask after its first local epoch and one after its last, each without
the ``prune_rate`` smallest of the active weights of every layer. It takes the later one for its own where three things
hold: its model is right often enough (``accuracy``), the two candidates still differ (``distance``, the Hamming
distance over all masked weights), and the final ``density`` is not reached.

Symbols: theta_g what is received; m_k ``state.mask``; r, the prune rate, ``prune_rate``; p, the target, 1 -
``density``; Acc_th ``accuracy``; epsilon ``distance``; E and eta the epochs and learning rate of ``shared``.

Reduces to FedAvg with a plain mean where ``density`` is 1.

Deviations from the paper:

1. Accuracy is the metric of the trained model, before pruning, on the client's training examples; the paper has
   validation data. If a lower metric is better, it must be at most ``accuracy``.
2. The mean of a coordinate is over the clients of the cohort that still have it ("the intersection of unpruned
   parameters"). If none has it, it does not move. Clients send changes, not weights, so that the server can use any
   optimiser.
3. Each layer is pruned to the same final density (``split/masks.py`` says how it is rounded), and no further. The
   number of weights that a step prunes is rounded down. Pruned weights never come back.
4. The personal model is the mask m_k times the shared weights, and a client keeps only its mask. A client that never
   took part has the whole model.
5. There is only the unstructured form; biases and norms are not pruned. The hybrid form also prunes channels, by the
   scales of their batch normalisation. The networks of Huang et al. have group normalisation, or none (LeNet-5), and
   their appendix B.3 names no other rule.
6. Momentum starts from 0 in the first epoch and again in the second. Options that the paper does not have, all off by
   default: momentum, weight decay, clipping, schedules, weightings. A client whose update is not finite is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from moiety.errors import number
from moiety.local import Optimiser, apply_masks, difference, drop_prefix, mean_metric, optimiser_work, select, train
from moiety.local.masked import OwnMask, begin_own_mask, mask_densities, masked_model, masked_work, masks_differ
from moiety.server.averaging import assemble, client_weights
from moiety.spec import recorded
from moiety.split.masks import check_density, hamming_distance, layer_counts, mask_smallest
from moiety.transport.masked import masked_packing
from moiety.transport.sparse import count_active, sparse_bytes
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Sparsity, Traffic, Wire, Work

MASK = "mask:"
"""Before the name of a weight: the mask that goes up with it."""


@recorded
def sub_fedavg(
    *,
    shared: float | Optimiser,
    density: float = 0.5,
    prune_rate: float = 0.05,
    accuracy: float = 0.5,
    distance: float = 1e-4,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Sub-FedAvg (Un): personal sub-networks, pruned from the whole model on the way (Vahidian et al. 2021).

    Args:
        shared: local work: eta, or ``moiety.sgd(eta, epochs=E)``; five epochs by default.
        density: the share of parameters that are active in the end, above 0.
        prune_rate: r, the share of a layer's active weights that is pruned at a time.
        accuracy: Acc_th, from where on a client prunes.
        distance: epsilon, how far the masks of its first and last epoch must differ, as a share of the weights.
        weighting: of the clients in the mean, ``uniform``, or by ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the client learning rate across rounds; constant by default.
    """
    shared_optimiser = optimiser_work("shared", shared, epochs=5, without=("steps", "pull", "lr_decay", "keep_state"))
    check_density(density)
    number("prune_rate", prune_rate, "> 0 and < 1", lambda r: 0 < r < 1)
    number("accuracy", accuracy, "finite", math.isfinite)
    number("distance", distance, ">= 0 and <= 1", lambda d: 0 <= d <= 1)
    epochs, weight = shared_optimiser.epochs or 1, client_weights(weighting, shared_optimiser.rows)

    def init_client(shared: Params, personal: Params) -> OwnMask:
        names = layer_counts(shared, density, "uniform")
        return begin_own_mask(shared, personal, {n: torch.ones_like(shared[n], dtype=torch.bool) for n in names})

    def find_candidate(model: Params, masks: Params, final: dict[str, int]) -> Params:
        """The mask without the smallest r of the active weights of each layer, never below its final number."""
        smaller = {}
        for name, mask in masks.items():
            count = mask.sum()
            count = torch.minimum((prune_rate * count).floor().long(), count - final[name])
            smaller[name] = mask & ~mask_smallest(model[name], mask, count)
        return smaller

    def client_update(work: Work, theta: Params, state: OwnMask) -> tuple[ClientUpdate, OwnMask]:
        final = layer_counts(theta, density, "uniform")
        start = apply_masks(theta, state.mask)  # download theta_g * m_k
        sparse, parts = masked_work(work, state.mask), {work.shared: shared_optimiser}
        model, loss = train(sparse, work.compose(start, state.personal), work.batches("first"), parts)
        after_first = find_candidate(model, state.mask, final)  # the mask of the first epoch
        if epochs > 1:
            model, later_loss = train(sparse, model, work.batches("rest"), parts)
            loss = (loss + (epochs - 1) * later_loss) / epochs
        after_last = find_candidate(model, state.mask, final)  # the mask of the last epoch
        # Prune where accuracy and distance are at their thresholds; at the final density there is nothing to prune.
        metric = mean_metric(work, model, work.batches("check"))
        accurate = metric >= accuracy if work.task.metric.higher_is_better else metric <= accuracy
        mask = select(accurate & (hamming_distance(after_first, after_last) >= distance), after_last, state.mask)
        theta_k, statistics = work.parts(model)
        change = apply_masks(difference(theta_k, start), mask)  # upload theta_k * m_k, and m_k
        masks = {MASK + name: m.byte() for name, m in mask.items()}
        info = {"loss": loss, "new_mask": masks_differ(state, mask, state.mask)}
        return ClientUpdate(change | masks, weight(work), info), OwnMask(statistics, mask, torch.ones_like(state.asked))

    def layout(shared: Params, personal: Params) -> tuple[Params, Params]:
        names = layer_counts(shared, density, "uniform")
        return shared, shared | {MASK + name: torch.zeros_like(shared[name], dtype=torch.uint8) for name in names}

    def down(received: Params, state: OwnMask) -> tuple[int, int]:
        # All have the whole model at first; later the client knows its mask, which it found itself.
        return sparse_bytes(received, count_active(state.mask), mask_known=True)

    def up(update: ClientUpdate) -> tuple[int, int]:
        weights = drop_prefix(update.upload, MASK)
        masks = {name: update.upload[MASK + name] for name in weights if MASK + name in update.upload}
        return sparse_bytes(weights, count_active(masks), mask_known=not update.info["new_mask"])

    phases = {"first": replace(shared_optimiser, epochs=1).phase}
    phases |= {"rest": replace(shared_optimiser, epochs=epochs - 1).phase} if epochs > 1 else {}
    return assemble(
        phases=phases | {"check": replace(shared_optimiser, epochs=1, shuffle=False).phase},
        init_client=init_client,
        client_update=client_update,
        personal_model=masked_model,
        aggregator=mean_of_active,
        server=server,
        schedule=schedule,
        default_split="nothing",
        wire=Wire(
            layout,
            Traffic(down, up),
            masked_packing(lambda key, theta, facts: facts.mask, tell_first=False, with_masks=MASK),
        ),
        sparsity=Sparsity(mask_densities),
    )


def mean_of_active(updates: Sequence[ClientUpdate]) -> Params:
    """For every coordinate the weighted mean over the clients that still have it, 0 where none has."""
    means: Params = {}
    for name, first in updates[0].upload.items():
        if name.startswith(MASK):
            continue
        masks = [u.upload.get(MASK + name) for u in updates]
        sums, weights = torch.zeros_like(first, dtype=torch.float64), torch.zeros_like(first, dtype=torch.float64)
        for update, mask in zip(updates, masks, strict=True):
            share = update.weight * (torch.ones_like(first) if mask is None else mask).double()
            sums, weights = sums + share * update.upload[name], weights + share
        mean = torch.where(weights > 0, sums / weights, 0)
        means[name] = (mean if first.is_floating_point() else mean.round()).to(first.dtype)
    return means
