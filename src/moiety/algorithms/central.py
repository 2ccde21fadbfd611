"""Central: one model for all, by online descent at the server. A baseline of the Glocal paper.

"Global and Local Learning for Distributed Personalization", section 4: "the server performs SGD over all data from all
clients". In a round every client's next example gives a gradient at the server's model:

    w_{t+1} = P_D(w_t - eta sum_i lambda_i grad l_{i,t}(w_t))

Symbols: w ``received``; eta ``lr``; D ``radius``; lambda_i ``weighting``.

Reduces to plain SGD with one client. It is ``glocal_sgd`` with nothing personal.

Deviations from the paper:

1. Clients send gradients, not examples: their sum over one example of each client is one step. The paper's program
   (Vowpal Wabbit) may have stepped after every example; it does not say.
2. A stream is a walk through the client's own rows in passes, each in a fresh order.
3. Where ``fit`` is given an aggregator, it stands in the place of the sum. Shared running statistics stay as they were.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from moiety.local.online import Descent, slope, walk
from moiety.local.schedules import chosen as chosen_schedule
from moiety.server import check_weighting, client_weight, weighted_sum
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Work


class Server(NamedTuple):
    """w, shared running statistics, and Adagrad's sums of squares."""

    shared: Params
    statistics: Params
    squares: Params


class Client(NamedTuple):
    """What is personal though nothing is trained there: buffers, at the most."""

    personal: Params


@recorded
def central(
    *,
    lr: float,
    rule: str = "sgd",
    radius: float | None = None,
    batch_size: int = 1,
    shuffle: bool = True,
    weighting: str = "uniform",
) -> Algorithm:
    """Online descent at the server on every client's next example: one model for all.

    Args:
        lr: learning rate, for the sum over clients.
        rule: ``sgd`` or ``adagrad``.
        radius: the model's largest norm; free by default.
        batch_size: examples of each client in a round.
        shuffle: False walks through the data in its order.
        weighting: lambda_i: ``uniform`` is 1, ``examples`` N_i, ``batches`` ceil(N_i / batch_size).

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    descent = Descent(lr, rule, radius)
    check_weighting(weighting)

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        model = work.compose(received, state.personal)
        gradient, loss, changed = slope(work, model, work.shared, work.batches("online"))
        upload = {n: gradient[n] if n in gradient else torch.zeros_like(p) for n, p in received.items()}
        kept = {n: changed.get(n, p) for n, p in state.personal.items()}
        return ClientUpdate(upload, client_weight(work, weighting, batch_size), {"loss": loss}), Client(kept)

    def server_update(server: Server, total: Params) -> Server:
        shared, squares = descent.step(server.shared, {n: total[n] for n in server.shared}, server.squares)
        return Server(shared, server.statistics, squares)

    return Algorithm(
        name="central",
        phases=walk(batch_size, shuffle),
        init_server=lambda shared, statistics: Server(dict(shared), dict(statistics), descent.init(shared)),
        init_client=lambda shared, personal: Client(personal),
        broadcast=lambda server: {**server.shared, **server.statistics},
        client_update=client_update,
        aggregator=weighted_sum,
        server_update=server_update,
        personal_model=lambda received, state: (received, state.personal),
        adapt=lambda work, received, state: client_update(work, received, state)[1],
        schedule=chosen_schedule(None),
        default_split="nothing",
        needs="nothing",
    )
