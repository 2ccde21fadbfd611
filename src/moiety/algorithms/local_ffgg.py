"""Local FFGG: each client solves for its personal parameters, then makes steps on both parts, one after the other.

Mishchenko, Islamov, Gorbunov, Horvath. "Partially Personalized Federated Learning: Breaking the Curse of Data
Heterogeneity", 2023. Algorithm 4; Algorithm 2 is ``solver=moiety.sgd(...)``.

Symbols: theta^r what is received; w_m the personal parameters; gamma_theta and K the learning rate and length of
``shared``; gamma_w in line 6 that of ``personal``, in line 4 that of ``solver``; C^r the cohort.

Reduces to FFGG where K is 1, the batch is all data and line 4 is exact; to FedAvg where nothing is personal.

Deviations from the paper:

1. A client sends its change theta^{r,K} - theta^r, which is -Delta_m, so that the server can use any optimiser. The
   default server (SGD with learning rate 1) gives line 11 of the paper.
2. Lines 6 and 7 use the same batch of the client's data, as in the paper's experiments (section 3.3). Batches are drawn
   without replacement, in freshly shuffled epochs. If a batch holds all of the client's data, the gradients are those
   of f_m, as printed.
3. The random start of w is by default one draw for all clients and rounds: the model's first personal values.
   ``random_start="fresh"`` draws anew for each client and turn, as the paper does; a seed draws once for all. Each
   tensor is then normal, with the mean and the standard deviation of its first values, since the paper does not name a
   distribution.
4. Options that the pseudocode does not have, all off by default: weight decay and clipping (of the part that is being
   trained), other weightings than the unweighted mean of line 11, schedules (for all learning rates), and those of the
   solvers. A client whose update is not finite is left out of the round.
5. Running statistics of BatchNorm, which the paper does not have, move in the solver and in both kinds of step.
6. To be evaluated, a client gets its w by line 4 at the full learning rate. So does a new client.
"""

from __future__ import annotations

from torch import Tensor

from moiety.local import (
    Optimiser,
    Personal,
    Solver,
    check_start,
    difference,
    draw_start,
    fold,
    sgd_work,
    solver_work,
    train,
)
from moiety.server.averaging import assemble, client_weights
from moiety.spec import recorded
from moiety.types import Algorithm, Batch, ClientUpdate, Params, Schedule, ServerOptimiser, Work


@recorded
def local_ffgg(
    *,
    shared: float | Optimiser,
    personal: float | Optimiser,
    solver: Solver | Optimiser,
    random_start: int | str | None = None,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Local FFGG: finetune, then local steps on both parts in turn; stateless (Mishchenko et al. 2023).

    Args:
        shared: the steps on the shared parameters: gamma_theta, or ``moiety.sgd(gamma_theta, steps=K)``. Its length and
            batches hold for both parts.
        personal: the steps on the personal parameters: gamma_w, or ``moiety.sgd(gamma_w, ...)``.
        solver: finds the personal parameters first, for instance ``moiety.sgd(0.1, epochs=1)``.
        random_start: the start of the solver: ``fresh`` draws it anew for each client and turn, as the paper does; a
            seed draws it once for all; by default it is the model's first personal values.
        weighting: of the clients in the mean, by ``uniform``, ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of all client learning rates across rounds; constant by default.
    """
    shared_sgd = sgd_work("shared", shared)
    unsupported = ("pull", "epochs", "steps", "batch_size", "shuffle")
    personal_sgd = sgd_work("personal", personal, without=unsupported)
    w_solver = solver_work("solver", solver)
    check_start(random_start)
    weight = client_weights(weighting, shared_sgd.rows)

    def find_w(work: Work, theta: Params, state: Personal) -> Params:
        # Line 4: the whole model with w_m^{r,0} in it
        model = work.compose(theta, draw_start(work, state.personal, random_start))
        return w_solver.solve(work, model, work.batches("personal"))[0]

    def client_update(work: Work, theta: Params, state: Personal) -> tuple[ClientUpdate, Personal]:
        def step(model: Params, batch: Batch) -> tuple[Params, Tensor]:
            # Line 6: w^{r,k+1} = w^{r,k} - gamma_w grad_2 f_m(theta^{r,k}, w^{r,k})
            model, loss_w = train(work, model, [batch], {work.personal: personal_sgd})
            # Line 7: theta^{r,k+1} = theta^{r,k} - gamma_theta grad_1 f_m(theta^{r,k}, w^{r,k+1})
            model, loss_theta = train(work, model, [batch], {work.shared: shared_sgd})
            return model, loss_theta if work.shared else loss_w

        start = find_w(work, theta, state)
        model, loss = fold(work, work.batches("local"), step, start)  # line 5
        change = difference(work.parts(model)[0], theta)  # line 9
        return ClientUpdate(change, weight(work), {"loss": loss}), state

    return assemble(
        phases={"personal": w_solver.phase, "local": shared_sgd.phase},
        client_update=client_update,
        adapt=lambda work, theta, state: Personal(work.parts(find_w(work, theta, state))[1]),
        server=server,  # line 11
        schedule=schedule,
        stateful=False,
    )
