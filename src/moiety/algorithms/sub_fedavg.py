"""Sub-FedAvg, unstructured: clients begin with the whole model and prune it to a sub-network of their own.

Vahidian, Morafah, Lin. "Personalized Federated Learning by Structured and Unstructured Pruning under Data
Heterogeneity", ICDCS Workshops 2021, the form Sub-FedAvg (Un). A baseline of Huang et al. 2022 (FedSpa), who name its
thresholds (section 5.1) and describe it (appendix B.3). Its steps are named in words below.

A client trains m_k * w. It derives one candidate mask after its first local epoch and one after its last, each without
the ``prune_rate`` smallest of the active weights of every layer. It takes the later one for its own where three things
hold: its model is right often enough (``accuracy``), the two candidates still differ (``distance``, the Hamming
distance over all masked weights), and the final ``density`` is not reached.

Symbols: theta_g ``received``; m_k ``state.mask``; r, the prune rate, ``prune_rate``; p, the target, 1 - ``density``;
Acc_th ``accuracy``; epsilon ``distance``; E ``epochs``; eta ``lr``.

Reduces to FedAvg with a plain mean where ``density`` is 1.

Deviations from the paper:

1. Accuracy is that of the trained model, before pruning, on the client's training examples by the task's metric; the
   paper has validation data. Where less of the metric is better it must be at most ``accuracy``.
2. A coordinate's mean is over the clients of the cohort that still have it ("the intersection of unpruned parameters");
   one that none has stays as it is. Clients send changes, not weights, so that the server may use any optimiser.
3. Each layer is pruned to the same final density, whose rounding stands in ``split/masks.py``, and no further. What is
   pruned in a step is rounded down. Pruned weights never come back.
4. The personal model is m_k times the shared weights, and a client keeps its mask alone. One that was never asked
   has the whole model.
5. Only the unstructured form; biases and norms are not pruned.
6. Momentum starts from 0 in the first epoch and again in the second. Options the paper does not have, all off by
   default: momentum, weight decay, clipping, schedules, weightings. A client whose update is not finite is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from moiety.clients.masked import Masked, differ, mask_densities, masked_model, masked_work, never_asked
from moiety.errors import number, whole
from moiety.local import SgdOptions, difference, either, phase, positive_lr, rates, sgd
from moiety.local.schedules import chosen as chosen_schedule
from moiety.server import averaging, check_weighting, client_weight
from moiety.server.optimisers import chosen as chosen_server
from moiety.spec import recorded
from moiety.split.masks import apply_masks, check_density, layer_counts, least
from moiety.split.masks import distance as hamming
from moiety.transport.sparse import active, sparse_bytes
from moiety.types import Algorithm, Batch, ClientUpdate, Params, Phase, Schedule, ServerOptimiser, Traffic, Work

MASK = "mask:"
"""Before the name of a weight: the mask that goes up with it."""


@recorded
def sub_fedavg(
    *,
    lr: float,
    density: float = 0.5,
    prune_rate: float = 0.05,
    accuracy: float = 0.5,
    distance: float = 1e-4,
    epochs: int = 5,
    batch_size: int = 32,
    shuffle: bool = True,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    clip: float | None = None,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Sub-FedAvg (Un): personal sub-networks, pruned from the whole model on the way (Vahidian et al. 2021).

    Args:
        lr: learning rate on clients.
        density: the share of parameters that are active in the end, from 0.2 to 1.
        prune_rate: r, the share of a layer's active weights that is pruned at a time.
        accuracy: Acc_th, from where on a client prunes.
        distance: epsilon, how far the masks of its first and last epoch must differ, as a share of the weights.
        epochs: passes over the client's data; with 1 the two masks are the same, and only ``distance`` 0 prunes.
        batch_size: examples per step; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty.
        momentum: of the client's SGD.
        clip: largest norm of the masked gradient.
        weighting: of the clients in the mean, ``uniform``, or by ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the client learning rate across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    check_density(density)
    number("prune_rate", prune_rate, "> 0 and < 1", lambda r: 0 < r < 1)
    number("accuracy", accuracy, "finite", math.isfinite)
    number("distance", distance, ">= 0 and <= 1", lambda d: 0 <= d <= 1)
    whole("epochs", epochs, 1)
    check_weighting(weighting)
    options = SgdOptions(momentum, weight_decay, clip)
    optimiser = chosen_server(server)

    def init_client(shared: Params, personal: Params) -> Masked:
        names = layer_counts(shared, density, "uniform")
        return never_asked(shared, personal, {n: torch.ones_like(shared[n], dtype=torch.bool) for n in names})

    def candidate(model: Params, mask: Params, final: dict[str, int]) -> Params:
        """The mask without the smallest r of the active weights of each layer, never below its final number."""
        found = {}
        for name, m in mask.items():
            count = m.sum()
            count = torch.minimum((prune_rate * count).floor().long(), count - final[name])
            found[name] = m & ~least(model[name], m, count)
        return found

    def client_update(work: Work, received: Params, state: Masked) -> tuple[ClientUpdate, Masked]:
        final = layer_counts(received, density, "uniform")
        start = apply_masks(received, state.mask)  # download theta_g * m_k
        sparse, lrs = masked_work(work, state.mask), rates(work, work.shared, lr)
        model = work.compose(start, state.personal)
        model, loss = sgd(sparse, model, work.batches("first"), lr=lrs, options=options)
        after_first = candidate(model, state.mask, final)  # the mask of the first epoch
        if epochs > 1:
            model, later = sgd(sparse, model, work.batches("rest"), lr=lrs, options=options)
            loss = (loss + (epochs - 1) * later) / epochs
        after_last = candidate(model, state.mask, final)  # the mask of the last epoch
        # Prune where accuracy and distance are at their thresholds; at the final density there is nothing to prune.
        prunes = good_enough(work, model, work.batches("check")) & (hamming(after_first, after_last) >= distance)
        mask = either(prunes, after_last, state.mask)
        trained, statistics = work.parts(model)
        change = apply_masks(difference(trained, start), mask)  # upload theta_k * m_k, and m_k
        kept = {MASK + name: m.byte() for name, m in mask.items()}
        info = {"loss": loss, "new_mask": differ(state, mask, state.mask)}
        update = ClientUpdate(change | kept, client_weight(work, weighting, batch_size), info)
        return update, Masked(statistics, mask, torch.ones_like(state.asked))

    def good_enough(work: Work, model: Params, batches: Iterable[Batch]) -> Tensor:
        found = mean_metric(work, model, batches)
        return found >= accuracy if work.task.metric.higher_is_better else found <= accuracy

    def crosses(shared: Params, personal: Params) -> tuple[Params, Params]:
        names = layer_counts(shared, density, "uniform")
        return shared, shared | {MASK + name: torch.zeros_like(shared[name], dtype=torch.uint8) for name in names}

    def down(received: Params, state: Masked) -> tuple[int, int]:
        # All have the whole model at first; later the client knows its mask, which it found itself.
        return sparse_bytes(received, active(state.mask), known=True)

    def up(update: ClientUpdate) -> tuple[int, int]:
        weights = {name: p for name, p in update.upload.items() if not name.startswith(MASK)}
        masks = {name: update.upload[MASK + name] for name in weights if MASK + name in update.upload}
        return sparse_bytes(weights, active(masks), known=not update.info["new_mask"])

    phases = {"first": phase("", 1, None, batch_size, shuffle)}
    phases |= {"rest": phase("", epochs - 1, None, batch_size, shuffle)} if epochs > 1 else {}
    return Algorithm(
        name="sub_fedavg",
        phases=phases | {"check": Phase(1, None, batch_size, False)},
        init_server=partial(averaging.init_server, optimiser),
        init_client=init_client,
        broadcast=averaging.broadcast,
        client_update=client_update,
        aggregator=mean_of_kept,
        server_update=partial(averaging.server_update, optimiser),
        personal_model=masked_model,
        adapt=lambda work, received, state: client_update(work, received, state)[1],
        schedule=chosen_schedule(schedule),
        default_split="nothing",
        needs="nothing",
        crosses=crosses,
        traffic=Traffic(down, up),
        densities=mask_densities,
    )


def mean_metric(work: Work, model: Params, batches: Iterable[Batch]) -> Tensor:
    """The task's metric over the client's examples, weighted as in an evaluation."""
    metric = work.task.metric
    total = weights = torch.zeros_like(work.examples)
    for batch in batches:
        found = work.task.scores(model, batch)[1].double()
        weight = torch.ones_like(found) if metric.weight is None else metric.weight(batch).double()
        weight = torch.where(batch["mask"], weight, 0) if "mask" in batch else weight
        total = total + torch.where(weight > 0, weight * found, 0).sum()
        weights = weights + weight.sum()
    return total / weights


def mean_of_kept(updates: Sequence[ClientUpdate]) -> Params:
    """For every coordinate the weighted mean over the clients that still have it, 0 where none has."""
    joined: Params = {}
    for name, first in updates[0].upload.items():
        if name.startswith(MASK):
            continue
        kept = [u.upload.get(MASK + name) for u in updates]
        sums, weights = torch.zeros_like(first, dtype=torch.float64), torch.zeros_like(first, dtype=torch.float64)
        for update, mask in zip(updates, kept, strict=True):
            share = update.weight * (torch.ones_like(first) if mask is None else mask).double()
            sums, weights = sums + share * update.upload[name], weights + share
        mean = torch.where(weights > 0, sums / weights, 0)
        joined[name] = (mean if first.is_floating_point() else mean.round()).to(first.dtype)
    return joined
