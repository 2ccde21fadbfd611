"""Ditto: a shared model by FedAvg, and for each client a whole model of its own that is pulled towards it.

Li, Hu, Beirami, Smith. "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021. Algorithm 1,
with FedAvg for its global part, as in Algorithm 2: form ``joint``. In Pillutla et al. 2022, appendix B.2, Ditto is
finetuning with an l2 penalty towards a model trained by FedAvg, which stays as it is: form ``finetune``.

Client k minimises h_k(v; w) = F_k(v) + (lambda / 2) ||v - w||^2 by v <- v - eta (grad F_k(v) + lambda (v - w^t)).

Symbols: w^t ``received``; v_k ``state.shared``; lambda ``pull``; eta ``lr`` for w and ``personal_lr`` for v; s
``personal_steps`` or ``personal_epochs``; the local iterations on w ``steps`` or ``epochs``; S_t the cohort.

Reduces to local training where ``pull`` is 0, and to FedAvg (v = w) as it grows with ``personal_lr`` below 2 / pull.

Deviations from the paper:

1. The learning rates and the numbers of steps for w and v may differ, and each has a shuffle of its own; the authors'
   program takes the steps in turns on the same batches. Samples are drawn without replacement.
2. AGGREGATE is the mean weighted by examples, moved by the server's optimiser; the plain mean of Algorithm 2 is
   ``weighting="uniform"``. Robust aggregators are not offered here.
3. lambda is one number for all clients. The penalty printed in appendix B.2 of Pillutla et al. has no 1/2 (their
   equation (2) has): their lambda is ``pull`` = 2 lambda.
4. v_k^0 is w^0. A client that was never asked has no model of its own to show: it is evaluated with the shared one.
   A client that is onboarded starts from the w it receives, at the full learning rate.
5. Options the pseudocode does not have, all off by default: momentum, weight decay, clipping, schedules. What is
   clipped is the gradient of F_k, before the pull is added. A client whose update is not finite is left out of the
   round.
6. In form ``finetune`` a round finetunes the clients of its cohort, and nothing goes up; one round with all clients is
   appendix B.2.
7. Running statistics of BatchNorm, which the paper does not have, are v_k's where they are the client's own.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from moiety.clients.own import Own, never_asked, own_model
from moiety.errors import choice, must, number
from moiety.local import SgdOptions, difference, phase, positive_lr, rates, sgd
from moiety.local.schedules import chosen as chosen_schedule
from moiety.server import averaging, check_weighting, client_weight, weighted_mean
from moiety.server.optimisers import chosen as chosen_server
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Work

FORMS = ("joint", "finetune")


@recorded
def ditto(
    *,
    personal_lr: float,
    pull: float,
    lr: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    personal_epochs: int | None = None,
    personal_steps: int | None = None,
    batch_size: int = 32,
    shuffle: bool = True,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    clip: float | None = None,
    weighting: str = "examples",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
    form: str = "joint",
) -> Algorithm:
    """Ditto: FedAvg, and whole personal models pulled towards it (Li et al. 2021).

    Args:
        personal_lr: learning rate of the personal model, eta.
        pull: lambda, how strongly the personal model is held to the shared one; 0 is local training.
        lr: learning rate of the shared model on clients; with form ``joint`` only, and the next two as well.
        epochs: passes over the client's data for the shared model; 1 where neither this nor the next is given.
        steps: or a number of steps.
        personal_epochs: passes for the personal model; 1 where neither this nor the next is given.
        personal_steps: or a number of steps, s.
        batch_size: examples per step; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty, towards 0, on the model being trained.
        momentum: of the client's SGD, from 0 for each model and round.
        clip: largest norm of the loss's gradient.
        weighting: of the clients in the mean, by ``examples``, ``batches`` or ``uniform``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the client learning rates across rounds; constant by default.
        form: ``joint`` trains the shared model too; ``finetune`` leaves it as it is given, and nothing is sent.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    choice("form", form, FORMS)
    joint = form == "joint"
    positive_lr("personal_lr", personal_lr)
    number("pull", pull, ">= 0 and finite", lambda x: 0 <= x < math.inf)
    check_weighting(weighting)
    if not joint:
        own: dict[str, object] = {"lr": lr, "epochs": epochs, "steps": steps, "server": server}
        own |= {} if weighting == "examples" else {"weighting": weighting}
        for name, value in own.items():
            must(value is None, name, "left out with form='finetune'", value, "There the server never moves.")
    must(lr is not None or not joint, "lr", "given with form='joint'", "nothing", "It trains the shared model.")
    shared_lr = personal_lr if lr is None else lr
    positive_lr("lr", shared_lr)
    options = SgdOptions(momentum, weight_decay, clip)
    optimiser = chosen_server(server)

    def local_w(work: Work, received: Params, state: Own) -> Params:
        """Inexact solution of G_k, started from w^t: the change that goes up."""
        # w_k^t <- w_k^t - eta grad F_k(w_k^t)
        model = work.compose(received, state.personal)
        lr = rates(work, work.shared, shared_lr)
        model, _ = sgd(work, model, work.batches("shared"), lr=lr, options=options)
        return difference(work.parts(model)[0], received)

    def local_v(work: Work, received: Params, model: Params, state: Own) -> tuple[Own, Tensor]:
        """Inexact solution of h_k(v_k; w^t), started from ``model``, and the mean loss on the way."""
        # v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t)), s times
        lr = rates(work, work.shared, personal_lr)
        model, loss = sgd(work, model, work.batches("personal"), lr=lr, options=options, pull=(pull, received))
        return Own(*work.parts(model), torch.ones_like(state.asked)), loss

    def client_update(work: Work, received: Params, state: Own) -> tuple[ClientUpdate, Own]:
        change = local_w(work, received, state) if joint else {}
        after, loss = local_v(work, received, work.compose(state.shared, state.personal), state)
        return ClientUpdate(change, client_weight(work, weighting, batch_size), {"loss": loss}), after

    def adapt(work: Work, received: Params, state: Own) -> Own:
        return local_v(work, received, work.compose(*own_model(received, state)), state)[0]

    phases = {"shared": phase("", epochs, steps, batch_size, shuffle)} if joint else {}
    phases["personal"] = phase("personal_", personal_epochs, personal_steps, batch_size, shuffle)
    return Algorithm(
        name="ditto",
        phases=phases,
        init_server=partial(averaging.init_server, optimiser),
        init_client=never_asked,  # v_k^0 = w^0
        broadcast=averaging.broadcast,
        client_update=client_update,
        aggregator=weighted_mean,
        server_update=partial(averaging.server_update, optimiser) if joint else lambda server, change: server,
        personal_model=own_model,
        adapt=adapt,
        schedule=chosen_schedule(schedule),
        default_split="nothing",
        needs="nothing",
        uploads=joint,
    )
