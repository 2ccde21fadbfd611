"""pFedMe: the shared model minimises the mean of the clients' Moreau envelopes; theirs are the proximal points.

Dinh, Tran, Nguyen. "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1. A baseline of
Pillutla et al. 2022, where its problem is equation (2).

    min_w sum_i alpha_i F_i(w),  F_i(w) = min_theta f_i(theta) + (lambda / 2) ||theta - w||^2

The minimiser theta_i(w) is client i's model, and grad F_i(w) = lambda (w - theta_i(w)).

Symbols: w^t ``received``; theta_i ``state.shared``; lambda ``pull``; eta ``lr``; R ``steps`` or ``epochs``; |D|
``batch_size``; K, the steps that solve for theta, ``inner_steps`` at the rate ``personal_lr``; beta
``server=moiety.server.sgd(lr=beta)``, 1 by default; S_t the cohort.

Reduces to FedAvg of learning rate lr pull personal_lr where R and K are 1: theta starts at w, where the pull is 0.

Deviations from the paper:

1. A client sends w_{i,R} - w instead of w_{i,R}. With a server of SGD and learning rate beta the sum is that of line 10
   in exact arithmetic, so beta needs no option of its own; other server optimisers may be used too.
2. The mean is weighted by examples, as in the authors' program and as alpha_i in Pillutla et al. 2022; the plain mean
   of line 10 is ``weighting="uniform"``.
3. Line 7 asks for theta up to an accuracy delta. Here, as in the authors' program, it is K gradient steps on one
   minibatch, started where those on the minibatch before ended, and at w^t in the beginning of a round. Their program
   adds a weight decay of 0.001 to these steps, which is an option here.
4. Minibatches are drawn without replacement, from epochs each freshly shuffled.
5. Only the clients of the cohort work (line 4: all do, and line 9 asks some for their result). What the server computes
   is the same; theta_i of the others stays as it was. A client that was never asked is evaluated with the shared model.
6. Options the pseudocode does not have, all off by default: momentum and weight decay in the steps for theta, clipping
   of the gradient of f_i there before the pull is added, schedules (for both learning rates). A client whose update is
   not finite is left out of the round.
7. Running statistics of BatchNorm, which the paper does not have, are those of the steps for theta.
8. A client never seen gets theta_i by line 7 on each of its R minibatches with w fixed at the one received, at the full
   learning rate.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from moiety.clients.own import Own, never_asked, own_model
from moiety.errors import number, whole
from moiety.local import SgdOptions, difference, either, phase, positive_lr, rates, sgd
from moiety.local.schedules import chosen as chosen_schedule
from moiety.server import averaging, check_weighting, client_weight, weighted_mean
from moiety.server.optimisers import chosen as chosen_server
from moiety.spec import recorded
from moiety.types import Algorithm, Batch, ClientUpdate, Params, Schedule, ServerOptimiser, Work


@recorded
def pfedme(
    *,
    lr: float,
    personal_lr: float,
    pull: float,
    inner_steps: int = 5,
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
    """PFedMe: a shared model, and its proximal point for each client (Dinh et al. 2020).

    Args:
        lr: learning rate of the shared model on clients, eta.
        personal_lr: learning rate of the steps for the personal model.
        pull: lambda, how strongly the personal model is held to the shared one.
        inner_steps: K, the steps for the personal model on each minibatch.
        epochs: passes over the client's data; 1 where neither this nor the next is given.
        steps: or a number of minibatches, R.
        batch_size: examples per minibatch; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty, towards 0, on the personal model.
        momentum: of the steps for the personal model, from 0 on each minibatch.
        clip: largest norm of the loss's gradient.
        weighting: alpha_i, by ``examples``, ``batches`` or ``uniform``.
        server: the server's optimiser, ``moiety.server.sgd(lr=beta)``; plain averaging (beta = 1) by default.
        schedule: of the client learning rates across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    positive_lr("personal_lr", personal_lr)
    number("pull", pull, "> 0 and finite", lambda x: 0 < x < math.inf)
    whole("inner_steps", inner_steps, 1)
    check_weighting(weighting)
    options = SgdOptions(momentum, weight_decay, clip)
    optimiser = chosen_server(server)

    def proximal(work: Work, theta: Params, w: Params, batch: Batch) -> tuple[Params, Tensor]:
        """Line 7: K steps on f_i(theta; D) + (lambda / 2) ||theta - w||^2, and the mean loss f_i on the way."""
        rate = rates(work, work.shared, personal_lr)
        return sgd(work, theta, [batch] * inner_steps, lr=rate, options=options, pull=(pull, w))

    def client_update(work: Work, received: Params, state: Own) -> tuple[ClientUpdate, Own]:
        theta = work.compose(received, state.personal)
        w = {name: received[name] for name in work.shared}  # line 5
        losses, reals = [], []
        for batch in work.batches("local"):  # line 6
            theta, loss = proximal(work, theta, w, batch)
            # Line 8: w_{i,r+1} = w_{i,r} - eta lambda (w_{i,r} - theta_i); a minibatch of padding moves nothing.
            real = batch["mask"].any() if "mask" in batch else torch.ones_like(work.examples, dtype=torch.bool)
            w = either(real, {n: p - lr * work.scale * pull * (p - theta[n]) for n, p in w.items()}, w)
            losses.append(loss)
            reals.append(real)
        own, statistics = work.parts(theta)
        change = difference({**own, **w}, received)  # line 9
        info = {"loss": torch.stack(losses).sum() / torch.stack(reals).sum()}
        update = ClientUpdate(change, client_weight(work, weighting, batch_size), info)
        return update, Own(own, statistics, torch.ones_like(state.asked))

    def adapt(work: Work, received: Params, state: Own) -> Own:
        theta = work.compose(*own_model(received, state))
        for batch in work.batches("local"):
            theta, _ = proximal(work, theta, received, batch)
        return Own(*work.parts(theta), torch.ones_like(state.asked))

    return Algorithm(
        name="pfedme",
        phases={"local": phase("", epochs, steps, batch_size, shuffle)},
        init_server=partial(averaging.init_server, optimiser),
        init_client=never_asked,
        broadcast=averaging.broadcast,  # line 3
        client_update=client_update,
        aggregator=weighted_mean,  # line 10
        server_update=partial(averaging.server_update, optimiser),
        personal_model=own_model,
        adapt=adapt,
        schedule=chosen_schedule(schedule),
        default_split="nothing",
        needs="nothing",
    )
