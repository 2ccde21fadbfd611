"""Local FFGG: each client solves for its personal parameters, then takes turns on both parts.

Mishchenko, Islamov, Gorbunov, Horvath. "Partially Personalized Federated Learning: Breaking the Curse of Data
Heterogeneity", 2023. Algorithm 4; Algorithm 2 is the solver ``moiety.solver.sgd``.

Symbols: theta^r ``received``; w_m the personal parameters; gamma_theta ``shared_lr``; gamma_w, in line 6,
``personal_lr``, and in line 4 that of the solver; K ``steps`` or ``epochs``; C^r the cohort.

Reduces to FFGG where K is 1, the batch is all data and line 4 is exact; to FedAvg where nothing is personal.

Deviations from the paper:

1. A client sends theta^{r,K} - theta^r, which is -Delta_m, so that the server may use any optimiser. With the default
   server, SGD of learning rate 1, line 11 is the paper's.
2. Lines 6 and 7 use one batch of the client's data, the same in both, as the paper's experiments do with stochastic
   steps (section 3.3); batches are drawn without replacement, from epochs each freshly shuffled. With a ``batch_size``
   of at least the client's data the gradients are those of f_m, as printed.
3. "Initialize w randomly" is one random draw for all clients and rounds: that of the model's first personal values,
   which its layers draw; or one made with the seed ``random_start``, for a model that was trained before. The
   paper draws anew each time.
4. Options the pseudocode does not have, all off by default: weight decay and clipping (of the block being trained),
   other weightings than the plain mean of line 11, schedules (for both learning rates and the solver's), and
   those of the solvers. A client whose update is not finite is left out of the round.
5. Running statistics of BatchNorm, which the paper does not have, move in all three, since all are training.
6. Clients are evaluated, and clients never seen get their w, by line 4 at the full learning rate.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from moiety.local import SgdOptions, difference, phase, positive_lr, rates, sgd
from moiety.local.schedules import chosen as chosen_schedule
from moiety.local.solvers import Solver, check_start, started
from moiety.local.solvers import chosen as chosen_solver
from moiety.server import averaging, check_weighting, client_weight, weighted_mean
from moiety.server.optimisers import chosen as chosen_server
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Work


class Client(NamedTuple):
    """w_m: its first values while training, the solution where a client is evaluated."""

    personal: Params


@recorded
def local_ffgg(
    *,
    shared_lr: float,
    personal_lr: float,
    solver: Solver,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 32,
    shuffle: bool = True,
    weight_decay: float = 0.0,
    clip: float | None = None,
    random_start: int | None = None,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Local FFGG: finetune, then local steps on both parts in turn; stateless (Mishchenko et al. 2023).

    Args:
        shared_lr: step size of the shared parameters, gamma_theta.
        personal_lr: step size of the personal parameters in the turns, gamma_w.
        solver: finds the personal parameters first, for instance ``moiety.solver.sgd(lr=0.1, epochs=1)``.
        epochs: passes over the client's data in turns; 1 where neither this nor the next is given.
        steps: or a number of turns, K.
        batch_size: examples per turn; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty, in the turns, on the block being trained.
        clip: largest gradient norm, in the turns, of the block being trained.
        random_start: a seed to draw the start of the solver with; by default it is the model's first personal values.
        weighting: of the clients in the mean, by ``uniform``, ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of all client learning rates across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("shared_lr", shared_lr)
    positive_lr("personal_lr", personal_lr)
    check_weighting(weighting)
    check_start(random_start)
    find = chosen_solver(solver)
    options = SgdOptions(0.0, weight_decay, clip)
    optimiser = chosen_server(server)

    def finetuned(work: Work, received: Params, state: Client) -> tuple[Params, Tensor]:
        """Line 4: the whole model with w_m^{r,0} in it, and the mean loss on the way."""
        model = work.compose(received, started(work, state.personal, random_start))
        return find.solve(work, model, work.batches("personal"))

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        model, _ = finetuned(work, received, state)
        total, count = torch.zeros_like(work.examples), torch.zeros_like(work.examples)
        for batch in work.batches("local"):  # line 5
            # Line 6: w^{r,k+1} = w^{r,k} - gamma_w grad_2 f_m(theta^{r,k}, w^{r,k})
            lr = rates(work, work.personal, personal_lr)
            model, loss_w = sgd(work, model, [batch], lr=lr, options=options)
            # Line 7: theta^{r,k+1} = theta^{r,k} - gamma_theta grad_1 f_m(theta^{r,k}, w^{r,k+1})
            lr = rates(work, work.shared, shared_lr)
            model, loss_theta = sgd(work, model, [batch], lr=lr, options=options)
            total = total + (loss_theta if work.shared else loss_w)
            count = count + (batch["mask"].any() if "mask" in batch else 1.0)
        change = difference(work.parts(model)[0], received)  # line 9
        info = {"loss": total / count.clamp(min=1)}
        return ClientUpdate(change, client_weight(work, weighting, batch_size), info), state

    def adapt(work: Work, received: Params, state: Client) -> Client:
        return Client(work.parts(finetuned(work, received, state)[0])[1])

    return Algorithm(
        name="local_ffgg",
        phases={"personal": find.phase, "local": phase("", epochs, steps, batch_size, shuffle)},
        init_server=partial(averaging.init_server, optimiser),
        init_client=lambda shared, personal: Client(personal),
        broadcast=averaging.broadcast,
        client_update=client_update,
        aggregator=weighted_mean,  # line 11
        server_update=partial(averaging.server_update, optimiser),
        personal_model=lambda received, state: (received, state.personal),
        adapt=adapt,
        schedule=chosen_schedule(schedule),
        stateful=False,
    )
