"""FedSim: simultaneous updates of the shared and the personal parameters.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao. "Federated Learning with Partial Model Personalization", ICML 2022.
Algorithm 1 with LocalSim (Algorithm 3); Algorithm 5 is the same with unequal weights.

Symbols: u ``received``; v_i ``state.personal``; gamma_u ``shared_lr``; gamma_v ``personal_lr``; tau ``steps`` or
``epochs``; alpha_i ``weighting``; S^(t) the cohort.

Reduces to FedAvg where nothing is personal.

Deviations from the paper:

1. A client sends u_i - u instead of u_i, so that the server may use any optimiser. With the default server, SGD of
   learning rate 1, the sum is the paper's line 12 of Algorithm 5 in exact arithmetic.
2. "Sample data z" is without replacement: freshly shuffled epochs, the last batch of an epoch may be smaller.
3. Options the pseudocode does not have, all off by default: momentum, weight decay, clipping, schedules, other server
   optimisers, stateless clients (the paper's appendix B.3 and C.4 use the last four). Both blocks are trained at once,
   so what is clipped is the joint gradient.
4. "With secure aggregation" (Algorithm 5, line 12) is not simulated: the server sees each upload. A client whose update
   is not finite is left out of the round.
5. Clients without state and clients never seen get v by LocalSim at the full learning rate, whatever the schedule; the
   shared result is thrown away.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

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
def fedsim(
    *,
    shared_lr: float,
    personal_lr: float,
    epochs: int | None = None,
    steps: int | None = None,
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
    """FedSim: shared and personal parameters at the same time (Pillutla et al. 2022).

    Args:
        shared_lr: learning rate of the shared parameters on clients, gamma_u.
        personal_lr: learning rate of the personal parameters, gamma_v.
        epochs: passes over the client's data; 1 where neither this nor the next is given.
        steps: or a number of steps, tau.
        batch_size: examples per step; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty.
        momentum: of the client's SGD, from 0 in each round.
        clip: largest norm of the joint gradient.
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

    def local_sim(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        # Algorithm 3, lines 2-3
        model = work.compose(received, state.personal)
        # Lines 4-6, both gradients at (u_{i,k}, v_{i,k}):
        #   v_{i,k+1} = v_{i,k} - gamma_v grad_v F_i(u_{i,k}, v_{i,k})
        #   u_{i,k+1} = u_{i,k} - gamma_u grad_u F_i(u_{i,k}, v_{i,k})
        lr = rates(work, work.personal, personal_lr) | rates(work, work.shared, shared_lr)
        model, loss = sgd(work, model, work.batches("joint"), lr=lr, options=options)
        # Lines 7-9
        u_i, v_i = work.parts(model)
        update = ClientUpdate(difference(u_i, received), client_weight(work, weighting, batch_size), {"loss": loss})
        return update, Client(v_i)

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        update, after = local_sim(work, received, state)
        return update, after if stateful else state

    return Algorithm(
        name="fedsim",
        phases={"joint": phase("", epochs, steps, batch_size, shuffle)},
        init_server=partial(averaging.init_server, optimiser),
        init_client=lambda shared, personal: Client(personal),
        broadcast=averaging.broadcast,  # Algorithm 1, line 4
        client_update=client_update,  # line 6
        aggregator=weighted_mean,  # line 8; Algorithm 5, line 12
        server_update=partial(averaging.server_update, optimiser),
        personal_model=lambda received, state: (received, state.personal),
        adapt=lambda work, received, state: local_sim(work, received, state)[1],
        schedule=chosen_schedule(schedule),
        stateful=stateful,
    )
