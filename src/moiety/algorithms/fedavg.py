"""FedAvg: one model for all, trained by averaging local work.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, Algorithm 1; with other server optimisers, Reddi et al. "Adaptive Federated Optimization", ICLR
2021, Algorithm 2. It is the non-personalised baseline, and step (a) of the pipeline, of Pillutla et al. 2022.

Symbols: w what is received; eta, E and B the learning rate, epochs and batch size of ``shared``; n_k / n
``weighting="examples"``.

FedAlt and FedSim with nothing personal are this algorithm.

Deviations from the paper:

1. A client sends the change w_k - w instead of w_k, so that the server can use any optimiser. With the default server
   (SGD with learning rate 1) the result is the paper's, up to rounding.
2. The mean is over the clients of the round, sum n_k w_k / sum n_k, as in the paper's later versions. The first version
   divides by the number of examples of all clients.
3. Each epoch is shuffled anew. The paper divides the data into batches once.
4. Options that the pseudocode does not have, all off by default: a number of steps instead of epochs, momentum, weight
   decay, clipping, schedules, other weightings. Running statistics of BatchNorm may stay with the client.
5. A client whose update is not finite is left out of the round.
"""

from __future__ import annotations

from moiety.local import Optimiser, Personal, difference, optimiser_work, train
from moiety.server.averaging import adapt_statistics, assemble, client_weights
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Work


@recorded
def fedavg(
    *,
    shared: float | Optimiser,
    weighting: str = "examples",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """FedAvg: one shared model, nothing personal (McMahan et al. 2017).

    Args:
        shared: local work: eta, or ``moiety.sgd(eta, epochs=E, batch_size=B)``.
        weighting: of the clients in the mean, by ``examples``, ``batches`` or ``uniform``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the client learning rate across rounds; constant by default.
    """
    shared_optimiser = optimiser_work("shared", shared)
    weight = client_weights(weighting, shared_optimiser.rows)

    def client_update(work: Work, w: Params, state: Personal) -> tuple[ClientUpdate, Personal]:
        # ClientUpdate(k, w): w <- w - eta grad l(w; b), for each epoch, for each batch b
        model = work.compose(w, state.personal)
        model, loss = train(work, model, work.batches("local"), {work.shared: shared_optimiser})
        w_k, statistics = work.parts(model)
        return ClientUpdate(difference(w_k, w), weight(work), {"loss": loss}), Personal(statistics)

    return assemble(
        phases={"local": shared_optimiser.phase},
        client_update=client_update,
        adapt=adapt_statistics(client_update),
        server=server,  # w <- sum_k (n_k / n) w_k
        schedule=schedule,
        default_split="nothing",
    )
