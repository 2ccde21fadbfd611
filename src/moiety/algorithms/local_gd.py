"""Local GD: every client takes several gradient steps on all of its data, then the models are averaged.

Khaled, Mishchenko, Richtarik. "First Analysis of Local GD on Heterogeneous Data", 2019, Algorithm 1; a baseline of
Mishchenko et al. 2023, section 3.2.

    x_m <- x_m - gamma grad f_m(x_m), H times;  then x = the mean of x_m

Symbols: x what is received; gamma and H, the steps between two averages, those of ``shared``.

Reduces to gradient descent on the mean of f_m with one step. With more it ends elsewhere where clients differ: its
fixed point solves sum_m (I - (I - gamma A_m)^H)(x - x_m*) = 0 for quadratics with Hessians A_m and minimisers x_m*.

Deviations from the paper:

1. A client sends the change x_m - x instead of x_m, so that the server can use any optimiser. With the default server
   (SGD with learning rate 1) the result is the paper's, up to rounding.
2. All rounds have the same number of steps, H. In the paper it may vary.
3. Options that the paper does not have, all off by default: a cohort, weights by examples, schedules. A client whose
   update is not finite is left out of the round.
"""

from __future__ import annotations

from moiety.errors import choice
from moiety.local import ALL, WHOLE, Optimiser, Personal, difference, sgd_work, train
from moiety.server.averaging import adapt_statistics, assemble, client_weights
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Phase, Schedule, ServerOptimiser, Work


@recorded
def local_gd(
    *,
    shared: float | Optimiser,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Local GD: full-gradient steps on clients, then the mean; nothing personal (Khaled et al. 2019).

    Args:
        shared: local work: gamma, or ``moiety.sgd(gamma, steps=H)``; each step is on all of the client's data.
        weighting: of the clients in the mean, ``uniform`` or by ``examples``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the step size across rounds; constant by default.
    """
    unsupported = ("epochs", "batch_size", "shuffle", "weight_decay", "pull", "clip")
    shared_sgd = sgd_work("shared", shared, epochs=None, steps=1, batch_size=ALL, without=unsupported)
    choice("weighting", weighting, ("uniform", "examples"))
    weight = client_weights(weighting, WHOLE)

    def client_update(work: Work, x: Params, state: Personal) -> tuple[ClientUpdate, Personal]:
        model = work.compose(x, state.personal)
        # x_m <- x_m - gamma grad f_m(x_m), H times on the one batch that holds all data
        batches = list(work.batches("local")) * (shared_sgd.steps or 1)
        model, loss = train(work, model, batches, {work.shared: shared_sgd})
        x_m, statistics = work.parts(model)
        return ClientUpdate(difference(x_m, x), weight(work), {"loss": loss}), Personal(statistics)

    return assemble(
        phases={"local": Phase(1, None, WHOLE, False)},
        client_update=client_update,
        adapt=adapt_statistics(client_update),
        server=server,  # x <- (1/M) sum_m x_m
        schedule=schedule,
        default_split="nothing",
    )
