"""FFGG: each client solves for its personal parameters, then sends one gradient of the shared ones.

Mishchenko, Islamov, Gorbunov, Horvath. "Partially Personalized Federated Learning: Breaking the Curse of Data
Heterogeneity", 2023. Algorithm 1; Algorithm 2 is the solver ``moiety.solver.sgd``.

    find theta with F_m(theta) = grad_1 f_m(theta, w*_m(theta)) = 0 for all m,  w*_m(theta) = argmin_w f_m(theta, w)

where grad_1 does not differentiate through w*_m. Clients keep nothing from round to round. Where the personal part is
large enough that such a theta exists (the problem is overpersonalised), any cohort leads to it.

Symbols: theta^r ``received``; w_m the personal parameters; gamma_theta ``lr``; gamma_w and tau, of Algorithm 2,
``solver=moiety.solver.sgd(lr=gamma_w, steps=tau)``; C^r the cohort.

Reduces to FedAvg with one step on all of the client's data where nothing is personal.

Deviations from the paper:

1. A client sends -gamma_theta Delta_m, the change that its gradient makes, instead of Delta_m, so that the server may
   use any optimiser. With the default server, SGD of learning rate 1, line 7 is the paper's in exact arithmetic.
2. "Initialize w randomly" (Algorithm 2, line 1) is one random draw for all clients and rounds: that of the model's
   first personal values, which its layers draw; or one made with the seed ``random_start``, for a model
   that was trained before. The paper draws anew each time. The theory takes any start (its Remark 1 takes 0).
3. Options the pseudocode does not have, all off by default: a gradient in line 5 from one batch instead of all data
   (the estimate g_m of Algorithm 5), other weightings than the plain mean of line 7, schedules (for ``lr`` and the
   solver's), and those of the solvers.
4. A client whose update is not finite is left out of the round.
5. Running statistics of BatchNorm, which the theory does not have, move in the solver and in line 5.
6. Clients are evaluated, and clients never seen get their w, by line 4 at the full learning rate.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from torch import Tensor

from moiety.local import SgdOptions, difference, phase, positive_lr, rates, sgd
from moiety.local.schedules import chosen as chosen_schedule
from moiety.local.solvers import Solver, batch_or_whole, check_start, started
from moiety.local.solvers import chosen as chosen_solver
from moiety.server import averaging, check_weighting, client_weight, weighted_mean
from moiety.server.optimisers import chosen as chosen_server
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Work


class Client(NamedTuple):
    """w_m: its first values while training, the solution where a client is evaluated."""

    personal: Params


@recorded
def ffgg(
    *,
    lr: float,
    solver: Solver,
    batch_size: int | None = None,
    random_start: int | None = None,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """FFGG: finetune, then one gradient of the shared parameters; stateless (Mishchenko et al. 2023).

    Args:
        lr: step size of the shared parameters, gamma_theta.
        solver: finds the personal parameters, for instance ``moiety.solver.conjugate_gradient(steps=10)``.
        batch_size: examples that the gradient of the shared parameters is from; by default all that the client has.
        random_start: a seed to draw the start of the solver with; by default it is the model's first personal values.
        weighting: of the clients in the mean, by ``uniform``, ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of ``lr`` and the solver's learning rate across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    check_weighting(weighting)
    check_start(random_start)
    find = chosen_solver(solver)
    optimiser = chosen_server(server)
    examples = batch_or_whole(batch_size)
    plain = SgdOptions(0.0, 0.0, None)

    def finetuned(work: Work, received: Params, state: Client) -> tuple[Params, Tensor]:
        """Line 4: the whole model with w_m in it, and the mean loss on the way."""
        model = work.compose(received, started(work, state.personal, random_start))
        return find.solve(work, model, work.batches("personal"))

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        model, loss_w = finetuned(work, received, state)
        # Line 5: -gamma_theta Delta_m, as one step
        rate = rates(work, work.shared, lr)
        model, loss_theta = sgd(work, model, work.batches("shared"), lr=rate, options=plain)
        change = difference(work.parts(model)[0], received)
        loss = loss_theta if work.shared else loss_w
        return ClientUpdate(change, client_weight(work, weighting, examples), {"loss": loss}), state

    def adapt(work: Work, received: Params, state: Client) -> Client:
        return Client(work.parts(finetuned(work, received, state)[0])[1])

    return Algorithm(
        name="ffgg",
        phases={"personal": find.phase, "shared": phase("", None, 1, examples, batch_size is not None)},
        init_server=partial(averaging.init_server, optimiser),
        init_client=lambda shared, personal: Client(personal),
        broadcast=averaging.broadcast,
        client_update=client_update,
        aggregator=weighted_mean,  # line 7
        server_update=partial(averaging.server_update, optimiser),
        personal_model=lambda received, state: (received, state.personal),
        adapt=adapt,
        schedule=chosen_schedule(schedule),
        stateful=False,
    )
