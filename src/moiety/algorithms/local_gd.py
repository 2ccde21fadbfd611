"""Local GD: every client takes several gradient steps on all of its data, then the models are averaged.

Khaled, Mishchenko, Richtarik. "First Analysis of Local GD on Heterogeneous Data", 2019, Algorithm 1; a baseline of
Mishchenko et al. 2023, section 3.2.

    x_m <- x_m - gamma grad f_m(x_m), H times;  then x = the mean of x_m

Symbols: x ``received``; gamma ``lr``; H, the steps between two averages, ``steps``.

Reduces to gradient descent on the mean of f_m with one step. With more it ends elsewhere where clients differ: its
fixed point solves sum_m (I - (I - gamma A_m)^H)(x - x_m*) = 0 for quadratics with Hessians A_m and minimisers x_m*.

Deviations from the paper:

1. A client sends x_m - x instead of x_m, so that the server may use any optimiser; with the default server, SGD of
   learning rate 1, the mean is the paper's in exact arithmetic.
2. H is the same in all rounds; the paper lets the times of averaging be given freely.
3. Options the paper does not have, all off by default: a cohort, weights by examples, schedules. A client whose update
   is not finite is left out of the round.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from moiety.errors import choice, whole
from moiety.local import SgdOptions, difference, positive_lr, rates, sgd
from moiety.local.schedules import chosen as chosen_schedule
from moiety.local.solvers import WHOLE
from moiety.server import averaging, client_weight, weighted_mean
from moiety.server.optimisers import chosen as chosen_server
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Phase, Schedule, ServerOptimiser, Work


class Client(NamedTuple):
    """Empty, or the running statistics of BatchNorm where they are the client's own."""

    personal: Params


@recorded
def local_gd(
    *,
    lr: float,
    steps: int = 1,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Local GD: full-gradient steps on clients, then the mean; nothing personal (Khaled et al. 2019).

    Args:
        lr: step size, gamma.
        steps: gradient steps of a client in a round, H; each is on all of its data.
        weighting: of the clients in the mean, ``uniform`` or by ``examples``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the step size across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    whole("steps", steps, 1)
    choice("weighting", weighting, ("uniform", "examples"))
    optimiser = chosen_server(server)
    plain = SgdOptions(0.0, 0.0, None)

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        model = work.compose(received, state.personal)
        # x_m <- x_m - gamma grad f_m(x_m), H times on the one batch that holds all data
        batches = list(work.batches("local")) * steps
        model, loss = sgd(work, model, batches, lr=rates(work, work.shared, lr), options=plain)
        x_m, statistics = work.parts(model)
        update = ClientUpdate(difference(x_m, received), client_weight(work, weighting, WHOLE), {"loss": loss})
        return update, Client(statistics)

    def adapt(work: Work, received: Params, state: Client) -> Client:
        # Only running statistics can be a client's own; where there are none there is nothing to learn.
        return client_update(work, received, state)[1] if state.personal else state

    return Algorithm(
        name="local_gd",
        phases={"local": Phase(1, None, WHOLE, False)},
        init_server=partial(averaging.init_server, optimiser),
        init_client=lambda shared, personal: Client(personal),
        broadcast=averaging.broadcast,
        client_update=client_update,
        aggregator=weighted_mean,  # x <- (1/M) sum_m x_m
        server_update=partial(averaging.server_update, optimiser),
        personal_model=lambda received, state: (received, state.personal),
        adapt=adapt,
        schedule=chosen_schedule(schedule),
        default_split="nothing",
        needs="nothing",
    )
