"""pFedMe: the shared model minimises the mean of the clients' Moreau envelopes; theirs are the proximal points.

Dinh, Tran, Nguyen. "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1. A baseline of
Pillutla et al. 2022, where its problem is equation (2).

    min_w sum_i alpha_i F_i(w),  F_i(w) = min_theta f_i(theta) + (lambda / 2) ||theta - w||^2

The minimiser theta_i(w) is client i's model, and grad F_i(w) = lambda (w - theta_i(w)).

Symbols: w^t what is received; theta_i ``state.shared``; eta, R and |D| the learning rate, length and batch size of
``shared``; lambda ``personal.pull``; K, the steps that solve for theta, ``personal.steps``; beta
``server=moiety.server.sgd(lr=beta)``, 1 by default; S_t the cohort.

Reduces to FedAvg of learning rate eta lambda ``personal.lr`` where R and K are 1: theta starts at w, where the pull is
0.

Deviations from the paper:

1. A client sends the change w_{i,R} - w instead of w_{i,R}. With SGD of learning rate beta as the server's optimiser,
   the result is line 10, up to rounding. Other server optimisers can be used too.
2. The mean is weighted by examples, as in the authors' program and in Pillutla et al. 2022 (alpha_i). For the
   unweighted mean of line 10, set ``weighting="uniform"``.
3. Line 7 asks for theta up to an accuracy delta. Here, as in the authors' program, theta takes K gradient steps on one
   minibatch. They start where those on the minibatch before ended, in each round at w^t. That program adds a weight
   decay of 0.001, which is an option here.
4. Minibatches are drawn without replacement, in freshly shuffled epochs.
5. Only the clients of the cohort work, and the theta_i of the others do not change. In the paper all clients work (line
   4), and some send their result (line 9). The server computes the same. A client that never took part is evaluated
   with the shared model.
6. Options that the pseudocode does not have, all off by default: momentum and weight decay in the steps for theta,
   clipping of the gradient of f_i in them, schedules (for both learning rates). A client whose update is not finite is
   left out of the round.
7. Running statistics of BatchNorm, which the paper does not have, are those of the steps for theta.
8. A new client gets theta_i by line 7 on each of its R minibatches at the full learning rate, with w fixed at the one
   received.
"""

from __future__ import annotations

from torch import Tensor

from moiety.errors import must
from moiety.local import (
    Optimiser,
    OwnModel,
    begin_own_model,
    difference,
    fold,
    keep_own_model,
    optimiser_work,
    own_model,
    sgd_work,
    train,
)
from moiety.server.averaging import assemble, client_weights
from moiety.spec import recorded
from moiety.types import Algorithm, Batch, ClientUpdate, Params, Schedule, ServerOptimiser, Work


@recorded
def pfedme(
    *,
    shared: float | Optimiser,
    personal: Optimiser,
    weighting: str = "examples",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """PFedMe: a shared model, and its proximal point for each client (Dinh et al. 2020).

    Args:
        shared: local work on the shared model: eta, or ``moiety.sgd(eta, steps=R, batch_size=|D|)``.
        personal: how theta is found on each batch, ``moiety.sgd(lr, steps=K, pull=lambda)``; K is 5 by default.
        weighting: of the clients in the mean, by ``examples``, ``batches`` or ``uniform``.
        server: the server's optimiser; plain averaging by default.
        schedule: of both client learning rates across rounds; constant by default.
    """
    shared_sgd = sgd_work("shared", shared, without=("weight_decay", "pull", "clip"))
    unsupported = ("epochs", "batch_size", "shuffle", "accumulate", "keep_state")
    personal_optimiser = optimiser_work("personal", personal, epochs=None, steps=5, without=unsupported)
    lr, pull, K = shared_sgd.lr, personal_optimiser.pull, personal_optimiser.steps or 0
    must(pull > 0, "personal.pull", "> 0", pull, "It holds theta to the shared model.")
    weight = client_weights(weighting, shared_sgd.rows)

    def find_proximal(work: Work, theta: Params, w: Params, batch: Batch) -> tuple[Params, Tensor]:
        # Line 7: K steps on f_i(theta; D) + (lambda / 2) ||theta - w||^2, and the mean loss f_i on the way
        return train(work, theta, [batch] * K, {work.shared: personal_optimiser}, centre=w)

    def client_update(work: Work, received: Params, state: OwnModel) -> tuple[ClientUpdate, OwnModel]:
        def step(now: tuple[Params, Params], batch: Batch) -> tuple[tuple[Params, Params], Tensor]:
            theta, w = now
            theta, loss = find_proximal(work, theta, w, batch)
            # Line 8: w_{i,r+1} = w_{i,r} - eta lambda (w_{i,r} - theta_i)
            w = {n: p - lr * work.scale * pull * (p - theta[n]) for n, p in w.items()}
            return (theta, w), loss

        start = work.compose(received, state.personal), {n: received[n] for n in work.shared}  # line 5
        (theta, w), loss = fold(work, work.batches("local"), step, start)  # line 6
        change = difference({**work.parts(theta)[0], **w}, received)  # line 9
        return ClientUpdate(change, weight(work), {"loss": loss}), keep_own_model(work, theta, state)

    def adapt(work: Work, received: Params, state: OwnModel) -> OwnModel:
        theta = work.compose(*own_model(received, state))
        for batch in work.batches("local"):
            theta, _ = find_proximal(work, theta, received, batch)
        return keep_own_model(work, theta, state)

    return assemble(
        phases={"local": shared_sgd.phase},
        init_client=begin_own_model,
        client_update=client_update,
        personal_model=own_model,
        adapt=adapt,
        server=server,  # line 10
        schedule=schedule,
        default_split="nothing",
    )
