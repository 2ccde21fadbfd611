"""FedAlt: alternating updates of the shared and the personal parameters.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao. "Federated Learning with Partial Model Personalization", ICML 2022.
Algorithm 1 with LocalAlt (Algorithm 2); Algorithm 4 is the same with unequal weights.

Symbols: u ``received``; v_i ``state.personal``; gamma_u ``shared_lr``; gamma_v ``personal_lr``; tau_u ``shared_steps``
or ``shared_epochs``; tau_v ``personal_steps`` or ``personal_epochs``; alpha_i ``weighting``; S^(t) the cohort.

Reduces to FedAvg where nothing is personal: the first loop is then empty.

Deviations from the paper:

1. A client sends u_i - u instead of u_i, so that the server may use any optimiser. With the default server, SGD of
   learning rate 1, the sum is the paper's line 16 in exact arithmetic.
2. "Sample data z" is without replacement: each phase walks through freshly shuffled epochs, the last batch of an epoch
   may be smaller. Algorithm 4 uses the samples of the v-steps again in the u-steps; here the u-steps have their own
   shuffle, as in the authors' experiments.
3. Options the pseudocode does not have, all off by default: momentum, weight decay, clipping, schedules, other server
   optimisers, stateless clients (the paper's appendix B.3 and C.4 use the last four). What is clipped is the gradient
   of the block being trained, never a stale one of the other block.
4. "With secure aggregation" (Algorithm 4, line 16) is not simulated: the server sees each upload. A client whose update
   is not finite is left out of the round.
5. Running statistics of BatchNorm, which the paper does not have, move in both phases, since both are training.
6. Clients without state and clients never seen get v by lines 2 to 5 at the full learning rate, whatever the schedule.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from torch import Tensor

from moiety.local import SgdOptions, difference, phase, positive_lr, rates, sgd
from moiety.local.schedules import chosen as chosen_schedule
from moiety.server import averaging, check_weighting, client_weight, weighted_mean
from moiety.server.optimisers import chosen as chosen_server
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Work


class Client(NamedTuple):
    """v_i, the personal parameters (and personal running statistics)."""

    personal: Params


@recorded
def fedalt(
    *,
    shared_lr: float,
    personal_lr: float,
    shared_epochs: int | None = None,
    shared_steps: int | None = None,
    personal_epochs: int | None = None,
    personal_steps: int | None = None,
    batch_size: int = 32,
    shuffle: bool = True,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    clip: float | None = None,
    weighting: str = "examples",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
    stateful: bool = True,
) -> Algorithm:
    """FedAlt: personal parameters first, then shared ones (Pillutla et al. 2022).

    Args:
        shared_lr: learning rate of the shared parameters on clients, gamma_u.
        personal_lr: learning rate of the personal parameters, gamma_v.
        shared_epochs: passes over the client's data for the shared block; 1 where neither this nor the next is given.
        shared_steps: or a number of steps, tau_u.
        personal_epochs: passes for the personal block; 1 where neither this nor the next is given.
        personal_steps: or a number of steps, tau_v.
        batch_size: examples per step; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty on the block being trained.
        momentum: of the client's SGD, from 0 in each phase.
        clip: largest gradient norm of the block being trained.
        weighting: alpha_i, by ``examples``, ``batches`` or ``uniform``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the client learning rates across rounds; constant by default.
        stateful: False lets v_i start anew from its first value each time (appendix C.4).

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("shared_lr", shared_lr)
    positive_lr("personal_lr", personal_lr)
    check_weighting(weighting)
    options = SgdOptions(momentum, weight_decay, clip)
    optimiser = chosen_server(server)

    def local_v(work: Work, u: Params, v: Params) -> tuple[Params, Tensor]:
        """Algorithm 2, lines 2 to 5: the whole model with v_i^+ in it, and the mean loss on the way."""
        model = work.compose(u, v)
        # Lines 3-4: v_{i,k+1} = v_{i,k} - gamma_v grad_v F_i(u, v_{i,k})
        lr = rates(work, work.personal, personal_lr)
        return sgd(work, model, work.batches("personal"), lr=lr, options=options)

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        model, loss_v = local_v(work, received, state.personal)
        # Lines 6-7: u_{i,k+1} = u_{i,k} - gamma_u grad_u F_i(u_{i,k}, v_i^+)
        lr = rates(work, work.shared, shared_lr)
        model, loss_u = sgd(work, model, work.batches("shared"), lr=lr, options=options)
        # Lines 8-9
        u_i, v_i = work.parts(model)
        loss = loss_u if work.shared else loss_v
        update = ClientUpdate(difference(u_i, received), client_weight(work, weighting, batch_size), {"loss": loss})
        return update, Client(v_i) if stateful else state

    def adapt(work: Work, received: Params, state: Client) -> Client:
        return Client(work.parts(local_v(work, received, state.personal)[0])[1])

    return Algorithm(
        name="fedalt",
        phases={
            "personal": phase("personal_", personal_epochs, personal_steps, batch_size, shuffle),
            "shared": phase("shared_", shared_epochs, shared_steps, batch_size, shuffle),
        },
        init_server=partial(averaging.init_server, optimiser),
        init_client=lambda shared, personal: Client(personal),
        broadcast=averaging.broadcast,  # Algorithm 1, line 4
        client_update=client_update,  # line 6
        aggregator=weighted_mean,  # line 8; Algorithm 4, line 16
        server_update=partial(averaging.server_update, optimiser),
        personal_model=lambda received, state: (received, state.personal),
        adapt=adapt,
        schedule=chosen_schedule(schedule),
        stateful=stateful,
    )
