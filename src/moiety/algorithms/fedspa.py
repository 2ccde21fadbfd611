"""FedSpa: every client trains a sparse part of one shared model, found by a mask of its own.

Huang et al. "Achieving Personalized Federated Learning with Sparse Local Models", 2022 (arXiv:2201.11380). Algorithm 1,
with the mask search of Algorithm 2 (``search="dst"``, dynamic sparse training) or of Algorithm 3 (``"rsm"``, random
static masks). The numbers in comments are the lines of these algorithms.

Client k's model is m_k * w. The problem is min_w (1/K) sum_k F_k(m_k * w), (P4), with every m_k of the same volume.

Symbols: w_t what is received; m_{k,t} ``state.mask``; eta and N the learning rate and length of ``shared``; alpha_0
``prune_rate``; seed ``mask_seed``; beta, the sparse volume, (1 - ``density``) d for d parameters; S_t the cohort.

Reduces to FedAvg with a plain mean where ``density`` is 1, and with ``search="rsm"`` and ``masks="same"`` to FedAvg on
the one sub-network.

Deviations from the paper:

1. A client sends its change w_{k,t,N} - w_{k,t,0}, which is -U_{k,t}, so that the server can use any optimiser. The
   default, SGD with learning rate 1, gives line 11.
2. The server broadcasts w_t and the client masks it (line 9), which gives the same numbers. The ledger counts what
   Algorithm 1 sends.
3. The number of active values is exactly density times the number of all shared values, counting dense parameters and
   shared running statistics. This gives the bytes of the paper's Table 1. ``split/masks.py`` says how it is rounded.
   The number of weights to prune in a layer is rounded down.
4. Line 8 does not say whether a weight that was just pruned may be added again at once. It may, as in the rule that the
   paper cites (Evci et al. 2020). With ``regrow_pruned=False`` it comes back only if the layer has too few other
   inactive weights.
5. A new client trains once and searches, as in the first round.
6. Options that the pseudocode does not have, all off by default: momentum (from 0 in each round), weight decay,
   clipping of the masked gradient, schedules, other weightings, and other server optimisers (with which weights outside
   the cohort's masks may move too). Running statistics of BatchNorm may stay with the client. A client whose update is
   not finite is left out.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from moiety.errors import SEED, choice, kind, number, whole
from moiety.local import Optimiser, apply_masks, difference, gradient_at, optimiser_work, select, train
from moiety.local.masked import OwnMask, begin_own_mask, mask_densities, masked_model, masked_work, masks_differ
from moiety.random import uniform
from moiety.server.averaging import assemble, client_weights
from moiety.spec import recorded
from moiety.split.masks import (
    DENSITIES,
    anneal_rate,
    check_density,
    draw_common_masks,
    draw_masks,
    layer_counts,
    update_mask,
)
from moiety.transport.masked import masked_packing
from moiety.transport.sparse import sparse_bytes
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Sparsity, Traffic, Wire, Work

SEARCHES, MASKS, REGROW = ("dst", "rsm"), ("same", "different"), ("gradient", "random")


@recorded
def fedspa(
    *,
    shared: float | Optimiser,
    density: float = 0.5,
    search: str = "dst",
    densities: str = "erk",
    masks: str = "same",
    regrow: str = "gradient",
    prune_rate: float = 0.5,
    regrow_pruned: bool = True,
    mask_seed: int | None = None,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """FedSpa: sparse personal models, each a masked part of one shared model (Huang et al. 2022).

    Args:
        shared: local work: eta, or ``moiety.sgd(eta, steps=N)``; the dense gradient is of one such batch, too.
        density: the share of parameters that are active, above 0; biases, norms and one weight a layer are always.
        search: ``dst`` prunes and regrows after each turn; ``rsm`` keeps the first random masks.
        densities: of the layers, ``erk`` (small layers denser) or ``uniform``.
        masks: at first the ``same`` for all clients, or ``different`` ones.
        regrow: of ``dst``, by the dense ``gradient`` of one batch or at ``random``.
        prune_rate: of ``dst``, alpha_0, the share of a layer's active weights that is pruned at first; it falls to 0
            along a cosine.
        regrow_pruned: of ``dst``, whether the weights that were just pruned may compete to come back.
        mask_seed: of the first masks; by default it is the run's seed.
        weighting: of the clients in the mean, ``uniform`` as in the paper, or by ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the client learning rate across rounds; constant by default.
    """
    options = dict(locals())
    shared_optimiser = optimiser_work("shared", shared)
    check_density(density)
    choice("search", search, SEARCHES)
    choice("densities", densities, DENSITIES)
    choice("masks", masks, MASKS)
    choice("regrow", regrow, REGROW)
    number("prune_rate", prune_rate, ">= 0 and <= 1", lambda r: 0 <= r <= 1)
    kind("regrow_pruned", regrow_pruned, bool, "true or false")
    seed = 0 if mask_seed is None else mask_seed
    whole("mask_seed", seed, 0, SEED)
    by_gradient = search == "dst" and regrow == "gradient"
    weight = client_weights(weighting, shared_optimiser.rows)

    def count_weights(params: Params) -> dict[str, int]:
        """How many weights of each layer are active."""
        return layer_counts(params, density, densities)

    def init_client(shared: Params, personal: Params) -> OwnMask:
        """Algorithm 2, lines 1 and 2, and Algorithm 3, lines 1 and 2: the same seed for all."""
        return begin_own_mask(shared, personal, draw_common_masks(shared, count_weights(shared), seed))

    def own_mask(key: Tensor, w: Params, state: OwnMask) -> Params:
        """m_{k,t}: the client's; the first is the common one, or where masks differ drawn with the client's key."""
        if masks == "same":
            return state.mask
        return select(state.asked, state.mask, draw_masks(key, w, count_weights(w), "mask", seed))

    def first_mask(key: Tensor, w: Params, state: OwnMask) -> OwnMask:
        return state if bool(state.asked) else state._replace(mask=own_mask(key, w, state))

    def next_masks(work: Work, mask: Params, model: Params, counts: dict[str, int]) -> Params:
        """NEXT_MASKS of Algorithm 2 or of Algorithm 3."""
        if search == "rsm":
            return {name: m.clone() for name, m in mask.items()}  # Algorithm 3, line 4: m_{k,t+1} = m_{k,t}
        rate = anneal_rate(prune_rate, work.elapsed)  # Algorithm 2, line 4
        if by_gradient:
            # Line 5: g(w_{k,t,N}), the gradient of one batch for every weight, active or not
            dense, _, _ = gradient_at(work, model, tuple(counts), work.batches("search"))
            score = {name: g.abs() for name, g in dense.items()}
        else:
            shapes = {name: tuple(m.shape) for name, m in mask.items()}
            score = {name: uniform(work.key, shape, work.turn, "regrow", name) for name, shape in shapes.items()}
        # 6: for each layer; 7: prune by magnitude; 8: recover as many
        return {
            name: update_mask(m, model[name], score[name], active=counts[name], rate=rate, regrow_pruned=regrow_pruned)
            for name, m in mask.items()
        }

    def client_update(work: Work, w: Params, state: OwnMask) -> tuple[ClientUpdate, OwnMask]:
        mask = own_mask(work.key, w, state)
        start = apply_masks(w, mask)  # 9: w_{k,t,0} = m_{k,t} * w_t: the server's weights, dense under any mask
        # 13 to 16: w_{k,t,tau+1} = w_{k,t,tau} - eta m_{k,t} * g_{k,t,tau}
        model = work.compose(start, state.personal)
        model, loss = train(masked_work(work, mask), model, work.batches("local"), {work.shared: shared_optimiser})
        w_k, statistics = work.parts(model)
        change = difference(w_k, start)  # 17: -U_{k,t}
        next_mask = next_masks(work, mask, model, count_weights(w))  # 18
        info = {"loss": loss, "new_mask": masks_differ(state, mask, next_mask)}
        after = OwnMask(statistics, next_mask, torch.ones_like(state.asked))
        return ClientUpdate(change, weight(work), info), after  # 19

    def down(w: Params, state: OwnMask) -> tuple[int, int]:
        """Line 9: the client found its mask itself, so it is told one only when it is first asked."""
        return sparse_bytes(w, count_weights(w), mask_known=bool(state.asked))

    def up(update: ClientUpdate) -> tuple[int, int]:
        """Line 19: with the next mask where it is a new one."""
        return sparse_bytes(update.upload, count_weights(update.upload), mask_known=not update.info["new_mask"])

    def new_mask(update: ClientUpdate) -> int:
        """What the next mask adds to that."""
        return up(update)[1] - sparse_bytes(update.upload, count_weights(update.upload), mask_known=True)[1]

    search_phase = replace(shared_optimiser, epochs=None, steps=1).phase._replace(search=True)
    return assemble(
        phases={"local": shared_optimiser.phase} | ({"search": search_phase} if by_gradient else {}),
        init_client=init_client,  # Algorithm 1, line 3
        client_update=client_update,
        personal_model=masked_model,
        server=server,  # 11: over the whole cohort, wherever the masks are
        schedule=schedule,
        default_split="nothing",
        wire=Wire(traffic=Traffic(down, up, new_mask), packing=masked_packing(own_mask, tell_first=True)),
        sparsity=Sparsity(
            mask_densities,
            shared_model=lambda w, state: (w, state.personal),
            first_mask=first_mask if masks == "different" else None,
            for_seed=(lambda run: fedspa(**options | {"mask_seed": run})) if mask_seed is None else None,
        ),
    )
