"""Per-FedAvg: a shared model that is a good start, from which one gradient step makes each client's own.

Fallah, Mokhtari, Ozdaglar. "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach", NeurIPS 2020, Algorithm 1.

    min_w (1/n) sum_i F_i(w),  F_i(w) = f_i(w - alpha grad f_i(w))
    grad F_i(w) = (I - alpha grad^2 f_i(w)) grad f_i(w - alpha grad f_i(w))

Symbols: w_k what is received; alpha ``personal.lr``; beta and tau the learning rate and length of ``shared``; D, D' and
D'' the batches of the phases ``inner``, ``outer`` and ``curvature``; rn the cohort. w_i = w - alpha grad f_i(w), the
client's model, is ``state.shared`` once it has adapted.

Reduces to FedAvg as alpha goes to 0. The form ``first_order`` leaves the Hessian out (the paper's Per-FedAvg (FO)).

Deviations from the paper:

1. The product of the Hessian and the gradient is exact, by differentiating twice. The paper's Per-FedAvg (HF) takes a
   difference of two gradients, (grad f(w + delta g) - grad f(w - delta g)) / (2 delta). The exact product is the limit
   of this, costs the same, and needs no delta.
2. D, D' and D'' are independent in the paper. Here each has its own freshly shuffled epochs, drawn without replacement.
   A client with fewer examples than a batch has the same ones in all three.
3. A client sends the change w_i - w instead of w_i, so that the server can use any optimiser.
4. Options that the pseudocode does not have, all off by default: weight decay and clipping of the step on w, schedules
   (of beta alone), other weightings than the unweighted mean, several steps for a client's own model. A client whose
   update is not finite is left out of the round.
5. Clients keep nothing. A client makes its own model when it is evaluated, by ``personal.steps`` steps from the newest
   shared model, on its training data. New clients do the same. The paper's step uses the gradient on all of the
   client's data. Here a step uses one batch of ``batch_size`` examples.
6. Running statistics of BatchNorm, which the paper does not have, are those of the forward passes at w - alpha grad
   f_i(w), the model that predicts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moiety.errors import choice, report_errors
from moiety.local import (
    Optimiser,
    OwnModel,
    begin_own_model,
    clip_gradients,
    difference,
    fold,
    gradient_at,
    hessian_product,
    keep_own_model,
    own_model,
    sgd_work,
    train,
)
from moiety.server.averaging import assemble, client_weights
from moiety.spec import recorded
from moiety.types import Algorithm, Batch, ClientUpdate, Params, Phase, Schedule, ServerOptimiser, Work

FORMS = ("hessian_vector", "first_order")
TWICE = "one that can be differentiated twice for form='hessian_vector'"


@recorded
def per_fedavg(
    *,
    shared: float | Optimiser,
    personal: float | Optimiser,
    form: str = "hessian_vector",
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Per-FedAvg: a shared model to take one step from (Fallah et al. 2020).

    Args:
        shared: local work on the shared model: beta, or ``moiety.sgd(beta, steps=tau)``; ``clip`` is of grad F_i. With
            ``shuffle=False`` all batches of a step are the same.
        personal: the step to a client's own model: alpha, or ``moiety.sgd(alpha, steps=k)`` for k steps where a client
            is evaluated or onboarded; training looks one ahead. Batches are as those of ``shared``.
        form: ``hessian_vector``, or ``first_order`` without the second derivative.
        weighting: of the clients in the mean, by ``uniform``, ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of beta across rounds; constant by default.
    """
    shared_sgd = sgd_work("shared", shared)
    unsupported = ("epochs", "batch_size", "shuffle", "weight_decay", "pull", "clip")
    personal_sgd = sgd_work("personal", personal, epochs=None, steps=1, without=unsupported)
    choice("form", form, FORMS)
    beta, decay, alpha = shared_sgd.lr, shared_sgd.weight_decay, personal_sgd.lr
    weight = client_weights(weighting, shared_sgd.rows)
    phases = ("inner", "outer") if form == "first_order" else ("inner", "outer", "curvature")

    def look_ahead(work: Work, model: Params, batches: tuple[Batch, ...]) -> tuple[Params, Tensor, Params]:
        """The gradient of F_i at the model, the loss one step ahead, and the buffers that the pass there changed."""
        # One step ahead: w~ = w - alpha grad f_i(w; D)
        g = gradient_at(work, model, work.shared, batches[:1])[0]
        ahead = {**model, **{n: model[n] - alpha * g[n] for n in work.shared}}
        # The gradient of F_i: (I - alpha grad^2 f_i(w; D'')) grad f_i(w~; D')
        g, loss, buffers = gradient_at(work, ahead, work.shared, batches[1:2])
        for batch in batches[2:]:
            with report_errors("model", TWICE, RuntimeError, hint="Use form='first_order'."):
                product = hessian_product(work, model, g, batch)
            g = {n: g[n] - alpha * product[n] for n in work.shared}
        return g, loss, buffers

    def client_update(work: Work, w: Params, state: OwnModel) -> tuple[ClientUpdate, OwnModel]:
        def step(model: Params, batches: tuple[Batch, ...]) -> tuple[Params, Tensor]:
            g, loss, buffers = look_ahead(work, model, batches)
            g = clip_gradients(g, shared_sgd.clip)
            new = {n: model[n] - beta * work.scale * (g[n] + decay * model[n]) for n in work.shared}
            return {**model, **buffers, **new}, loss

        streams = zip(*map(work.batches, phases), strict=True)
        model, loss = fold(work, streams, step, work.compose(w, state.personal))
        return ClientUpdate(difference(work.parts(model)[0], w), weight(work), {"loss": loss}), state

    def adapt(work: Work, w: Params, state: OwnModel) -> OwnModel:
        # w_i = w - alpha grad f_i(w)
        model = work.compose(*own_model(w, state))
        model, _ = train(work, model, work.batches("personal"), {work.shared: personal_sgd})
        return keep_own_model(work, model, state)

    def init_client(shared: Params, personal: Params) -> OwnModel:
        """The state of every client in training: the place where its own model will be."""
        return begin_own_model({n: torch.zeros_like(p) for n, p in shared.items()}, personal)

    local = shared_sgd.phase
    return assemble(
        phases={**dict.fromkeys(phases, local), "personal": Phase(None, personal_sgd.steps, *local[2:4])},
        init_client=init_client,
        client_update=client_update,
        personal_model=own_model,
        adapt=adapt,
        server=server,
        schedule=schedule,
        stateful=False,
        default_split="nothing",
    )
