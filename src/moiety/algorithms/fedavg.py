"""FedAvg: one model for all, trained by averaging local work.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, Algorithm 1; with other server optimisers, Reddi et al. "Adaptive Federated Optimization", ICLR
2021, Algorithm 2. It is the non-personalised baseline, and step (a) of the pipeline, of Pillutla et al. 2022.

Symbols: w ``received``; eta ``lr``; E ``epochs``; B ``batch_size``; n_k / n ``weighting="examples"``.

FedAlt and FedSim with nothing personal are this algorithm.

Deviations from the paper:

1. A client sends w_k - w instead of w_k, so that the server may use any optimiser; with the default server, SGD of
   learning rate 1, the sum is the paper's in exact arithmetic.
2. The mean is over the clients of the round, sum n_k w_k / sum n_k (the paper's later versions; the first printing
   divides by the examples of all clients).
3. Each epoch is shuffled anew; the paper splits the data into batches once.
4. Options the pseudocode does not have, all off by default: a number of steps instead of epochs, momentum, weight
   decay, clipping, schedules, other weightings. Running statistics of BatchNorm may stay with the client.
5. A client whose update is not finite is left out of the round.
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
    """Empty, or the running statistics of BatchNorm where they are the client's own."""

    personal: Params


@recorded
def fedavg(
    *,
    lr: float,
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
) -> Algorithm:
    """FedAvg: one shared model, nothing personal (McMahan et al. 2017).

    Args:
        lr: learning rate on clients.
        epochs: passes over the client's data; 1 where neither this nor the next is given.
        steps: or a number of steps.
        batch_size: examples per step; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty.
        momentum: of the client's SGD, from 0 in each round.
        clip: largest gradient norm.
        weighting: of the clients in the mean, by ``examples``, ``batches`` or ``uniform``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the client learning rate across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    check_weighting(weighting)
    options = SgdOptions(momentum, weight_decay, clip)
    optimiser = chosen_server(server)

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        model = work.compose(received, state.personal)
        # ClientUpdate(k, w): w <- w - eta grad l(w; b), for each epoch, for each batch b
        model, loss = sgd(work, model, work.batches("local"), lr=rates(work, work.shared, lr), options=options)
        w_k, statistics = work.parts(model)
        update = ClientUpdate(difference(w_k, received), client_weight(work, weighting, batch_size), {"loss": loss})
        return update, Client(statistics)

    def adapt(work: Work, received: Params, state: Client) -> Client:
        # Only running statistics can be a client's own; where there are none there is nothing to learn.
        return client_update(work, received, state)[1] if state.personal else state

    return Algorithm(
        name="fedavg",
        phases={"local": phase("", epochs, steps, batch_size, shuffle)},
        init_server=partial(averaging.init_server, optimiser),
        init_client=lambda shared, personal: Client(personal),
        broadcast=averaging.broadcast,
        client_update=client_update,
        aggregator=weighted_mean,  # w <- sum_k (n_k / n) w_k
        server_update=partial(averaging.server_update, optimiser),
        personal_model=lambda received, state: (received, state.personal),
        adapt=adapt,
        schedule=chosen_schedule(schedule),
        default_split="nothing",
        needs="nothing",
    )
