"""FFGG: each client solves for its personal parameters, then sends one gradient of the shared ones.

Mishchenko, Islamov, Gorbunov, Horvath. "Partially Personalized Federated Learning: Breaking the Curse of Data
Heterogeneity", 2023. Algorithm 1; Algorithm 2 is ``personal=moiety.sgd(...)``.

    find theta with F_m(theta) = grad_1 f_m(theta, w*_m(theta)) = 0 for all m,  w*_m(theta) = argmin_w f_m(theta, w)

where grad_1 does not differentiate through w*_m. Clients keep nothing from round to round. Where the personal part is
large enough that such a theta exists (the problem is overpersonalised), any cohort leads to it.

Symbols: theta^r what is received; w_m the personal parameters; gamma_theta ``shared``; gamma_w and tau, of Algorithm 2,
``personal=moiety.sgd(gamma_w, steps=tau)``; C^r the cohort.

Reduces to FedAvg with one step on all of the client's data where nothing is personal.

Deviations from the paper:

1. A client sends the change -gamma_theta Delta_m instead of its gradient Delta_m, so that the server can use any
   optimiser. With the default server (SGD with learning rate 1) the result is line 7 of the paper, up to rounding.
2. Algorithm 2 begins with a random w. By default this is one draw for all clients and rounds: the model's first
   personal values. ``random_start="fresh"`` draws anew for each client and turn, as the paper does; a seed draws once
   for all. Each tensor is then normal, with the mean and the standard deviation of its first values, since the paper
   does not name a distribution. The theory allows any start (its Remark 1 takes 0).
3. Options that the pseudocode does not have, all off by default: a gradient in line 5 from one batch instead of all
   data (g_m of Algorithm 5), other weightings than the unweighted mean of line 7, schedules (for both learning rates),
   and those of the solvers.
4. A client whose update is not finite is left out of the round.
5. Running statistics of BatchNorm, which the theory does not have, move in the solver and in line 5.
6. To be evaluated, a client gets its w by line 4 at the full learning rate. So does a new client.
"""

from __future__ import annotations

from torch import Tensor

from moiety.errors import must
from moiety.local import (
    ALL,
    Optimiser,
    Personal,
    Solver,
    check_start,
    difference,
    draw_start,
    sgd_work,
    solver_work,
    train,
)
from moiety.server.averaging import assemble, client_weights
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Work


@recorded
def ffgg(
    *,
    shared: float | Optimiser,
    personal: Solver | Optimiser,
    random_start: int | str | None = None,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """FFGG: finetune, then one gradient of the shared parameters; stateless (Mishchenko et al. 2023).

    Args:
        shared: the step on the shared parameters: gamma_theta, or ``moiety.sgd(gamma_theta, batch_size=32)`` for a
            gradient from one batch; by default it is from all that the client has.
        personal: finds the personal parameters, for instance ``moiety.solver.conjugate_gradient(steps=10)`` or
            ``moiety.sgd(gamma_w, steps=tau)``.
        random_start: the start of the solver: ``fresh`` draws it anew for each client and turn, as the paper does; a
            seed draws it once for all; by default it is the model's first personal values.
        weighting: of the clients in the mean, by ``uniform``, ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of all client learning rates across rounds; constant by default.
    """
    unsupported = ("epochs", "weight_decay", "pull", "clip")
    shared_sgd = sgd_work("shared", shared, epochs=None, steps=1, batch_size=ALL, without=unsupported)
    must(shared_sgd.steps == 1, "shared.steps", "1 or left out", shared_sgd.steps, "local_ffgg takes several.")
    solver = solver_work("personal", personal)
    check_start(random_start)
    weight = client_weights(weighting, shared_sgd.rows)

    def find_w(work: Work, theta: Params, state: Personal) -> tuple[Params, Tensor]:
        # Line 4: the whole model with w_m in it, and the mean loss on the way
        model = work.compose(theta, draw_start(work, state.personal, random_start))
        return solver.solve(work, model, work.batches("personal"))

    def client_update(work: Work, theta: Params, state: Personal) -> tuple[ClientUpdate, Personal]:
        model, loss_w = find_w(work, theta, state)
        # Line 5: -gamma_theta Delta_m, as one step
        model, loss_theta = train(work, model, work.batches("shared"), {work.shared: shared_sgd})
        change = difference(work.parts(model)[0], theta)
        return ClientUpdate(change, weight(work), {"loss": loss_theta if work.shared else loss_w}), state

    return assemble(
        phases={
            "personal": solver.phase,
            "shared": shared_sgd.phase._replace(shuffle=shared_sgd.shuffle and shared_sgd.batch_size != ALL),
        },
        client_update=client_update,
        adapt=lambda work, theta, state: Personal(work.parts(find_w(work, theta, state)[0])[1]),
        server=server,  # line 7
        schedule=schedule,
        stateful=False,
    )
